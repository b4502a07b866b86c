package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// k3sModule is a folder with the module that k3s is built from.
func k3sModule(t *testing.T) (root string, p part) {
	t.Helper()
	root = t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("../k3s", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root, part{name: "k3s", dir: ".", patches: []patch{interruptedDumps}}
}

func TestPatchedModuleIsWhatIsBuilt(t *testing.T) {
	root, p := k3sModule(t)
	modfile, remove, err := p.applyPatches(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := output(t.Context(), root, "go", "list", "-mod=readonly", "-modfile="+modfile, "-f", "{{.Dir}}", "github.com/vishvananda/netlink/nl")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, patchedFolder, "netlink", "nl"); dir != want {
		t.Errorf("netlink comes from %s, want %s", dir, want)
	}
	if _, err := output(t.Context(), root, "go", "build", "-mod=readonly", "-modfile="+modfile, "-o", os.DevNull, "github.com/vishvananda/netlink/nl"); err != nil {
		t.Errorf("with the change it cannot be built: %v", err)
	}
	remove()
	if _, err := os.Stat(filepath.Dir(modfile)); !os.IsNotExist(err) {
		t.Errorf("the copies stay: %v", err)
	}
}

func TestPatchThatFitsNoMore(t *testing.T) {
	root, p := k3sModule(t)
	p.patches[0].From = "what stood there once"
	_, _, err := p.applyPatches(t.Context(), root)
	if err == nil || !strings.Contains(err.Error(), "0 times, not once") {
		t.Errorf("the build goes on without the change: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, patchedFolder)); !os.IsNotExist(err) {
		t.Errorf("the copies stay: %v", err)
	}
}
