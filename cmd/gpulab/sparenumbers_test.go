package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Where homes of a former lab lie, a new one gives their numbers to nobody: whoever came first would have them.
func TestSpareNumbers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("giving files to others needs root")
	}
	dir := t.TempDir()
	for path, owner := range map[string]int{"homes/3": users.FirstUID + 7, "homes/2": users.FirstUID, "homes/lost+found": 0, "folders/5": 0} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	l := &appliance{cfg: config.Config{DataDir: dir}}
	var err error
	if l.store, err = store.Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.store.Close() }()
	l.people = users.New(l.store.DB())
	for _, handle := range []string{"ada", "ben"} {
		if err := l.spareNumbers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.people.Create(t.Context(), users.NewUser{Handle: handle, Role: users.RoleMember}); err != nil {
			t.Fatal(err)
		}
	}
	for id, handle := range map[int64]string{4: "ada", 5: "ben"} {
		u, err := l.people.ByID(t.Context(), id)
		if err != nil || u.Handle != handle || u.UID != users.FirstUID+4+int(id) {
			t.Errorf("account %d: %s with UID %d, %v", id, u.Handle, u.UID, err)
		}
	}
}
