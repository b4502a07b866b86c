//go:build cgo

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// probe collects what one goroutine per GPU reads.
type probe struct {
	driver   *driver
	pace     pace
	patience time.Duration
	tree     pciTree
	readers  []*reader
	events   eventLog
}

func newProbe(d *driver, o options) *probe {
	p := &probe{driver: d, pace: o.pace, patience: o.patience, tree: pciTree(o.sysfs)}
	if o.sysfs == "" && !d.simulated {
		p.tree = "/sys"
	}
	for i := range d.count {
		p.readers = append(p.readers, newReader(d, i, o.pace, p.tree))
	}
	return p
}

// start begins reading every GPU, and listening for errors. The goroutines
// last as long as the process: one that hangs in the driver could not be ended
// anyway.
func (p *probe) start() {
	for _, r := range p.readers {
		go r.run()
		go r.listen(p.events.add)
	}
}

// awaitChange returns when there are other GPUs than at the start, and says
// so. NVIDIA's library numbers them when it is loaded, so that only a new
// process sees them as they are now.
func (p *probe) awaitChange(ctx context.Context) error {
	bound := p.tree.bound()
	tick := time.NewTicker(p.pace.slow)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if n, ret := p.driver.nvml.DeviceGetCount(); ret == nvml.SUCCESS && n != p.driver.count {
			return fmt.Errorf("the driver has %d GPUs now and had %d: they are looked for anew", n, p.driver.count)
		}
		if now := p.tree.bound(); !slices.Equal(now, bound) {
			return fmt.Errorf("the driver has the GPUs at %q now and had those at %q: they are looked for anew", now, bound)
		}
	}
}

// awaitFirst returns when every GPU has been read once, or after limit.
func (p *probe) awaitFirst(ctx context.Context, limit time.Duration) {
	timeout := time.After(limit)
	for _, r := range p.readers {
		select {
		case <-r.first:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// snapshot gathers the latest readings and the events since the last call.
func (p *probe) snapshot(now time.Time) gpu.Snapshot {
	s := gpu.Snapshot{
		Time: now, DriverVersion: p.driver.version, CUDAVersion: p.driver.cuda, Simulated: p.driver.simulated,
		GPUs: make([]gpu.GPU, 0, len(p.readers)),
	}
	for _, r := range p.readers {
		s.GPUs = append(s.GPUs, r.latest(now, p.patience))
	}
	s.Events, s.EventsDropped = p.events.take()
	return s
}

// silence is what is said about a GPU that has not answered for a while.
func silence(index int, since time.Duration) string {
	return fmt.Sprintf("GPU %d has not answered for %d s: the card or its driver hangs.", index, int(since.Seconds()))
}
