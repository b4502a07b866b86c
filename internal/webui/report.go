package webui

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/units"
)

// A reportView is what the lab had of its GPUs.
type reportView struct {
	Weeks     int
	Spans     []useSpan
	Simulated bool
	Empty     bool
	Readings  []reading
	Gain      string // a sentence, empty where it cannot be told
	PerWeek   []reportRow
	PerGroup  []reportRow
	CSV       string // where the table is
	Lost      string // what was lost at most when jobs gave way, in hours; "" when none did
}

// A reportRow is one week or group.
type reportRow struct {
	Name, Detail                string
	There, Held, Busy, Idle     string
	Waited, Longest, Fair, Back string
	Way                         string // how often jobs gave way
	People                      int
}

// reportSpans are the windows of the page, in weeks.
var reportSpans = []useSpan{{Days: 4, Name: "4 weeks"}, {Days: 12, Name: "12 weeks"}, {Days: 52, Name: "a year"}}

// weeksAsked reads the window of a report; it is no page otherwise.
func (s *Server) weeksAsked(r *http.Request) (int, error) {
	if s.cfg.Report == nil {
		return 0, errNoPage
	}
	asked := r.URL.Query().Get("weeks")
	if asked == "" {
		return reportSpans[0].Days, nil
	}
	n, err := strconv.Atoi(asked)
	if err != nil || n < 1 || n > report.MostWeeks {
		return 0, errNoPage
	}
	return n, nil
}

func (s *Server) reportPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	weeks, err := s.weeksAsked(r)
	if err != nil {
		return err
	}
	made, err := s.cfg.Report(r.Context(), weeks)
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, reportPage(s.page(w, r, v, "Report", ""), reportViewOf(made, weeks)))
	return nil
}

// downloadReport is the same as a table for spreadsheets.
func (s *Server) downloadReport(w http.ResponseWriter, r *http.Request, _ visitor) error {
	weeks, err := s.weeksAsked(r)
	if err != nil {
		return err
	}
	made, err := s.cfg.Report(r.Context(), weeks)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="gpulab-report-`+made.To.Format(time.DateOnly)+`.csv"`)
	// The only possible error is a browser that went away.
	_ = made.WriteCSV(w)
	return nil
}

func reportViewOf(r report.Report, weeks int) reportView {
	all := r.Whole
	view := reportView{Weeks: weeks, Simulated: r.Simulated, Empty: all.There == 0 &&
		all.People == 0, CSV: "/report.csv?weeks=" + strconv.Itoa(weeks)}
	for _, span := range reportSpans {
		span.Current = span.Days == weeks
		view.Spans = append(view.Spans, span)
	}
	view.Readings = []reading{
		{Name: "Held", Value: percent(all.Held, all.There), Fraction: share(all.Held, all.There)},
		{Name: "Busy", Value: percent(all.Busy, all.There), Fraction: share(all.Busy, all.There)},
		{Name: "Waited, half of all", Value: waited(all.Waited50)},
		{Name: "Waited, 19 of 20", Value: waited(all.Waited95)},
	}
	if all.Preempted > 0 {
		view.Lost = hours(all.Lost)
	}
	if gain := all.Gain(); gain != nil && *gain >= 0.005 {
		view.Gain = "GPUs worked " + whole(*gain*100) + " % more than they would have at best if each had belonged to one " +
			"person: " +
			hours(all.Busy) + " hours instead of " + hours(*all.Owned) + "."
	}
	for i := len(r.Weeks) - 1; i >= 0; i-- {
		p := r.Weeks[i]
		row := reportRowOf(p)
		row.Name = p.From.Format("2 Jan 2006")
		if i == len(r.Weeks)-1 {
			row.Detail = "until now"
		}
		view.PerWeek = append(view.PerWeek, row)
	}
	for _, p := range r.Groups {
		row := reportRowOf(p)
		row.Name = p.Group
		view.PerGroup = append(view.PerGroup, row)
	}
	return view
}

func reportRowOf(p report.Part) reportRow {
	row := reportRow{There: hours(p.There), Held: hours(p.Held), Busy: hours(p.Busy), Idle: percent(p.Idle, p.Busy+p.Idle),
		Waited: waited(p.Waited50), Longest: waited(p.Waited95), Fair: fairness(p.Fairness), Back: strconv.Itoa(p.Reclaimed),
		Way: strconv.Itoa(p.Preempted), People: p.People}
	return row
}

func share(part, of float64) *float64 {
	if of <= 0 {
		return nil
	}
	v := min(part/of, 1)
	return &v
}

func percent(part, of float64) string {
	v := share(part, of)
	if v == nil {
		return ""
	}
	return whole(*v*100) + " %"
}

func waited(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return units.Lasting(time.Duration(*seconds * float64(time.Second)))
}

func fairness(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}
