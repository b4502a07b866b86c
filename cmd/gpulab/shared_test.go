package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/version"
)

// Notebooks have user IDs of their own wherever they may start, or nowhere.
func TestSharedUsers(t *testing.T) {
	data := t.TempDir()
	homes := filepath.Join(data, "homes")
	if err := os.Mkdir(homes, 0o700); err != nil {
		t.Fatal(err)
	}
	here := !canMapIDs(data, homes) // this machine's kernel may be an old one
	for what, c := range map[string]struct {
		storage config.Storage
		on      string
		heard   map[string]*machine // of two others, nil where there is but the head
		want    bool
	}{
		"one machine":                 {want: here},
		"on the head":                 {storage: config.Storage{Shared: "/srv"}, on: "head", heard: map[string]*machine{"b": {mapsIDs: new(false)}}, want: here},
		"all can":                     {storage: config.Storage{Shared: "/srv"}, heard: map[string]*machine{"b": {mapsIDs: new(true)}, "c": {mapsIDs: new(true)}}, want: here},
		"one has not told":            {storage: config.Storage{Shared: "/srv"}, heard: map[string]*machine{"b": {mapsIDs: new(true)}, "c": {}}, want: true},
		"one cannot":                  {storage: config.Storage{Shared: "/srv"}, heard: map[string]*machine{"b": {}, "c": {mapsIDs: new(false)}}, want: true},
		"homes over NFS":              {storage: config.Storage{Export: "nfs"}, heard: map[string]*machine{"b": {}}, want: true},
		"homes over NFS, on the head": {storage: config.Storage{Export: "nfs"}, on: "head", heard: map[string]*machine{"b": {}}, want: here},
		"nobody to export to":         {storage: config.Storage{Export: "nfs"}, want: here},
	} {
		l := &appliance{cfg: config.Config{DataDir: data, Storage: c.storage}, id: embedk8s.Identity{NodeName: "head"}}
		l.pool = &pool{lab: l, heard: c.heard, began: time.Now()}
		if c.heard != nil {
			l.pool.members = []nodes.Node{{Name: "b", Version: version.Version}, {Name: "c", Version: version.Version}, {Name: "earlier", Version: "0.0.1"}}
		}
		if got := l.sharedUsers(c.on); got != c.want {
			t.Errorf("%s: %t, want %t", what, got, c.want)
		}
	}
	// Nothing starts on a machine that does not answer.
	off := &appliance{
		cfg: config.Config{DataDir: data, Storage: config.Storage{Shared: "/srv"}}, id: embedk8s.Identity{NodeName: "head"},
	}
	off.pool = &pool{lab: off, members: []nodes.Node{{Name: "b", Version: version.Version}}}
	if off.sharedUsers("") != here {
		t.Error("a machine that is off decides about notebooks on others")
	}
	// A file system that cannot show mapped IDs, as /proc.
	l := &appliance{cfg: config.Config{DataDir: data}, id: embedk8s.Identity{NodeName: "head"}}
	l.pool = &pool{lab: l}
	if err := os.Remove(homes); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self", homes); err != nil {
		t.Fatal(err)
	}
	if !l.sharedUsers("") || !l.sharedUsers("head") {
		t.Error("homes that cannot be shown with mapped IDs are to be")
	}
}
