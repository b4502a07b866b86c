package week

import (
	"cmp"
	"context"
	"math"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/store"
)

const (
	ada = iota
	ben
	cleo
)

// work is a sitting of so many cells that think and work for ten minutes each.
func work(person int, at time.Duration, cells int, leftOpen time.Duration) Session {
	return Session{Person: person, At: at, Until: at + 10*time.Hour, LeftOpen: leftOpen,
		Cells: slices.Repeat([]Cell{{Think: 10 * time.Minute, Busy: 10 * time.Minute}}, cells)}
}

func got(r Record, person int) time.Duration { return r.got[person] }

func lived(t *testing.T, how func(context.Context, Demand) (Record, error), d Demand) Record {
	t.Helper()
	r, err := how(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOwners(t *testing.T) {
	d := Demand{Length: aWeek, People: 3, Machines: []int{1, 1}, Sessions: []Session{work(ada, 9*time.Hour, 6, 20*time.Hour), work(ben, 9*time.Hour, 3, 0), work(cleo, 9*time.Hour, 1, 0)},
		Jobs: []Job{{Person: ada, At: 13 * time.Hour, GPUs: 2, Work: time.Hour}}}
	r := lived(t, Owners, d)
	// Ada's notebook makes way for her own job, which runs on her one GPU for twice as long.
	if got(r, ada) != 3*time.Hour || got(r, ben) != 30*time.Minute || got(r, cleo) != 0 {
		t.Errorf("they have worked for %v", r.got)
	}
	if r.GaveUp != 1 || r.Finished != 1 || r.Waited(true, 100) != 0 {
		t.Errorf("%+v", r)
	}
	if want := (1 + 1.0 + 0) * (1 + 1.0 + 0) / (3 * (1 + 1.0 + 0)); math.Abs(r.Fairness()-want) > 1e-9 {
		t.Errorf("fairness %f, and not %f", r.Fairness(), want)
	}
}

func TestGroups(t *testing.T) {
	d := Demand{Length: aWeek, Seed: 1, People: 2, Machines: []int{1}, Sessions: []Session{work(ada, 9*time.Hour, 3, 4*time.Hour), work(ben, 9*time.Hour+time.Minute, 3, 0)}}
	r := lived(t, Groups, d)
	// Ben waits until ada's notebook, which she has left open, ends.
	if waited := r.Waited(false, 100); waited != 5*time.Hour-time.Minute {
		t.Errorf("ben waits for %s", waited)
	}
	if got(r, ada) != 30*time.Minute || got(r, ben) != 30*time.Minute || r.Fairness() != 1 {
		t.Errorf("they have worked for %v", r.got)
	}
}

func TestFirstCome(t *testing.T) {
	d := Demand{Length: aWeek, People: 3, Machines: []int{2, 1}, Sessions: []Session{work(ada, 9*time.Hour, 3, 100*time.Hour), work(ada, 19*time.Hour, 1, 0)},
		Jobs: []Job{{Person: ben, At: 10 * time.Hour, GPUs: 2, Work: 3 * time.Hour}, {Person: cleo, At: 11 * time.Hour, GPUs: 2, Work: time.Hour}, {Person: cleo, At: 12 * time.Hour, GPUs: 1, Work: time.Hour}}}
	d.Sessions[0].LeftOpen = 10 * time.Hour
	r := lived(t, FirstCome, d)
	// Ada's notebook is on the small machine. The job for one GPU does not pass the one for two.
	if want := []time.Duration{0, 2 * time.Hour, 2 * time.Hour}; !slices.Equal(r.jobs, want) {
		t.Errorf("jobs waited for %v, and not %v", r.jobs, want)
	}
	// She comes back before it ends, and has not to wait.
	if !slices.Equal(r.notebooks, []time.Duration{0, 0}) || r.Launches != 4 || got(r, ada) != 40*time.Minute {
		t.Errorf("notebooks waited for %v; %d launches, ada worked for %s", r.notebooks, r.Launches, got(r, ada))
	}
}

// Work that does not end by the end of the week counts until then, and whoever
// goes home before they had a GPU has given up.
func TestEndOfWeek(t *testing.T) {
	d := Demand{Length: aWeek, People: 2, Machines: []int{1}, Jobs: []Job{{Person: ada, At: aWeek - 2*time.Hour, GPUs: 1, Work: 9 * time.Hour}}, Sessions: []Session{work(ben, aWeek-90*time.Minute, 1, 0)}}
	d.Sessions[0].Until = aWeek - time.Hour
	r := lived(t, FirstCome, d)
	if got(r, ada) != 2*time.Hour || r.Useful() != 2 || r.Held != 2 || r.GaveUp != 1 || r.Waited(false, 50) != 30*time.Minute {
		t.Errorf("%+v", r)
	}
}

func TestFigures(t *testing.T) {
	if got := jain([]float64{1, 0, 0, 0}); got != 0.25 {
		t.Errorf("one of four has it all: %f", got)
	}
	if got := jain([]float64{2, 2}); got != 1 {
		t.Errorf("both have the same: %f", got)
	}
	list := []time.Duration{4, 1, 3, 2}
	if percentile(list, 50) != 2 || percentile(list, 95) != 4 || percentile(nil, 50) != 0 {
		t.Errorf("half are up to %d, nineteen of twenty up to %d", percentile(list, 50), percentile(list, 95))
	}
}

// strict is a line that lets in by priority, then who came first, and nobody past
// another.
type strict struct{ in map[int64]bool }

func (s *strict) Decide(state queue.State) (map[int64]bool, error) {
	free, in := state.Stock[0].GPUs, map[int64]bool{}
	var waiting []queue.Claim
	for _, c := range state.Claims {
		if c.Held || s.in[c.Launch] {
			in[c.Launch] = true
			free -= c.GPUs
		} else {
			waiting = append(waiting, c)
		}
	}
	slices.SortStableFunc(waiting, func(a, b queue.Claim) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Launch, b.Launch))
	})
	for _, c := range waiting {
		if c.GPUs > free {
			break
		}
		in[c.Launch] = true
		free -= c.GPUs
	}
	s.in = in
	return in, nil
}

