package history

import (
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// level is one of the resolutions in which readings are kept.
type level struct {
	table string
	step  int64 // seconds in a slot
	keep  time.Duration
}

// The finest level, of single seconds, is kept in memory for recentSeconds.
var (
	tens  = level{"readings_10s", 10, 25 * time.Hour}
	fives = level{"readings_5min", 300, 366 * 24 * time.Hour}
)

// recentSeconds is a little more than the ten minutes that charts show.
const recentSeconds = 660

// waitingSlots bounds what waits for a disk that is full: about three hours of
// ten cards, 5 MB.
const waitingSlots = 12000

// reading is what a card did in a slot: sums with their number, and peaks.
type reading struct {
	use, power, clock                        mean
	useMax, memoryMax, powerMax, temperature peak
}

type mean struct {
	sum float64
	n   int64
}

type peak struct {
	value float64
	known bool
}

func (m *mean) add(o mean) { m.sum += o.sum; m.n += o.n }

func (p *peak) add(o peak) {
	if o.known && (!p.known || o.value > p.value) {
		*p = o
	}
}

func (a *reading) add(b reading) {
	a.use.add(b.use)
	a.power.add(b.power)
	a.clock.add(b.clock)
	a.useMax.add(b.useMax)
	a.memoryMax.add(b.memoryMax)
	a.powerMax.add(b.powerMax)
	a.temperature.add(b.temperature)
}

func (a *reading) empty() bool { return *a == reading{} }

// readingOf takes from a GPU what charts show. Power is in whole milliwatts,
// which SQLite stores in fewer bytes than a fraction.
func readingOf(g *gpu.GPU) reading {
	var r reading
	if v := sane(g.Utilization, mostPercent); v != nil {
		r.use, r.useMax = mean{*v, 1}, peak{*v, true}
	}
	if v := sane(g.Power, mostPower); v != nil {
		mw := float64(int64(*v*1000 + 0.5))
		r.power, r.powerMax = mean{mw, 1}, peak{mw, true}
	}
	if v := sane(g.SMClock, mostClock); v != nil {
		r.clock = mean{*v, 1}
	}
	if v := sane(g.Temperature, mostTemperature); v != nil {
		r.temperature = peak{*v, true}
	}
	if m := g.MemoryUsed; m != nil && *m <= mostMemory {
		r.memoryMax = peak{float64(*m), true}
	}
	return r
}

// slot names a row.
type slot struct {
	uuid  string
	start int64 // unix seconds
}

// readings are the slots of both tables that have not been written.
type readings struct {
	tens, fives map[slot]*reading
}

func newReadings() readings {
	return readings{tens: map[slot]*reading{}, fives: map[slot]*reading{}}
}

func (r readings) add(uuid string, unix int64, v reading) {
	addTo(r.tens, slot{uuid, floor(unix, tens.step)}, v)
	addTo(r.fives, slot{uuid, floor(unix, fives.step)}, v)
}

func addTo(m map[slot]*reading, at slot, v reading) {
	if have := m[at]; have != nil {
		have.add(v)
		return
	}
	m[at] = &v
}

// restore puts back what could not be written and reports whether some of it
// had to be dropped, the oldest first.
func (r readings) restore(old readings) (dropped bool) {
	for at, v := range old.tens {
		addTo(r.tens, at, *v)
	}
	for at, v := range old.fives {
		addTo(r.fives, at, *v)
	}
	for _, m := range []map[slot]*reading{r.tens, r.fives} {
		if len(m) <= waitingSlots {
			continue
		}
		dropped = true
		dropOldest(m)
	}
	return dropped
}

// dropOldest takes the older half of the time away.
func dropOldest(m map[slot]*reading) {
	first, last := int64(1)<<62, int64(0)
	for at := range m {
		first, last = min(first, at.start), max(last, at.start)
	}
	middle := first + (last-first)/2
	for at := range m {
		if at.start <= middle {
			delete(m, at)
		}
	}
}

// record takes a GPU's readings of this moment.
func (r *Recorder) record(g *gpu.GPU, wall time.Time) {
	v := readingOf(g)
	if v.empty() {
		return
	}
	uuid, unix := tidy(g.UUID), wall.Unix()
	r.pending.readings.add(uuid, unix, v)
	ring := r.recent[uuid]
	if ring == nil {
		ring = &recent{}
		r.recent[uuid] = ring
	}
	ring.add(unix, v)
}

// recent holds a GPU's last minutes, second by second.
type recent struct {
	newest  int64 // unix seconds
	seconds [recentSeconds]second
}

type second struct {
	unix int64
	reading
}

func (c *recent) at(unix int64) *second { return &c.seconds[unix-floor(unix, recentSeconds)] }

func (c *recent) add(unix int64, v reading) {
	s := c.at(unix)
	if s.unix == unix {
		s.add(v)
	} else {
		*s = second{unix, v}
	}
	c.newest = unix
}

// since returns the seconds in [from, to), oldest first.
func (c *recent) since(from, to int64) []span {
	var out []span
	missing := int64(jitter + 1)
	for unix := max(from, c.newest-recentSeconds+1); unix < to && unix <= c.newest; unix++ {
		if s := c.at(unix); s.unix == unix {
			out = append(out, span{unix, 1, missing > jitter, s.reading})
			missing = 0
		} else {
			missing++
		}
	}
	return out
}

// forgetRecent drops the seconds of cards that are gone. r.mu is held.
func (r *Recorder) forgetRecent() {
	wall, _ := r.cfg.Clock()
	for uuid, ring := range r.recent {
		if wall.Unix()-ring.newest > recentSeconds {
			delete(r.recent, uuid)
		}
	}
}
