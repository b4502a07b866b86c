package webui_test

import (
	"context"
	"encoding/csv"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/report"
)

// report is about a lab that shares two GPUs, in its second week.
func (l *lab) report(_ context.Context, weeks int) (report.Report, error) {
	value := func(v float64) *float64 { return &v }
	monday := time.Date(2026, 11, 16, 0, 0, 0, 0, time.Local)
	r := report.Report{From: monday.AddDate(0, 0, -7*(weeks-1)), To: monday.AddDate(0, 0, 3), Simulated: true, Weeks: []report.Part{}, Groups: []report.Part{}}
	if l.unused {
		return r, nil
	}
	r.Whole = report.Part{There: 480 * 3600, Held: 300 * 3600, Busy: 240 * 3600, Idle: 60 * 3600, Owned: value(150 * 3600), People: 12, Fairness: value(0.7123),
		Launches: 80, GaveUp: 2, Waited50: value(12), Waited95: value(25 * 60), Reclaimed: 7, Resumed: 6}
	for i := max(weeks-8, 0); i < weeks; i++ {
		p := report.Part{From: r.From.AddDate(0, 0, 7*i), To: r.From.AddDate(0, 0, 7*i+7)}
		if i == weeks-1 {
			from := p.From
			p = r.Whole
			p.From, p.To = from, r.To
		}
		r.Weeks = append(r.Weeks, p)
	}
	r.Groups = []report.Part{{Group: "vision", Held: 200 * 3600, Busy: 100 * 3600, Idle: 100 * 3600, People: 5, Reclaimed: 1}}
	return r, nil
}

func TestReportPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/use").want(t, http.StatusOK, `href="/report"`)
	c.get("/report").want(t, http.StatusOK, "Week by week", "16 Nov 2026", "until now", "63 %", "50 %", "25 min", "0.71", "vision", "simulated",
		"GPUs worked 60 % more than they would have at best if each had belonged to one person: 240.0 hours instead of 150.0.", `href="/report.csv?weeks=4"`)
	if rows := strings.Count(c.get("/report?weeks=12").body, `data-label="GPU hours"`); rows != 8 {
		t.Errorf("%d weeks", rows)
	}
	for _, asked := range []string{"0", "-1", "54", "x", "1e9"} {
		c.get("/report?weeks="+asked).want(t, http.StatusNotFound)
		c.get("/report.csv?weeks="+asked).want(t, http.StatusNotFound)
	}
	got := c.get("/report.csv?weeks=2")
	got.want(t, http.StatusOK)
	if table, err := csv.NewReader(strings.NewReader(got.body)).ReadAll(); err != nil || len(table) != 1+2+1+1 || table[0][0] != "part" {
		t.Errorf("%v\n%s", err, got.body)
	}
	ben := l.client(t, "ben")
	ben.get("/report").want(t, http.StatusForbidden)
	ben.get("/report.csv").want(t, http.StatusForbidden)
	if strings.Contains(ben.get("/use").body, `href="/report"`) {
		t.Error("the page of members leads to the report")
	}
	l.unused = true
	c.get("/report").want(t, http.StatusOK, "Nothing to report yet")
}
