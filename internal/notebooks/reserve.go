package notebooks

import "slices"

// Seeker is a launch that waits for GPUs of one machine.
type Seeker struct {
	Launch   int64
	GPUs     int
	Machines []string // that would do
	// Granted says that its turn has come; one that is not is the first of its line.
	Granted bool
}

// Kept is the machine that is kept for a launch that needs several GPUs at once,
// and how many of them are free there already.
type Kept struct {
	Machine string
	GPUs    int
}

// Reserve keeps a machine for each launch that needs more GPUs than any machine has
// free: what gets free there is its own from then on, so that all that it needs
// comes together one day. What is free elsewhere does not help it and goes to those
// behind it, as batch schedulers backfill. Of several machines the one with the most
// free is kept.
//
// free are the GPUs that nobody has, by machine, and kinds the machines' kinds in the
// line. The seekers come in their order: those whose turn it is, then the first of
// each line.
//
// extra is what the line is to give away of each kind besides what there is. It
// counts all GPUs of those whose turn it is as taken, and what they do not have yet
// is elsewhere, free or held. It also lets in the first of a line while GPUs are free
// that are not on the machine that is kept for it, and too few: it would else hold
// back those behind it for nothing.
func Reserve(free map[string]int, kinds map[string]string, seekers []Seeker) (kept map[int64]Kept, extra map[string]int) {
	open := map[string]int{}
	for machine, gpus := range free {
		open[machine] = max(gpus, 0)
	}
	kept, extra = map[int64]Kept{}, map[string]int{}
	raised := map[string]bool{}
	for _, s := range seekers {
		if at := closest(open, s); at != "" {
			open[at] -= s.GPUs
			continue
		}
		at := nearest(open, s)
		if at == "" {
			continue
		}
		kind := kinds[at]
		if s.Granted {
			extra[kind] += s.GPUs - open[at]
		} else {
			left := 0
			for machine, gpus := range open {
				if kinds[machine] == kind {
					left += gpus
				}
			}
			if left > open[at] && left < s.GPUs && !raised[kind] {
				raised[kind] = true
				extra[kind] += s.GPUs - left
			}
		}
		if s.GPUs > 1 {
			kept[s.Launch] = Kept{at, open[at]}
			open[at] = 0
		}
	}
	return kept, extra
}

// keep notes what is kept for whom now, and returns what the line is to give away
// of each kind besides what there is.
func (s *Service) keep(room Room, reserved []Need, active []Launch) (extra map[string]int) {
	var seekers []Seeker
	var first []Seeker
	for _, l := range active {
		if !l.WaitsForGPU() || !s.mayQueue(l, room) {
			continue
		}
		standing, need := s.cfg.Line.Standing(l.ID), s.need(l)
		need.Granted, _ = s.granted(l, room)
		one := Seeker{Launch: l.ID, GPUs: l.GPUs, Granted: standing.Admitted}
		for _, n := range room.Nodes {
			if n.fits(need) {
				one.Machines = append(one.Machines, n.Name)
			}
		}
		switch {
		case standing.Admitted:
			seekers = append(seekers, one)
		case standing.Position == 1:
			first = append(first, one)
		}
	}
	machines, free, kinds := slices.Clone(room.Nodes), map[string]int{}, map[string]string{}
	for i := range machines {
		machines[i].Kept = 0
	}
	for _, need := range reserved {
		place(machines, need)
	}
	for _, n := range machines {
		free[n.Name], kinds[n.Name] = n.Free.GPUs, n.Kind
	}
	kept, extra := Reserve(free, kinds, append(seekers, first...))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = kept
	return extra
}

// keptOn counts the free GPUs of each machine that are kept for launches that need
// several.
func (s *Service) keptOn() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	on := map[string]int{}
	for _, k := range s.kept {
		on[k.Machine] += k.GPUs
	}
	return on
}

// keptFor is what is kept for a launch.
func (s *Service) keptFor(launch int64) Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[launch]
}

// closest is the machine that has room and the fewest GPUs to spare, "" for none.
func closest(open map[string]int, s Seeker) string {
	best := ""
	for _, m := range s.Machines {
		if open[m] >= s.GPUs && (best == "" || open[m] < open[best]) {
			best = m
		}
	}
	return best
}

// nearest is the machine that lacks the fewest GPUs, "" for none.
func nearest(open map[string]int, s Seeker) string {
	best := ""
	for _, m := range s.Machines {
		if best == "" || open[m] > open[best] {
			best = m
		}
	}
	return best
}
