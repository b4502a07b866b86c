package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// k3sModule is a folder with the module that k3s is built from.
func k3sModule(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("../k3s", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, change := range k3sPatches {
		if change.By == "" {
			continue
		}
		if err := os.CopyFS(filepath.Join(root, change.By), os.DirFS(filepath.Join("../k3s", change.By))); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// What gpulab does not use of k3s is not linked into it.
func TestK3sWithoutWhatIsNotUsed(t *testing.T) {
	root := k3sModule(t)
	modfile, remove, err := gobuild.ApplyPatches(t.Context(), root, k3sPatches)
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
	root := k3sModule(t)
	modfile, remove, err := gobuild.ApplyPatches(t.Context(), root, k3sPatches)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := output(t.Context(), root, "go", "list", "-mod=readonly", "-modfile="+modfile, "-f", "{{.Dir}}", "github.com/vishvananda/netlink/nl")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, gobuild.PatchedFolder, "netlink", "nl"); dir != want {
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
	root := k3sModule(t)
	changed := interruptedDumps
	changed.From = "what stood there once"
	_, _, err := gobuild.ApplyPatches(t.Context(), root, []gobuild.Patch{changed})
	if err == nil || !strings.Contains(err.Error(), "0 times, not once") {
		t.Errorf("the build goes on without the change: %v", err)
	}
	changed = gobuild.Patch{Module: "github.com/vishvananda/netlink", Folder: "was/there/once", By: "spegel"}
	_, _, err = gobuild.ApplyPatches(t.Context(), root, []gobuild.Patch{changed})
	if err == nil || !strings.Contains(err.Error(), "it has no folder was/there/once") {
		t.Errorf("the build goes on without the other folder: %v", err)
	}
	changed = gobuild.Patch{Module: "github.com/vishvananda/netlink", File: "was/there.go"}
	if _, _, err := gobuild.ApplyPatches(t.Context(), root, []gobuild.Patch{changed}); err == nil {
		t.Error("the build goes on where the file to be removed is not there")
	}
	if _, err := os.Stat(filepath.Join(root, gobuild.PatchedFolder)); !os.IsNotExist(err) {
		t.Errorf("the copies stay: %v", err)
	}
}
