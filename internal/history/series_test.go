package history

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// ramp is a reading that tells which second it is of.
func ramp(i int) gpu.Snapshot {
	g := idle()
	g.Utilization, g.Power = ptr(float64(i%100)), ptr(100+float64(i%50)+0.125)
	g.MemoryUsed, g.Temperature, g.SMClock = ptr(uint64(i)<<20), ptr(float64(30+i%60)), ptr(float64(1000+i%7))
	return snap(g)
}

// Each level says exactly what the seconds in it were: means, peaks, counts.
func TestDownsamplingIsExact(t *testing.T) {
	l := newLab(t)
	l.wall = noon.Add(-time.Second)
	const n = 1500
	l.seconds(n, ramp)
	for _, tc := range []struct {
		name   string
		from   time.Time
		points int
		step   int
	}{
		{"seconds", noon.Add((n - 600) * time.Second), 600, 1},
		{"seconds, in bins of 5", noon.Add((n - 600) * time.Second), 120, 5},
		{"ten seconds", noon, 1000, 10},
		{"ten seconds, in bins of a minute", noon, 25, 60},
		{"five minutes", noon.Add(-48 * time.Hour), 1000, 300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := l.series(tc.from, l.wall.Add(time.Second), tc.points)
			if s.Step != time.Duration(tc.step)*time.Second {
				t.Fatalf("step %v, want %d s", s.Step, tc.step)
			}
			want := int(min(l.wall.Add(time.Second).Sub(tc.from), n*time.Second)/time.Second) / tc.step
			if len(s.Points) != want {
				t.Fatalf("%d points, want %d", len(s.Points), want)
			}
			for _, p := range s.Points {
				checkPoint(t, p, int(p.Time.Sub(noon)/time.Second), tc.step)
			}
		})
	}
}

// checkPoint compares a point with the seconds first to first+n-1 of the ramp.
func checkPoint(t *testing.T, p Point, first, n int) {
	t.Helper()
	var use, useMax, power, powerMax, memory, temperature, clock float64
	for i := first; i < first+n; i++ {
		g := ramp(i).GPUs[0]
		use += *g.Utilization / float64(n)
		power += *g.Power / float64(n)
		clock += *g.SMClock / float64(n)
		useMax, powerMax = math.Max(useMax, *g.Utilization), math.Max(powerMax, *g.Power)
		memory, temperature = math.Max(memory, float64(*g.MemoryUsed)), math.Max(temperature, *g.Temperature)
	}
	at := fmt.Sprint(first, "+", n)
	nearPtr(t, at+" use", p.Use, use, 1e-9)
	nearPtr(t, at+" use, max", p.UseMax, useMax, 0)
	nearPtr(t, at+" power", p.Power, power, 1e-9)
	nearPtr(t, at+" power, max", p.PowerMax, powerMax, 1e-9)
	nearPtr(t, at+" memory", p.Memory, memory, 0)
	nearPtr(t, at+" temperature", p.Temperature, temperature, 0)
	nearPtr(t, at+" clock", p.SMClock, clock, 1e-9)
}

// A crash in the middle of slots loses what was not flushed, and the slots go
// on where they were.
func TestRestartInTheMiddleOfASlot(t *testing.T) {
	l := newLab(t)
	l.wall = noon.Add(-time.Second)
	for i := range 137 {
		l.second(ramp(i))
		if i == 132 {
			l.flush()
		}
	}
	l.start()
	for i := 137; i < 300; i++ {
		l.second(ramp(i))
	}
	l.flush()
	s := l.series(noon.Add(-48*time.Hour), noon.Add(time.Hour), 1000)
	if len(s.Points) != 1 {
		t.Fatalf("%d points", len(s.Points))
	}
	var sum float64
	n := 0
	for i := range 300 {
		if i <= 132 || i >= 137 {
			sum, n = sum+float64(i%100), n+1
		}
	}
	nearPtr(t, "use", s.Points[0].Use, sum/float64(n), 1e-9)
	// The seconds before the restart are shown as ten of them each.
	ten := l.series(noon, noon.Add(300*time.Second), 600)
	if len(ten.Points) != 14+163 || ten.Points[13].Time != noon.Add(130*time.Second) || ten.Points[13].Use == nil || ten.Points[14].Time != noon.Add(137*time.Second) {
		t.Errorf("%d points: %v", len(ten.Points), ten.Points[:min(len(ten.Points), 16)])
	}
}

