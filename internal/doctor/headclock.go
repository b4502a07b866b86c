package doctor

import (
	"fmt"
	"time"
)

// clockTolerance is how far this machine's clock and the head's may be apart,
// as in `gpulab join`.
const clockTolerance = 30 * time.Second

// probeHeadClock compares the clock with the head's.
func probeHeadClock(h host, opts Options) []Finding {
	if found, none := opts.Joined.nothing("headclock"); none {
		return found
	}
	greeting, err := opts.Joined.Greet(h.ctx)
	if err != nil {
		return nil // the probe head says why
	}
	off := h.now().Sub(greeting.Time)
	if off.Abs() <= clockTolerance {
		return []Finding{{Probe: "headclock", State: OK, Seen: "The clock agrees with the head's."}}
	}
	word := "ahead of"
	if off < 0 {
		word = "behind"
	}
	return []Finding{{
		Probe: "headclock", State: Warn,
		Seen: fmt.Sprintf("This machine's clock is %s %s the head's.", off.Abs().Round(time.Second), word),
		Means: "Curves and events of its GPUs stand at the wrong time; a day apart, the machines refuse one another's " +
			"certificates.",
		Mend: "Run `timedatectl set-ntp true` on both.",
	}}
}
