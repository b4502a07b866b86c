package notebooks

import "slices"

// What a waiting launch is short of.
const (
	shortNothing = ""
	shortGPU     = "gpu"
	shortMemory  = "memory"
	shortCPU     = "cpu"
)

// candidate is one waiting launch. Whose turn it is among those that want GPUs
// is the line's to say; what wants none is in no line.
type candidate struct {
	need    Need
	granted bool // by the line; meaningless without GPUs
	kept    Kept // for it, as it needs several; the room counts these as kept
}

func (c candidate) inLine() bool { return c.need.GPUs > 0 && !c.granted }

// verdict is what admission says of one waiting launch.
type verdict struct {
	candidate
	admit bool
	never bool   // no machine of the pool is large enough, even empty
	short string // what it waits for
	// cordoned are machines that would do for it, and take no new work.
	cordoned []NodeRoom
}

// admit decides which of those whose turn it is have room on a machine. reserved
// are launches already admitted whose pod the cluster does not show yet.
//
// One that waits for memory or processor time holds back everybody behind it.
// One that can never start, or whose turn has not come, holds back nobody here.
func admit(room Room, reserved []Need, queue []candidate) []verdict {
	free := slices.Clone(room.Nodes)
	for _, r := range reserved {
		book(free, r)
	}
	verdicts := make([]verdict, len(queue))
	held := false
	for i, c := range queue {
		v := verdict{candidate: c}
		for _, n := range room.Cordoned {
			if n.fits(c.need) {
				v.cordoned = append(v.cordoned, n)
			}
		}
		switch {
		case len(room.Nodes) == 0:
		case !room.has(c.need):
			v.never = true
		case c.inLine():
			v.short = shortGPU
		case !held && place(free, c.need):
			v.admit = true
		default:
			v.short = shortage(free, c.need)
			held = held || v.short != shortGPU && !c.need.aside()
		}
		verdicts[i] = v
	}
	return verdicts
}

// place takes need from the node where it leaves the fewest GPUs over, so that
// whole machines stay free for those who need several. It reports whether any fits.
func place(free []NodeRoom, need Need) bool {
	best := -1
	for i, n := range free {
		if n.fits(need) && n.open().covers(need.Amount) && (best < 0 || n.open().GPUs < free[best].open().GPUs) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	free[best].Free = free[best].Free.minus(need.Amount)
	return true
}

// book takes need from the machine that an admitted launch most likely gets: not from
// what is kept for others, unless nothing else is left.
func book(free []NodeRoom, need Need) {
	if place(free, need) {
		return
	}
	kept := make([]int, len(free))
	for i := range free {
		kept[i], free[i].Kept = free[i].Kept, 0
	}
	anywhere := need
	anywhere.Only = ""
	_ = place(free, need) || place(free, anywhere)
	for i := range free {
		free[i].Kept = min(kept[i], max(free[i].Free.GPUs, 0))
	}
}

// shortage names the first thing that no node has enough of.
func shortage(free []NodeRoom, need Need) string {
	gpu, memory, cpu := need.GPUs > 0, true, true
	for _, n := range free {
		if n.open().GPUs < need.GPUs || !n.fits(need) {
			if n.fits(need) && n.Free.covers(need.Amount) {
				return shortGPU // it would do, and is kept for another
			}
			continue
		}
		gpu = false
		memory = memory && n.Free.Memory < need.Memory
		cpu = cpu && n.Free.MilliCPU < need.MilliCPU
	}
	switch {
	case gpu:
		return shortGPU
	case memory:
		return shortMemory
	case cpu:
		return shortCPU
	default:
		return shortNothing
	}
}
