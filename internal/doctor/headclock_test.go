package doctor

import (
	"testing"
	"time"
)

func TestHeadClock(t *testing.T) {
	h, opts := member(t)
	finds(t, h, "headclock", opts, OK, "agrees")
	h.now = func() time.Time { return time.Now().Add(-10 * time.Minute) }
	finds(t, h, "headclock", opts, Warn, "10m0s behind the head's", "timedatectl")
}
