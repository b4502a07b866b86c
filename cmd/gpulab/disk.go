package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/storage"
)

// newDiskWatch watches every disk that the lab writes to.
func (l *appliance) newDiskWatch() *diskspace.Watch {
	return diskspace.New(diskspace.Config{
		Places: []diskspace.Place{
			{Name: "databases", Path: l.cfg.DataDir},
			{Name: "homes", Path: l.homesDir()},
			{Name: "shared folders", Path: l.foldersDir()},
			{Name: "images", Path: filepath.Join(l.cfg.DataDir, "k3s", "agent", "containerd")},
			{Name: "notebooks' scratch space", Path: embedk8s.PodFiles},
			{Name: "logs", Path: embedk8s.PodLogs},
		},
		Changed: func() {
			if parts := l.attached.Load(); parts != nil {
				parts.notebooks.Wake()
			}
		},
		Log: slog.Default(),
	})
}

// diskComponent tells how full the lab's disks are. Nothing that runs is ended
// for a full one: it would not become emptier by that.
func diskComponent(list []diskspace.Filesystem) ctl.Component {
	c := ctl.Component{Name: "disk", State: ctl.OK}
	var words []string
	worst := diskspace.Fine
	for i := range list {
		f := &list[i]
		words = append(words, f.Words())
		worst = max(worst, f.Level)
		if f.Silent {
			c.State, c.NextStep = ctl.Warning, "look at the machine that serves it, or at `dmesg`"
		}
	}
	c.Detail = strings.Join(words, " ")
	switch worst {
	case diskspace.ReadOnly:
		c.State, c.NextStep = ctl.Failed, "the kernel does that after errors of a disk: `dmesg | tail`; mend it, then "+
			"mount -o remount,rw"
	case diskspace.Full:
		c.State, c.NextStep = ctl.Warning, "make room now: nothing starts, notebooks cannot save, and the room held back "+
			"for the databases is being used; `gpulab disk` lists what takes it"
	case diskspace.Refusing:
		c.State, c.NextStep = ctl.Warning, "make room: no notebook starts and no image is brought in before that; `gpulab "+
			"disk` lists what takes it"
	case diskspace.Notice:
		c.State, c.NextStep = ctl.Warning, "make room: from 95 % on no notebook starts; `gpulab disk` lists what takes it"
	}
	return c
}

// diskNotice is what administrators read on their home page, "" for nothing.
func (l *appliance) diskNotice() string {
	f := l.disk.Worst()
	switch f.Level {
	case diskspace.Fine:
		return ""
	case diskspace.Notice:
		return f.Words() + " From 95 % on no notebook starts."
	}
	return l.disk.Refusal()
}

// largestHomes is how many homes are named.
const largestHomes = 10

// Disk implements ctl.Daemon.
func (l *appliance) Disk(ctx context.Context) (ctl.Disk, error) {
	disk := ctl.Disk{Filesystems: l.disk.Filesystems(), Homes: []ctl.HomeOnDisk{}}
	sizes, err := l.storage.HomeSizes(ctx)
	if err != nil {
		return disk, err
	}
	people, err := l.people.List(ctx)
	if err != nil {
		return disk, err
	}
	var homes, folders uint64
	for i := range people {
		if size, known := sizes[people[i].ID]; known {
			homes += uint64(size.Bytes)
			disk.Homes = append(disk.Homes, ctl.HomeOnDisk{Handle: people[i].Handle, Bytes: size.Bytes})
		}
	}
	slices.SortFunc(disk.Homes, func(a, b ctl.HomeOnDisk) int { return cmp.Compare(b.Bytes, a.Bytes) })
	disk.Homes = disk.Homes[:min(len(disk.Homes), largestHomes)]
	shared, err := l.storage.Folders(ctx)
	if err != nil {
		return disk, err
	}
	for i := range shared {
		if shared[i].Size != nil && shared[i].Kind != storage.Host {
			folders += uint64(shared[i].Size.Bytes)
		}
	}
	disk.Parts, err = diskspace.Measured(ctx, l.diskParts(homes, folders))
	if err != nil {
		return disk, fmt.Errorf("count what takes room: %w", err)
	}
	return disk, nil
}

// diskParts are what takes room; homes and folders, which may be huge, as they
// were measured last.
func (l *appliance) diskParts(homes, folders uint64) []diskspace.Part {
	in := func(path string) string { return filepath.Join(l.cfg.DataDir, path) }
	return []diskspace.Part{
		{Name: "homes", Path: "", Bytes: homes},
		{Name: "shared folders", Path: "", Bytes: folders},
		{Name: "images and running containers", Path: in("k3s/agent/containerd")},
		{Name: "environments", Path: in("environments")},
		{Name: "cache of packages", Path: in("packages")},
		{Name: "cache of models", Path: in("models")},
		{Name: "scratch space of notebooks", Path: embedk8s.PodFiles},
		{Name: "history of GPUs", Path: in("metrics.db*")},
		{Name: "accounts and audit log", Path: in("gpulab.db*")},
		{Name: "state of Kubernetes", Path: in("k3s/server")},
		{Name: "state of JupyterHub", Path: in("hub")},
		{Name: "identity in the tailnet", Path: in("tailnet")},
		{Name: "logs of gpulab and Kubernetes", Path: in("log")},
		{Name: "logs of notebooks and JupyterHub", Path: embedk8s.PodLogs},
		{Name: "gpulab's own programs", Path: in("bin")},
		{Name: "versions kept for a rollback", Path: in("versions")},
		{Name: "databases kept for a rollback", Path: in("copies")},
		{Name: "set aside by a restore", Path: in("before-restore-*")},
		{Name: "held back for the databases", Path: in("reserve*")},
	}
}
