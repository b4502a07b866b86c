package notebooks

import (
	"cmp"
	"slices"
	"strings"
)

// Seeker is a launch that waits for GPUs of one machine.
type Seeker struct {
	Launch   int64
	GPUs     int
	Machines []string // that would do
	// Granted says that its turn has come, First that it is the next of its line,
	// which is those whom the same kinds of GPU will do.
	Granted, First bool
	// Yields says that it gives way to others once it runs.
	Yields bool
	// Keeps is the machine that was kept for it last, "" for none.
	Keeps string
}

// Kept is the machine that is kept for a launch that needs several GPUs at once,
// and how many of them are free there already.
type Kept struct {
	Machine string
	GPUs    int
}

// Stand is what machines have, by their names.
type Stand struct {
	Free map[string]int    // GPUs that nobody has
	Soon map[string]int    // of those that are held now, as their launches are ending
	Kind map[string]string // of the GPUs, as in the line
}

// Reserve keeps a machine for each launch whose turn it is and that needs more GPUs
// than any machine has free: what gets free there is its own from then on, so that
// all that it needs comes together one day. What is free elsewhere does not help it
// and goes to those behind it, as batch schedulers backfill.
//
// It is the machine with the most free, and stays that until another has all that is
// needed, or is about to. The seekers come in their order: those first for whom a
// machine was kept before.
//
// extra is what the line is to give away of each kind besides what there is, while
// somebody could use it: the line counts all GPUs of those whose turn it is as taken,
// and what they do not have yet is elsewhere, free or held. It also lets in the next
// one of a line who needs more than is free where those behind it do not: it would
// hold them back for nothing.
func Reserve(stand Stand, seekers []Seeker) (kept map[int64]Kept, extra map[string]int) {
	open := map[string]int{}
	for machine, gpus := range stand.Free {
		open[machine] = max(gpus, 0)
	}
	kept, extra = map[int64]Kept{}, map[string]int{}
	for _, s := range seekers {
		if !s.Granted {
			continue
		}
		if at := closest(open, s); at != "" {
			open[at] -= s.GPUs
			continue
		}
		at := s.near(open, stand.Soon)
		if at == "" {
			continue
		}
		has := 0
		if s.GPUs > 1 {
			has, open[at] = open[at], 0
			kept[s.Launch] = Kept{at, has}
		}
		extra[stand.Kind[at]] += s.GPUs - has
	}
	waits := slices.DeleteFunc(slices.Clone(seekers), func(s Seeker) bool { return s.Granted })
	if !slices.ContainsFunc(waits, func(s Seeker) bool { return closest(open, s) != "" }) {
		return kept, map[string]int{}
	}
	raised := map[string]bool{}
	for _, s := range waits {
		if !s.First || s.Yields || closest(open, s) != "" {
			continue
		}
		at := s.near(open, nil)
		kind, left := stand.Kind[at], 0
		for machine, gpus := range open {
			if stand.Kind[machine] == kind {
				left += gpus
			}
		}
		behind := func(o Seeker) bool {
			return o.Launch != s.Launch && o.line(stand) == s.line(stand) &&
				slices.ContainsFunc(o.Machines, func(m string) bool { return m != at && open[m] >= o.GPUs })
		}
		if at != "" && left < s.GPUs && !raised[kind] && slices.ContainsFunc(waits, behind) {
			raised[kind] = true
			extra[kind] += s.GPUs - left
		}
	}
	return kept, extra
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

// near is the machine that is kept for it, "" for none.
func (s Seeker) near(open, soon map[string]int) string {
	best := ""
	for _, m := range s.Machines {
		switch {
		case open[m]+soon[m] >= s.GPUs:
			return m
		case best == "" || m == s.Keeps || best != s.Keeps && open[m] > open[best]:
			best = m
		}
	}
	return best
}

// line is which line it waits in: those whom the same kinds will do.
func (s Seeker) line(stand Stand) string {
	var kinds []string
	for _, m := range s.Machines {
		kinds = append(kinds, stand.Kind[m])
	}
	slices.Sort(kinds)
	return strings.Join(slices.Compact(kinds), "\n")
}

// keep notes what is kept for whom now, and returns what the line is to give away
// of each kind besides what there is.
func (s *Service) keep(room Room, reserved []Need, active []Launch) (extra map[string]int) {
	stand := Stand{Free: map[string]int{}, Soon: map[string]int{}, Kind: map[string]string{}}
	machines := slices.Clone(room.Nodes)
	for i := range machines {
		machines[i].Kept = 0
	}
	for _, need := range reserved {
		place(machines, need)
	}
	for _, n := range machines {
		stand.Free[n.Name], stand.Kind[n.Name] = n.Free.GPUs, n.Kind
	}
	var seekers []Seeker
	for i := range active {
		l := active[i]
		if p, ok := s.podOf(l); l.State == Stopping && l.GPUs > 0 && ok && !p.Finished {
			stand.Soon[p.Node] += p.GPUs
		}
		if !l.WaitsForGPU() || !s.mayQueue(l, room) {
			continue
		}
		standing, need := s.cfg.Line.Standing(l.ID), s.need(l)
		need.Granted, _ = s.granted(l, room)
		one := Seeker{Launch: l.ID, GPUs: l.GPUs, Granted: standing.Admitted, First: standing.Position == 1, Yields: s.offers(l), Keeps: s.keptFor(l.ID).Machine}
		for _, n := range room.Nodes {
			if n.fits(need) {
				one.Machines = append(one.Machines, n.Name)
			}
		}
		seekers = append(seekers, one)
	}
	slices.SortStableFunc(seekers, func(a, b Seeker) int { return cmp.Compare(s.keptSince(a.Launch), s.keptSince(b.Launch)) })
	kept, extra := Reserve(stand, seekers)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = kept
	// In the order in which they came to it: one that has room now goes before others still.
	s.keepers = slices.DeleteFunc(s.keepers, func(launch int64) bool {
		return !slices.ContainsFunc(seekers, func(o Seeker) bool { return o.Launch == launch && o.Granted })
	})
	for _, one := range seekers {
		if _, has := kept[one.Launch]; has && !slices.Contains(s.keepers, one.Launch) {
			s.keepers = append(s.keepers, one.Launch)
		}
	}
	return extra
}

// keptSince orders launches: those for whom a machine is kept, or was until it had
// room for them, in the order in which they came to it, and then all others.
func (s *Service) keptSince(launch int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.keepers, launch); i >= 0 {
		return i
	}
	return len(s.keepers)
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
