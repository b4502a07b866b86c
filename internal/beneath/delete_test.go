package beneath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// hostileHome is ada's home as somebody leaves it who wants to harm others, beside ben's home.
func hostileHome(t *testing.T, homes string) {
	t.Helper()
	home, outside := filepath.Join(homes, "7"), filepath.Join(homes, "8")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(outside, "folder"), 0o700))
	must(os.WriteFile(filepath.Join(outside, "file"), []byte("ben's"), 0o600))
	must(os.WriteFile(filepath.Join(outside, "folder", "file"), []byte("ben's too"), 0o600))
	must(os.MkdirAll(filepath.Join(home, "work", "empty"), 0o700))
	for name, to := range map[string]string{"to-file": filepath.Join(outside, "file"), "to-folder": outside, "up": "../8", "root": "/", "self": ".", "nowhere": "/none"} {
		must(os.Symlink(to, filepath.Join(home, name)))
		must(os.Symlink(to, filepath.Join(home, "work", name)))
	}
	must(os.Link(filepath.Join(outside, "file"), filepath.Join(home, "work", "hard")))
	must(syscall.Mkfifo(filepath.Join(home, "work", "pipe"), 0o600))
	must(os.WriteFile(filepath.Join(home, "work", "sealed"), nil, 0))
	must(os.MkdirAll(filepath.Join(home, "2", "3", "1"), 0o700)) // the names that the deletion itself gives
	must(os.WriteFile(filepath.Join(home, "2", "3", "2"), nil, 0o600))
	for i := range 2500 {
		must(os.WriteFile(filepath.Join(home, "work", fmt.Sprintf("%d\n*", i)), nil, 0o600))
	}
	// Deeper than a path can be long.
	at, err := unix.Open(home, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	for range 1200 {
		must(unix.Mkdirat(at, "deep", 0o700))
		below, err := unix.Openat(at, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		must(unix.Close(at))
		at = below
	}
	must(unix.Symlinkat(outside, at, "out"))
	must(unix.Close(at))
	must(os.Chmod(filepath.Join(home, "2"), 0o500))
}

func checkDeleted(t *testing.T, homes string) {
	t.Helper()
	entries, err := os.ReadDir(homes)
	if err != nil || len(entries) != 1 || entries[0].Name() != "8" {
		t.Errorf("left in the homes: %v, %v", entries, err)
	}
	for file, want := range map[string]string{"file": "ben's", "folder/file": "ben's too"} {
		if got, err := os.ReadFile(filepath.Join(homes, "8", file)); err != nil || string(got) != want {
			t.Errorf("ben's %s: %q, %v", file, got, err)
		}
	}
}

func TestDelete(t *testing.T) {
	homes := filepath.Join(t.TempDir(), "homes")
	hostileHome(t, homes)
	for range 2 { // the second time there is none
		if err := Delete(t.Context(), homes, "7"); err != nil {
			t.Fatal(err)
		}
		checkDeleted(t, homes)
	}
}

// interruption is a context that ends after it was asked some times whether it has.
type interruption struct {
	context.Context
	left int
}

func (i *interruption) Err() error {
	if i.left--; i.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestDeleteGoesOnAfterAnInterruption(t *testing.T) {
	homes := filepath.Join(t.TempDir(), "homes")
	hostileHome(t, homes)
	interrupted := 0
	for patience := 1; ; patience *= 2 {
		err := Delete(&interruption{t.Context(), patience}, homes, "7")
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		interrupted++
		if _, err := os.Lstat(filepath.Join(homes, "7")); !os.IsNotExist(err) {
			t.Errorf("a home that is half gone has its name still: %v", err)
		}
		if info, err := os.Lstat(filepath.Join(homes, ".purge-7")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("what is being deleted: %v, %v", info, err)
		}
	}
	if interrupted < 3 {
		t.Errorf("only %d interruptions: this test shows nothing", interrupted)
	}
	checkDeleted(t, homes)
}

func TestDeleteOfALink(t *testing.T) {
	homes := t.TempDir()
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(homes, "7")); err != nil {
		t.Fatal(err)
	}
	if err := Delete(t.Context(), homes, "7"); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(elsewhere); err != nil {
		t.Error(err)
	}
}

// BenchmarkDelete deletes a home of 10,000 files in 100 folders.
func BenchmarkDelete(b *testing.B) {
	homes := b.TempDir()
	for b.Loop() {
		b.StopTimer()
		for i := range 10000 {
			folder := filepath.Join(homes, "7", strconv.Itoa(i%100))
			if i < 100 {
				if err := os.MkdirAll(folder, 0o700); err != nil {
					b.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(folder, strconv.Itoa(i)), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		if err := Delete(b.Context(), homes, "7"); err != nil {
			b.Fatal(err)
		}
	}
}
