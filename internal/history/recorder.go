package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
)

// Config describes a Recorder. Store is needed, the zero value of everything
// else works.
type Config struct {
	Store *store.Store
	// Clock tells the time of the day, and how long this program has run by a
	// clock that nobody sets. Default: the system's.
	Clock func() (wall time.Time, running time.Duration)
	// Limit is the longest time between two snapshots of a node that counts.
	// What lies further apart is a gap: nothing of it is in the ledger.
	// Default 5 s.
	Limit time.Duration
	// FlushEvery is how often Run writes to disk, and thereby what a crash
	// loses. Default 8 s.
	FlushEvery time.Duration
	// Log is where failures to write are told once. Default slog.Default().
	Log *slog.Logger
}

// Recorder keeps the history. It is safe for concurrent use.
type Recorder struct {
	cfg Config

	// flushing is held while one batch is written; the numbers below are known
	// from the databases.
	flushing sync.Mutex
	gpuIDs   map[string]int64 // metrics.db, by UUID
	cardIDs  map[card]cardRow // gpulab.db
	prunedAt time.Duration
	pruned   bool

	// damaged is the metrics.db that somebody has found damaged. It is replaced
	// as soon as that can be done.
	damaged atomic.Pointer[sql.DB]

	noted atomic.Uint64 // events

	mu      sync.Mutex
	nodes   map[string]*node
	recent  map[string]*recent // by UUID
	pending batch
	problem Problem
	lost    bool // readings were dropped since the problem began
}

// batch is what has not been written yet.
type batch struct {
	readings readings
	events   events
	usage    ledger
}

// node is what the recorder remembers of a machine between two snapshots.
type node struct {
	seen time.Duration // on the running clock
	wall time.Time
	down bool // its last snapshot had no readings
	gpus map[string]*gpuState
}

// gpuState is what the recorder remembers of a GPU between two snapshots.
type gpuState struct {
	energy   *float64      // the counter as last read, joules
	energyAt time.Duration // on the running clock
	lists    bool          // its driver has listed processes before
	lost     bool
	known    bool // lost says how it was before
}

// Problem is why the history is not, or was not, kept as it should be.
type Problem struct {
	// Text is a sentence for people, NextStep says what to do about it.
	Text, NextStep string
	Since          time.Time
}

// New returns a recorder that keeps its history in the two databases.
func New(cfg Config) *Recorder {
	if cfg.Clock == nil {
		started := time.Now()
		cfg.Clock = func() (time.Time, time.Duration) { now := time.Now(); return now, now.Sub(started) }
	}
	if cfg.Limit == 0 {
		cfg.Limit = 5 * time.Second
	}
	if cfg.FlushEvery == 0 {
		cfg.FlushEvery = 8 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Recorder{
		cfg: cfg, nodes: map[string]*node{}, recent: map[string]*recent{}, pending: newBatch(),
		gpuIDs: map[string]int64{}, cardIDs: map[card]cardRow{},
	}
}

func newBatch() batch {
	return batch{readings: newReadings(), events: events{}, usage: ledger{}}
}

// Run records what snapshots brings until ctx ends or the channel is closed,
// and writes what is left. Failures to write are not its end: see Problem.
func (r *Recorder) Run(ctx context.Context, snapshots <-chan gpu.Snapshot) error {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { // apart, so that a slow disk delays no snapshot
		defer close(done)
		tick := time.NewTicker(r.cfg.FlushEvery)
		defer tick.Stop()
		for {
			select {
			case <-writing.Done():
				return
			case <-tick.C:
				_ = r.Flush(writing) // Problem tells
			}
		}
	}()
	r.take(ctx, snapshots)
	stop()
	<-done
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = r.Flush(last)
	return nil
}

func (r *Recorder) take(ctx context.Context, snapshots <-chan gpu.Snapshot) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-snapshots:
			if !ok {
				return
			}
			r.Add(s)
		}
	}
}

// Add records one snapshot. It never waits for a disk.
func (r *Recorder) Add(s gpu.Snapshot) {
	wall, running := r.cfg.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[s.Node]
	if n == nil {
		n = &node{gpus: map[string]*gpuState{}, seen: running, wall: wall, down: s.Error != ""}
		r.nodes[s.Node] = n
	}
	passed := running - n.seen
	// Slots that were filled before the clock was set back are about another time.
	back := n.wall.Add(passed).Sub(wall) > 2*time.Second
	n.seen, n.wall = running, wall
	r.noteNode(n, &s, wall)
	seen := map[string]bool{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == "" || seen[g.UUID] {
			continue // nobody could find it again
		}
		seen[g.UUID] = true
		state := n.gpus[g.UUID]
		if state == nil {
			state = &gpuState{}
			n.gpus[g.UUID] = state
		}
		if back {
			delete(r.recent, g.UUID)
		}
		readable := s.Error == "" && g.Error == ""
		if s.Error == "" {
			r.noteGPU(state, &s, g, wall)
		}
		if readable {
			r.record(g, wall)
		}
		if s.Lost {
			continue // nobody can use it, and who holds it is not known any more
		}
		spent := state.spent(g, readable, passed, running, r.cfg.Limit)
		if readable && len(g.Processes) > 0 {
			state.lists = true
		}
		c := card{uuid: tidy(g.UUID), node: tidy(s.Node), simulated: g.Simulated || s.Simulated}
		about := about{number: g.Index, name: tidy(g.Name)}
		if passed <= 0 || passed > r.cfg.Limit {
			// Time that does not count has no holder, but its energy is spent.
			a := amounts{energy: spent.joules, energyFor: spent.seconds}
			r.pending.usage.add(c, about, wall, 0, share{card: a, unattributed: a})
			continue
		}
		r.pending.usage.add(c, about, wall, passed, divide(g, readable, state.lists, passed.Seconds(), spent))
	}
}

