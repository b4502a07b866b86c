package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// now is a Wednesday.
var now = time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC)

// lab is a real database with a ledger that is written by hand.
type lab struct {
	*Service
	t      *testing.T
	store  *store.Store
	people *users.Service
	ids    map[string]int64
}

func newLab(t *testing.T, handles ...string) *lab {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l := &lab{t: t, store: st, people: users.New(st.DB()), ids: map[string]int64{}}
	recorder := history.New(history.Config{Store: st})
	l.Service = New(Config{DB: st.DB(), Usage: recorder.Usage, Groups: l.people.Groups, Members: l.people.Members})
	l.now = func() time.Time { return now }
	for _, handle := range handles {
		u, err := l.people.Create(t.Context(), users.NewUser{Handle: handle, Role: users.RoleMember})
		if err != nil {
			t.Fatal(err)
		}
		l.ids[handle] = u.ID
	}
	return l
}

func (l *lab) exec(statement string, args ...any) {
	l.t.Helper()
	if _, err := l.store.DB().Exec(statement, args...); err != nil {
		l.t.Fatal(err)
	}
}

// spend enters an hour's use of a card by somebody: seconds held, of them busy.
func (l *lab) spend(at time.Time, card int, simulated bool, handle string, held, busy float64) {
	l.t.Helper()
	l.exec(`INSERT INTO usage_gpus (id, uuid, node, simulated, number, name) VALUES (?, ?, 'head', ?, ?, 'Model') ON CONFLICT DO NOTHING`, card, fmt.Sprint("GPU-", card), simulated, card)
	watched, kind := 0.0, "user"
	if handle == "" {
		watched, kind = 3600, "card"
	}
	const sums = " DO UPDATE SET watched = watched + excluded.watched, held = held + excluded.held, busy = busy + excluded.busy"
	hour := at.Unix() / 3600 * 3600
	l.exec(`INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT`+sums, hour, card, kind, handle, watched, held, busy)
	for _, span := range []int64{86400, 2764800} {
		l.exec(`INSERT INTO usage_sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT`+sums, span, hour/span*span, card, kind, handle, watched, held, busy)
	}
}

// asks enters a launch with a GPU; a wait below 0 is one that was given up.
func (l *lab) asks(handle string, at time.Time, wait time.Duration, simulated bool) int64 {
	l.t.Helper()
	var started any
	if wait >= 0 {
		started = at.Add(wait).UnixMilli()
	}
	res, err := l.store.DB().Exec(`INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at, started_at, ended_at, simulated)
		VALUES (?, ?, 'gpu', 'Work', 'gpu', 1, 'ended', ?, ?, ?, ?)`, l.ids[handle], handle, at.UnixMilli(), started, at.Add(5*time.Hour).UnixMilli(), simulated)
	if err != nil {
		l.t.Fatal(err)
	}
	id, _ := res.LastInsertId()
	return id
}

func (l *lab) reclaim(launch int64, handle string, at time.Time, cause string, wanted int64) {
	l.t.Helper()
	l.exec(`INSERT INTO reclaims (at, launch_id, user_id, handle, profile, node, gpus, cause, idle_ms, ran_ms, wanted_launch, wanted_by, by)
		VALUES (?, ?, ?, ?, 'gpu', 'head', 1, ?, 0, 0, ?, '', 'system')`, at.UnixMilli(), launch, l.ids[handle], handle, cause, wanted)
}

// Runs of jobs that gave way count with what they lost: nothing, if they had saved it.
func TestGaveWay(t *testing.T) {
	l := newLab(t, "ada", "ben")
	at := now.Add(-2 * time.Hour)
	l.spend(at, 1, false, "", 3600, 0)
	job := func(handle, tries string) {
		l.exec(`INSERT INTO jobs (launch_id, script, args, dir, output, time_limit, tries) VALUES (?, '', '[]', '', 'x', 60, ?)`, l.asks(handle, at, 0, false), tries)
	}
	try := func(code string, from, until time.Duration, more string) string {
		return fmt.Sprintf(`{"from": %d, "until": %d, "endCode": %q, "reason": ""%s}`, at.Add(from).UnixMilli(), at.Add(until).UnixMilli(), code, more)
	}
	job("ada", "["+try("preempted", 0, 10*time.Minute, "")+","+try("preempted", 20*time.Minute, 30*time.Minute, `, "saved": true`)+","+try("exited", 40*time.Minute, 50*time.Minute, "")+"]")
	job("ben", "["+try("preempted", 0, 10*time.Minute, `, "simulated": true`)+","+try("preempted", -30*24*time.Hour, -29*24*time.Hour, "")+"]")
	if got := l.report(1).Whole; got.Preempted != 2 || got.Lost != 600 {
		t.Errorf("%d gave way, with %g s", got.Preempted, got.Lost)
	}
}

