package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/history"
)

// ledgerDaemon answers from a ledger that has seen a day.
type ledgerDaemon struct {
	daemon
	asked history.Filter
	empty bool
}

func (d *ledgerDaemon) Usage(_ context.Context, f history.Filter, by history.By) ([]history.Usage, error) {
	d.asked = f
	number, energy, memory := 1, 7.2e6, 3.5*(1<<30)
	nobody := history.Usage{Kind: history.KindUnattributed, Energy: &energy}
	switch {
	case f.GPU == "9":
		return nil, &history.WrongError{Text: `the ledger knows no GPU "9"`}
	case f.GPU == "broken":
		return nil, errors.New("the disk cannot be read")
	case d.empty && by == history.ByUser:
		return []history.Usage{nobody}, nil
	case d.empty:
		return []history.Usage{}, nil
	}
	u := history.Usage{Held: 7200, Busy: 1800, Idle: 1800, Unknown: 3600, Energy: &energy, Memory: &memory}
	switch by {
	case history.ByGPU:
		u.Node, u.Number, u.GPU, u.Simulated = "box", &number, "Card", true
	case history.ByHour:
		u.Hour = time.Date(2026, 3, 2, 12, 0, 0, 0, time.Local)
	default:
		u.Kind, u.Name = history.KindUser, "ada"
		outside := history.Usage{Kind: history.KindUnix, Name: "carol", Held: 360, Unknown: 360, Simulated: true}
		return []history.Usage{u, outside, nobody}, nil
	}
	return []history.Usage{u}, nil
}

func TestGPUsHistory(t *testing.T) {
	needRoot(t)
	d := &ledgerDaemon{}
	socket := serve(t, d)
	for by, want := range map[string][]string{
		"user": {"WHO", "ada                                2.00       0.50  50 %  2.00 kWh  3.5 GiB", "carol, outside gpulab (simulated)  0.10       ?     ?     ?         ?", "(nobody)", "1.10 of these GPU hours"},
		"gpu":  {"NODE", "box   1    Card (simulated)  2.00 "},
		"hour": {"HOUR", "2026-03-02 12:00  2.00 "},
	} {
		code, out, stderr := gpulab(t, "gpus", "history", "--socket", socket, "--by", by)
		if code != exitOK || stderr != "" {
			t.Errorf("by %s: exit code %d: %s", by, code, stderr)
		}
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("by %s: no %q in\n%s", by, part, out)
			}
		}
	}
	code, out, _ := gpulab(t, "gpus", "history", "--socket", socket, "--json", "--since", "7d", "--gpu", "GPU-a", "--user", "ada")
	var rows []history.Usage
	if err := json.Unmarshal([]byte(out), &rows); code != exitOK || err != nil || len(rows) != 3 || rows[0].Held != 7200 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	if ago := time.Since(d.asked.From); d.asked.GPU != "GPU-a" || d.asked.User != "ada" || ago < 7*24*time.Hour || ago > 7*24*time.Hour+time.Minute {
		t.Errorf("asked %+v", d.asked)
	}
	for gpu, want := range map[string]int{"9": exitUsage, "broken": exitFailure} {
		if code, _, stderr := gpulab(t, "gpus", "history", "--socket", socket, "--gpu", gpu); code != want || strings.Count(stderr, "\n") != 1 {
			t.Errorf("GPU %s: exit code %d: %s", gpu, code, stderr)
		}
	}
	d.empty = true
	for _, by := range history.Groupings() {
		code, out, _ := gpulab(t, "gpus", "history", "--socket", socket, "--by", by, "--since", "30d")
		if code != exitOK || !strings.Contains(out, "in the last 30d") || strings.Count(out, "\n") != 1 {
			t.Errorf("nothing by %s: exit code %d\n%s", by, code, out)
		}
		if _, out, _ := gpulab(t, "gpus", "history", "--socket", socket, "--by", by, "--json"); !json.Valid([]byte(out)) || by != "user" && strings.TrimSpace(out) != "[]" {
			t.Errorf("nothing by %s, as JSON: %s", by, out)
		}
	}
}

func TestGPUsHistoryWrongValues(t *testing.T) {
	for _, args := range [][]string{
		{"--since", "yesterday"}, {"--since", "-1h"}, {"--since", "0"}, {"--since", ""}, {"--since", "NaNd"}, {"--since", "1e300w"},
		{"--since", "d"}, {"--by", "week"}, {"--by", ""}, {"surplus"}, {"--gpu"},
	} {
		code, out, stderr := gpulab(t, append([]string{"gpus", "history"}, args...)...)
		if code != exitUsage || out != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, stderr)
		}
	}
}

func TestParseSpan(t *testing.T) {
	for in, want := range map[string]time.Duration{"90m": 90 * time.Minute, "24h": 24 * time.Hour, "7d": 168 * time.Hour, "0.5d": 12 * time.Hour, "2w": 336 * time.Hour} {
		if got, err := parseSpan(in); err != nil || got != want {
			t.Errorf("%s is %v, %v", in, got, err)
		}
	}
	if _, err := parseSpan("5 minutes"); err == nil || fmt.Sprint(err) != `"5 minutes" is no length of time; write one such as 90m, 24h, 7d or 4w` {
		t.Errorf("got %v", err)
	}
}
