package webui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/users"
)

// A useView is what somebody had of the lab's GPUs.
type useView struct {
	Days       int
	Spans      []useSpan
	Mine       []useTotal // real and simulated apart
	PerDay     []useDay
	MyGPUs     []useRow
	Everybody  []useRow // for those who may see it, otherwise nil
	SeesOthers bool
	Report     bool // may be seen
	Reclaimed  []reclaimedView
	NotKept    string // why nothing is written down at the moment
}

type useSpan struct {
	Days    int
	Name    string
	Current bool
}

// useSpans are the windows of the page, in days; the first is shown at first.
var useSpans = []useSpan{{Days: 7, Name: "7 days"}, {Days: 30, Name: "30 days"}, {Days: 365, Name: "a year"}}

// A useTotal is the sum of a window.
type useTotal struct {
	Simulated bool
	Readings  []reading
	Unknown   string // how long it is not known whether the GPU was used; empty for never
}

// A useRow is one line of a table: a person or a GPU.
type useRow struct {
	Name, Detail       string
	Simulated          bool
	Held, Busy         string
	Idle, Energy       string // empty where it is not known
	MuchIdle           bool
	BusyShare, IdlePer *float64
}

// A useDay is one bar: hours held, of them busy, on a scale that all days share.
type useDay struct {
	Name, Spoken string
	Held, Busy   float64 // height in percent of the drawing
}

// muchIdle is the share of idle time from which a row stands out, once the GPU
// was held for muchIdleAfter.
const (
	muchIdle      = 0.5
	muchIdleAfter = float64(3600) // seconds
)

func (s *Server) usePage(w http.ResponseWriter, r *http.Request, v visitor) error {
	days := useSpans[0].Days
	if asked := r.URL.Query().Get("days"); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n < 1 || n > 366 {
			return errNoPage
		}
		days = n
	}
	view, err := s.useView(r.Context(), v, days)
	if err != nil {
		return fmt.Errorf("read the use of GPUs: %w", err)
	}
	s.render(w, r, http.StatusOK, usePage(s.page(w, r, v, "Use", ""), view))
	return nil
}

func (s *Server) useView(ctx context.Context, v visitor, days int) (useView, error) {
	view := useView{Days: days, SeesOthers: v.mayOnOthers(users.ActionSeeUse), Report: s.cfg.Report != nil &&
		v.may(users.ActionManageLab), NotKept: s.notKept()}
	for _, span := range useSpans {
		span.Current = span.Days == days
		view.Spans = append(view.Spans, span)
	}
	from := midnight(s.now()).AddDate(0, 0, 1-days)
	mine := history.Filter{From: from, User: v.session.User.Handle}
	totals, err := s.cfg.History.Usage(ctx, mine, history.ByTotal)
	if err != nil {
		return view, err
	}
	for _, u := range totals {
		view.Mine = append(view.Mine, useTotalOf(u))
	}
	hours, err := s.cfg.History.Usage(ctx, mine, history.ByHour)
	if err != nil {
		return view, err
	}
	view.PerDay = perDay(hours, from, s.now(), min(days, 31))
	gpus, err := s.cfg.History.Usage(ctx, mine, history.ByGPU)
	if err != nil {
		return view, err
	}
	for _, u := range gpus {
		row := useRowOf(u, u.GPU)
		row.Detail = "GPU " + number(u.Number) + " of " + s.called(u.Node)
		view.MyGPUs = append(view.MyGPUs, row)
	}
	if view.Reclaimed, err = s.reclaimed(ctx, v, from); err != nil {
		return view, err
	}
	if !view.SeesOthers {
		return view, nil
	}
	all, err := s.cfg.History.Usage(ctx, history.Filter{From: from}, history.ByUser)
	if err != nil {
		return view, err
	}
	for _, u := range all {
		if !v.maySeeUse(u) {
			continue
		}
		view.Everybody = append(view.Everybody, useRowOf(u, somebody(u)))
	}
	return view, nil
}

func number(n *int) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(*n)
}

// maySeeUse: what is nobody's account, those see who see everybody.
func (v visitor) maySeeUse(u history.Usage) bool {
	return v.session.User.Scope(users.ActionSeeUse) == users.Everybody ||
		u.Kind == history.KindUser && v.session.User.MayTo(users.ActionSeeUse, u.Name)
}

// somebody names whoever a row of the ledger is about.
func somebody(u history.Usage) string {
	switch u.Kind {
	case history.KindUser:
		return u.Name
	case history.KindUnix:
		return u.Name + " (outside gpulab)"
	case history.KindPod:
		return u.Name + " (no person’s pod)"
	}
	return "not known who"
}

func useTotalOf(u history.Usage) useTotal {
	row := useRowOf(u, "")
	total := useTotal{Simulated: u.Simulated, Readings: []reading{
		{Name: "Held", Value: hours(u.Held), Unit: "GPU hours"},
		{Name: "Busy", Value: hours(u.Busy), Unit: "GPU hours", Fraction: row.BusyShare},
		{Name: "Idle while held", Value: row.Idle, Unit: "", Fraction: row.IdlePer, High: row.MuchIdle},
		{Name: "Energy", Value: row.Energy},
	}}
	if u.Unknown >= 60 {
		total.Unknown = hours(u.Unknown)
	}
	return total
}

func useRowOf(u history.Usage, name string) useRow {
	row := useRow{
		Name: name, Simulated: u.Simulated, Held: hours(u.Held) + " h", Busy: hours(u.Busy) + " h", IdlePer: u.IdleShare(),
	}
	if row.IdlePer != nil {
		row.Idle = whole(*row.IdlePer*100) + " %"
		row.MuchIdle = *row.IdlePer >= muchIdle && u.Held >= muchIdleAfter
		busy := 1 - *row.IdlePer
		row.BusyShare = &busy
	}
	if u.Energy != nil {
		row.Energy = strconv.FormatFloat(*u.Energy/3.6e6, 'f', 2, 64) + " kWh"
	}
	return row
}

// hours writes seconds as hours, with as many decimals as help.
func hours(seconds float64) string {
	h := seconds / 3600
	if h < 10 {
		return strconv.FormatFloat(h, 'f', 2, 64)
	}
	return strconv.FormatFloat(h, 'f', 1, 64)
}

func midnight(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, t.Location())
}

// perDay sums hours of the ledger up to the last days of a window that begins
// at from and ends now, on a scale whose end is the highest day. Hours on simulated GPUs
// are left out where there are real ones.
func perDay(hourly []history.Usage, from, now time.Time, days int) []useDay {
	type sum struct{ held, busy float64 }
	sums := map[time.Time]sum{}
	most := 0.0
	onReal := slices.ContainsFunc(hourly, func(u history.Usage) bool { return !u.Simulated })
	for _, u := range hourly {
		if u.Simulated && onReal {
			continue
		}
		day := midnight(u.Hour.In(from.Location()))
		one := sums[day]
		one.held += u.Held
		one.busy += u.Busy
		sums[day] = one
		most = max(most, one.held)
	}
	if most == 0 {
		return nil
	}
	var list []useDay
	for day := from; !day.After(now); day = day.AddDate(0, 0, 1) {
		one := sums[day]
		name := day.Format("Mon 2 Jan")
		list = append(list, useDay{Name: name, Held: one.held / most * 100, Busy: one.busy / most * 100,
			Spoken: fmt.Sprintf("%s: held %s h, busy %s h", name, hours(one.held), hours(one.busy))})
	}
	if len(list) > days {
		list = list[len(list)-days:]
	}
	return list
}