func (l *lab) report(weeks int) Report {
	l.t.Helper()
	r, err := l.Make(l.t.Context(), weeks)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func near(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil || math.Abs(*got-want) > 1e-9 {
		shown := "nothing"
		if got != nil {
			shown = fmt.Sprint(*got)
		}
		t.Errorf("%s is %s, want %g", what, shown, want)
	}
}

func TestALabWithoutAnything(t *testing.T) {
	r := newLab(t).report(2)
	if !r.From.Equal(time.Date(2026, 11, 9, 0, 0, 0, 0, time.UTC)) || len(r.Weeks) != 1 || !r.Weeks[0].From.Equal(time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)) || !r.Weeks[0].To.Equal(now) || len(r.Groups) != 0 {
		t.Errorf("%+v", r)
	}
	if p := r.Whole; p.Held != 0 || p.People != 0 || p.Fairness != nil || p.Gain() != nil || p.Waited50 != nil {
		t.Errorf("%+v", p)
	}
	for _, weeks := range []int{0, -1, MostWeeks + 1} {
		if _, err := newLab(t).Make(t.Context(), weeks); err == nil {
			t.Errorf("a report on %d weeks", weeks)
		}
	}
}

// Two cards in two weeks: who had how much, what owners would have had, and how
// long people waited.
func TestReport(t *testing.T) {
	l := newLab(t, "ada", "ben", "cleo", "dora")
	if _, err := l.people.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.people.CreateGroup(t.Context(), "empty", ""); err != nil {
		t.Fatal(err)
	}
	for _, handle := range []string{"cleo", "dora"} {
		l.exec(`INSERT INTO group_members (group_id, user_id, added_at) SELECT id, ?, 1 FROM groups WHERE name = 'vision'`, l.ids[handle])
	}
	last, this := now.AddDate(0, 0, -7), now.Add(-2*time.Hour)
	for h := range 2 {
		at := last.Add(time.Duration(h) * time.Hour)
		for card := 1; card <= 2; card++ {
			l.spend(at, card, false, "", 3600, 3600)
		}
		l.spend(at, 1, false, "ada", 3600, 3600) // who uses both
		l.spend(at, 2, false, "ada", 1800, 1800)
		l.spend(at, 2, false, "ben", 1800, 900)
	}
	for card := 1; card <= 2; card++ {
		l.spend(this, card, false, "", 3600, 1800)
	}
	l.spend(this, 1, false, "cleo", 3600, 1800)
	l.spend(this, 9, true, "ada", 3600, 3600) // it computes nothing
	l.spend(this, 9, true, "", 3600, 3600)

	l.asks("ada", last, 0, false)
	l.asks("ben", last.Add(time.Second), time.Minute, false)
	idle := l.asks("cleo", this, 10*time.Minute, false)
	l.asks("dora", this, -1, false)
	l.asks("ada", this, time.Hour, true)
	l.reclaim(idle, "cleo", now.Add(-time.Hour), "idle", 99)
	old := l.asks("cleo", this, 0, false)
	l.reclaim(old, "cleo", now.Add(-time.Hour), "age", 0)

	r := l.report(3)
	if r.Simulated || len(r.Weeks) != 2 || !r.From.Equal(time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)) {
		t.Fatalf("%+v", r)
	}
	week := r.Weeks[0]
	if week.There != 4*3600 || week.Held != 4*3600 || week.Busy != 3.5*3600 || week.Idle != 0.5*3600 || week.People != 2 || week.Launches != 2 || week.GaveUp != 0 {
		t.Errorf("last week: %+v", week)
	}
	near(t, "what owners would have had", week.Owned, 2.5*3600) // ada one card, and ben half an hour
	near(t, "the gain", week.Gain(), 3.5/2.5-1)
	near(t, "fairness", week.Fairness, 16.0/(2*(9+1)))
	near(t, "half waited", week.Waited50, 0)
	near(t, "the longest wait", week.Waited95, 60)
	week = r.Weeks[1]
	if week.There != 2*3600 || week.Held != 3600 || week.People != 2 || week.Launches != 2 || week.GaveUp != 1 || week.Reclaimed != 1 || week.Resumed != 1 || !week.To.Equal(now) {
		t.Errorf("this week: %+v", week)
	}
	near(t, "fairness of one who had all and one who had none", week.Fairness, 0.5)
	if r.Whole.There != 6*3600 || r.Whole.Held != 5*3600 || r.Whole.People != 4 {
		t.Errorf("in all: %+v", r.Whole)
	}
	if len(r.Groups) != 2 || r.Groups[0].Group != "vision" || r.Groups[0].Held != 3600 || r.Groups[0].People != 2 || r.Groups[0].Owned != nil || r.Groups[0].Reclaimed != 1 || r.Groups[1].People != 0 {
		t.Errorf("groups: %+v", r.Groups)
	}

	var out bytes.Buffer
	if err := r.WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(table) != 1+2+2+1 {
		t.Fatalf("%v\n%v", err, table)
	}
	if got := fmt.Sprint(table[1][0], table[1][3:]); got != "week[4.00 4.00 3.50 0.50 2.50 2 0.800 2 0 0 60 0 0 0 0.00]" {
		t.Errorf("last week in the table: %s", got)
	}
	if table[3][0] != "group:vision" || table[3][3] != "0.00" || table[4][9] != "" || table[5][0] != "all" {
		t.Errorf("%v", table)
	}
}

// A lab that has simulated GPUs alone reads about them.
func TestSimulatedOnly(t *testing.T) {
	l := newLab(t, "ada")
	l.spend(now.Add(-time.Hour), 1, true, "", 3600, 3600)
	l.spend(now.Add(-time.Hour), 1, true, "ada", 1800, 900)
	l.asks("ada", now.Add(-time.Hour), 30*time.Second, true)
	if r := l.report(1); !r.Simulated || r.Whole.Held != 1800 || r.Whole.Launches != 1 {
		t.Errorf("%+v", r)
	}
}
