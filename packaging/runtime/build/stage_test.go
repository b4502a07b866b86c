package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpulab/gpulab/internal/embedk8s"
)

// What is packed here is what gpulab stages.
func TestPackedBundleCanBeStaged(t *testing.T) {
	w := newWorkshop(t)
	w.part.steps = []step{w.copies("k3s"), w.copies("runc")}
	e := w.obtain()
	c := w.open()
	defer c.close()
	archive, err := c.pack(t.Context(), []entry{e}, noVersions(), false)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(filepath.Join(archive.dir, archiveName))
	if err != nil {
		t.Fatal(err)
	}
	dataDir := t.TempDir()
	rt, changed, err := embedk8s.Stage(t.Context(), packed, dataDir, nil)
	if err != nil || !changed {
		t.Fatalf("staging it: changed %v, %v", changed, err)
	}
	if err := rt.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	for name := range links {
		if got, err := os.ReadFile(filepath.Join(embedk8s.Current(dataDir), name)); err != nil || string(got) != "hello" {
			t.Errorf("%s holds %q (%v), want k3s", name, got, err)
		}
	}
}