func TestGapsStayGaps(t *testing.T) {
	l := newLab(t)
	l.wall = noon.Add(-time.Second)
	l.seconds(60, ramp)
	l.pass(2 * time.Second) // no more than late
	l.seconds(60, ramp)
	l.pass(3 * time.Minute)
	unknown := ramp(0)
	unknown.GPUs[0].Utilization = nil
	l.seconds(60, func(int) gpu.Snapshot { return unknown })
	for _, step := range []int{1, 2, 10} {
		s := l.series(noon, l.wall.Add(time.Second), int(l.wall.Add(time.Second).Sub(noon).Seconds())/step+1)
		var gaps []time.Duration
		for _, p := range s.Points {
			if p == (Point{Time: p.Time}) {
				gaps = append(gaps, p.Time.Sub(noon))
			}
			if p.Use != nil && *p.Use == 0 && p.Time.Sub(noon) > 4*time.Minute {
				t.Errorf("what was not read is 0 at %v", p.Time)
			}
		}
		if len(gaps) != 1 || gaps[0] < 120*time.Second || gaps[0] > 132*time.Second {
			t.Errorf("steps of %d s: gaps at %v", step, gaps)
		}
		if last := s.Points[len(s.Points)-1]; last.Use != nil || last.UseMax != nil || last.Power == nil {
			t.Errorf("steps of %d s: a card without use: %+v", step, last)
		}
	}
	// A snapshot without readings is none, and neither is a card that cannot be read.
	at := l.wall
	down := ramp(50)
	down.Error = "The GPU probe has been silent for 3 s."
	l.second(down)
	lost := ramp(50)
	lost.GPUs[0].Error = "GPU 0 is gone."
	l.second(lost)
	l.flush()
	if s := l.series(at.Add(time.Second), at.Add(time.Minute), 100); len(s.Points) != 0 {
		t.Errorf("points without readings: %+v", s.Points)
	}
}

// A clock that is set back makes no gap that is not one and no second twice.
func TestClockSetBack(t *testing.T) {
	l := newLab(t)
	l.seconds(600, ramp)
	l.wall = noon.Add(300 * time.Second)
	l.seconds(60, func(int) gpu.Snapshot { return ramp(7) })
	s := l.series(noon.Add(301*time.Second), l.wall.Add(time.Second), 600)
	if len(s.Points) != 60 {
		t.Fatalf("%d points", len(s.Points))
	}
	for _, p := range s.Points {
		nearPtr(t, "use", p.Use, 7, 0)
	}
	// In the rows both readings of such a slot count.
	l.start()
	s = l.series(noon.Add(310*time.Second), noon.Add(350*time.Second), 600)
	if len(s.Points) != 4 {
		t.Fatalf("%d rows", len(s.Points))
	}
	for i, p := range s.Points {
		var sum float64
		for k := range 10 {
			sum += float64((310 + 10*i + k - 1) % 100)
		}
		nearPtr(t, "use", p.Use, (sum+10*7)/20, 1e-9)
	}
}

