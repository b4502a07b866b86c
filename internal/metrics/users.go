package metrics

import (
	"cmp"
	"slices"

	"github.com/gpulab/gpulab/internal/gpu"
)

// userFamilies split a GPU among those who use it. All series of one GPU
// together are never more than the GPU.
func userFamilies() []family {
	const measured = "the processes on the GPU; the GPU as a whole where one user alone has it. Absent where the driver does not tell"
	user, outside := append(slices.Clone(nameLabels), "user"), append(slices.Clone(nameLabels), "unix_user")
	return []family{
		split("gpulab_user_gpu_held_ratio", "part of 1", "The part of the GPU a user holds, used or not: 1 alone, 1/n for each of n.", "the kubelet", user,
			func(s share) *float64 { return s.held }),
		split("gpulab_user_gpu_utilization_ratio", "part of 1", "The part of the GPU's time that a user has taken.", measured, user,
			func(s share) *float64 { return s.utilization }),
		split("gpulab_user_gpu_memory_used_bytes", "B", "The GPU's memory that a user's programs have taken.", measured, user,
			func(s share) *float64 { return s.memory }),
		split("gpulab_outside_gpu_utilization_ratio", "part of 1", "The same for processes that are no user's of the lab.", "the processes on the GPU", outside,
			func(s share) *float64 { return s.utilization }),
		split("gpulab_outside_gpu_memory_used_bytes", "B", "The same for processes that are no user's of the lab.", "the processes on the GPU", outside,
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

func ownerOf(p gpu.Process) owner {
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
// does not guess: a figure that is missing for one process is missing for all,
// unless the GPU is one user's alone.
func shares(g *gpu.GPU) []share {
	found := map[owner]*share{}
	of := func(o owner) *share {
		if found[o] == nil {
			found[o] = &share{owner: o}
		}
		return found[o]
	}
	for _, h := range g.Holders {
		if h.User != "" {
			add(&of(owner{name: h.User}).held, 1/float64(len(g.Holders)))
		}
	}
	busy, sized, timed := 0.0, len(g.Processes) > 0, len(g.Processes) > 0
	for _, p := range g.Processes {
		of(ownerOf(p))
		sized = sized && p.MemoryUsed != nil
		if timed = timed && p.SMUtilization != nil; timed {
			busy += *p.SMUtilization
		}
	}
	for _, s := range found {
		if timed || len(g.Processes) == 0 && g.Utilization != nil && *g.Utilization == 0 {
			s.utilization = new(float64)
		}
		if sized {
			s.memory = new(float64)
		}
	}
	for _, p := range g.Processes {
		s := of(ownerOf(p))
		if timed {
			// Programs that run side by side may take more than all of the time.
			add(&s.utilization, *p.SMUtilization/max(100, busy))
		}
		if sized {
			add(&s.memory, float64(*p.MemoryUsed))
		}
	}
	if s := alone(g, found); s != nil {
		if s.utilization == nil {
			s.utilization = scale(g.Utilization, 1./100)
		}
		if s.memory == nil && len(g.Processes) > 0 {
			s.memory = whole(g.MemoryUsed)
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

// alone returns the one user who holds the GPU and has every process on it.
func alone(g *gpu.GPU, found map[owner]*share) *share {
	if len(found) != 1 || slices.ContainsFunc(g.Holders, func(h gpu.Holder) bool { return h.User == "" }) {
		return nil
	}
	for _, s := range found {
		if s.held != nil {
			return s
		}
	}
	return nil
}

func add(sum **float64, x float64) {
	if *sum == nil {
		*sum = new(float64)
	}
	**sum += x
}