// Flush writes what has not been written yet. What cannot be written stays for
// the next time.
func (r *Recorder) Flush(ctx context.Context) error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.mu.Lock()
	b := r.pending
	r.pending = newBatch()
	r.forgetRecent()
	r.mu.Unlock()

	db := r.cfg.Store.Metrics()
	seriesErr := r.watch(db, r.writeSeries(ctx, db, b))
	if r.damaged.Load() == db {
		// Kept readings are lost with the file, those of the last seconds are not.
		r.cfg.Log.Error("the history database is damaged and begun anew", "err", seriesErr)
		r.gpuIDs = map[string]int64{}
		if seriesErr = r.cfg.Store.ReplaceMetrics(ctx); seriesErr == nil {
			seriesErr = r.writeSeries(ctx, r.cfg.Store.Metrics(), b)
		}
	}
	usageErr := r.writeUsage(ctx, b.usage)

	r.mu.Lock()
	defer r.mu.Unlock()
	if seriesErr != nil {
		r.lost = r.pending.readings.restore(b.readings) || r.lost
		r.lost = r.pending.events.restore(b.events) || r.lost
	}
	if usageErr != nil {
		r.lost = r.pending.usage.restore(b.usage) || r.lost
	}
	err := errors.Join(seriesErr, usageErr)
	r.judge(err)
	return err
}

// watch notes a metrics.db that an error calls damaged, and returns the error.
// Readers may meet damage that writers never do.
func (r *Recorder) watch(db *sql.DB, err error) error {
	if store.Damaged(err) {
		r.damaged.Store(db)
	}
	return err
}

// readFailed words the error of a reader of metrics.db.
func (r *Recorder) readFailed(db *sql.DB, err error) error {
	return fmt.Errorf("read the history: %w", r.watch(db, err))
}

// judge makes a failure the recorder's problem, and its end the end of it.
func (r *Recorder) judge(err error) {
	wall, _ := r.cfg.Clock()
	switch {
	case err == nil && r.problem.Text != "":
		r.cfg.Log.Info("history is written again", "since", r.problem.Since)
		r.problem, r.lost = Problem{}, false
	case err != nil:
		if r.problem.Text == "" {
			r.cfg.Log.Error("history cannot be written", "err", err)
			r.problem.Since = wall
		}
		r.problem.Text = "History cannot be written at the moment: " + strings.TrimSuffix(err.Error(),
			".") + ". Readings go on."
		r.problem.NextStep = "It is tried again every few seconds; see `gpulab logs gpulab`."
		if store.Full(err) {
			r.problem.Text = "History cannot be written: the disk is full. Readings go on."
			r.problem.NextStep = "Make room on the disk of gpulab's data directory; history goes on by itself then."
		}
		if r.lost {
			r.problem.Text += " Some of it has been dropped meanwhile."
		}
	}
}

// Problem returns what is wrong with the history now, or what happened to it
// since this start; false if nothing.
func (r *Recorder) Problem() (Problem, bool) {
	r.mu.Lock()
	p := r.problem
	r.mu.Unlock()
	if p.Text != "" {
		return p, true
	}
	if path := r.cfg.Store.MetricsSetAside(); path != "" {
		return Problem{
			Text: "The history of readings was damaged and has begun anew; the ledger of use is not affected.",
			NextStep: fmt.Sprintf("Look at the disk's health. The damaged file is kept as %s; delete it when nobody needs "+
				"it, and restart gpulab to end this notice.", path),
		}, true
	}
	return Problem{}, false
}

// tidy makes a name from outside fit for a table and a database: short, valid,
// and nothing that moves the cursor.
func tidy(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if runes := []rune(s); len(runes) > 128 {
		s = string(runes[:128])
	}
	return strings.TrimSpace(s)
}

// sane drops a reading that no card can have.
func sane(v *float64, most float64) *float64 {
	if v == nil || math.IsNaN(*v) || *v < 0 || *v > most {
		return nil
	}
	return v
}

// The largest readings that are taken for true.
const (
	mostPercent     = 100
	mostPower       = 5000 // watts
	mostTemperature = 200  // degrees Celsius
	mostClock       = 20000
	mostMemory      = 1 << 50
)
