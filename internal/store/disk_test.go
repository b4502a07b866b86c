package store

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/diskspace"
)

// smallDisk mounts a file system of that size, such as "8m".
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes the last byte of a disk, and returns how to give it all back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func intact(t *testing.T, dbs ...*sql.DB) {
	t.Helper()
	for _, db := range dbs {
		var verdict string
		if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Errorf("integrity: %s, %v", verdict, err)
		}
	}
}

// On a disk that is full to the last byte nothing is lost that was said to be kept; reading goes on; and it can be opened
// and closed there, and goes on by itself with more room.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, "8m")
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	insert := func() error {
		_, err := s.DB().Exec("INSERT INTO settings (key, value) VALUES (hex(randomblob(8)), ?)", strings.Repeat("x", 20_000))
		if err == nil {
			kept++
		}
		return err
	}
	count := func() (n int) {
		if err := s.DB().QueryRow("SELECT count(*) FROM settings WHERE length(value) = 20000").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 20 {
		if err := insert(); err != nil {
			t.Fatal(err)
		}
	}
	empty := fill(t, dir)
	for err = nil; err == nil && kept < 2000; err = insert() {
	}
	if !Full(err) {
		t.Fatalf("writing gave %v", err)
	}
	if count() != kept {
		t.Errorf("%d rows, want %d", count(), kept)
	}
	intact(t, s.DB(), s.Metrics())
	// A restart meets the same disk.
	if err := s.Close(); err != nil && !Full(err) {
		t.Errorf("closing: %v", err)
	}
	if s, err = Open(t.Context(), dir); err != nil {
		// Without any room there may be none for the write-ahead log; what is there must be whole all the same.
		if !Full(err) && !strings.Contains(err.Error(), "full") && !strings.Contains(err.Error(), "disk I/O error") {
			t.Errorf("opening: %v", err)
		}
		empty()
		if s, err = Open(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	} else {
		empty()
	}
	t.Cleanup(func() { _ = s.Close() })
	if count() != kept {
		t.Errorf("after a restart %d rows, want %d", count(), kept)
	}
	if err := insert(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	intact(t, s.DB(), s.Metrics())
}

func TestReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t, "8m")
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	var unfit *diskspace.UnfitError
	if _, err := Open(context.Background(), dir); !errors.As(err, &unfit) || !strings.Contains(err.Error(), dir+": its file system is mounted read-only") {
		t.Errorf("opening gave %v", err)
	}
}
