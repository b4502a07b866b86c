package webui

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// tellingFleet is a fleet whose readings a test sends.
type tellingFleet chan gpu.Snapshot

func (f tellingFleet) Snapshots() []gpu.Snapshot                     { return nil }
func (f tellingFleet) Subscribe(context.Context) <-chan gpu.Snapshot { return f }

// quietNotebooks is a lab in which nothing is launched.
type quietNotebooks struct{ Notebooks }

func (quietNotebooks) Subscribe(context.Context) <-chan struct{} { return nil }

// ticksIn counts the ticks while something happens.
func ticksIn(t *testing.T, s *Server, happens func()) int {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	var counting sync.WaitGroup
	counting.Go(func() {
		for {
			select {
			case <-s.board.now().over:
				n++
			case <-ctx.Done():
				return
			}
		}
	})
	happens()
	stop()
	counting.Wait()
	return n
}

// There is a tick for each reading and, where readings fail to come, one a
// second; never both.
func TestTicksFollowTheReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := make(tellingFleet)
		s := &Server{cfg: Config{Fleet: fleet, Notebooks: quietNotebooks{}}, trends: newTrends(), streams: newStreams(), now: time.Now, board: board{fleet: fleet}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		readings := func(n int, every time.Duration) func() {
			return func() {
				for range n {
					time.Sleep(every)
					fleet <- gpu.Snapshot{Time: time.Now()}
				}
				synctest.Wait()
			}
		}
		readings(1, 500*time.Millisecond)()
		for _, c := range []struct {
			what    string
			happens func()
			ticks   int
		}{
			{"a reading a second", readings(10, time.Second), 10},
			{"a little slower", readings(10, 1010*time.Millisecond), 10},
			{"silence", func() { time.Sleep(10*time.Second + 300*time.Millisecond) }, 10},
			// 500 ms of readings: one at once, then each 100 ms what has gathered.
			{"many machines", func() { readings(50, 10*time.Millisecond)(); time.Sleep(settle) }, 6},
		} {
			if got := ticksIn(t, s, c.happens); got != c.ticks {
				t.Errorf("%s: %d ticks, want %d", c.what, got, c.ticks)
			}
		}
		if now := s.board.now(); now.machines.made != nil || now.fragments.made != nil || now.news.active.made != nil {
			t.Error("something is read or rendered although nobody watches")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What is new is read at once by whoever comes, even before the next tick.
func TestNewcomersSeeChanges(t *testing.T) {
	b := board{fleet: oneFleet{}}
	first := b.now()
	if b.now() != first {
		t.Fatal("a second look makes another tick")
	}
	b.turn()
	if second := b.now(); second == first || second.news != first.news {
		t.Error("a tick must be new, but not read again what has not changed")
	}
	b.changed()
	if third := b.now(); third.news == first.news {
		t.Error("after a change a newcomer is shown what was read before it")
	}
	select {
	case <-first.over:
	default:
		t.Error("the first tick is not over")
	}
}

func TestMemoMakesOnce(t *testing.T) {
	var m memo[string, int]
	var made atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			got, err := m.get("a", func() (int, error) {
				made.Add(1)
				time.Sleep(10 * time.Millisecond)
				return 7, nil
			})
			if got != 7 || err != nil {
				t.Error(got, err)
			}
		})
	}
	all.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
	if _, err := m.get("b", func() (int, error) { return 0, errors.New("no") }); err == nil {
		t.Error("the failure is lost")
	}
	if got, err := m.get("b", func() (int, error) { return 8, nil }); got != 8 || err != nil {
		t.Errorf("after a failure: %d, %v", got, err)
	}
}

// A stream that ends while it renders takes nothing from the others.
func TestSharedPartsAreRenderedToTheEnd(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	e, now := &eventStream{view: "x"}, &tick{}
	if _, err := e.fragment(ended, now, part{id: "x", body: emptyState("a", "b"), same: everybody}); err != nil {
		t.Errorf("a shared part: %v", err)
	}
	if _, err := e.fragment(ended, now, part{id: "x", body: emptyState("a", "b")}); !errors.Is(err, context.Canceled) {
		t.Errorf("a part for a stream that has ended: %v", err)
	}
}

func TestDrawingsAreNewWithEveryReading(t *testing.T) {
	h, at, low, high := newTrends(), time.Unix(1000, 0), 0.0, 100.0
	h.add(useOf(at, &low))
	before := h.draw("a", use, at).Lines[0]
	h.add(useOf(at.Add(time.Second), &high)) // of the same slot
	if after := h.draw("a", use, at).Lines[0]; after == before {
		t.Errorf("it is still %s", before)
	}
}
