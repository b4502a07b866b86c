package metrics

import (
	"cmp"
	"slices"

	"github.com/gpulab/gpulab/internal/gpu"
)

// userFamilies split a GPU among those who use it. All series of one GPU
// together are never more than the GPU.
func userFamilies() []family {
	const measured = "the processes on the GPU; the GPU as a whole where one user alone has it. Absent where the " +
		"driver does not tell"
	user, outside := append(slices.Clone(nameLabels), "user"), append(slices.Clone(nameLabels), "unix_user")
	return []family{
		split("gpulab_user_gpu_held_ratio", "part of 1", "The part of the GPU a user holds, used or not: 1 alone, 1/n for "+
			"each of n; with a MIG instance its part.", "the kubelet", user,
			func(s share) *float64 { return s.held }),
		split("gpulab_user_gpu_utilization_ratio", "part of 1", "The part of the GPU's time that a user has taken.", measured,
			user,
			func(s share) *float64 { return s.utilization }),
		split("gpulab_user_gpu_memory_used_bytes", "B", "The GPU's memory that a user's programs have taken.", measured, user,
			func(s share) *float64 { return s.memory }),
		split("gpulab_outside_gpu_utilization_ratio", "part of 1", "The same for processes that are no user's of the lab.",
			"the processes on the GPU", outside,
			func(s share) *float64 { return s.utilization }),
		split("gpulab_outside_gpu_memory_used_bytes", "B", "The same for processes that are no user's of the lab.",
			"the processes on the GPU", outside,
			func(s share) *float64 { return s.memory }),
	}
}

// split is a gauge with a series for each share, of users or of others as the
// last of the labels says.
func split(name, unit, help, source string, labels []string, value func(share) *float64) family {
	who := labels[len(labels)-1]
	return family{
		name: name, kind: gauge, unit: unit, help: help, source: source, labels: labels,
		series: func(v *view, emit emit) {
			for _, d := range v.gpus {
				if !d.fresh {
					continue
				}
				for _, s := range shares(d.GPU) {
					if x := value(s); x != nil && s.outside == (who == "unix_user") {
						emit(and(d.names, who, s.name), *x)
					}
				}
			}
		},
	}
}

// owner is whom a part of a GPU belongs to.
type owner struct {
	// outside says that it is no user of the lab: name is then the host's name
	// of the user a process runs as.
	outside bool
	name    string
}

func ownerOf(p *gpu.Process) owner {
	if p.Pod.User != "" {
		return owner{name: p.Pod.User}
	}
	return owner{outside: true, name: p.UnixUser}
}

// share is an owner's part of a GPU; nil is unknown.
type share struct {
	owner
	held, utilization *float64 // parts of 1
	memory            *float64 // bytes
}

// shares splits a GPU among its users and the processes outside the lab. It
// does not guess: where a figure is missing for one of an owner's processes,
// the owner has none, unless the GPU is one user's alone.
func shares(g *gpu.GPU) []share {
	taken := gpu.TakenBy(g, func(p *gpu.Process) (owner, bool) { return ownerOf(p), true })
	// Programs that run side by side may take more than all of the time.
	all := 0.0
	for i := range g.Processes {
		if part := g.Processes[i].Share(); part != nil {
			all += *part
		}
	}
	found := map[owner]*share{}
	for _, one := range taken {
		s := &share{owner: one.By}
		if !g.ProcessesUnknown { // there may be more
			s.utilization, s.memory = per(one.SM(), max(100, all)), one.Memory()
		}
		if s.memory == nil {
			s.memory = whole(ownMemory(g, one.By))
		}
		found[one.By] = s
	}
	for _, h := range g.Holders {
		if h.User == "" {
			continue
		}
		o := owner{name: h.User}
		if found[o] == nil {
			found[o] = unused(g, o)
		}
		if found[o].held == nil {
			found[o].held = new(float64)
		}
		*found[o].held += heldBy(g, h)
	}
	for o, s := range found {
		if s.utilization == nil && alone(g, o) {
			s.utilization = rest(g, o)
		}
	}
	list := make([]share, 0, len(found))
	for _, s := range found {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b share) int {
		return cmp.Or(cmp.Compare(truth(a.outside), truth(b.outside)), cmp.Compare(a.name, b.name))
	})
	return list
}

// heldBy is the part of the GPU that a holder has: of those that take turns on it
// an equal one each; with a MIG instance that, divided by those who have it.
func heldBy(g *gpu.GPU, h gpu.Holder) float64 {
	beside := 0
	for _, other := range g.Holders {
		if other.Instance == h.Instance {
			beside++
		}
	}
	part := 1.0
	if h.Instance != "" {
		part = g.PartOf([]string{h.Instance})
	}
	return part / float64(beside)
}

// ownMemory is the memory in use of a GPU, or of MIG instances, that are one
// user's alone.
func ownMemory(g *gpu.GPU, o owner) *uint64 {
	if own := g.OwnMemory(func(h *gpu.Holder) bool { return owner{name: h.User} == o }); own != nil {
		return own
	}
	if alone(g, o) && len(g.Instances) == 0 {
		return g.MemoryUsed
	}
	return nil
}

// unused is the share of somebody who holds the GPU and has no process on it:
// nothing, where processes are listed or the GPU is idle.
func unused(g *gpu.GPU, o owner) *share {
	s := &share{owner: o}
	listed := len(g.Processes) > 0 && !g.ProcessesUnknown
	if listed {
		s.memory = new(float64)
	}
	if listed || g.Utilization != nil && *g.Utilization == 0 {
		s.utilization = new(float64)
	}
	return s
}

// alone tells whether a user is the only one who holds the GPU and computes
// on it. A desktop may draw on it.
func alone(g *gpu.GPU, o owner) bool {
	return len(g.Holders) > 0 &&
		!slices.ContainsFunc(g.Holders, func(h gpu.Holder) bool { return owner{name: h.User} != o }) &&
		!slices.ContainsFunc(g.Processes, func(p gpu.Process) bool { return !p.Graphics && ownerOf(&p) != o })
}

// rest is the GPU's use but for what processes of others are known to take, a
// desktop for example.
func rest(g *gpu.GPU, o owner) *float64 {
	if g.Utilization == nil {
		return nil
	}
	left := *g.Utilization
	for i := range g.Processes {
		p := &g.Processes[i]
		if part := p.Share(); part != nil && ownerOf(p) != o {
			left = max(0, left-*part)
		}
	}
	return per(&left, 100)
}
