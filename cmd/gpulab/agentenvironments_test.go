package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

// serviceIn keeps environments in a folder. Their builds make one file, and each a lock of its own.
func serviceIn(t *testing.T, dir string) *environments.Service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	builds := 0
	s, err := environments.New(t.Context(), environments.Config{Dir: dir, Image: func() string { return "gpulab.local/notebook:1" }, Run: func(_ context.Context, job environments.Job) error {
		builds++
		return errors.Join(
			os.MkdirAll(filepath.Join(job.Environment, "bin"), 0o755),
			os.WriteFile(filepath.Join(job.Environment, "module.py"), bytes.Repeat([]byte("x = 1\n"), 1000), 0o644),
			os.WriteFile(filepath.Join(job.Work, "lock.txt"), fmt.Appendf(nil, "humanize==4.9.%d --hash=sha256:ce\n", builds), 0o644),
			os.WriteFile(filepath.Join(job.Work, "packages.json"), []byte(`{"python":"3.11","packages":[{"name":"humanize","version":"4.9.0"}]}`), 0o644))
	}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Run(t.Context()) }()
	return s
}

// A machine that has joined has the environments of its head, and what is wrong on
// the way leaves nothing half there.
func TestEnvironmentKeeper(t *testing.T) {
	head := serviceIn(t, t.TempDir())
	dir := t.TempDir()
	room, cut, filling := int64(1)<<40, false, false
	p := &pool{lab: &appliance{}}
	parts := &attached{environments: head}
	p.lab.attached.Store(parts)
	k := &environmentKeeper{
		service: serviceIn(t, dir), wake: make(chan struct{}, 1), list: p.Environments,
		free: func() (int64, bool) { return room, true },
		get: func(ctx context.Context, id string) (io.ReadCloser, error) {
			var file bytes.Buffer
			if err := p.Environment(ctx, id, &file); err != nil {
				return nil, err
			}
			if cut {
				file.Truncate(file.Len() / 2)
			}
			if filling {
				room = 5 << 20
			}
			return io.NopCloser(&file), nil
		},
	}
	converge := func(wrong string) {
		t.Helper()
		err := k.converge(t.Context())
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Fatalf("it came to %v, want %q", err, wrong)
		}
	}
	there := func(want ...string) {
		t.Helper()
		list, err := k.service.List()
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for i := range list {
			id := list[i].ID()
			if list[i].Default {
				id += " by default"
			}
			have = append(have, id)
			if _, err := os.Stat(filepath.Join(dir, "ready", "kernels", list[i].Kernel(), "kernel.json")); err != nil {
				t.Error(err)
			}
		}
		if strings.Join(have, ", ") != strings.Join(want, ", ") {
			t.Errorf("it has %q, want %q", have, want)
		}
	}
	create := func(name string) environments.Environment {
		t.Helper()
		e, err := head.Create(t.Context(), environments.Wanted{Name: name, Version: "1", Title: name, Requirements: "humanize==4.9.0\n"})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	converge("")
	there()
	first := create("small")
	create("other")
	if _, err := head.SetDefault(t.Context(), "small/1"); err != nil {
		t.Fatal(err)
	}
	cut = true
	converge("this file is cut short or damaged")
	there()
	cut, room = false, spareRoom
	converge("make room on this machine's disk")
	there()
	room, filling = 1<<40, true
	converge("this machine's disk got too full for it, with 5 MiB free")
	there()
	filling = false
	room = 1 << 40
	// One that cannot be read goes, and is brought in anew.
	if err := os.MkdirAll(filepath.Join(dir, "ready", "small", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	// So does one that the lab does not have.
	old := filepath.Join(dir, "ready", "old", "9")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	converge("what lay in its place could not be read")
	there("other/1")
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the lab does not have: %v", err)
	}
	converge("")
	there("other/1", "small/1 by default")
	if data, err := os.ReadFile(filepath.Join(dir, "ready", "small", "1", "module.py")); err != nil || len(data) != 6000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	before, _ := p.Environments(t.Context())

	// Built anew under its name, it is another one.
	if _, err := head.Remove(t.Context(), "small/1", false); err != nil {
		t.Fatal(err)
	}
	if again := create("small"); again.Mark() == first.Mark() {
		t.Fatal("another one has the mark of the first")
	}
	if after, err := p.Environments(t.Context()); err != nil || after.Version == before.Version {
		t.Errorf("the list has the version that it had, %v", err)
	}
	converge("")
	there("other/1", "small/1")
	if k.told() != nil {
		t.Error("it tells of environments before it knows who uses them")
	}
	k.looked = true
	if have := k.told().Have; len(have) != 2 {
		t.Errorf("it tells of %q", have)
	}
	if _, err := head.Remove(t.Context(), "other/1", false); err != nil {
		t.Fatal(err)
	}
	converge("")
	there("small/1")
}

// People choose what their programs say of themselves: only what is here is told.
func TestEnvironmentUsesAreBounded(t *testing.T) {
	k := &environmentKeeper{service: serviceIn(t, t.TempDir())}
	proc := t.TempDir()
	process := func(pid int, environment string) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "environ"), []byte("GPULAB_ENVIRONMENT="+environment+"\x00"), 0o600),
			os.WriteFile(filepath.Join(dir, "cgroup"), fmt.Appendf(nil, "4:memory:/kubepods/burstable/pod%08x-2fa1-11d2-883f-0016d3cca427/abc\n", pid), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for pid := range 2 * mostUses {
		process(pid+1, "small/1")
	}
	process(5000, strings.Repeat("x", 100_000))
	if uses, err := k.uses(proc); err != nil || len(uses) != 0 {
		t.Errorf("with no environment here it tells of %d uses, %v", len(uses), err)
	}
	if _, err := k.service.Create(t.Context(), environments.Wanted{Name: "small", Version: "1", Title: "Small", Requirements: "humanize==4.9.0\n"}); err != nil {
		t.Fatal(err)
	}
	uses, err := k.uses(proc)
	if err != nil || len(uses) != mostUses {
		t.Errorf("it tells of %d uses, %v", len(uses), err)
	}
	for _, u := range uses {
		if u.ID != "small/1" {
			t.Errorf("it tells of %.40q", u.ID)
		}
	}
}

// What is under way with environments is told in words.
func TestEnvironmentSentence(t *testing.T) {
	for _, c := range []struct {
		state *nodeapi.EnvironmentState
		want  string
	}{
		{nil, ""},
		{&nodeapi.EnvironmentState{Have: []string{"ab"}}, ""},
		{&nodeapi.EnvironmentState{Loading: "torch/2", Done: 1 << 29}, "b gets environments from the head: torch/2, 512 MiB so far."},
		{&nodeapi.EnvironmentState{Failed: "the head does not answer."}, "b lacks environments of the lab: the head does not answer. It tries again by itself."},
	} {
		if got := environmentSentence("b", toldEnvironments(c.state)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.state, got, c.want)
		}
	}
}
