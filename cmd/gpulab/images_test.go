package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// shelf is a daemon that keeps what it is given.
type shelf struct {
	ctl.Daemon
	images []ctl.Image
	as     string
	read   int64
}

func (s *shelf) Status(context.Context) (ctl.Status, error) { return ctl.Status{}, nil }

func (s *shelf) Images(context.Context) ([]ctl.Image, error) { return s.images, nil }

func (s *shelf) ImportImage(_ context.Context, r io.Reader, as string) ([]ctl.Image, error) {
	begin := make([]byte, 4)
	if _, err := io.ReadFull(r, begin); err != nil || string(begin) != "good" {
		return nil, errors.New("this is no container image")
	}
	n, err := io.Copy(io.Discard, r)
	s.read, s.as = n+4, as
	return []ctl.Image{{Ref: "lab.example/x:1", Needs: words("CUDA 12.4 or newer")}}, err
}

func (s *shelf) PullImage(_ context.Context, ref string, fn func(ctl.Pull) error) error {
	for _, p := range []ctl.Pull{{Done: 5e6}, {Done: 5e8, Total: 2e9}, {Unpacking: true}} {
		if err := fn(p); err != nil {
			return err
		}
	}
	if strings.HasPrefix(ref, "none/") {
		return errors.New("the registry docker.io has no image " + ref)
	}
	return fn(ctl.Pull{Image: &ctl.Image{Ref: ref}})
}

func (s *shelf) RemoveImage(_ context.Context, ref string) error {
	return mayRemove(ref, ref == "gpulab.local/hub:1", nil, nil)
}

func words(s string) *string { return &s }

func TestImages(t *testing.T) {
	needRoot(t)
	s := &shelf{images: []ctl.Image{
		{Ref: "gpulab.local/hub:1", Size: 65e6, Own: true, Pinned: true, Needs: words("")},
		{Ref: "lab.example/x:1", Size: 12.3e9, Pinned: true, Needs: words("CUDA 12.4 or newer"), Profiles: []string{"torch", "big"}},
		{Ref: "lab.example/y:1"},
	}}
	socket := serve(t, s)
	const list = `IMAGE               SIZE     NEEDS               STAYS                    PROFILES
gpulab.local/hub:1  65 MB    –                   part of gpulab           –
lab.example/x:1     12.3 GB  CUDA 12.4 or newer  until removed            torch, big
lab.example/y:1     0 MB     ?                   until the disk is short  –
`
	if code, out, stderr := gpulab(t, "images", "list", "--socket", socket); code != exitOK || out != list {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if code, out, _ := gpulab(t, "images", "list", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"needs": "CUDA 12.4 or newer"`) || strings.Count(out, `"needs"`) != 2 {
		t.Errorf("exit code %d\n%s", code, out)
	}

	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.tar"), filepath.Join(dir, "bad.tar")
	for file, begin := range map[string]string{good: "good", bad: "bad "} {
		if err := os.WriteFile(file, append([]byte(begin), bytes.Repeat([]byte("x"), 3<<20)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, out, stderr := gpulab(t, "images", "import", "--as", "lab.example/x y", good, "--socket", socket)
	if code != exitOK || out != "lab.example/x:1 is on this machine. It needs CUDA 12.4 or newer.\n" || !strings.HasPrefix(stderr, "reading ") || s.read != 4+3<<20 || s.as != "lab.example/x y" {
		t.Errorf("import: exit code %d, %d bytes read, as %q\n%s%s", code, s.read, s.as, out, stderr)
	}
	for name, says := range map[string]string{
		bad: "gpulab: this is no container image\n", filepath.Join(dir, "none.tar"): "no such file", dir: "is a folder",
	} {
		if code, out, stderr := gpulab(t, "images", "import", name, "--socket", socket); code != exitFailure || out != "" || !strings.Contains(stderr, says) {
			t.Errorf("import %s: exit code %d\n%s%s", name, code, out, stderr)
		}
	}
	if code, out, stderr := gpulab(t, "images", "pull", "lab/x:1", "--socket", socket); code != exitOK || out != "lab/x:1 is on this machine.\n" || stderr != "loading 5 MB\n" {
		t.Errorf("pull: exit code %d\n%s%s", code, out, stderr)
	}
	if code, _, stderr := gpulab(t, "images", "pull", "none/x:1", "--socket", socket); code != exitFailure || !strings.HasSuffix(stderr, "gpulab: the registry docker.io has no image none/x:1\n") {
		t.Errorf("pull of what is not there: exit code %d\n%s", code, stderr)
	}
	if code, out, _ := gpulab(t, "images", "remove", "lab/x:1", "--socket", socket); code != exitOK || out != "lab/x:1 is removed.\n" {
		t.Errorf("remove: exit code %d\n%s", code, out)
	}
	if code, _, stderr := gpulab(t, "images", "remove", "gpulab.local/hub:1", "--socket", socket); code != exitFailure || !strings.Contains(stderr, "is part of gpulab") {
		t.Errorf("remove gpulab's own: exit code %d\n%s", code, stderr)
	}
}

func TestMayRemove(t *testing.T) {
	const ref = "docker.io/lab/x:1"
	running := []notebooks.PodInfo{{Handle: "ada", Server: "torch", Image: "lab/x:1"}, {Handle: "ben", Server: "old", Image: "lab/y", Finished: true}}
	for _, c := range []struct {
		ref      string
		own      bool
		profiles []string
		says     string
	}{
		{ref, true, nil, "is part of gpulab"},
		{ref, false, []string{"torch"}, `the profile "torch" starts from docker.io/lab/x:1`},
		{ref, false, nil, "ada/torch runs on docker.io/lab/x:1"},
		{"docker.io/lab/y:latest", false, nil, ""},
	} {
		err := mayRemove(c.ref, c.own, c.profiles, running)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.ref, err, c.says)
		}
	}
}

// A machine that has not been heard yet is judged by its labels.
func TestLabelledDriver(t *testing.T) {
	labels := []string{"nvidia.com/cuda.driver-version.full=535.183.01", "nvidia.com/cuda.runtime-version.full=12.2", "nvidia.com/gpu.compute.major=8", "nvidia.com/gpu.compute.minor=6", "nvidia.com/gpu.present=true"}
	s, ok := labelledDriver("old", labels)
	if !ok || s.Node != "old" || s.DriverVersion != "535.183.01" || s.CUDAVersion != "12.2" || len(s.GPUs) != 1 || s.GPUs[0].ComputeCapability != "8.6" {
		t.Errorf("%+v, %v", s, ok)
	}
	for require, fits := range map[string]bool{"cuda>=12.4": false, "cuda>=12.0": true, "arch>=9.0": false} {
		needs, err := gpu.RequirementOf([]string{"NVIDIA_REQUIRE_CUDA=" + require})
		if err != nil {
			t.Fatal(err)
		}
		if why := needs.Obstacle("X", s); (why == "") != fits {
			t.Errorf("%s: %q", require, why)
		}
	}
	if s, ok := labelledDriver("cpu", []string{"nvidia.com/gpu.present=false"}); ok {
		t.Errorf("of a machine without GPUs: %+v", s)
	}
}
