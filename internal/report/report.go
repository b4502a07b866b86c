// Package report says what a lab had of its GPUs: week by week and group by
// group how much of them was held, used and left idle, how long people waited,
// how evenly it was spread, and what it would have been had each GPU belonged to
// one person.
//
// It reads the ledger of use, the launches, what was taken back and which jobs gave way; it writes
// nothing. cmd/gpulab wires the package.
package report

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// MostWeeks is how many weeks a report has at most.
const MostWeeks = 53

// Config wires a Service. All of it is required.
type Config struct {
	DB    *sql.DB
	Usage func(ctx context.Context, f history.Filter, by history.By) ([]history.Usage, error)
	// Groups are the lab's, Members those of one.
	Groups  func(ctx context.Context) ([]users.Group, error)
	Members func(ctx context.Context, group string) ([]users.Membership, error)
}

// Service makes reports. It may be used from any goroutine.
type Service struct {
	cfg Config
	now func() time.Time
}

// New returns a service.
func New(cfg Config) *Service { return &Service{cfg: cfg, now: time.Now} }

// Report is about some weeks, the current one up to now. Real and simulated GPUs
// are never counted together: it is about real ones where there were any.
type Report struct {
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Simulated bool      `json:"simulated,omitempty"`
	Whole     Part      `json:"whole"`
	Weeks     []Part    `json:"weeks"`  // from the first with anything in it, the oldest first; they begin on Mondays
	Groups    []Part    `json:"groups"` // of all the weeks, who held most first
}

// Part is a week, a group, or all of it. Times are in seconds.
type Part struct {
	Group string    `json:"group,omitempty"` // its name
	From  time.Time `json:"from,omitzero"`   // of a week
	To    time.Time `json:"to,omitzero"`

	// There is how long GPUs were there, each counted; 0 of a group.
	There float64 `json:"thereSeconds,omitempty"`
	// Held is Busy + Idle + the time in which it is not known which of both it
	// was. On a shared GPU everybody who holds it counts in full.
	Held float64 `json:"heldSeconds"`
	Busy float64 `json:"busySeconds"`
	Idle float64 `json:"idleSeconds"`
	// Owned is the part of Busy that there would have been at best had each GPU
	// belonged to one person: to those who used most. Nil of a group, and where
	// nobody used any.
	Owned *float64 `json:"ownedSeconds,omitempty"`

	// People held a GPU or asked for one. Fairness is Jain's index of what they
	// held: 1 is all the same, 1/People is one who had it all; nil for fewer than two.
	People   int      `json:"people"`
	Fairness *float64 `json:"fairness,omitempty"`

	// Launches asked for a GPU in this time and got it; GaveUp ended before. Half
	// of the launches waited for less than Waited50, 19 of 20 for less than Waited95.
	Launches int      `json:"launches"`
	GaveUp   int      `json:"gaveUp"`
	Waited50 *float64 `json:"waited50Seconds,omitempty"`
	Waited95 *float64 `json:"waited95Seconds,omitempty"`
	// Reclaimed notebooks were stopped because nobody used their GPUs, Resumed of
	// them for somebody who waited.
	Reclaimed int `json:"reclaimed"`
	Resumed   int `json:"reclaimedForSomebody"`
	// Preempted runs of jobs gave way to somebody who waited, and Lost is what was
	// lost with them at most: the time for which those had a GPU that did not end in
	// peace when they were asked to.
	Preempted int     `json:"preempted"`
	Lost      float64 `json:"preemptedLostSeconds"`
}

// Gain is what sharing brought over a GPU for each owner, as a share: 0.6 is
// 60 % more; nil where it cannot be told.
func (p Part) Gain() *float64 {
	if p.Owned == nil || *p.Owned <= 0 {
		return nil
	}
	gain := p.Busy / *p.Owned - 1
	return &gain
}

