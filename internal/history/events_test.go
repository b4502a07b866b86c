package history

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

func (l *lab) events(f EventFilter) []Event {
	l.t.Helper()
	list, err := l.Events(l.t.Context(), f)
	if err != nil {
		l.t.Fatal(err)
	}
	return list
}

// A storm of 10,000 equal errors is one row a minute, in memory and on disk.
func TestXIDStorm(t *testing.T) {
	l := newLab(t)
	for i := range 10_000 {
		l.pass(10 * time.Millisecond)
		s := snap(idle())
		s.Events = []gpu.XIDEvent{{Time: l.wall, UUID: "GPU-a", Index: 2, XID: 79}}
		l.Add(s)
		if n := len(l.pending.events); n > 2 {
			t.Fatalf("%d events wait", n)
		}
		if i%500 == 0 {
			l.flush()
		}
	}
	l.flush()
	list := l.events(EventFilter{})
	if len(list) != 2 || list[0].Count+list[1].Count != 10_000 {
		t.Fatalf("%+v", list)
	}
	e := list[1]
	if e.XID != 79 || e.Kind != EventXID || e.Node != "box" || e.UUID != "GPU-a" || *e.Number != 2 ||
		!e.First.Equal(noon.Add(10*time.Millisecond)) || !e.Last.Equal(noon.Add(60*time.Second-10*time.Millisecond)) {
		t.Errorf("%+v", e)
	}
}

// What the probe counted but did not pass on is of the kind there is most of.
func TestEventsLeftOut(t *testing.T) {
	l := newLab(t)
	s := snap(idle())
	for _, xid := range []uint64{31, 79, 79, 79, 79} {
		s.Events = append(s.Events, gpu.XIDEvent{Time: l.wall, UUID: "GPU-a", XID: xid})
	}
	s.EventsDropped = 9_996
	l.Add(s)
	l.flush()
	counts := map[uint64]int64{}
	for _, e := range l.events(EventFilter{}) {
		counts[e.XID] = e.Count
	}
	if len(counts) != 2 || counts[31] != 1 || counts[79] != 10_000 {
		t.Errorf("%v", counts)
	}
}

// What the kernel's log has from before the probe's start is noted at its own
// time, and once, however often the probe is started.
func TestErrorsFromBeforeTheProbe(t *testing.T) {
	l := newLab(t)
	fault := func(age time.Duration, earlier bool) gpu.XIDEvent {
		return gpu.XIDEvent{Time: l.wall.Add(-age), UUID: "GPU-a", Index: 2, XID: 31, PID: 4711, Program: "python3\x1b", Earlier: earlier}
	}
	add := func(events ...gpu.XIDEvent) {
		t.Helper()
		s := snap(idle())
		s.Time, s.Events = l.wall, events
		l.Add(s)
		l.flush()
	}
	add(fault(0, false))
	l.pass(30 * time.Minute)
	for range 3 { // starts of the probe; its times waver
		add(fault(30*time.Minute-2*time.Second, true), fault(10*time.Minute, true), fault(10*time.Minute-time.Second, true))
		l.pass(3 * time.Second)
		add(fault(30*time.Minute+3*time.Second+time.Second, true), fault(10*time.Minute+3*time.Second, true), fault(10*time.Minute+2*time.Second, true))
		l.wall = l.wall.Add(-3 * time.Second)
	}
	list := l.events(EventFilter{})
	if len(list) != 2 || list[0].Count != 2 || list[1].Count != 1 || !list[1].First.Equal(noon) || !list[0].First.Equal(noon.Add(20*time.Minute)) {
		t.Fatalf("%+v", list)
	}
	if list[1].Detail != "It happened to python3 (process 4711)." {
		t.Errorf("%q", list[1].Detail)
	}
	// Whose it was is kept when the next error of the minute is nobody's.
	next := fault(30*time.Minute, false)
	next.Time, next.PID, next.Program = noon.Add(time.Second), 0, ""
	l.wall = noon.Add(time.Second)
	add(next)
	if e := l.events(EventFilter{})[1]; e.Count != 2 || e.Detail == "" {
		t.Errorf("%+v", e)
	}
}

