package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/version"
)

// Status implements ctl.Machine.
func (g *agent) Status(context.Context) (ctl.Status, error) {
	state, _ := g.boot.now()
	head := g.headComponent()
	s := ctl.Status{
		URL: g.pages(), Version: version.Version, GPUs: g.fleet.Snapshots(), Ready: state.Ready,
		Pool: &ctl.Membership{
			Name: g.file.Name, Lab: g.file.Settings.Lab, Head: g.file.Settings.Head,
			Connected: head.State == ctl.OK, Certificate: g.certificate.Load().Leaf.NotAfter,
		},
	}
	if s.GPUs == nil {
		s.GPUs = []gpu.Snapshot{}
	}
	if c, failing := startComponent(state); failing {
		s.Components = append(s.Components, c)
	}
	for _, st := range state.Stages {
		s.Components = append(s.Components, stageComponent(st))
	}
	s.Components = append(s.Components, head, g.certificateComponent(time.Now()))
	if state.Ready {
		s.Components = append(s.Components, g.liveComponents()...)
	}
	node := ctl.Node{
		Name: g.file.Name, Role: "node", Address: g.address(), Ready: state.Ready, State: ctl.NodeStarting,
		Version: version.Version,
	}
	if state.Ready {
		node.State = ctl.NodeReady
	}
	for _, c := range s.Components {
		s.Ready = s.Ready && c.State != ctl.Failed
	}
	for _, snapshot := range s.GPUs {
		node.GPUs += len(snapshot.GPUs)
		node.Simulated = snapshot.Simulated
	}
	s.Nodes = []ctl.Node{node}
	return s, nil
}

// headComponent tells of the stream to the head.
func (g *agent) headComponent() ctl.Component {
	head := ctl.Component{Name: "head", State: ctl.OK}
	at := g.headAddresses()[0]
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.since.IsZero():
		head.Detail = fmt.Sprintf("%s at %s, connected for %s", g.file.Settings.Head, at.Addr(),
			units.Lasting(time.Since(g.since)))
		if g.theirs != version.Version && g.theirs != "" {
			head.Detail += ", runs gpulab " + g.theirs
		}
	case g.refused != nil:
		head.State, head.Detail, head.NextStep = ctl.Failed, g.why, "notebooks here go on"
	case g.why == "":
		head.State, head.Detail = ctl.Starting, "no connection yet"
	default:
		head.State, head.Detail, head.NextStep = ctl.Warning, g.why,
			"notebooks here go on; see that the head is on and reached at "+at.String()+"; `gpulab doctor` says more"
	}
	return head
}

// certificateComponent tells how long the head knows this machine.
func (g *agent) certificateComponent(now time.Time) ctl.Component {
	until := g.certificate.Load().Leaf.NotAfter
	c := ctl.Component{Name: "certificate", State: ctl.OK, Detail: "good until " + until.Local().Format("2 Jan 2006")}
	switch {
	case now.After(until):
		c.State, c.Detail, c.NextStep = ctl.Failed, "it ran out on "+until.Local().Format("2 Jan 2006"),
			"if the clock is right: `gpulab leave`, and join again with a new code"
	case until.Sub(now) < nodes.RenewBefore/2:
		c.State, c.NextStep = ctl.Warning, "it could not be renewed for a month: see that the head can be reached"
	}
	return c
}

// liveComponents looks at what may break after the start.
func (g *agent) liveComponents() []ctl.Component {
	var out []ctl.Component
	if cluster := g.cluster.Load(); cluster != nil {
		out = append(out, k3sComponent(cluster))
	}
	out = append(out, g.names.component()...)
	paths := []string{g.cfg.Storage.Shared}
	if g.cfg.Storage.Export != "" {
		paths = nil
		for _, f := range exported(g.cfg.DataDir) {
			paths = append(paths, f.Path)
		}
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		c := ctl.Component{Name: "shared storage", State: ctl.OK, Detail: path}
		err := promptly(func() error { return lookAtShared(path, g.file.Settings.Mark) })
		if errors.Is(err, errUnmarked) {
			err = missingStorage(path)
		}
		if err != nil {
			c.State, c.Detail, c.NextStep = ctl.Failed, err.Error(), "notebooks find their homes again once it is mounted"
		}
		out = append(out, c)
	}
	if c, ok := roomComponent(g.cfg.DataDir); ok {
		out = append(out, c)
	}
	if g.cfg.GPUs == config.GPUsNone {
		return append(out, ctl.Component{
			Name: "gpu probe", State: ctl.Off, Detail: "this machine brings no GPU into the pool",
		})
	}
	for _, s := range g.fleet.Snapshots() {
		return append(out, probeComponent(s, true))
	}
	return append(out, probeComponent(gpu.Snapshot{}, false))
}

// promptly does not wait for storage that hangs.
func promptly(look func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- look() }()
	select {
	case err := <-answer:
		return err
	case <-time.After(2 * time.Second):
		return errors.New("it does not answer")
	}
}

// roomIn is how many bytes the file system of a path has free for gpulab, and in all.
func roomIn(path string) (free, all uint64, known bool) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil || stat.Blocks == 0 {
		return 0, 0, false
	}
	return stat.Bavail * uint64(stat.Bsize), stat.Blocks * uint64(stat.Bsize), true
}

// roomComponent tells how full the disk with images and containers is.
func roomComponent(path string) (ctl.Component, bool) {
	free, all, known := roomIn(path)
	if !known {
		return ctl.Component{}, false
	}
	c := ctl.Component{
		Name: "disk", State: ctl.OK, Detail: fmt.Sprintf("%s of %s are free", units.Bytes(free), units.Bytes(all)),
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err == nil && stat.Files > 0 && stat.Ffree < stat.Files/20 {
		c.Detail += fmt.Sprintf(", with room for %d more files of %d", stat.Ffree, stat.Files)
		c.State, c.NextStep = ctl.Warning, "delete files: notebooks here cannot make files in their scratch space soon, "+
			"whatever their size"
	}
	if free < all/20 {
		c.State, c.NextStep = ctl.Warning, "make room: notebooks here cannot write to their scratch space soon, and "+
			"images do not fit"
	}
	return c, true
}