func TestPointsAreBounded(t *testing.T) {
	l := newLab(t)
	l.seconds(1000, ramp)
	for _, window := range []time.Duration{time.Second, 10 * time.Second, 61 * time.Second, 10 * time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 366 * 24 * time.Hour, 90 * 365 * 24 * time.Hour} {
		for _, points := range []int{1, 2, 7, 300, 600, 5000} {
			to := l.wall.Add(350 * time.Millisecond)
			s := l.series(to.Add(-window), to, points)
			if len(s.Points) > points {
				t.Errorf("%v in %d points: %d of them, %v each", window, points, len(s.Points), s.Step)
			}
		}
	}
	for name, ask := range map[string]func() error{
		"no point":        func() error { _, err := l.Series(t.Context(), "GPU-a", noon, l.wall, 0); return err },
		"too many points": func() error { _, err := l.Series(t.Context(), "GPU-a", noon, l.wall, 1e6); return err },
		"backwards":       func() error { _, err := l.Series(t.Context(), "GPU-a", l.wall, noon, 10); return err },
	} {
		var asked *WrongError
		if err := ask(); !errors.As(err, &asked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := l.Series(t.Context(), "GPU-none", noon, l.wall, 10); err != nil || len(s.Points) != 0 || s.Points == nil {
		t.Errorf("a card that is not known: %+v, %v", s, err)
	}
}

// After more than a year nothing grows any more.
func TestSizeIsBounded(t *testing.T) {
	l := newLab(t)
	l.Recorder.cfg.Limit = 5 * time.Minute
	pages := func() (n, free, tens, fives, recent int) {
		t.Helper()
		for query, into := range map[string]*int{
			"PRAGMA page_count": &n, "PRAGMA freelist_count": &free,
			"SELECT count(*) FROM readings_10s": &tens, "SELECT count(*) FROM readings_5min": &fives,
		} {
			if err := l.store.Metrics().QueryRow(query).Scan(into); err != nil {
				t.Fatal(err)
			}
		}
		return n, free, tens, fives, len(l.recent)
	}
	year := func(days int) {
		for i := range days * 288 {
			l.pass(5 * time.Minute)
			l.Add(ramp(i))
			if i%144 == 143 {
				l.flush()
			}
		}
	}
	year(370)
	before, _, tensBefore, fivesBefore, _ := pages()
	year(60)
	after, _, tensAfter, fivesAfter, recent := pages()
	const most = 366*288 + 144
	if fivesBefore > most || fivesAfter > most || fivesAfter < 366*288 {
		t.Errorf("%d and %d rows of five minutes, of a year's %d", fivesBefore, fivesAfter, most)
	}
	if tensAfter > 25*12+144 || tensBefore > 25*12+144 {
		t.Errorf("%d and %d rows of ten seconds", tensBefore, tensAfter)
	}
	if float64(after) > 1.02*float64(before) {
		t.Errorf("%d pages became %d", before, after)
	}
	if recent != 1 {
		t.Errorf("%d cards' seconds are kept", recent)
	}
	l.pass(time.Hour)
	l.flush()
	if len(l.recent) != 0 {
		t.Error("the seconds of a card that is gone are kept")
	}
	t.Logf("a year of one card: %d kB", after*4)
}

// Every query finds its rows by an index.
func TestQueriesUseIndexes(t *testing.T) {
	l := newLab(t)
	from, to := noon.AddDate(0, -1, 0), noon
	queries := map[string][]any{}
	for _, lv := range []level{tens, fives} {
		queries[rowsQuery(lv)] = []any{300, "GPU-a", 0, 1}
		queries[pruneQuery(lv)] = []any{0}
	}
	for _, f := range []EventFilter{{}, {UUID: "GPU-a"}, {From: from}, {UUID: "GPU-a", From: from, To: to}} {
		query, args := eventsQuery(f)
		queries[query] = args
	}
	for query, args := range queries {
		checkPlan(t, l.store.Metrics(), query, args)
	}
	for _, f := range []Filter{{From: from}, {From: from, To: to}, {User: "ada"}, {User: "ada", From: from}} {
		for by := range keys {
			for _, cards := range [][]int64{nil, {1, 2}} {
				query, args, err := usageQuery(f, by, cards)
				if err != nil {
					t.Fatal(err)
				}
				checkPlan(t, l.store.DB(), query, args)
			}
		}
	}
}

func checkPlan(t *testing.T, db *sql.DB, query string, args []any) {
	t.Helper()
	rows, err := db.Query("EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	lines := 0
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		lines++
		// A scan in the order of an index ends with LIMIT; gpus and usage_gpus are a few rows; part is what was found.
		whole := strings.HasPrefix(detail, "SCAN") && !strings.Contains(detail, "USING INDEX events_last") && detail != "SCAN part" &&
			!strings.Contains(detail, "gpus")
		slow := strings.HasPrefix(detail, "SEARCH usage USING INDEX usage_name") && !strings.Contains(detail, "kind=? AND name=?")
		if whole || slow || strings.Contains(detail, "readings") && !strings.Contains(detail, "gpu=? AND slot") {
			t.Errorf("%s\n%s", query, detail)
		}
	}
	if err := rows.Err(); err != nil || lines == 0 {
		t.Errorf("%s: %d lines, %v", query, lines, err)
	}
}
