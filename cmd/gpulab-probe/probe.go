//go:build cgo

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// probe collects what one goroutine per GPU reads.
type probe struct {
	driver   *driver
	patience time.Duration
	readers  []*reader

	mu     sync.Mutex
	events []gpu.XIDEvent
}

func newProbe(d *driver, patience time.Duration) *probe {
	p := &probe{driver: d, patience: patience}
	for i := range d.count {
		p.readers = append(p.readers, newReader(d, i))
	}
	return p
}

// start begins reading every GPU at the interval, and listening for errors.
// The goroutines last as long as the process: one that hangs in the driver
// could not be ended anyway.
func (p *probe) start(interval time.Duration) {
	for _, r := range p.readers {
		go r.run(interval)
		go r.listen(p.addEvent)
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

func (p *probe) addEvent(e gpu.XIDEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Events, p.events = p.events, nil
	return s
}

// silence is what is said about a GPU that has not answered for a while.
func silence(index int, since time.Duration) string {
	return fmt.Sprintf("GPU %d has not answered for %d s: the card or its driver hangs.", index, int(since.Seconds()))
}
