package history

import (
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// A machine that sleeps for a night under a notebook that holds its GPU: the
// night is nobody's, is a gap in the curves, and is told of as what it was.
func TestAsleep(t *testing.T) {
	l := newLab(t)
	holding := func(int) gpu.Snapshot { return snap(heldBy(idle(), "ada")) }
	l.seconds(61, holding)
	from := l.wall
	l.wall = l.wall.Add(9*time.Hour + 53*time.Minute) // no other clock goes on
	l.Slept("box", from, l.wall)
	l.seconds(60, holding)

	near(t, "ada's held time", l.of(KindUser, "ada").Held, 120, 1e-6)
	near(t, "the card's watched time", l.card().Watched, 120, 1e-6)
	s := l.series(from.Add(-time.Minute), l.wall.Add(time.Second), 5000)
	gaps := 0
	for _, p := range s.Points {
		if p == (Point{Time: p.Time}) {
			gaps++
		}
		if p.Power != nil && p.Time.After(from.Add(time.Minute)) && p.Time.Before(l.wall.Add(-2*time.Minute)) {
			t.Errorf("there is a reading of %s, when it slept", p.Time)
		}
	}
	if gaps != 1 {
		t.Errorf("the curve has %d gaps", gaps)
	}
	got := l.events(EventFilter{})
	if len(got) != 1 || got[0].Kind != EventAsleep || got[0].Node != "box" || !got[0].First.Equal(from) || got[0].Last.Sub(got[0].First) != 9*time.Hour+53*time.Minute {
		t.Fatalf("what happened: %+v, want one sleep and no fault", got)
	}
	uuid := idle().UUID
	l.Slept("another", from, l.wall)
	for filter, want := range map[EventFilter]int{
		{UUID: uuid}: 0, {UUID: uuid, Node: "box"}: 1, {Node: "box"}: 1, {Kind: EventAsleep}: 2, {Kind: EventGPULost}: 0,
		{Node: "box", Kind: EventAsleep, From: l.wall.Add(-time.Hour)}: 1, {Node: "box", Kind: EventAsleep, From: l.wall.Add(time.Hour)}: 0,
	} {
		if got := l.events(filter); len(got) != want {
			t.Errorf("%+v: %d events, want %d", filter, len(got), want)
		}
	}
}
