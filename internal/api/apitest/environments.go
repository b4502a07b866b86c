package apitest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/users"
)

// Environments are real ones, of which only the pod that builds is a function of this package.
type Environments struct {
	service *environments.Service

	mu sync.Mutex
	// hold keeps builds from ending until it is closed; begun is told of each.
	hold   chan struct{}
	begun  chan struct{}
	uses   []environments.Use
	reason string
}

// NewEnvironments makes them in a folder of the test's own. Only root can build and bring in.
func NewEnvironments(t testing.TB) *Environments {
	t.Helper()
	e := &Environments{}
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	e.service, err = environments.New(ctx, environments.Config{Dir: t.TempDir(), Run: e.run, Image: func() string {
		return "gpulab.local/notebook:1"
	}, CacheBytes: 1 << 20,
		Users: func() ([]environments.Use, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return slices.Clone(e.uses), nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = e.service.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		_ = e.service.Watch(context.Background(), func(environments.Build) error { return nil })
		<-done
	})
	return e
}

// Hold keeps builds from ending until release is called; begun is told when one
// has said what it is about.
func (e *Environments) Hold() (begun <-chan struct{}, release func()) {
	hold := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold, e.begun = hold, make(chan struct{}, 10)
	return e.begun, sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.hold = nil
		close(hold)
	})
}

// Fail makes builds fail for a reason, "" for none.
func (e *Environments) Fail(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reason = reason
}

// Use says who uses environments.
func (e *Environments) Use(uses ...environments.Use) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.uses = uses
}

// run builds a small environment, as if a pod did.
func (e *Environments) run(ctx context.Context, job environments.Job) error {
	e.mu.Lock()
	hold, begun, reason := e.hold, e.begun, e.reason
	e.mu.Unlock()
	job.Say("@ finding out which packages that takes")
	job.Say("Collecting humanize")
	if hold != nil {
		begun <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if reason != "" {
		job.Say("! " + reason)
		return errors.New("the pod has failed")
	}
	job.Say("@ installing 2 packages")
	err := os.Mkdir(filepath.Join(job.Environment, "bin"), 0o755)
	for name, text := range map[string]string{
		filepath.Join(job.Environment, "humanize.py"): "version = 1\n",
		filepath.Join(job.Work, "lock.txt"):           "humanize==4.9.0 --hash=sha256:ce\n",
		filepath.Join(job.Work,
			"packages.json"): `{"python":"3.11","packages":[{"name":"humanize","version":"4.9.0"},` +
			`{"name":"nvidia-cuda-runtime-cu12","version":"12.8.90"}]}`,
	} {
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
	}
	return err
}

// Make builds one, and waits until it is there.
func (e *Environments) Make(t testing.TB, name, version, title string) environments.Environment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives an environment's files to everybody")
	}
	made, err := e.service.Create(context.Background(),
		environments.Wanted{Name: name, Version: version, Title: title, Requirements: "humanize\n"})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Wait waits until no build is under way.
func (e *Environments) Wait(t testing.TB) {
	t.Helper()
	if err := e.service.Watch(t.Context(), func(environments.Build) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func (e *Environments) state(one environments.Environment, err error) (ctl.EnvironmentState, error) {
	if err != nil || one.Name == "" {
		return ctl.EnvironmentState{}, err
	}
	out := ctl.EnvironmentState{Environment: one, Users: []string{}}
	uses, err := e.service.Users(one.ID())
	for _, u := range uses {
		out.Users = append(out.Users, u.Handle+"/"+u.Notebook)
	}
	return out, err
}

// List implements api.Environments.
func (e *Environments) List(context.Context) ([]ctl.EnvironmentState, error) {
	list, err := e.service.List()
	if err != nil {
		return nil, err
	}
	out := make([]ctl.EnvironmentState, len(list))
	for i := range list {
		if out[i], err = e.state(list[i], nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Get implements api.Environments.
func (e *Environments) Get(_ context.Context, id string) (ctl.EnvironmentState, error) {
	return e.state(e.service.Get(id))
}

// Lock implements api.Environments.
func (e *Environments) Lock(_ context.Context, id string) (string, error) {
	one, err := e.service.Get(id)
	if err != nil {
		return "", err
	}
	return e.service.Lock(one)
}

// Catalogue implements api.Environments.
func (e *Environments) Catalogue() ([]environments.Offer, error) { return environments.Catalogue() }

// Building implements api.Environments.
func (e *Environments) Building() (*environments.Build, []string) {
	return e.service.Building(), e.service.Said()
}

// Changes implements api.Environments.
func (e *Environments) Changes() uint64 { return e.service.Changes() }

// Start implements api.Environments. What needs CUDA 99 can be used with no GPU.
func (e *Environments) Start(ctx context.Context, w ctl.WantedEnvironment,
	built func(environments.Environment)) (environments.Build, error) {
	if w.From != "" {
		offer, err := environments.Offered(w.From)
		if err == nil {
			err = offer.Take(&w.Wanted)
		}
		if err != nil {
			return environments.Build{}, err
		}
	}
	if w.CUDA == "99.0" && !w.Anyway {
		return environments.Build{}, &users.Error{
			Kind: environments.ErrUnusable, Text: "It needs CUDA 99.0 or newer. It was not built; `--anyway` builds it all " +
				"the same.",
		}
	}
	return e.service.Start(ctx, w.Wanted, built)
}

// Cancel implements api.Environments.
func (e *Environments) Cancel() (bool, error) { return e.service.Cancel(), nil }

// SetDefault implements api.Environments.
func (e *Environments) SetDefault(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	return e.state(e.service.SetDefault(ctx, id))
}

// Remove implements api.Environments.
func (e *Environments) Remove(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error) {
	return e.state(e.service.Remove(ctx, id, force))
}

// Export implements api.Environments.
func (e *Environments) Export(ctx context.Context, id string, w io.Writer) error {
	return e.service.Export(ctx, id, w)
}

// Import implements api.Environments.
func (e *Environments) Import(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error) {
	return e.state(e.service.Import(ctx, r))
}
