//go:build cgo

package main

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// errorEvents is where the driver puts the GPU's XID errors. Each GPU has an
// event set of its own, so that one that hangs cannot silence the others.
type errorEvents struct {
	set   nvml.EventSet
	asked bool
}

// maxAtOnce is how many errors are taken at once, so that a card which reports
// them faster than they can be taken is still read.
const maxAtOnce = 20_000

// readErrors passes on the XID errors since the last call. What happened before
// the first is not told by the driver.
func (r *reader) readErrors(now time.Time) {
	if !r.errors.asked {
		r.errors.asked = true
		r.register()
	}
	if r.errors.set == nil {
		return
	}
	for range maxAtOnce {
		event, ret := r.errors.set.Wait(0) // those that are there: nothing is waited for
		if ret != nvml.SUCCESS {           // there is no more, or the GPU is lost and may come back
			return
		}
		r.noteXID(event.EventData, now)
		r.slow.due = time.Time{} // its health is another now
	}
}

func (r *reader) register() {
	types, ret := r.handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS || types&nvml.EventTypeXidCriticalError == 0 {
		return
	}
	set, ret := r.driver.nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return
	}
	if ret := r.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		_ = set.Free()
		return
	}
	r.errors.set = set
}

func (r *reader) noteXID(xid uint64, now time.Time) {
	r.mu.Lock()
	r.xid = &xid
	r.mu.Unlock()
	r.tell(gpu.XIDEvent{Time: now, UUID: r.last.UUID, Index: r.index, XID: xid})
}

// What is kept of the errors between two snapshots. A sick card can report
// thousands of the same error in a second: they must neither fill the memory
// nor hide one of another kind.
const (
	maxOfAKind = 4
	maxEvents  = 128
)

// eventLog collects errors between two snapshots.
type eventLog struct {
	mu      sync.Mutex
	events  []gpu.XIDEvent
	ofAKind map[[2]uint64]int // by GPU and error
	dropped int
}

func (l *eventLog) add(e gpu.XIDEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kind := [2]uint64{uint64(e.Index), e.XID}
	if l.ofAKind[kind] >= maxOfAKind || len(l.events) >= maxEvents {
		l.dropped++
		return
	}
	if l.ofAKind == nil {
		l.ofAKind = make(map[[2]uint64]int)
	}
	l.ofAKind[kind]++
	l.events = append(l.events, e)
}

// take returns what was collected and begins anew.
func (l *eventLog) take() (events []gpu.XIDEvent, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, dropped = l.events, l.dropped
	l.events, l.ofAKind, l.dropped = nil, nil, 0
	return events, dropped
}
