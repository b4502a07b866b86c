//go:build cgo

package main

import (
	"maps"
	"slices"
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

// noteXID passes on an error that the library has told of.
func (r *reader) noteXID(xid uint64, now time.Time) {
	r.mu.Lock()
	r.xid = &xid
	r.mu.Unlock()
	r.tell(gpu.XIDEvent{Time: now, UUID: r.last.UUID, Index: r.index, XID: xid})
}

// What is kept of the errors that stand in the kernel's log.
const (
	// maxWaiting is how many of them wait for their GPU to be known.
	maxWaiting = 4096
	// earlierAtOnce is how many from before the probe's start a snapshot has:
	// there is no haste with them, and they must not hide those of now.
	earlierAtOnce = 32
	// clockDrift is one part in how many the kernel's log and its clock go apart at
	// most: the clock is steered by what the network says the time is, the log is not.
	clockDrift = 5000
)

// readKernelLog passes on the XID errors of the kernel's log. The driver writes
// an error there before the library tells of it: read after the library, the
// log has every error that it told of.
func (p *probe) readKernelLog(now time.Time) {
	clock := monotonic()
	all := p.kernel.read(func(e loggedXID) {
		if p.kernel.age(e.stamp, clock) < -time.Second-clock/clockDrift {
			return // of another start of the machine
		}
		if e.first = !p.looked; !e.first {
			e.after = p.lookedAt
		}
		if len(p.logged) == maxWaiting {
			p.logged = append(p.logged[:0], p.logged[1:]...)
		}
		p.logged = append(p.logged, e)
	})
	p.looked, p.lookedAt = p.looked || all, clock
	earlier := 0
	p.logged = slices.DeleteFunc(p.logged, func(l loggedXID) bool {
		age := min(max(0, p.kernel.age(l.stamp, clock)), clock-l.after)
		before := l.first && clock-age <= p.started
		if before && earlier >= earlierAtOnce {
			return false
		}
		for _, r := range p.readers {
			if !r.isAt(l.busID) {
				continue
			}
			e := gpu.XIDEvent{Time: now.Add(-age), XID: l.xid, PID: l.pid, Program: l.program, Earlier: before}
			if before {
				earlier++
			}
			r.noteLogged(e, &p.events, now)
			return true
		}
		return false
	})
}

// isAt says whether the GPU is the one with this address.
func (r *reader) isAt(busID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.PCIBusID == busID
}

// noteLogged passes on an error that stands in the kernel's log.
func (r *reader) noteLogged(e gpu.XIDEvent, to *eventLog, now time.Time) {
	r.mu.Lock()
	e.UUID, e.Index = r.last.UUID, r.index
	if !e.Earlier {
		r.xid = &e.XID
	}
	r.mu.Unlock()
	if e.Earlier {
		to.addEarlier(e)
	} else {
		to.add(e, true, now)
	}
}

// What is kept of the errors between two snapshots. A sick card can report
// thousands of the same error in a second: they must neither fill the memory
// nor hide one of another kind.
const (
	maxOfAKind = 4
	maxEvents  = 128
)

// sameWithin is how far apart the two reports of one error can be, that of the
// library and that of the kernel's log.
const sameWithin = 5 * time.Second

// eventLog collects errors between two snapshots.
type eventLog struct {
	mu      sync.Mutex
	events  []gpu.XIDEvent
	ofAKind map[kind]int
	dropped int
	ahead   map[kind]lead
}

// kind is a GPU and an error.
type kind struct {
	index int
	xid   uint64
}

// lead is by how many errors of a kind the kernel's log is ahead of the
// library, negative where it is behind: so many reports of the other are about
// errors that were told already.
type lead struct {
	by int
	at time.Time
}

// add takes an error from the kernel's log or from the library, and leaves out
// those that the other has told of.
func (l *eventLog) add(e gpu.XIDEvent, logged bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := kind{e.Index, e.XID}
	ahead := l.ahead[k]
	if age := now.Sub(ahead.at); age > sameWithin || age < -sameWithin {
		ahead.by = 0
	}
	ahead.at = now
	told := logged && ahead.by < 0 || !logged && ahead.by > 0
	if logged {
		ahead.by++
	} else {
		ahead.by--
	}
	if l.ahead == nil {
		l.ahead, l.ofAKind = make(map[kind]lead), make(map[kind]int)
	}
	l.ahead[k] = ahead
	switch {
	case told:
		l.complete(e)
	case l.ofAKind[k] >= maxOfAKind || len(l.events) >= maxEvents:
		l.dropped++
	default:
		l.ofAKind[k]++
		l.events = append(l.events, e)
	}
}

// complete adds to an error what only the kernel's log knows.
func (l *eventLog) complete(e gpu.XIDEvent) {
	if e.PID == 0 && e.Program == "" {
		return
	}
	for i := range l.events {
		if t := &l.events[i]; t.Index == e.Index && t.XID == e.XID && !t.Earlier && t.PID == 0 && t.Program == "" {
			t.Time, t.PID, t.Program = e.Time, e.PID, e.Program
			return
		}
	}
}

// addEarlier takes an error from before the probe's start. Its caller keeps
// their number small.
func (l *eventLog) addEarlier(e gpu.XIDEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// take returns what was collected and begins anew.
func (l *eventLog) take(now time.Time) (events []gpu.XIDEvent, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, dropped = l.events, l.dropped
	l.events, l.dropped = nil, 0
	clear(l.ofAKind)
	maps.DeleteFunc(l.ahead, func(_ kind, a lead) bool { return now.Sub(a.at) > sameWithin })
	return events, dropped
}
