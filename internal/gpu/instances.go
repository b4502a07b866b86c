package gpu

import "slices"

// Instance finds a MIG instance of the GPU by its UUID, nil if it has none such.
func (g *GPU) Instance(uuid string) *Instance {
	i := slices.IndexFunc(g.Instances, func(in Instance) bool { return in.UUID == uuid })
	if i < 0 {
		return nil
	}
	return &g.Instances[i]
}

// PartOf is what part of the GPU these MIG instances are together, from 0 to 1:
// by their slices of the multiprocessors, or where these are not known, their
// memory, or their number. None at all is the whole GPU.
func (g *GPU) PartOf(instances []string) float64 {
	if len(instances) == 0 {
		return 1
	}
	var sum float64
	for i, uuid := range instances {
		if !slices.Contains(instances[:i], uuid) {
			sum += g.share(uuid)
		}
	}
	return min(sum, 1)
}

func (g *GPU) share(uuid string) float64 {
	in := g.Instance(uuid)
	switch {
	case in == nil:
		return 1 / float64(len(g.Instances)+1) // one that has been made meanwhile
	case in.SlicesOf > 0:
		return float64(in.Slices) / float64(in.SlicesOf)
	case in.MemoryTotal != nil && g.MemoryTotal != nil && *g.MemoryTotal > 0:
		return float64(*in.MemoryTotal) / float64(*g.MemoryTotal)
	default:
		return 1 / float64(len(g.Instances))
	}
}

// OwnMemory is the memory, in bytes, that is used in those MIG instances that
// only they have whom mine picks; nil if they have none, if others have one of
// them too, or if it is not known of one.
func (g *GPU) OwnMemory(mine func(*Holder) bool) *uint64 {
	var own, others []string
	for i := range g.Holders {
		switch h := &g.Holders[i]; {
		case !mine(h):
			others = append(others, h.Instance)
		case !slices.Contains(own, h.Instance):
			own = append(own, h.Instance)
		}
	}
	if len(own) == 0 {
		return nil
	}
	var sum uint64
	for _, uuid := range own {
		in := g.Instance(uuid)
		if in == nil || in.MemoryUsed == nil || slices.Contains(others, uuid) {
			return nil
		}
		sum += *in.MemoryUsed
	}
	return &sum
}
