package notebooks

// What a waiting launch is short of.
const (
	shortNothing = ""
	shortGPU     = "gpu"
	shortMemory  = "memory"
	shortCPU     = "cpu"
)

// verdict is what admission says of one waiting launch.
type verdict struct {
	need  Amount
	admit bool
	never bool   // no ready machine is large enough, even empty
	short string // what it waits for
}

// admit decides who of the queue may start. reserved are launches already
// admitted whose pod the cluster does not show yet.
//
// Order is kept where it matters: a launch that waits for a GPU holds back later
// ones that want a GPU, so that one who needs two is not overtaken for ever; it
// does not hold back CPU notebooks. One that waits for memory or processor time
// holds back everybody behind it. One that can never start holds back nobody.
func admit(room Room, reserved, queue []Amount) []verdict {
	free := make([]Amount, len(room.Nodes))
	for i, n := range room.Nodes {
		free[i] = n.Free
	}
	for _, r := range reserved {
		place(free, r)
	}
	verdicts := make([]verdict, len(queue))
	gpuHeld, allHeld := false, false
	for i, need := range queue {
		v := verdict{need: need}
		switch {
		case len(room.Nodes) == 0:
		case room.Waiting == 0 && !fitsEver(room, need):
			v.never = true
		case allHeld, gpuHeld && need.GPUs > 0:
			v.short = shortage(free, need)
			if v.short == shortNothing && need.GPUs > 0 {
				v.short = shortGPU
			}
		case place(free, need):
			v.admit = true
		default:
			v.short = shortage(free, need)
			gpuHeld = gpuHeld || need.GPUs > 0
			allHeld = allHeld || v.short != shortGPU
		}
		verdicts[i] = v
	}
	return verdicts
}

// place takes need from the node where it leaves the fewest GPUs over, so that
// whole machines stay free for those who need several. It reports whether any fits.
func place(free []Amount, need Amount) bool {
	best := -1
	for i, f := range free {
		if f.covers(need) && (best < 0 || f.GPUs < free[best].GPUs) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	free[best] = free[best].minus(need)
	return true
}

// shortage names the first thing that no node has enough of.
func shortage(free []Amount, need Amount) string {
	gpu, memory, cpu := need.GPUs > 0, true, true
	for _, f := range free {
		if f.GPUs < need.GPUs {
			continue
		}
		gpu = false
		memory = memory && f.Memory < need.Memory
		cpu = cpu && f.MilliCPU < need.MilliCPU
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

func fitsEver(room Room, need Amount) bool {
	for _, n := range room.Nodes {
		if n.Total.GPUs >= need.GPUs {
			return true
		}
	}
	return false
}

// largest is the most GPUs that one ready machine has.
func largest(room Room) int {
	most := 0
	for _, n := range room.Nodes {
		most = max(most, n.Total.GPUs)
	}
	return most
}
