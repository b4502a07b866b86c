package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// unfit are the machines whose GPUs notebooks of a profile cannot use, and why: CDI,
// by which they get them, does not look at what an image asks for. What cannot be
// found out holds up nobody.
func (l *appliance) unfit(ctx context.Context, p notebooks.Profile) map[string]string {
	image := p.Image
	if image == "" {
		image = l.images.Refs()[notebookImage]
	}
	env, err := l.attached.Load().images.Environment(ctx, image)
	if err != nil {
		slog.Debug("what an image asks of the GPUs is not known", "image", image, "err", err)
		return nil
	}
	needs, err := gpu.RequirementOf(env)
	if err != nil {
		slog.Debug("what an image asks of the GPUs cannot be read", "image", image, "err", err)
		return nil
	}
	found := map[string]string{}
	for _, s := range l.fleet.Snapshots() {
		if len(s.GPUs) == 0 {
			continue // nothing is asked of a machine without
		}
		if why := needs.Obstacle(image, s); why != "" {
			found[s.Node] = why
		}
	}
	return found
}

// ownImage tells whether an image is part of gpulab.
func (l *appliance) ownImage(ref string) bool {
	return slices.Contains(slices.Collect(maps.Values(l.images.Refs())), ref)
}

// startedFrom are the profiles that name an image, by slug.
func (l *appliance) startedFrom(ref string) []string {
	var slugs []string
	for _, p := range l.cfg.profiles() {
		if name, err := notebooks.ImageName(p.Image); err == nil && name == ref {
			slugs = append(slugs, p.Slug)
		}
	}
	return slugs
}

func (l *appliance) describeImage(img embedk8s.LabImage) ctl.Image {
	out := ctl.Image{Ref: img.Ref, Size: img.Size, Own: l.ownImage(img.Ref), Pinned: img.Pinned, Profiles: l.startedFrom(img.Ref)}
	if img.Env != nil {
		if needs, err := gpu.RequirementOf(img.Env); err == nil {
			words := needs.String()
			out.Needs = &words
		}
	}
	return out
}

func (l *appliance) labImages() (*embedk8s.LabImages, error) {
	parts := l.attached.Load()
	if parts == nil {
		return nil, errStarting
	}
	return parts.images, nil
}

// Images implements ctl.Daemon.
func (l *appliance) Images(ctx context.Context) ([]ctl.Image, error) {
	images, err := l.labImages()
	if err != nil {
		return nil, err
	}
	list, err := images.List(ctx)
	out := make([]ctl.Image, 0, len(list))
	for _, img := range list {
		out = append(out, l.describeImage(img))
	}
	return out, err
}

// ImportImage implements ctl.Daemon.
func (l *appliance) ImportImage(ctx context.Context, archive io.Reader, as string) ([]ctl.Image, error) {
	images, err := l.labImages()
	if err != nil {
		return nil, err
	}
	if why := l.disk.Refusal(); why != "" {
		return nil, errors.New(why)
	}
	list, err := images.Import(ctx, archive, as, l.ownImage)
	var out []ctl.Image
	for _, img := range list {
		out = append(out, l.describeImage(img))
		l.audit(ctx, "image.import", img.Ref)
	}
	return out, err
}

// PullImage implements ctl.Daemon.
func (l *appliance) PullImage(ctx context.Context, ref string, fn func(ctl.Pull) error) error {
	images, err := l.labImages()
	if err != nil {
		return err
	}
	if why := l.disk.Refusal(); why != "" {
		return errors.New(why)
	}
	img, err := images.Pull(ctx, ref, func(p embedk8s.PullProgress) {
		// One who has gone away ends ctx, and with it the pull.
		_ = fn(ctl.Pull{Done: p.Done, Total: p.Total, Unpacking: p.Unpacking})
	})
	if err != nil {
		return err
	}
	l.audit(ctx, "image.pull", img.Ref)
	there := l.describeImage(img)
	return fn(ctl.Pull{Image: &there})
}

// RemoveImage implements ctl.Daemon.
func (l *appliance) RemoveImage(ctx context.Context, ref string) error {
	parts := l.attached.Load()
	if parts == nil {
		return errStarting
	}
	ref, err := notebooks.ImageName(ref)
	if err != nil {
		return err
	}
	if err := mayRemove(ref, l.ownImage(ref), l.startedFrom(ref), parts.kube.Notebooks()); err != nil {
		return err
	}
	if err := parts.images.Remove(ctx, ref); errors.Is(err, embedk8s.ErrNoImage) {
		return fmt.Errorf("%s: %w", ref, err)
	} else if err != nil {
		return err
	}
	return l.people.Audit(ctx, users.Entry{Actor: "root", Action: "image.remove", Target: ref})
}

// mayRemove says why an image has to stay.
func mayRemove(ref string, own bool, profiles []string, running []notebooks.PodInfo) error {
	if own {
		return fmt.Errorf("%s is part of gpulab, which needs it", ref)
	}
	if len(profiles) > 0 {
		return fmt.Errorf("the profile %q starts from %s; take it out of gpulab's configuration first, and run `gpulab init`", profiles[0], ref)
	}
	for _, p := range running {
		if name, err := notebooks.ImageName(p.Image); err == nil && name == ref && !p.Finished {
			return fmt.Errorf("%s/%s runs on %s; stop that notebook first", p.Handle, p.Server, ref)
		}
	}
	return nil
}
