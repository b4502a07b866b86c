package notebooks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/units"
)

// When a waiting launch starts depends on people. What is expected is what would
// come of it if everybody used GPUs for as long as notebooks, or jobs, here have
// usually run.

const (
	enoughPast = 5                   // notebooks, to tell from them how long others run
	pastDays   = 90 * 24 * time.Hour // how far back they are looked at
)

// lengths are how long notebooks, or jobs, with GPUs have run, the shortest first.
type lengths []time.Duration

// left is how much longer a notebook runs that has run for so long: half of those
// that did ended sooner. It is false where too few ran longer.
func (d lengths) left(age time.Duration) (time.Duration, bool) {
	i, _ := slices.BinarySearch(d, max(age, 0)+1)
	longer := d[i:]
	if len(longer) < enoughPast {
		return 0, false
	}
	return longer[len(longer)/2] - max(age, 0), true
}

// pastRuns are the lengths of what has ended.
type pastRuns struct{ notebooks, jobs lengths }

// left is how much longer a launch runs that has had its GPUs for so long. A job
// has its time limit, if nothing else is known of jobs.
func (p pastRuns) left(l Launch, age time.Duration) (time.Duration, bool) {
	if l.Job == nil {
		return p.notebooks.left(age)
	}
	if l.Service != nil {
		return max(time.Until(l.Service.StopAt), 0), true
	}
	most := max(l.Job.Limit-age, 0)
	if left, known := p.jobs.left(age); known {
		most = min(most, left)
	}
	return most, true
}

// A wish is a launch that waits: what it needs, and for how long if it gets it.
type wish struct {
	Need
	length time.Duration
	keeps  string // the machine that is kept for it, "" for none
}

// tenure are GPUs of a machine that come free about then.
type tenure struct {
	machine string
	gpus    int
	until   time.Time
}

// expected says when launches that wait in this order can be expected to start,
// zero where that cannot be told. Who has got GPUs keeps them for so long.
func expected(now time.Time, room Room, reserved []Need, held []tenure, queue []wish) []time.Time {
	nodes := slices.Clone(room.Nodes)
	for _, r := range reserved {
		book(nodes, r)
	}
	free := map[string][]time.Time{} // by machine: from when on each of its GPUs is
	for _, n := range nodes {
		free[n.Name] = slices.Repeat([]time.Time{now}, max(n.Free.GPUs, 0))
	}
	for _, h := range held {
		if _, open := free[h.machine]; open {
			free[h.machine] = append(free[h.machine], slices.Repeat([]time.Time{h.until}, h.gpus)...)
		}
	}
	for _, f := range free {
		slices.SortFunc(f, time.Time.Compare)
	}
	starts := make([]time.Time, len(queue))
	for i, need := range queue {
		var at time.Time
		var on string
		for _, n := range nodes {
			if !n.fits(need.Need) {
				continue
			}
			if f := free[n.Name]; len(f) >= need.GPUs && (on == "" || f[need.GPUs-1].Before(at)) {
				at, on = f[need.GPUs-1], n.Name
			}
		}
		if on == "" {
			// Nobody behind it gets what is kept for it until then.
			for _, n := range nodes {
				if f := free[n.Name]; n.fits(need.Need) && (need.keeps == n.Name || need.keeps == "") {
					free[n.Name] = f[min(need.GPUs, len(f)):]
				}
			}
			continue
		}
		starts[i] = at
		f := append(free[on][need.GPUs:], slices.Repeat([]time.Time{at.Add(need.length)}, need.GPUs)...)
		slices.SortFunc(f, time.Time.Compare)
		free[on] = f
	}
	return starts
}

// expectations are when the launches that wait for GPUs can be expected to start.
func (s *Service) expectations(ctx context.Context, room Room, reserved []Need, all []Launch) map[int64]time.Time {
	now := s.now()
	past, err := s.pastRuns(ctx, now)
	if err != nil {
		s.log.Warn("how long launches ran is not known", "error", err)
		return nil
	}
	if _, known := past.notebooks.left(0); !known {
		return nil
	}
	var held []tenure
	var waiting []Launch
	for _, l := range all {
		switch {
		case l.GPUs == 0:
		case l.State == Waiting:
			if s.unable(l.Profile) == "" {
				waiting = append(waiting, l)
			}
		case l.Node != "":
			if until := s.givesBack(l, past, now); !until.IsZero() {
				held = append(held, tenure{l.Node, l.GPUs, until})
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b Launch) int { return cmp.Compare(s.turn(a), s.turn(b)) })
	queue := make([]wish, len(waiting))
	for i, l := range waiting {
		length, _ := past.left(l, 0)
		queue[i] = wish{s.need(l), length, s.keptFor(l.ID).Machine}
	}
	list := map[int64]time.Time{}
	for i, at := range expected(now, room, reserved, held, queue) {
		if !at.IsZero() {
			list[waiting[i].ID] = at.Round(time.Minute)
		}
	}
	return list
}

// givesBack is when a launch that has GPUs can be expected to give them back, zero
// where nothing tells.
func (s *Service) givesBack(l Launch, past pastRuns, now time.Time) (until time.Time) {
	if l.State == Stopping {
		return now
	}
	if left, known := past.left(l, now.Sub(l.Started)); known {
		until = now.Add(left)
	}
	if s.cfg.EndsBy != nil {
		until = earlier(until, s.cfg.EndsBy(l))
	}
	if !until.IsZero() && until.Before(now) {
		return now
	}
	return until
}

// earlier is the earlier one of those times that are known.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// pastRuns reads them anew once a minute.
func (s *Service) pastRuns(ctx context.Context, now time.Time) (pastRuns, error) {
	if at := now.Truncate(time.Minute); !at.Equal(s.ran.at) {
		var of pastRuns
		var err error
		if of.notebooks, err = s.rows.lengths(ctx, false, now.Add(-pastDays)); err != nil {
			return of, err
		}
		if of.jobs, err = s.rows.lengths(ctx, true, now.Add(-pastDays)); err != nil {
			return of, err
		}
		s.ran.at, s.ran.of = at, of
	}
	return s.ran.of, nil
}

func (t rows) lengths(ctx context.Context, jobs bool, since time.Time) (lengths, error) {
	d, err := store.All(ctx, t.db, func(row store.Row) (time.Duration, error) {
		ms, err := store.Value[int64](row)
		return time.Duration(ms) * time.Millisecond, err
	}, `SELECT ended_at - started_at FROM launches
		WHERE gpus > 0 AND ended_at >= ? AND ready_at IS NOT NULL AND (id IN (SELECT launch_id FROM jobs)) = ?
		AND id NOT IN (SELECT service FROM services) ORDER BY 1`, since.UnixMilli(), jobs)
	if err != nil {
		return nil, fmt.Errorf("read how long launches ran: %w", err)
	}
	return d, nil
}

// expectedWords says it as roughly as it is known, so that it also stays the same
// for a while.
func expectedWords(wait time.Duration) string {
	const why = ", judging by how long notebooks here have run"
	step := 5 * time.Minute
	switch {
	case wait < 5*time.Minute:
		return "It can start any minute" + why + "."
	case wait >= 4*time.Hour:
		step = time.Hour
	case wait >= time.Hour:
		step = 15 * time.Minute
	}
	return "It starts in about " + units.Lasting(wait.Round(step)) + why + "."
}