func TestEventsAreBounded(t *testing.T) {
	l := newLab(t)
	s := snap(idle())
	for i := range 3 * waitingEvents {
		s.Events = append(s.Events, gpu.XIDEvent{Time: noon, UUID: "GPU-a", XID: uint64(i)<<40 + 1})
	}
	l.Add(s)
	if n := len(l.pending.events); n != waitingEvents {
		t.Errorf("%d events wait", n)
	}
	l.flush()
	if list := l.events(EventFilter{Limit: 1 << 20}); len(list) != waitingEvents {
		t.Errorf("%d events", len(list))
	}
	if _, err := l.store.Metrics().Exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
		INSERT INTO events (node, gpu, number, kind, xid, minute, first, last, count) SELECT 'box', 'GPU-b', 0, 'xid', i, 0, ?1, ?1, 1 FROM n`, noon.UnixMilli()); err != nil {
		t.Fatal(err)
	}
	l.pass(pruneEvery)
	l.flush()
	if list := l.events(EventFilter{Limit: 1 << 20}); len(list) != mostEvents || list[0].XID != 30_000 {
		t.Errorf("%d events are kept", len(list))
	}
	l.pass(367 * 24 * time.Hour)
	l.flush()
	if list := l.events(EventFilter{}); len(list) != 0 {
		t.Errorf("%d events are kept for more than a year", len(list))
	}
}

func TestLostAndBack(t *testing.T) {
	l := newLab(t)
	lost := snap(idle())
	lost.GPUs[0].Reading = gpu.Reading{Error: "GPU 0 has fallen off the bus."}
	down := snap(idle())
	down.Error = "The GPU probe has stopped\x1b[2J."
	for _, s := range []gpu.Snapshot{snap(idle()), lost, lost, snap(idle()), down, down, snap(idle())} {
		l.pass(time.Minute)
		l.Add(s)
		l.flush()
	}
	var kinds []string
	for _, e := range l.events(EventFilter{}) {
		kinds = append(kinds, string(e.Kind))
		if (e.Number == nil) != strings.HasPrefix(string(e.Kind), "probe") {
			t.Errorf("%+v", e)
		}
	}
	if got := strings.Join(kinds, " "); got != "probe-up probe-down gpu-back gpu-lost" {
		t.Errorf("events: %s", got)
	}
	one := l.events(EventFilter{UUID: "GPU-a", From: noon.Add(90 * time.Second), To: noon.Add(3 * time.Minute)})
	if len(one) != 1 || one[0].Kind != EventGPULost || one[0].Detail != "GPU 0 has fallen off the bus." {
		t.Errorf("%+v", one)
	}
	if e := l.events(EventFilter{})[1]; e.Detail != "The GPU probe has stopped[2J." {
		t.Errorf("%q", e.Detail)
	}
	// Going to and fro many times in a minute is a row each.
	for i := range 100 {
		if i%2 == 0 {
			l.Add(lost)
		} else {
			l.Add(snap(idle()))
		}
	}
	l.flush()
	if list := l.events(EventFilter{Limit: 2}); list[0].Count+list[1].Count != 100 {
		t.Errorf("%+v", list)
	}
}

// A machine whose clock is wrong has its events at the head's time.
func TestEventsOfAWrongClock(t *testing.T) {
	l := newLab(t)
	for _, at := range []time.Time{{}, noon.AddDate(-30, 0, 0), noon.Add(2 * time.Hour)} {
		s := snap(idle())
		s.Events = []gpu.XIDEvent{{Time: at, UUID: "GPU-a", XID: 13}}
		l.Add(s)
	}
	l.flush()
	if list := l.events(EventFilter{}); len(list) != 1 || list[0].Count != 3 || !list[0].First.Equal(noon) {
		t.Errorf("%+v", list)
	}
}

// An error is told at once, not when the next batch is written.
func TestEventsUpToThisMoment(t *testing.T) {
	l := newLab(t)
	before := l.Noted()
	s := snap(idle())
	s.Events = []gpu.XIDEvent{{Time: l.wall, UUID: "GPU-a", Index: 2, XID: 79}}
	l.Add(s)
	if l.Noted() != before+1 {
		t.Errorf("noted %d events, want %d", l.Noted(), before+1)
	}
	if list := l.events(EventFilter{UUID: "GPU-a"}); len(list) != 1 || list[0].XID != 79 {
		t.Errorf("%+v", list)
	}
	// Who asks and goes away meanwhile is not the history's problem.
	l.Add(s)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := l.Events(gone, EventFilter{}); err == nil {
		t.Error("somebody who is gone got an answer")
	}
	if p, bad := l.Problem(); bad {
		t.Errorf("%+v", p)
	}
}
