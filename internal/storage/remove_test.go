package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// descend makes n folders in each other and returns the deepest, open.
func descend(t *testing.T, in, name string, n int) int {
	t.Helper()
	at, err := unix.Open(in, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range n {
		if err == nil {
			err = unix.Mkdirat(at, name, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		var below int
		below, err = unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		at = below
	}
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func openHome(t *testing.T) (home *os.Root, path, outside string) {
	t.Helper()
	dir := t.TempDir()
	path, outside = filepath.Join(dir, "home"), filepath.Join(dir, "other")
	for _, d := range []string{path, outside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "kept"), []byte("ben's"), 0o600); err != nil {
		t.Fatal(err)
	}
	home, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = home.Close() })
	return home, path, outside
}

// Somebody who makes a tree deeper than gpulab may open files, and deletes it on their page, must not take those files
// from everybody.
func TestRemoveHoldsFewFoldersOpen(t *testing.T) {
	home, path, outside := openHome(t)
	deepest := descend(t, path, "d", 3000)
	if err := errors.Join(unix.Symlinkat(outside, deepest, "out"), unix.Mkfifoat(deepest, "pipe", 0o600), unix.Close(deepest)); err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := remove(t.Context(), home, "d")
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := home.Lstat("d"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}

// The owner swaps folders for links to somebody else's while they are deleted.
func TestRemoveIsLedNowhereWhileItsOwnerSwaps(t *testing.T) {
	for round := range 20 {
		home, path, outside := openHome(t)
		for i := range 20 {
			below := filepath.Join(path, "work", strconv.Itoa(i), "a", "b")
			if err := errors.Join(os.MkdirAll(below, 0o700), os.WriteFile(filepath.Join(below, "kept"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n := range 500 {
				at := filepath.Join(path, "work", strconv.Itoa(n%20), "a")
				aside := filepath.Join(path, "aside"+strconv.Itoa(n))
				_ = os.Rename(at, aside)
				_ = os.Symlink(outside, at)
				_ = os.Remove(at)
				_ = os.Rename(aside, at)
			}
		}()
		for range 5 {
			_ = remove(t.Context(), home, "work") // what is moved meanwhile may be left
		}
		<-done
		if got, err := os.ReadFile(filepath.Join(outside, "kept")); err != nil || string(got) != "ben's" {
			t.Fatalf("round %d: %q, %v", round, got, err)
		}
	}
}

// Somebody who makes files faster than they are deleted keeps nobody busy for ever.
func TestRemoveGivesUp(t *testing.T) {
	home, path, _ := openHome(t)
	busy := filepath.Join(path, "work", "busy")
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				_ = os.Mkdir(busy, 0o700)
				_ = os.WriteFile(filepath.Join(busy, "x"), nil, 0o600)
			}
		}
	}()
	_ = remove(t.Context(), home, "work")
	close(end)
	<-ended
	if err := remove(t.Context(), home, "work"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
