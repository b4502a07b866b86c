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
	if err := os.CopyFS(filepath.Join(root, "spegel"), os.DirFS("../k3s/spegel")); err != nil {
		t.Fatal(err)
	}
	return root, part{name: "k3s", dir: ".", patches: []patch{interruptedDumps, otherDatabases, registryOfNodes}}
}

// What gpulab does not use of k3s is not linked into it.
func TestK3sWithoutWhatIsNotUsed(t *testing.T) {
	root, p := k3sModule(t)
	modfile, remove, err := p.applyPatches(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	list, err := output(t.Context(), root, "go", "list", "-mod=readonly", "-modfile="+modfile, "-deps", "-tags", k3sTags,
		"github.com/k3s-io/k3s/pkg/cli/server", "github.com/k3s-io/k3s/pkg/cli/agent")
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{
		"github.com/libp2p/", "github.com/nats-io/", "github.com/go-sql-driver/mysql", "github.com/jackc/pgx/",
		"github.com/Mirantis/cri-dockerd/",
	} {
		if strings.Contains(list, module) {
			t.Errorf("k3s has packages of %s", module)
		}
	}
	if !strings.Contains(list, "github.com/k3s-io/kine/pkg/drivers/sqlite") {
		t.Error("k3s cannot use SQLite")
	}
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
	p.patches = []patch{{Module: "github.com/vishvananda/netlink", Folder: "was/there/once", By: "spegel"}}
	_, _, err = p.applyPatches(t.Context(), root)
	if err == nil || !strings.Contains(err.Error(), "it has no folder was/there/once") {
		t.Errorf("the build goes on without the other folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, patchedFolder)); !os.IsNotExist(err) {
		t.Errorf("the copies stay: %v", err)
	}
}
