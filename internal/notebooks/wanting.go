package notebooks

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// Wanting is a launch that waits for GPUs, and the machines that would do for it.
type Wanting struct {
	Launch   Launch
	Machines []string
	Keeps    string // the one of them that is kept for it, "" for none
}

// Wanting says who waits for GPUs, the next one first, and how many GPUs of each machine are free or about to be: those
// of notebooks that are ending count, those that were promised to starting ones do not. While nothing can start, nobody
// waits for a GPU.
func (s *Service) Wanting(ctx context.Context) (free map[string]int, list []Wanting, err error) {
	free = map[string]int{}
	if !s.cfg.Cluster.Synced() || s.hold() != "" {
		return free, nil, nil
	}
	active, err := s.rows.active(ctx)
	if err != nil {
		return nil, nil, err
	}
	reserved := s.reserved(active) // before the room, as when launches are admitted
	room := s.room()
	for _, n := range room.Nodes {
		free[n.Name] = n.Free.GPUs
	}
	for machine, gpus := range s.ending(active) {
		free[machine] += gpus
	}
	for _, n := range reserved {
		if at := roomiest(room, free, n); at != "" {
			free[at] -= n.GPUs
		}
	}
	for i := range active {
		l := active[i]
		if !l.WaitsForGPU() || s.unable(l.Profile) != "" {
			continue
		}
		w, need := Wanting{Launch: l, Keeps: s.keptFor(l.ID).Machine}, s.need(l)
		need.Granted, _ = s.granted(l, room)
		w.Machines = fitting(room.Nodes, need)
		if len(w.Machines) > 0 {
			list = append(list, w)
		}
	}
	since := s.keptSince()
	slices.SortStableFunc(list, func(a, b Wanting) int {
		return cmp.Or(cmp.Compare(s.turn(a.Launch), s.turn(b.Launch)), cmp.Compare(since(a.Launch.ID), since(b.Launch.ID)))
	})
	return free, list, nil
}

// ending counts the GPUs of each machine whose launches are about to give them back.
func (s *Service) ending(active []Launch) map[string]int {
	gpus := map[string]int{}
	for i := range active {
		if l := &active[i]; l.State == Stopping && l.GPUs > 0 {
			if p, ok := s.podOf(*l); ok && !p.Finished {
				gpus[p.Node] += p.GPUs
			}
		}
	}
	return gpus
}

// turn counts a launch's place in its line from 1. It is 0 for one whose turn has
// come, and beyond all places while it is not known.
func (s *Service) turn(l Launch) int {
	switch at := s.cfg.Line.Standing(l.ID); {
	case at.Admitted:
		return 0
	case at.Position == 0:
		return math.MaxInt
	default:
		return at.Position
	}
}

// roomiest is the machine that a launch without a place most likely gets.
func roomiest(room Room, free map[string]int, need Need) string {
	var fits []NodeRoom
	for _, n := range room.Nodes {
		if need.GPUs > 0 && n.fits(need) {
			fits = append(fits, n)
		}
	}
	if len(fits) == 0 {
		return ""
	}
	return slices.MaxFunc(fits, func(a, b NodeRoom) int {
		return cmp.Compare(free[a.Name]-a.Kept, free[b.Name]-b.Kept)
	}).Name
}
