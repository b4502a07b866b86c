package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A copy that is made while somebody writes is one moment of the database.
func TestCopyWhileWriting(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ { // both, or neither
			tx, err := s.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			for _, key := range []string{"a", "b"} {
				if _, err := tx.Exec(`INSERT INTO settings (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2`, key, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
	})
	main, _ := Known()
	for i := range 10 {
		to := filepath.Join(dir, fmt.Sprintf("copy%d.db", i))
		schema, err := Copy(t.Context(), filepath.Join(dir, MainFile), to)
		if err != nil || schema != main {
			t.Fatalf("schema %d (this binary's is %d), %v", schema, main, err)
		}
		db, _, err := OpenExisting(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		var different int
		if err := db.QueryRow(`SELECT count(DISTINCT value) FROM settings WHERE key IN ('a', 'b')`).Scan(&different); err != nil || different > 1 {
			t.Errorf("a and b differ: %d, %v", different, err)
		}
		_ = db.Close()
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	stop()
	writer.Wait()
}

func TestOpenExisting(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := OpenExisting(t.Context(), filepath.Join(dir, MainFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it made %v", left)
	}
	junk := filepath.Join(dir, "junk.db")
	if err := os.WriteFile(junk, []byte("this is no database, and long enough to be asked"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenExisting(t.Context(), junk); !errors.Is(err, ErrDamaged) {
		t.Errorf("no database: %v", err)
	}
}
