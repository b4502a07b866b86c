package notebooks

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestDecayed(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		from, to time.Duration
		want     float64
	}{
		{time.Minute, 0, 60},
		{week + time.Minute, week, 30},
		{2*week + time.Minute, 2 * week, 15},
		{100 * week, 0, week.Seconds() / math.Ln2}, // for ever
	} {
		if got := decayed(c.from, c.to, week); math.Abs(got-c.want) > c.want/1000 {
			t.Errorf("from %s to %s ago: %f, want %f", c.from, c.to, got, c.want)
		}
	}
}

// Who used less comes first, whatever line it is in and whoever is restarted;
// among equals, the role decides.
func TestPriority(t *testing.T) {
	h := newHouse(t, 2)
	h.end()
	now := time.Now().Truncate(time.Minute)
	past := func(user int64, gpus int, from, to time.Duration) {
		t.Helper()
		var ended any
		if to > 0 {
			ended = now.Add(-to).UnixMilli()
		}
		_, err := h.db.ExecContext(t.Context(), `INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at, started_at, ended_at) VALUES (?, 'x', ?, 'x', 'gpu', ?, ?, 1, ?, ?)`,
			user, fmt.Sprint(user, from), gpus, map[bool]string{true: "ended", false: "running"}[to > 0], now.Add(-from).UnixMilli(), ended)
		if err != nil {
			t.Fatal(err)
		}
	}
	past(h.alice.ID, 2, 2*time.Hour, time.Hour) // two GPU hours
	past(h.bob.ID, 1, 30*time.Minute, 0)        // half an hour, and goes on
	past(h.bob.ID, 0, 9*time.Hour, 0)
	h.service.now = func() time.Time { return now.Add(20 * time.Second) }
	carol := h.person("carol")
	got := map[string]int32{}
	for _, l := range []Launch{{ID: 101, UserID: h.alice.ID}, {ID: 102, UserID: h.bob.ID}, {ID: 103, UserID: carol.ID}, {ID: 104, UserID: 999}} {
		got[fmt.Sprint(l.ID)] = h.service.priority(t.Context(), l, false)
	}
	const top = -bandWidth / 2 // of those who do not go first for their group
	if a, b := got["101"]-top, got["102"]-top; a > -4*7100 || a < -4*7200 || b > -4*1790 || b < -4*1800 || got["103"]-top != -3 || got["104"]-top != -4 {
		t.Errorf("got %v", got)
	}
}

// Whoever goes first for their group does so whatever they have used, and never
// comes into another band.
func TestFirstInBand(t *testing.T) {
	const endless = 1e12 // GPU-seconds
	for band := int64(-1); band <= 2; band++ {
		first, last := inBand(band, true, "guest", endless), inBand(band, false, "admin", 0)
		if first <= last {
			t.Errorf("band %d: %d does not go before %d", band, first, last)
		}
		if lowest, below := inBand(band, false, "guest", endless), (band-1)*bandWidth; int64(lowest) <= below {
			t.Errorf("band %d reaches down to %d, into the one below", band, lowest)
		}
	}
}
