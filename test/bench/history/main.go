// Command history measures how the history grows and how fast it answers: a
// year of a lab is recorded through internal/history with a clock that this
// program turns, into real databases, and then asked as pages and commands do.
//
// The year goes by in snapshots five minutes apart, which fill the rows of five
// minutes and of the ledger as one a second would; its last day goes by in
// snapshots ten seconds apart, which do the same for the rows of ten seconds,
// and its last ten minutes second by second.
//
// Run it with: go run ./test/bench/history. It takes some minutes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(1)
	}
}

// result are the figures.
type result struct {
	GPUs  int `json:"gpus"`
	Users int `json:"users"`
	Days  int `json:"days"`
	// Sizes are in bytes, after everything is in the file.
	MetricsSize int64 `json:"metricsBytes"`
	LedgerSize  int64 `json:"ledgerBytes"` // of gpulab.db, which holds little else here
	LedgerRows  int64 `json:"ledgerRows"`
	// Times are the median and the longest in milliseconds.
	Queries []timing `json:"queries"`
	// Seconds of this machine that recording took, per simulated second of the
	// last ten minutes, flushes included.
	Recording float64 `json:"recordingSeconds"`
}

type timing struct {
	Name    string  `json:"name"`
	Rows    int     `json:"rows"`
	Median  float64 `json:"medianMilliseconds"`
	Longest float64 `json:"longestMilliseconds"`
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("history", flag.ContinueOnError)
	cards := flags.Int("gpus", 10, "GPUs of the lab")
	people := flags.Int("users", 100, "people of the lab")
	days := flags.Int("days", 366, "length of the year")
	asJSON := flags.Bool("json", false, "print the figures as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpulab-history-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	databases, err := store.Open(ctx, dir)
	if err != nil {
		return err
	}
	lab := newLab(databases, *cards, *people)
	out := result{GPUs: *cards, Users: *people, Days: *days}
	if err := lab.live(ctx, *days, &out); err != nil {
		return errors.Join(err, databases.Close())
	}
	if err := lab.ask(ctx, &out); err != nil {
		return errors.Join(err, databases.Close())
	}
	if err := databases.DB().QueryRowContext(ctx, "SELECT count(*) FROM usage").Scan(&out.LedgerRows); err != nil {
		return errors.Join(err, databases.Close())
	}
	if err := databases.Close(); err != nil {
		return err
	}
	for file, size := range map[string]*int64{store.MetricsFile: &out.MetricsSize, store.MainFile: &out.LedgerSize} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		*size = info.Size()
	}
	return out.print(*asJSON)
}

func (r result) print(asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	fmt.Printf("%d days of %d GPUs and %d people\n", r.Days, r.GPUs, r.Users)
	fmt.Printf("  history of readings        %7.1f MB\n", float64(r.MetricsSize)/1e6)
	fmt.Printf("  ledger of use              %7.1f MB, %d rows\n", float64(r.LedgerSize)/1e6, r.LedgerRows)
	fmt.Printf("  both                       %7.1f MB (goal: 500)\n", float64(r.MetricsSize+r.LedgerSize)/1e6)
	fmt.Printf("  recording one second       %7.2f ms of this machine\n", r.Recording*1e3)
	for _, q := range r.Queries {
		fmt.Printf("  %-32s %7.1f ms, at most %.1f, %d rows\n", q.Name, q.Median, q.Longest, q.Rows)
	}
	return nil
}

// ask puts the questions of pages and commands.
func (l *lab) ask(ctx context.Context, out *result) error {
	now := l.wall
	series := func(back time.Duration, points int) func() (int, error) {
		return func() (int, error) {
			s, err := l.recorder.Series(ctx, l.cards[len(l.cards)/2].uuid, now.Add(-back), now, points)
			return len(s.Points), err
		}
	}
	usage := func(f history.Filter, by history.By) func() (int, error) {
		return func() (int, error) {
			rows, err := l.recorder.Usage(ctx, f, by)
			return len(rows), err
		}
	}
	const day = 24 * time.Hour
	for _, q := range []struct {
		name string
		ask  func() (int, error)
	}{
		{"chart, 10 minutes", series(10*time.Minute, 600)},
		{"chart, 24 hours", series(day, 800)},
		{"chart, 30 days (goal: 100)", series(30*day, 800)},
		{"chart, a year", series(365*day, 800)},
		{"use by user, 24 hours", usage(history.Filter{From: now.Add(-day)}, history.ByUser)},
		{"use by user, 30 days", usage(history.Filter{From: now.Add(-30 * day)}, history.ByUser)},
		{"use by user, a year (goal: 200)", usage(history.Filter{From: now.Add(-365 * day)}, history.ByUser)},
		{"  the same, from hours alone", func() (int, error) { return l.useFromHours(ctx, now.Add(-365*day)) }},
		{"use by user, everything", usage(history.Filter{}, history.ByUser)},
		{"one user by hour, 30 days", usage(history.Filter{User: "user7", From: now.Add(-30 * day)}, history.ByHour)},
		{"use by GPU, 30 days", usage(history.Filter{From: now.Add(-30 * day)}, history.ByGPU)},
	} {
		t := timing{Name: q.name}
		var took []float64
		for range 11 {
			begin := time.Now()
			rows, err := q.ask()
			if err != nil {
				return fmt.Errorf("%s: %w", q.name, err)
			}
			if rows == 0 {
				return fmt.Errorf("%s: no rows", q.name)
			}
			took = append(took, time.Since(begin).Seconds()*1e3)
			t.Rows = rows
		}
		slices.Sort(took)
		t.Median, t.Longest = took[len(took)/2], took[len(took)-1]
		out.Queries = append(out.Queries, t)
	}
	return nil
}

