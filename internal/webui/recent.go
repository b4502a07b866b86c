package webui

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// A sparkline covers two minutes in slots of two seconds: enough to see a
// training step, little enough to send every second.
const (
	slotLength = 2 * time.Second
	slots      = 60
	slotWidth  = 4  // units of the drawing per slot
	sparkUnits = 40 // height of the drawing
)

// measure is one of the values drawn over time.
type measure int

const (
	use measure = iota
	memory
	power
	temperature
	measures
)

// trends keep the last two minutes of every GPU's readings as fractions of
// their scale, 0 to 1. It is safe for concurrent use.
type trends struct {
	mu   sync.Mutex
	gpus map[string]*track // by UUID
}

// track is a ring of slots; at is the number of the newest slot since 1970.
type track struct {
	at     int64
	values [measures][slots]*float64
	drawn  [measures]*keptDrawing
}

// keptDrawing is a drawing up to a slot. A new reading makes it worthless.
type keptDrawing struct {
	newest int64
	drawing
}

func newTrends() *trends { return &trends{gpus: map[string]*track{}} }

// add records a snapshot. GPUs that were not seen for two minutes are dropped.
func (h *trends) add(snapshot gpu.Snapshot) {
	slot := slotOf(snapshot.Time)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		if g.UUID == "" {
			continue
		}
		t := h.gpus[g.UUID]
		if t == nil {
			t = &track{at: slot}
			h.gpus[g.UUID] = t
		}
		t.moveTo(slot)
		clear(t.drawn[:])
		for m := range measures {
			t.values[m][place(slot)] = fraction(g, m)
		}
	}
	for uuid, t := range h.gpus {
		if slot-t.at > slots {
			delete(h.gpus, uuid)
		}
	}
}

// moveTo makes slot the newest and empties the slots that were skipped. Where the clock was set back by more than is
// kept, it begins anew.
func (t *track) moveTo(slot int64) {
	if t.at-slot >= slots {
		*t = track{at: slot}
	}
	if slot <= t.at {
		return
	}
	for empty := max(t.at+1, slot-slots+1); empty <= slot; empty++ {
		for m := range measures {
			t.values[m][place(empty)] = nil
		}
	}
	t.at = slot
}

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotLength) }

func place(slot int64) int { return int(((slot % slots) + slots) % slots) }

// drawing is a sparkline as the points of its lines; readings that were not
// there leave gaps.
type drawing struct{ Lines []string }

// draw returns the drawing of one measure as of now.
func (h *trends) draw(uuid string, m measure, now time.Time) drawing {
	newest := slotOf(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.gpus[uuid]
	if t == nil {
		return drawing{}
	}
	// A reading is up to one slot younger than the clock of the page.
	newest = max(newest-1, min(t.at, newest))
	if kept := t.drawn[m]; kept == nil || kept.newest != newest {
		t.drawn[m] = &keptDrawing{newest, t.draw(m, newest)}
	}
	return t.drawn[m].drawing
}

// draw draws a measure up to a slot.
func (t *track) draw(m measure, newest int64) drawing {
	var d drawing
	var line strings.Builder
	for i := range int64(slots) {
		slot := newest - slots + 1 + i
		var value *float64
		if slot <= t.at && slot > t.at-slots {
			value = t.values[m][place(slot)]
		}
		if value == nil {
			d.close(&line)
			continue
		}
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(strconv.Itoa(int(i)*slotWidth + slotWidth))
		line.WriteByte(',')
		line.WriteString(strconv.Itoa(height(*value)))
	}
	d.close(&line)
	return d
}

func (d *drawing) close(line *strings.Builder) {
	if line.Len() > 0 {
		d.Lines = append(d.Lines, line.String())
		line.Reset()
	}
}

// height is where a fraction lies in the drawing, with one unit of air at top
// and bottom so that the line is never cut.
func height(fraction float64) int {
	return 1 + int((1-min(max(fraction, 0), 1))*(sparkUnits-2)+0.5)
}

// fraction is a GPU's reading on its scale, nil where either is not known.
func fraction(g *gpu.GPU, m measure) *float64 {
	switch m {
	case use:
		return ratio(g.Utilization, 100)
	case memory:
		if g.MemoryUsed == nil || g.MemoryTotal == nil {
			return nil
		}
		used := float64(*g.MemoryUsed)
		return ratio(&used, float64(*g.MemoryTotal))
	case power:
		if g.PowerLimit == nil {
			return nil
		}
		return ratio(g.Power, *g.PowerLimit)
	case temperature:
		return ratio(g.Temperature, hottest)
	}
	return nil
}

// hottest is the end of the temperature scale in °C, above where any GPU
// throttles.
const hottest = 110

func ratio(value *float64, of float64) *float64 {
	if value == nil || of <= 0 {
		return nil
	}
	f := min(max(*value/of, 0), 1)
	return &f
}
