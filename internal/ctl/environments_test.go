package ctl

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/users"
)

func small() EnvironmentState {
	return EnvironmentState{Environment: environments.Environment{Name: "small", Version: "1"}}
}

func (d *daemon) Environments(context.Context) ([]EnvironmentState, error) {
	return []EnvironmentState{small()}, nil
}

func (d *daemon) Environment(_ context.Context, id string) (EnvironmentState, error) {
	if id != "small/1" {
		return EnvironmentState{}, errors.New("there is no environment " + id)
	}
	return small(), nil
}

func (d *daemon) EnvironmentLock(context.Context, string) (string, error) { return "a==1\n", nil }

func (d *daemon) EnvironmentCatalogue(context.Context) ([]environments.Offer, error) {
	return environments.Catalogue()
}

func (d *daemon) CreateEnvironment(_ context.Context, w WantedEnvironment, fn func(EnvironmentBuild) error) error {
	if err := fn(EnvironmentBuild{Build: environments.Build{Name: w.Name, Running: true, Step: "installing"}}); err != nil {
		return err
	}
	if w.Requirements == "bad" {
		return errors.New("no such package")
	}
	e := small()
	return fn(EnvironmentBuild{Environment: &e})
}

func (d *daemon) CancelEnvironment(context.Context) (bool, error) { return true, nil }

func (d *daemon) DefaultEnvironment(ctx context.Context, id string) (EnvironmentState, error) {
	return d.Environment(ctx, id)
}

func (d *daemon) RemoveEnvironment(ctx context.Context, id string, force bool) (EnvironmentState, error) {
	if !force {
		return EnvironmentState{}, environments.ErrInUse
	}
	return d.Environment(ctx, id)
}

func (d *daemon) ExportEnvironment(_ context.Context, _ string, w io.Writer) error {
	if _, err := io.WriteString(w, "half"); err != nil {
		return err
	}
	if d.people != nil {
		return errors.New("the disk does not answer")
	}
	return nil
}

func (d *daemon) ImportEnvironment(_ context.Context, r io.Reader) (EnvironmentState, error) {
	data, err := io.ReadAll(r)
	if err == nil && string(data) != "half" {
		err = errors.New("this file holds no environment")
	}
	return small(), err
}

func TestEnvironmentsOverTheSocket(t *testing.T) {
	d := &daemon{}
	_, c := serveDaemon(t, d)
	ctx := t.Context()
	if list, err := c.Environments(ctx); err != nil || len(list) != 1 || list[0].ID() != "small/1" {
		t.Errorf("Environments: %v %v", list, err)
	}
	if _, err := c.Environment(ctx, "x/../y"); err == nil || err.Error() != "there is no environment x/../y" {
		t.Errorf("one that is not there: %v", err)
	}
	if lock, err := c.EnvironmentLock(ctx, "small"); err != nil || lock != "a==1\n" {
		t.Errorf("the lock: %q %v", lock, err)
	}
	if list, err := c.EnvironmentCatalogue(ctx); err != nil || len(list) == 0 {
		t.Errorf("the catalogue: %v %v", list, err)
	}
	var steps []string
	tell := func(b EnvironmentBuild) error {
		if b.Environment != nil {
			b.Step = "there"
		}
		steps = append(steps, b.Step)
		return nil
	}
	if err := c.CreateEnvironment(ctx, WantedEnvironment{}, tell); err != nil || strings.Join(steps, " ") != "installing there" {
		t.Errorf("a build: %v %v", steps, err)
	}
	if err := c.CreateEnvironment(ctx, WantedEnvironment{Wanted: environments.Wanted{Requirements: "bad"}}, tell); err == nil || err.Error() != "no such package" {
		t.Errorf("a build that fails: %v", err)
	}
	if was, err := c.CancelEnvironment(ctx); err != nil || !was {
		t.Errorf("cancel: %v %v", was, err)
	}
	if _, err := c.RemoveEnvironment(ctx, "small/1", false); err == nil {
		t.Error("one in use was removed")
	}
	if e, err := c.RemoveEnvironment(ctx, "small/1", true); err != nil || e.ID() != "small/1" {
		t.Errorf("remove: %v %v", e, err)
	}
	if e, err := c.DefaultEnvironment(ctx, "small/1"); err != nil || e.ID() != "small/1" {
		t.Errorf("default: %v %v", e, err)
	}
	var file strings.Builder
	if err := c.ExportEnvironment(ctx, "small/1", &file); err != nil || file.String() != "half" {
		t.Errorf("export: %q %v", file.String(), err)
	}
	if err := c.ExportEnvironment(ctx, "big", &file); err == nil || !strings.Contains(err.Error(), "no environment big") {
		t.Errorf("export of nothing: %v", err)
	}
	d.people = append(d.people, users.User{Handle: "ada"})
	if err := c.ExportEnvironment(ctx, "small/1", &file); err == nil || err.Error() != "the disk does not answer" {
		t.Errorf("export that breaks off: %v", err)
	}
	if e, err := c.ImportEnvironment(ctx, strings.NewReader("half")); err != nil || e.ID() != "small/1" {
		t.Errorf("import: %v %v", e, err)
	}
	if _, err := c.ImportEnvironment(ctx, strings.NewReader("whole")); err == nil || err.Error() != "this file holds no environment" {
		t.Errorf("import of nothing: %v", err)
	}
}