// useFromHours adds up who used the GPUs from the ledger's hours, as it was done
// before there were sums over longer times, to compare with.
func (l *lab) useFromHours(ctx context.Context, from time.Time) (n int, err error) {
	rows, err := l.databases.DB().QueryContext(
		ctx, `SELECT kind, usage.name, simulated, sum(watched), sum(held), sum(busy), sum(unknown),
			sum(compute), sum(compute_for), sum(memory), sum(memory_for), sum(energy), sum(energy_for)
		FROM usage JOIN usage_gpus ON usage_gpus.id = usage.gpu WHERE kind <> 'card' AND hour >= ?
		GROUP BY +kind, +usage.name, simulated ORDER BY sum(held) DESC, kind, usage.name`, from.Unix())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		n++
	}
	return n, rows.Err()
}

// lab is a lab that works all year.
type lab struct {
	databases *store.Store
	recorder  *history.Recorder
	random    *rand.Rand
	people    int
	cards     []*card
	wall      time.Time
	running   time.Duration
}

// card is a GPU and who has it at the moment.
type card struct {
	uuid    string
	index   int
	energy  float64 // joules
	holders []holder
	until   time.Time // when they change
}

type holder struct {
	user string
	busy bool
}

func newLab(databases *store.Store, cards, people int) *lab {
	l := &lab{
		databases: databases, random: rand.New(rand.NewPCG(1, 2)), people: people,
		wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for i := range cards {
		l.cards = append(l.cards, &card{uuid: fmt.Sprintf("GPU-%08x-5b3d-4f1e-9c55-0123456789ab", i), index: i})
	}
	l.recorder = history.New(history.Config{
		Store: databases, Limit: 5 * time.Minute,
		Clock: func() (time.Time, time.Duration) { return l.wall, l.running },
	})
	return l
}

// live records the days.
func (l *lab) live(ctx context.Context, days int, out *result) error {
	const day = 24 * time.Hour
	begin := l.wall
	for _, stage := range []struct {
		until       time.Duration
		step, flush time.Duration
	}{
		{time.Duration(days-2) * day, 5 * time.Minute, time.Hour},
		{time.Duration(days)*day - 10*time.Minute, 10 * time.Second, 80 * time.Second},
		{time.Duration(days) * day, time.Second, 8 * time.Second},
	} {
		started, seconds := time.Now(), 0
		for l.wall.Sub(begin) < stage.until {
			for end := l.wall.Add(stage.flush); l.wall.Before(end); {
				l.wall, l.running = l.wall.Add(stage.step), l.running+stage.step
				l.recorder.Add(l.snapshot(stage.step))
				seconds++
			}
			if err := l.recorder.Flush(ctx); err != nil {
				return err
			}
		}
		out.Recording = time.Since(started).Seconds() / float64(seconds)
	}
	return nil
}

// snapshot is what the lab does after a step of time.
func (l *lab) snapshot(step time.Duration) gpu.Snapshot {
	s := gpu.Snapshot{Node: "box", Time: l.wall, GPUs: make([]gpu.GPU, 0, len(l.cards))}
	for _, c := range l.cards {
		if !l.wall.Before(c.until) {
			l.change(c)
		}
		s.GPUs = append(s.GPUs, l.gpu(c, step))
	}
	return s
}

// change gives a card to others: for hours, sometimes to nobody, often to more
// than one.
func (l *lab) change(c *card) {
	c.until = l.wall.Add(time.Duration(30+l.random.IntN(600)) * time.Minute)
	c.holders = nil
	for range l.random.IntN(4) {
		h := holder{fmt.Sprintf("user%d", l.random.IntN(l.people)), l.random.IntN(3) > 0}
		if !slices.ContainsFunc(c.holders, func(o holder) bool { return o.user == h.user }) {
			c.holders = append(c.holders, h)
		}
	}
}

func (l *lab) gpu(c *card, step time.Duration) gpu.GPU {
	ptr := func(v float64) *float64 { return &v }
	g := gpu.GPU{Device: gpu.Device{UUID: c.uuid, Index: c.index, Name: "Card"}}
	var use float64
	memory := uint64(500<<20 + l.random.IntN(1<<20))
	for _, h := range c.holders {
		pod := gpu.PodRef{UID: h.user, Namespace: "user-" + h.user, Name: "notebook", User: h.user, Notebook: "main"}
		g.Holders = append(g.Holders, gpu.Holder{PodRef: pod})
		var share float64
		if h.busy {
			share = float64(l.random.IntN(100 / len(c.holders)))
		}
		bytes := uint64(l.random.IntN(8 << 30))
		use, memory = use+share, memory+bytes
		g.Processes = append(g.Processes, gpu.Process{PID: 1, SMUtilization: &share, MemoryUsed: &bytes, Pod: pod})
	}
	power := 20 + 3.8*use + l.random.Float64()
	c.energy += power * step.Seconds()
	g.Utilization, g.MemoryUsed, g.Power, g.Energy = &use, &memory, &power, ptr(c.energy)
	g.Temperature, g.SMClock = ptr(float64(35+l.random.IntN(45))), ptr(float64(210+15*l.random.IntN(120)))
	return g
}
