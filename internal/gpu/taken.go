package gpu

import "math"

// mostMemory is more than any GPU has, in bytes: a larger figure is none.
const mostMemory = 1 << 50

// Taken is what one of those who are on a GPU takes of it, by its processes.
type Taken[By comparable] struct {
	By By
	// Processes counts them all, also those that the driver tells nothing about.
	Processes int

	sm, memory               float64 // of those that it tells about: percent, bytes
	smUnknown, memoryUnknown int     // how many it does not
}

// TakenBy sums up what is taken of a GPU, for each that by names, in the order in
// which they first come. by returns false for a process that is not to count.
func TakenBy[By comparable](g *GPU, by func(*Process) (By, bool)) []Taken[By] {
	var all []Taken[By]
	at := make(map[By]int)
	for i := range g.Processes {
		p := &g.Processes[i]
		who, counts := by(p)
		if !counts {
			continue
		}
		k, known := at[who]
		if !known {
			k = len(all)
			at[who] = k
			all = append(all, Taken[By]{By: who})
		}
		all[k].add(p)
	}
	return all
}

func (t *Taken[By]) add(p *Process) {
	t.Processes++
	if share := p.Share(); share != nil {
		t.sm += *share
	} else {
		t.smUnknown++
	}
	if p.MemoryUsed != nil && *p.MemoryUsed <= mostMemory {
		t.memory += float64(*p.MemoryUsed)
	} else {
		t.memoryUnknown++
	}
}

// SM is the sum of their shares of the multiprocessors' time in percent, which
// may be more than 100; nil if that of one of them is not known.
func (t *Taken[By]) SM() *float64 {
	if t.smUnknown > 0 {
		return nil
	}
	v := t.sm
	return &v
}

// Memory is the sum of their memory in bytes, nil if that of one of them is not
// known.
func (t *Taken[By]) Memory() *float64 {
	if t.memoryUnknown > 0 {
		return nil
	}
	return t.KnownMemory()
}

// KnownMemory is the memory in bytes of those whose memory is known, nil if
// that is none of them.
func (t *Taken[By]) KnownMemory() *float64 {
	if t.memoryUnknown == t.Processes {
		return nil
	}
	v := t.memory
	return &v
}

// Share is the process's share of the multiprocessors' time in percent, nil if
// it is not known: a figure that cannot be is none.
func (p *Process) Share() *float64 {
	if s := p.SMUtilization; s != nil && !math.IsNaN(*s) && *s >= 0 && *s <= 100 {
		return s
	}
	return nil
}
