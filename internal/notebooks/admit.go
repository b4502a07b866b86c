package notebooks

import "slices"

// What a waiting launch is short of.
const (
	shortNothing = ""
	shortGPU     = "gpu"
	shortMemory  = "memory"
	shortCPU     = "cpu"
)

// verdict is what admission says of one waiting launch.
type verdict struct {
	need  Need
	admit bool
	never bool   // no ready machine is large enough, even empty
	short string // what it waits for
	// cordoned are machines that would do for it, and take no new work.
	cordoned []NodeRoom
}

// admit decides who of the queue may start. reserved are launches already
// admitted whose pod the cluster does not show yet.
//
// Order is kept where it matters: a launch that waits for a GPU holds back later
// ones that want a GPU of a machine that would do for it, so that one who needs
// two is not overtaken for ever; it does not hold back CPU notebooks. One that waits for memory or processor time
// holds back everybody behind it. One that can never start holds back nobody.
func admit(room Room, reserved, queue []Need) []verdict {
	free := slices.Clone(room.Nodes)
	for _, r := range reserved {
		place(free, make([]bool, len(free)), r)
	}
	verdicts := make([]verdict, len(queue))
	held, allHeld := make([]bool, len(free)), false
	for i, need := range queue {
		v := verdict{need: need}
		for _, n := range room.Cordoned {
			if n.fits(need) {
				v.cordoned = append(v.cordoned, n)
			}
		}
		switch {
		case len(room.Nodes) == 0:
		case room.Waiting == 0 && len(v.cordoned) == 0 && !fitsEver(room, need):
			v.never = true
		case !allHeld && place(free, held, need):
			v.admit = true
		default:
			v.short = shortage(free, need)
			if v.short == shortNothing && need.GPUs > 0 {
				v.short = shortGPU // it is held for somebody before
			}
			allHeld = allHeld || v.short != shortGPU && !need.ruled() // these wait for machines that others do not need
			hold(held, free, need)
		}
		verdicts[i] = v
	}
	return verdicts
}

// place takes need from the node where it leaves the fewest GPUs over, so that
// whole machines stay free for those who need several. It reports whether any fits.
func place(free []NodeRoom, held []bool, need Need) bool {
	best := -1
	for i, n := range free {
		if held[i] && need.GPUs > 0 {
			continue
		}
		if n.fits(need) && n.Free.covers(need.Amount) && (best < 0 || n.Free.GPUs < free[best].Free.GPUs) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	free[best].Free = free[best].Free.minus(need.Amount)
	return true
}

// hold keeps the GPUs of machines that would do for one who waits.
func hold(held []bool, nodes []NodeRoom, need Need) {
	for i, n := range nodes {
		held[i] = held[i] || need.GPUs > 0 && n.fits(need)
	}
}

// shortage names the first thing that no node has enough of.
func shortage(free []NodeRoom, need Need) string {
	gpu, memory, cpu := need.GPUs > 0, true, true
	for _, n := range free {
		if n.Free.GPUs < need.GPUs || !n.fits(need) {
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

func fitsEver(room Room, need Need) bool {
	return slices.ContainsFunc(room.Nodes, func(n NodeRoom) bool { return n.fits(need) })
}

// largest is the most GPUs that one ready machine has.
func largest(room Room) int {
	most := 0
	for _, n := range room.Nodes {
		most = max(most, n.Total.GPUs)
	}
	return most
}
