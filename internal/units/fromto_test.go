package units

import (
	"testing"
	"time"
)

func TestFromTo(t *testing.T) {
	begin := time.Date(2026, 11, 20, 22, 10, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		9*time.Hour + 53*time.Minute:     "from Fri 22:10 to Sat 08:03 (9 h 53 min)",
		40 * time.Minute:                 "from 22:10 to 22:50 (40 min)",
		30 * time.Second:                 "from 22:10:05 to 22:10:35 (30 s)",
		100*time.Hour + 30*time.Minute:   "from Fri 22:10 to Wed 02:40 (4 d 4 h)",
		time.Hour + 49*time.Minute + 120: "from 22:10 to 23:59 (1 h 49 min)",
	} {
		if got := FromTo(begin, begin.Add(d)); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
