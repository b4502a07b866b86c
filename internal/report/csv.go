package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"
)

// WriteCSV writes a report as a table that spreadsheets read: one row for each
// week, then one for each group, and one for all. Times of use are in hours,
// those of waiting in seconds; what is not known is empty.
func (r Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"part", "from", "to", "gpu_hours_there", "held_hours", "busy_hours", "idle_hours",
		"busy_hours_if_owned", "people", "fairness",
		"launches", "gave_up", "waited_p50_seconds", "waited_p95_seconds", "reclaimed", "reclaimed_for_somebody", "preempted",
		"preempted_lost_hours"})
	row := func(name string, from, to time.Time, p Part) {
		_ = out.Write([]string{name, from.Format(time.RFC3339), to.Format(time.RFC3339), inHours(&p.There), inHours(&p.Held),
			inHours(&p.Busy), inHours(&p.Idle), inHours(p.Owned),
			strconv.Itoa(p.People), number(p.Fairness, 3), strconv.Itoa(p.Launches), strconv.Itoa(p.GaveUp),
			number(p.Waited50, 0), number(p.Waited95, 0),
			strconv.Itoa(p.Reclaimed), strconv.Itoa(p.Resumed), strconv.Itoa(p.Preempted), inHours(&p.Lost)})
	}
	for _, p := range r.Weeks {
		row("week", p.From, p.To, p)
	}
	for _, p := range r.Groups {
		p.There = 0
		row("group:"+p.Group, r.From, r.To, p)
	}
	row("all", r.From, r.To, r.Whole)
	out.Flush()
	return out.Error()
}

func inHours(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	h := *seconds / 3600
	return number(&h, 2)
}

func number(v *float64, decimals int) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', decimals, 64)
}