// first has each launch run where it is to run at best.
type first struct{}

func (first) Start(_ *Launch, on []int) (int, error) { return on[0], nil }
func (first) End(*Launch) error                      { return nil }

func withGpulab(t *testing.T, d Demand) (r Record) {
	t.Helper()
	// The database is synced at every commit, thousands of times.
	dir, err := os.MkdirTemp("/dev/shm", "gpulab-week-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		if r, err = Gpulab(t.Context(), d, s.DB(), &strict{}, first{}); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

// Ada leaves her notebook open; cleo's job gets its GPU within the time that the
// settings say, before ben's, who has used more.
func TestGpulab(t *testing.T) {
	r := withGpulab(t, Demand{Length: 14 * time.Hour, People: 3, Machines: []int{1},
		Sessions: []Session{work(ada, 9*time.Hour, 3, 100*time.Hour)},
		Jobs: []Job{
			{Person: ben, At: time.Hour, GPUs: 1, Work: 2 * time.Hour}, {Person: ben, At: 9*time.Hour + 10*time.Minute, GPUs: 1, Work: time.Hour},
			{Person: cleo, At: 9*time.Hour + 20*time.Minute, GPUs: 1, Work: 3 * time.Hour},
		}})
	if r.Reclaimed != 1 || r.Interrupted != 0 || r.Lost != 0 || r.Finished != 2 || r.Preempted != 0 {
		t.Errorf("%+v", r)
	}
	// Ada is done at 10; after half an hour of nothing and ten minutes of warning, at 10:40, cleo's job begins, and ben's follows.
	if cleos, bens := r.jobs[2], r.jobs[1]; (cleos-80*time.Minute).Abs() > 2*time.Minute || bens-cleos != 3*time.Hour+10*time.Minute {
		t.Errorf("cleo waited for %s, ben for %s", cleos, bens)
	}
}

// Who thinks for long at their desk says that they still need it; who is out does not.
func TestAtTheDesk(t *testing.T) {
	for _, away := range []bool{false, true} {
		s := work(ada, 9*time.Hour, 2, 0)
		s.Cells[1].Think, s.Cells[1].Away = 65*time.Minute, away
		r := withGpulab(t, Demand{Length: 14 * time.Hour, People: 2, Machines: []int{1}, Sessions: []Session{s}, Jobs: []Job{{Person: ben, At: 9*time.Hour + time.Minute, GPUs: 1, Work: time.Hour}}})
		taken := map[bool]int{false: 0, true: 1}[away]
		if r.Reclaimed != taken || r.Interrupted != taken || got(r, ada) != 20*time.Minute || got(r, ben) != time.Hour {
			t.Errorf("away %v: %d taken back, %d interrupted; they worked for %v", away, r.Reclaimed, r.Interrupted, r.got)
		}
	}
}

// Nobody gets more than they asked for, and no lab more than it can.
func TestRules(t *testing.T) {
	for seed := range uint64(10) {
		d := Generate(seed)
		for name, how := range map[string]func(context.Context, Demand) (Record, error){"owners": Owners, "groups": Groups, "first come": FirstCome} {
			r := lived(t, how, d)
			if r.Useful() > d.Bound()+1e-6 || r.Held > d.Capacity() || r.Useful() > r.Held || r.Fairness() > 1 {
				t.Errorf("seed %d, %s: %f useful hours of at most %f, %f held of %f", seed, name, r.Useful(), d.Bound(), r.Held, d.Capacity())
			}
			for who, asked := range d.asked() {
				if r.got[who] > asked {
					t.Errorf("seed %d, %s: %d worked for %s and asked for %s", seed, name, who, r.got[who], asked)
				}
			}
		}
	}
}
