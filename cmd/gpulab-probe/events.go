//go:build cgo

package main

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// listen passes the GPU's XID errors on. Each GPU has an event set of its own,
// so that one whose driver hangs cannot silence the others.
func (r *reader) listen(tell func(gpu.XIDEvent)) {
	<-r.found
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
	for {
		event, ret := set.Wait(5000)
		switch ret {
		case nvml.SUCCESS:
			r.noteXID(event.EventData, tell)
		case nvml.ERROR_TIMEOUT:
		default: // e.g. the GPU is lost: come back later, it may too
			time.Sleep(time.Second)
		}
	}
}

func (r *reader) noteXID(xid uint64, tell func(gpu.XIDEvent)) {
	r.mu.Lock()
	r.xid = &xid
	e := gpu.XIDEvent{Time: time.Now(), UUID: r.last.UUID, Index: r.index, XID: xid}
	r.mu.Unlock()
	r.alarmed.Store(true)
	tell(e)
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
