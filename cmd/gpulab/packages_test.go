package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodes"
)

// Whoever asks the cache of models may show a token, which is not to cross a network in clear.
func TestModelCache(t *testing.T) {
	for what, c := range map[string]struct {
		cache     string
		encrypted bool
		others    int
		on        string
		want      bool
	}{
		"one machine":               {"50Gi", false, 0, "", true},
		"no cache":                  {"0", false, 0, "", false},
		"another machine":           {"50Gi", false, 1, "", false},
		"another, encrypted":        {"50Gi", true, 1, "", true},
		"kept to the head":          {"50Gi", false, 1, "labhead", true},
		"kept to another":           {"50Gi", false, 1, "gpu-two", false},
		"no cache though encrypted": {"0", true, 1, "labhead", false},
	} {
		cfg, err := loadConfig(writeConfig(t, "models: {cache: "+c.cache+"}\n"))
		mustDo(t, err)
		l := &appliance{cfg: cfg, id: embedk8s.Identity{NodeName: "labhead"}, pool: &pool{}}
		l.cfg.Network.Encrypt = c.encrypted
		for range c.others {
			l.pool.members = append(l.pool.members, nodes.Node{Name: "gpu-two"})
		}
		if got := l.modelCache(c.on) != ""; got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// A folder is gpulab's to fill only where nobody else has put something into it.
func TestOwnedBy(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives folders to others")
	}
	dir := t.TempDir()
	theirs, empty, link := filepath.Join(dir, "theirs"), filepath.Join(dir, "empty"), filepath.Join(dir, "link")
	for _, folder := range []string{theirs, empty} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(theirs, "mine.safetensors"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(empty, link); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{filepath.Join(dir, "new"), empty, empty} {
		if err := ownedBy(folder, packagesUID); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", folder, info.Mode(), err)
		}
	}
	for _, folder := range []string{theirs, link} {
		if err := ownedBy(folder, packagesUID); err == nil {
			t.Errorf("%s was taken", folder)
		}
	}
}
