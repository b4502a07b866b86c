package backup

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// testLab is the data folder and configuration of a lab that does not run.
type testLab struct {
	dir, data, config string
}

// newLab makes one with a person, whose home is homes/1; mark is in everything that is saved.
func newLab(t *testing.T, mark string) *testLab {
	t.Helper()
	l := &testLab{dir: t.TempDir()}
	l.data, l.config = filepath.Join(l.dir, "data"), filepath.Join(l.dir, "etc", "config.yaml")
	s, err := store.Open(t.Context(), l.data)
	must(t, err)
	_, err = users.New(s.DB()).Create(t.Context(), users.NewUser{Handle: "ada", Name: mark})
	must(t, err)
	must(t, s.SetSetting(t.Context(), "mark", mark))
	must(t, s.Close())
	for path, mode := range map[string]fs.FileMode{
		l.config: 0o644, filepath.Join(l.dir, "etc", "university.secret"): 0o600, filepath.Join(l.data, "metrics-token"): 0o600,
		filepath.Join(l.data, "tls", "ca.crt"): 0o644, filepath.Join(l.data, "tls", "ca.key"): 0o600, filepath.Join(l.data, "homes", "1", "mark"): 0o644,
		filepath.Join(l.data, "hub", "hub.sqlite"): 0o600, filepath.Join(l.data, "k3s", "server", "db"): 0o600, filepath.Join(l.data, "identity.json"): 0o600,
	} {
		write(t, path, mark, mode)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), mode))
	must(t, os.Chmod(path, mode))
}

func (l *testLab) source(homes ...int64) Source {
	return Source{
		DataDir: l.data, Config: l.config, Beside: []string{"university.secret"}, Homes: homes,
		Manifest: Manifest{Version: "1.2.3", Lab: "Test lab", Host: "head", Made: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), People: 1},
	}
}

var quiet = Watch{Note: func(string, string) {}, Step: func(string, int64) {}}

// save makes a backup of it with the home.
func (l *testLab) save(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	_, _, err := Create(t.Context(), l.source(1), &out, quiet)
	must(t, err)
	return out.Bytes()
}

func accept(Manifest) error { return nil }

// restore puts a backup in the lab's place.
func (l *testLab) restore(ctx context.Context, archive []byte) (Placed, error) {
	stage, err := NewStage(ctx, l.data)
	if err != nil {
		return Placed{}, err
	}
	if _, _, err := stage.Unpack(ctx, bytes.NewReader(archive), accept, func(string, int64) {}); err != nil {
		return Placed{}, err
	}
	return stage.Place(ctx, l.placing())
}

func (l *testLab) placing() Placing {
	return Placing{Journal: l.config + ".restore", Config: l.config, Homes: map[int64]bool{1: true}, Folders: map[int64]bool{}, Now: time.Now()}
}

// marks reads the mark of everything that is saved, and "-" where it is not there.
func (l *testLab) marks(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, path := range []string{l.config, filepath.Join(l.dir, "etc", "university.secret"), filepath.Join(l.data, "metrics-token"),
		filepath.Join(l.data, "tls", "ca.crt"), filepath.Join(l.data, "tls", "ca.key"), filepath.Join(l.data, "homes", "1", "mark")} {
		data, err := os.ReadFile(path)
		if err != nil {
			data = []byte("-")
		}
		found[path] = string(data)
	}
	db, _, err := store.OpenExisting(t.Context(), filepath.Join(l.data, store.MainFile))
	if err != nil {
		found["database"] = "-"
		return found
	}
	defer db.Close()
	mark, err := store.Setting(t.Context(), db, "mark")
	must(t, err)
	found["database"] = mark
	return found
}

// all checks that everything carries one mark.
func (l *testLab) all(t *testing.T, want string) {
	t.Helper()
	for what, got := range l.marks(t) {
		if got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