// Make reports on so many weeks, this one included.
func (s *Service) Make(ctx context.Context, weeks int) (Report, error) {
	if weeks < 1 || weeks > MostWeeks {
		return Report{}, fmt.Errorf("a report is about 1 to %d weeks", MostWeeks)
	}
	now := s.now()
	monday := thisMonday(now)
	from := monday.AddDate(0, 0, -7*(weeks-1))
	r := Report{From: from, To: now, Weeks: []Part{}, Groups: []Part{}}
	all, err := s.gather(ctx, from, now)
	if err != nil {
		return r, err
	}
	r.Simulated = all.simulated
	r.Whole = all.part(nil)
	for i := range weeks {
		begins := from.AddDate(0, 0, 7*i)
		ends := begins.AddDate(0, 0, 7)
		if ends.After(now) {
			ends = now
		}
		week, err := s.gatherOf(ctx, begins, ends, all.simulated)
		if err != nil {
			return r, err
		}
		p := week.part(nil)
		if len(r.Weeks) == 0 && p.There == 0 && p.People == 0 && i < weeks-1 {
			continue
		}
		p.From, p.To = begins, ends
		r.Weeks = append(r.Weeks, p)
	}
	r.Groups, err = s.groups(ctx, all)
	return r, err
}

func thisMonday(now time.Time) time.Time {
	y, m, d := now.Date()
	return time.Date(y, m, d-(int(now.Weekday())+6)%7, 0, 0, 0, 0, now.Location())
}

func (s *Service) groups(ctx context.Context, all gathered) ([]Part, error) {
	list, err := s.cfg.Groups(ctx)
	if err != nil {
		return nil, err
	}
	parts := []Part{}
	for _, g := range list {
		members, err := s.cfg.Members(ctx, g.Name)
		if err != nil {
			return nil, err
		}
		in := map[string]bool{}
		for _, m := range members {
			in[m.Handle] = true
		}
		p := all.part(in)
		p.Group = g.Name
		parts = append(parts, p)
	}
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Held, a.Held) })
	return parts, nil
}

// gathered is what is known of a time.
type gathered struct {
	simulated bool
	there     float64
	cards     int
	used      []history.Usage // by people
	launches  []asked
	taken     []taken
	gaveWay   []gaveWay
}

// asked is a launch that asked for GPUs.
type asked struct {
	handle string
	waited time.Duration
	got    bool // otherwise it ended before it did
}

// taken is a notebook that was stopped because nobody used it.
type taken struct {
	handle string
	wanted bool
}

// gaveWay is a run of a job that gave way.
type gaveWay struct {
	handle string
	lost   float64 // GPU-seconds
}

// gather takes real GPUs where there were any.
func (s *Service) gather(ctx context.Context, from, to time.Time) (gathered, error) {
	g, err := s.gatherOf(ctx, from, to, false)
	if err != nil || g.cards > 0 {
		return g, err
	}
	simulated, err := s.gatherOf(ctx, from, to, true)
	if err != nil || simulated.cards == 0 {
		return g, err
	}
	return simulated, nil
}

func (s *Service) gatherOf(ctx context.Context, from, to time.Time, simulated bool) (gathered, error) {
	g := gathered{simulated: simulated}
	if !from.Before(to) {
		return g, nil // a Monday's first moment
	}
	f := history.Filter{From: from, To: to}
	cards, err := s.cfg.Usage(ctx, f, history.ByGPU)
	if err != nil {
		return g, err
	}
	for _, c := range cards {
		if c.Simulated == simulated && c.Watched > 0 {
			g.there += c.Watched
			g.cards++
		}
	}
	people, err := s.cfg.Usage(ctx, f, history.ByUser)
	if err != nil {
		return g, err
	}
	for _, u := range people {
		if u.Simulated == simulated && u.Kind == history.KindUser {
			g.used = append(g.used, u)
		}
	}
	if g.launches, err = s.asked(ctx, from, to, simulated); err != nil {
		return g, err
	}
	if g.taken, err = s.taken(ctx, from, to, simulated); err != nil {
		return g, err
	}
	g.gaveWay, err = s.gaveWay(ctx, from, to, simulated)
	return g, err
}

