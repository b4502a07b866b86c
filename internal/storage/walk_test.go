package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func noPause(time.Duration) {}

func fill(t testing.TB, path string, bytes int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A tree as somebody makes it who wants to be measured wrongly: what counts is what the disk has lost.
func TestWalk(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	fill(t, filepath.Join(outside, "big"), 64<<20)
	fill(t, filepath.Join(dir, "a", "file"), 3<<20)
	fill(t, filepath.Join(dir, "a", "b", "c", "other"), 2<<20)
	fill(t, filepath.Join(dir, "empty"), 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Link(filepath.Join(dir, "a", "file"), filepath.Join(dir, "again")))
	must(os.Symlink(outside, filepath.Join(dir, "to-folder")))
	must(os.Symlink(filepath.Join(outside, "big"), filepath.Join(dir, "a", "to-file")))
	must(os.Symlink(".", filepath.Join(dir, "a", "loop")))
	must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o600))
	must(os.Truncate(filepath.Join(dir, "sparse"), 1<<40))
	must(os.Mkdir(filepath.Join(dir, "a", "mounted"), 0o755))
	must(unix.Mount(outside, filepath.Join(dir, "a", "mounted"), "", unix.MS_BIND, "")) // same file system: counts, as du has it
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "a", "mounted"), 0) })
	must(os.Mkdir(filepath.Join(dir, "memory"), 0o755))
	must(unix.Mount("tmpfs", filepath.Join(dir, "memory"), "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "memory"), 0) })
	fill(t, filepath.Join(dir, "memory", "not on this disk"), 8<<20)
	must(unix.Unmount(filepath.Join(dir, "a", "mounted"), 0))

	got, err := walk(t.Context(), dir, noPause, nil, nil)
	must(err)
	if mib := got.bytes >> 20; mib != 5 || got.files != 14 {
		t.Errorf("%d bytes in %d files", got.bytes, got.files)
	}
	var list []string
	for _, e := range got.largest {
		if e.Bytes >= 1<<20 {
			list = append(list, fmt.Sprintf("%s %d %t", e.Path, e.Bytes>>20, e.Folder))
		}
	}
	// The root is read before what is in it, so "again" is the name under which that file counts.
	if strings.Join(list, ", ") != "again 3 false, a 2 true, a/b 2 true, a/b/c 2 true, a/b/c/other 2 false" {
		t.Errorf("the largest: %v", list)
	}
}

// Deeper than a path can be long, and wider than one read: counted, with one folder open at a time.
func TestWalkDeepAndWide(t *testing.T) {
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		if err := unix.Mkdirat(at, "deep", 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(at, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(at)
		at = below
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	_ = unix.Close(at)
	for i := range 3000 {
		fill(t, filepath.Join(dir, "wide", strconv.Itoa(i)), 1)
	}
	before, _ := os.ReadDir("/proc/self/fd")
	got, err := walk(t.Context(), dir, func(time.Duration) {
		if now, _ := os.ReadDir("/proc/self/fd"); len(now) > len(before)+5 {
			t.Errorf("%d files are open, and %d were before", len(now), len(before))
		}
	}, nil, nil)
	if err != nil || got.files != 6002 || got.bytes < 1<<20+3000*4096 {
		t.Errorf("%d bytes in %d files, %v", got.bytes, got.files, err)
	}
	if _, err := os.Stat(dir); err != nil { // Cleanup cannot go as deep
		t.Fatal(err)
	}
}

// Folders that are moved while they are read are noticed: the walk never goes up elsewhere than it came from.
func TestWalkOfWhatMoves(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	fill(t, filepath.Join(dir, "a", "b", "file"), 1)
	fill(t, filepath.Join(outside, "big"), 64<<20)
	moved := false
	_, err := walk(t.Context(), dir, noPause, func(fd int) error {
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && filepath.Base(path) == "b" {
			moved = true
			err = os.Rename(filepath.Join(dir, "a", "b"), filepath.Join(outside, "b"))
		}
		return err
	}, nil)
	if !moved || !errors.Is(err, errMoving) {
		t.Errorf("moved %t: %v", moved, err)
	}
}

func TestWalkEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		fill(t, filepath.Join(dir, strconv.Itoa(i), "file"), 1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := walk(ctx, dir, noPause, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// BenchmarkWalk measures a home of 10,000 files in 100 folders, without its pauses.
func BenchmarkWalk(b *testing.B) {
	dir := b.TempDir()
	for i := range 10000 {
		fill(b, filepath.Join(dir, strconv.Itoa(i%100), strconv.Itoa(i)), 100)
	}
	for b.Loop() {
		if _, err := walk(b.Context(), dir, noPause, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}
