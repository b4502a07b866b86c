package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newest is how many folders of one name stay in the cache: those of this checkout and of another one.
const newest = 2

// Kept returns a folder of the user's cache with what was made from the given text. The first caller makes it,
// whichever program that is, and others wait. Of each name the two that were used last are kept.
func Kept(t testing.TB, name, from string, fill func(folder string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	all := filepath.Join(cache, "gpulab", "test-"+name)
	if err := os.MkdirAll(all, 0o700); err != nil {
		t.Fatal(err)
	}
	unlock := Lock(t, filepath.Join(all, "lock"))
	defer unlock()
	sum := sha256.Sum256([]byte(from))
	folder := filepath.Join(all, hex.EncodeToString(sum[:8]))
	now := time.Now()
	if os.Chtimes(folder, now, now) == nil {
		return folder
	}
	for _, old := range olderThan(all, newest-1) {
		if err := os.RemoveAll(old); err != nil {
			t.Fatal(err)
		}
	}
	fresh := folder + ".new"
	if err := os.Mkdir(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	fill(fresh)
	if t.Failed() {
		t.FailNow()
	}
	if err := os.Rename(fresh, folder); err != nil {
		t.Fatal(err)
	}
	return folder
}

// olderThan lists what lies in a folder but for its lock and the n folders that were used last.
// One that somebody was making when they were interrupted is among them.
func olderThan(folder string, n int) []string {
	found, _ := filepath.Glob(filepath.Join(folder, "*"))
	used := map[string]time.Time{}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			used[path] = info.ModTime()
			if strings.HasSuffix(path, ".new") {
				used[path] = time.Time{}
			}
		}
	}
	var old []string
	for path := range used {
		old = append(old, path)
	}
	slices.SortFunc(old, func(a, b string) int { return used[b].Compare(used[a]) })
	return slices.DeleteFunc(old, func(path string) bool {
		return !used[path].IsZero() && slices.Index(old, path) < n
	})
}

// Lock waits until nobody else has the lock of a file, and takes it until unlock is called or the program ends.
func Lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatalf("lock %s: %v", path, err)
	}
	return func() { file.Close() }
}

// Contents is a text that differs when the contents of the files do.
func Contents(t testing.TB, paths ...string) string {
	t.Helper()
	hash := sha256.New()
	for _, path := range paths {
		file, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			t.Fatalf("there is no %s: run `go tool task build`", path)
		} else if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(hash, filepath.Base(path))
		if _, err := io.Copy(hash, file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	return hex.EncodeToString(hash.Sum(nil))
}