func (s *Service) asked(ctx context.Context, from, to time.Time, simulated bool) ([]asked, error) {
	rows, err := s.cfg.DB.QueryContext(ctx, `SELECT handle, requested_at, started_at FROM launches
		WHERE gpus > 0 AND requested_at >= ? AND requested_at < ? AND (started_at IS NOT NULL AND simulated = ?
		OR started_at IS NULL AND state = 'ended')`,
		from.UnixMilli(), to.UnixMilli(), simulated)
	if err != nil {
		return nil, fmt.Errorf("read who waited: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var list []asked
	for rows.Next() {
		var a asked
		var requested int64
		var started sql.NullInt64
		if err := rows.Scan(&a.handle, &requested, &started); err != nil {
			return nil, fmt.Errorf("read who waited: %w", err)
		}
		if a.got = started.Valid; a.got {
			a.waited = time.Duration(max(started.Int64-requested, 0)) * time.Millisecond
		}
		list = append(list, a)
	}
	return list, rows.Err()
}

func (s *Service) taken(ctx context.Context, from, to time.Time, simulated bool) ([]taken, error) {
	rows, err := s.cfg.DB.QueryContext(ctx, `SELECT reclaims.handle, wanted_launch > 0 FROM reclaims JOIN launches
			ON launches.id = launch_id
		WHERE at >= ? AND at < ? AND cause = 'idle' AND simulated = ?`, from.UnixMilli(), to.UnixMilli(), simulated)
	if err != nil {
		return nil, fmt.Errorf("read what was taken back: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var list []taken
	for rows.Next() {
		var one taken
		if err := rows.Scan(&one.handle, &one.wanted); err != nil {
			return nil, fmt.Errorf("read what was taken back: %w", err)
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

func (s *Service) gaveWay(ctx context.Context, from, to time.Time, simulated bool) ([]gaveWay, error) {
	list, err := store.All(ctx, s.cfg.DB, func(from store.Row) (g gaveWay, err error) {
		err = from.Scan(&g.handle, &g.lost)
		return g, err
	}, `SELECT handle, iif(coalesce(one.value ->> 'saved', 0), 0,
		gpus * (one.value ->> 'until' - (one.value ->> 'from')) / 1000.0)
		FROM launches JOIN jobs ON launch_id = launches.id, json_each(tries) AS one
		WHERE tries <> '[]' AND one.value ->> 'endCode' = 'preempted' AND one.value ->> 'until' >= ?
		AND one.value ->> 'until' < ? AND coalesce(one.value ->> 'simulated', 0) = ?`,
		from.UnixMilli(), to.UnixMilli(), simulated)
	if err != nil {
		return nil, fmt.Errorf("read which jobs gave way: %w", err)
	}
	return list, nil
}

// part adds up what those in did, nil for everybody.
func (g gathered) part(in map[string]bool) Part {
	all := in == nil
	held := map[string]float64{}
	var p Part
	var busy []float64
	for _, u := range g.used {
		if !all && !in[u.Name] {
			continue
		}
		p.Held, p.Busy, p.Idle = p.Held+u.Held, p.Busy+u.Busy, p.Idle+u.Idle
		held[u.Name] += u.Held
		busy = append(busy, u.Busy)
	}
	var waited []time.Duration
	for _, a := range g.launches {
		if !all && !in[a.handle] {
			continue
		}
		held[a.handle] += 0 // who asked and got nothing counts, too
		if !a.got {
			p.GaveUp++
			continue
		}
		p.Launches++
		waited = append(waited, a.waited)
	}
	for _, t := range g.taken {
		if all || in[t.handle] {
			p.Reclaimed++
			if t.wanted {
				p.Resumed++
			}
		}
	}
	for _, w := range g.gaveWay {
		if all || in[w.handle] {
			p.Preempted++
			p.Lost += w.lost
		}
	}
	p.People, p.Fairness = len(held), jain(held)
	p.Waited50, p.Waited95 = percentile(waited, 50), percentile(waited, 95)
	if all {
		p.There = g.there
		p.Owned = owned(busy, g.cards, g.there)
	}
	return p
}

// owned is how busy GPUs would have been at best if each had belonged to one
// person, who can use no more than one at a time.
func owned(busy []float64, cards int, there float64) *float64 {
	if cards == 0 {
		return nil
	}
	slices.SortFunc(busy, func(a, b float64) int { return cmp.Compare(b, a) })
	sum := 0.0
	for _, b := range busy[:min(cards, len(busy))] {
		sum += min(b, there/float64(cards))
	}
	if sum == 0 {
		return nil
	}
	return &sum
}

// jain is Jain's index of fairness: (Σx)² / (n · Σx²).
// R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness, DEC-TR-301, 1984.
func jain(of map[string]float64) *float64 {
	sum, squares := 0.0, 0.0
	for _, x := range of {
		sum, squares = sum+x, squares+x*x
	}
	if len(of) < 2 || squares == 0 {
		return nil
	}
	v := sum * sum / (float64(len(of)) * squares)
	return &v
}

// percentile is the value that so many of a hundred do not exceed, in seconds.
func percentile(list []time.Duration, of int) *float64 {
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	at := int(math.Ceil(float64(of)/100*float64(len(list)))) - 1
	v := list[max(at, 0)].Seconds()
	return &v
}
