//go:build cgo

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// probe reads all GPUs, one after the other. Many goroutines that wait in the
// driver would cost more than what they read, so there is one, and more only
// when a GPU hangs or is slow.
type probe struct {
	driver   *driver
	pace     pace
	patience time.Duration
	tree     pciTree
	readers  []*reader
	events   eventLog
	kernel   *kernelLog
	started  time.Duration // on the machine's clock
	logged   []loggedXID   // errors of the kernel's log that wait to be told
	looked   bool          // at all that the log had at first
	lookedAt time.Duration // at the log last
	round    atomic.Uint64
}

func newProbe(d *driver, o options, stderr io.Writer) *probe {
	path, optional := kernelLogPath(o, d)
	p := &probe{
		driver: d, pace: o.pace, patience: o.patience, tree: pciTree{sysfs: o.sysfs, procfs: o.procfs},
		kernel: newKernelLog(path, optional, stderr), started: monotonic(),
	}
	if o.sysfs == "" && !d.simulated {
		p.tree = pciTree{sysfs: "/sys", procfs: "/proc"}
	}
	for i := range d.count {
		r := newReader(d, i, o.pace, p.tree, p.tellXID)
		if !o.once { // links are watched in turn
			r.slow.throughputDue = time.Now().Add(throughputEvery * time.Duration(i) / time.Duration(d.count))
		}
		p.readers = append(p.readers, r)
	}
	return p
}

// tellXID takes an error that the library has told of.
func (p *probe) tellXID(e gpu.XIDEvent) { p.events.add(e, false, e.Time) }

// read takes a sample of every GPU. One that takes long is left behind, and
// until it has answered out of the following rounds: the goroutine that waits
// for it cannot be ended.
func (p *probe) read() {
	round := p.round.Add(1)
	through := make(chan struct{}, len(p.readers)+1)
	for range len(p.readers) + 1 {
		go func() {
			for _, r := range p.readers {
				if p.round.Load() != round {
					return
				}
				r.once(round)
			}
			through <- struct{}{}
		}()
		select {
		case <-through:
			return
		case <-time.After(p.pace.interval / 4):
		}
	}
}

// watchLinks lets the driver count what goes over the PCIe links, which takes
// its time and so is done between two samples.
func (p *probe) watchLinks() {
	for _, r := range p.readers {
		r.claim(r.readThroughput)
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
	p.readKernelLog(now)
	s.Events, s.EventsDropped = p.events.take(now)
	return s
}

// silence is what is said about a GPU that has not answered for a while.
func silence(index int, since time.Duration) string {
	return fmt.Sprintf("GPU %d has not answered for %d s: the card or its driver hangs.", index, int(since.Seconds()))
}
