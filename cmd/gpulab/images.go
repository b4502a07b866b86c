package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// imageOr is an image, or the notebooks' own where none is named.
func (l *appliance) imageOr(image string) string {
	return cmp.Or(image, l.images.Refs()[notebookImage])
}

// learnNeeds finds out what a profile's image asks of the GPUs: CDI, by which
// notebooks get them, does not look at that. What cannot be found out holds up
// nobody, and what was known stays.
func (l *appliance) learnNeeds(ctx context.Context, p notebooks.Profile) {
	parts, image := l.attached.Load(), l.imageOr(p.Image)
	if parts == nil {
		return
	}
	env, err := parts.images.Environment(ctx, image)
	if err != nil {
		slog.Debug("what an image asks of the GPUs is not known", "image", image, "err", err)
		return
	}
	needs, err := gpu.RequirementOf(env)
	if err != nil {
		slog.Debug("what an image asks of the GPUs cannot be read", "image", image, "err", err)
	}
	l.imageNeeds.Store(image, needs)
}

// unfit are the machines whose GPUs notebooks of a profile cannot use, and why.
func (l *appliance) unfit(p notebooks.Profile) map[string]string {
	image := l.imageOr(p.Image)
	known, _ := l.imageNeeds.Load(image)
	needs, _ := known.(gpu.Requirement)
	if !needs.Asks() {
		return nil // as most do; this is asked for every launch that waits
	}
	found := map[string]string{}
	for _, s := range l.drivers() {
		if why := needs.Obstacle(image, s); why != "" {
			found[s.Node] = why
		}
	}
	return found
}

// drivers are the machines with GPUs. Of one that has not been heard since gpulab's
// start they hold what its labels say.
func (l *appliance) drivers() []gpu.Snapshot {
	list := slices.DeleteFunc(l.fleet.Snapshots(), func(s gpu.Snapshot) bool { return len(s.GPUs) == 0 })
	names := []string{l.id.NodeName}
	for _, n := range l.pool.list() {
		names = append(names, n.Name)
	}
	for _, name := range names {
		if slices.ContainsFunc(list, func(s gpu.Snapshot) bool { return s.Node == name }) {
			continue
		}
		if parts := l.attached.Load(); parts != nil {
			if s, ok := labelledDriver(name, parts.kube.GPULabels(name)); ok {
				list = append(list, s)
			}
		}
	}
	return list
}

// labelledDriver reads what GPU feature discovery has found on a machine, from its
// labels ("name=value"); false where that is nothing.
func labelledDriver(node string, labels []string) (s gpu.Snapshot, ok bool) {
	values := map[string]string{}
	for _, label := range labels {
		name, value, _ := strings.Cut(label, "=")
		values[strings.TrimPrefix(name, "nvidia.com/")] = value
	}
	s = gpu.Snapshot{
		Node: node, DriverVersion: values["cuda.driver-version.full"], CUDAVersion: values["cuda.runtime-version.full"],
	}
	if s.DriverVersion == "" {
		return s, false
	}
	var card gpu.GPU
	if major := values["gpu.compute.major"]; major != "" {
		card.ComputeCapability = major + "." + cmp.Or(values["gpu.compute.minor"], "0")
	}
	s.GPUs = []gpu.GPU{card}
	return s, true
}

// ownImage tells whether an image is part of gpulab.
func (l *appliance) ownImage(ref string) bool {
	return slices.Contains(slices.Collect(maps.Values(l.images.Refs())), ref)
}

// startedFrom are the profiles that name an image, by slug.
func (l *appliance) startedFrom(ref string) []string {
	var slugs []string
	for _, p := range l.cfg.LaunchProfiles() {
		if name, err := notebooks.ImageName(p.Image); err == nil && name == ref {
			slugs = append(slugs, p.Slug)
		}
	}
	return slugs
}

func (l *appliance) describeImage(img embedk8s.LabImage) ctl.Image {
	out := ctl.Image{
		Ref: img.Ref, Size: img.Size, Own: l.ownImage(img.Ref), Pinned: img.Pinned, Profiles: l.startedFrom(img.Ref),
	}
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
		l.recordRoot(ctx, "image.import", img.Ref, "")
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
	l.recordRoot(ctx, "image.pull", img.Ref, "")
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
	return l.people.AuditLog().Record(ctx, audit.Entry{Actor: "root", Action: "image.remove", Target: ref})
}

// mayRemove says why an image has to stay.
func mayRemove(ref string, own bool, profiles []string, running []notebooks.PodInfo) error {
	if own {
		return fmt.Errorf("%s is part of gpulab, which needs it", ref)
	}
	if len(profiles) > 0 {
		return fmt.Errorf("the profile %q starts from %s; take it out of gpulab's configuration first, and run `gpulab init`",
			profiles[0], ref)
	}
	for _, p := range running {
		if name, err := notebooks.ImageName(p.Image); err == nil && name == ref && !p.Finished {
			return fmt.Errorf("%s/%s runs on %s; stop that notebook first", p.Handle, p.Server, ref)
		}
	}
	return nil
}
