package notebooks

import (
	"strings"
	"testing"
	"time"
)

func TestHowMuchLonger(t *testing.T) {
	var past lengths
	for m := range 11 {
		past = append(past, time.Duration(m+1)*10*time.Minute) // 10 min … 110 min
	}
	for age, want := range map[time.Duration]time.Duration{
		-time.Minute:     60 * time.Minute, // a clock that was set back
		0:                60 * time.Minute,
		30 * time.Minute: 50 * time.Minute,      // of 40 … 110: 80
		45 * time.Minute: 35 * time.Minute,      // of 50 … 110: 80
		60 * time.Minute: 30 * time.Minute,      // of 70 … 110: 90
		70 * time.Minute: -1, 3 * time.Hour: -1, // too few
	} {
		got, known := past.left(age)
		if !known {
			got = -1
		}
		if got != want {
			t.Errorf("after %s: %s more, want %s", age, got, want)
		}
	}
	if _, known := (lengths{1, 2, 3, 4}).left(0); known {
		t.Error("four notebooks tell something")
	}
}

// A job runs for as long as jobs do, and never longer than it may.
func TestJobsHaveTheirLimit(t *testing.T) {
	past := pastRuns{notebooks: lengths{1, 1, 1, 1, 1, 1}}
	job := Launch{Job: &Job{Limit: 2 * time.Hour}}
	for age, want := range map[time.Duration]time.Duration{0: 2 * time.Hour, 90 * time.Minute: 30 * time.Minute, 3 * time.Hour: 0} {
		if got, known := past.left(job, age); !known || got != want {
			t.Errorf("after %s: %s more, want %s", age, got, want)
		}
	}
	for range 5 {
		past.jobs = append(past.jobs, time.Hour)
	}
	for age, want := range map[time.Duration]time.Duration{0: time.Hour, 30 * time.Minute: 30 * time.Minute, 90 * time.Minute: 30 * time.Minute} {
		if got, known := past.left(job, age); !known || got != want {
			t.Errorf("where jobs took an hour, after %s: %s more, want %s", age, got, want)
		}
	}
}

func TestExpected(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	machine := func(name string, total, free int) NodeRoom {
		return NodeRoom{Name: name, Total: Amount{GPUs: total}, Free: Amount{GPUs: free}}
	}
	one, two := Need{Amount: Amount{GPUs: 1}}, Need{Amount: Amount{GPUs: 2}}
	onB := Need{Amount: Amount{GPUs: 1}, Only: "b"}
	minutes := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	for name, tc := range map[string]struct {
		room     []NodeRoom
		reserved []Need
		held     []tenure
		queue    []Need
		want     []int // minutes, -1 for unknown
	}{
		"one after the other": {
			room: []NodeRoom{machine("a", 2, 0)}, held: []tenure{{"a", 1, minutes(40)}, {"a", 1, minutes(10)}},
			queue: []Need{one, one, one, one}, want: []int{10, 40, 70, 100}, // who starts runs for an hour
		},
		"free by now": {room: []NodeRoom{machine("a", 2, 1)}, queue: []Need{one, one}, want: []int{0, 60}},
		"promised":    {room: []NodeRoom{machine("a", 1, 1)}, reserved: []Need{one}, queue: []Need{one}, want: []int{-1}},
		"nobody knows": {
			room: []NodeRoom{machine("a", 2, 0)}, held: []tenure{{"a", 1, minutes(10)}},
			queue: []Need{two, one}, want: []int{-1, -1}, // nobody overtakes
		},
		"two on one machine": {
			room:  []NodeRoom{machine("a", 2, 1), machine("b", 2, 0)},
			held:  []tenure{{"a", 1, minutes(50)}, {"b", 1, minutes(20)}, {"b", 1, minutes(30)}},
			queue: []Need{two, one}, want: []int{30, 0}, // the free one helps the first no more
		},
		"another line": {
			room: []NodeRoom{machine("a", 1, 0), machine("b", 1, 0)}, held: []tenure{{"b", 1, minutes(20)}},
			queue: []Need{{Amount: Amount{GPUs: 1}, Only: "a"}, onB}, want: []int{-1, 20},
		},
		"a machine that takes no new work": {
			room: []NodeRoom{machine("a", 1, 0)}, held: []tenure{{"gone", 1, minutes(1)}, {"a", 1, minutes(9)}}, queue: []Need{one}, want: []int{9},
		},
	} {
		var queue []wish
		for _, need := range tc.queue {
			queue = append(queue, wish{need, time.Hour, ""})
		}
		got := expected(now, Room{Nodes: tc.room}, tc.reserved, tc.held, queue)
		for i, want := range tc.want {
			m := -1
			if !got[i].IsZero() {
				m = int(got[i].Sub(now).Minutes())
			}
			if m != want {
				t.Errorf("%s: number %d starts in %d minutes, want %d", name, i+1, m, want)
			}
		}
	}
}

func TestExpectedWords(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		-time.Minute:                  "It can start any minute,",
		4 * time.Minute:               "It can start any minute,",
		7 * time.Minute:               "It starts in about 5 min,",
		8 * time.Minute:               "It starts in about 10 min,",
		58 * time.Minute:              "It starts in about 1 h,",
		97 * time.Minute:              "It starts in about 1 h 30 min,",
		5*time.Hour + 20*time.Minute:  "It starts in about 5 h,",
		30*time.Hour + 40*time.Minute: "It starts in about 1 d 7 h,",
	} {
		if got := expectedWords(wait); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", wait, got)
		}
	}
}

// Who waits reads when it may be, from what has been; and by when the lab ends
// what is in the way.
func TestWhoWaitsReadsWhen(t *testing.T) {
	h := newHouse(t, 1)
	var latest time.Time
	h.service.mu.Lock()
	h.service.cfg.EndsBy = func(Launch) time.Time { return latest }
	h.service.mu.Unlock()
	h.running(h.alice, "gpu", "")
	l := h.launch(h.bob, "gpu", "")
	l = h.until(l.ID, "in line", func(l Launch) bool { return l.Position == 1 })
	if !l.Expected.IsZero() || strings.Contains(l.Reason, "judging") {
		t.Errorf("nothing is known: %s, %s", l.Expected, l.Reason)
	}
	began := time.Now().Add(-48 * time.Hour)
	for i := range 5 {
		if _, err := h.db.Exec(`INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at, started_at, ready_at, ended_at)
			VALUES (?, 'alice', 'old', 'Old', 'gpu', 1, 'ended', ?, ?, ?, ?)`, h.alice.ID, began.UnixMilli(), began.UnixMilli(), began.UnixMilli(), began.Add(time.Duration(i+1)*time.Hour).UnixMilli()); err != nil {
			t.Fatal(err)
		}
	}
	h.service.mu.Lock()
	h.service.ran.at = time.Time{}
	h.service.mu.Unlock()
	h.service.Wake()
	l = h.until(l.ID, "an expectation", func(l Launch) bool { return !l.Expected.IsZero() })
	if wait := time.Until(l.Expected); wait < 178*time.Minute || wait > 182*time.Minute || !strings.HasSuffix(l.Reason, "It is next in line. It starts in about 3 h, judging by how long notebooks here have run.") {
		t.Errorf("in %s: %s", wait, l.Reason)
	}
	h.service.mu.Lock()
	latest = time.Now().Add(20 * time.Minute)
	h.service.mu.Unlock()
	h.service.Wake()
	h.until(l.ID, "the end of the countdown", func(l Launch) bool { return strings.Contains(l.Reason, "It starts in about 20 min,") })
}
