package notebooks

import (
	"cmp"
	"maps"
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
	soon, promised := maps.Clone(stand.Soon), map[string]int{}
	if soon == nil {
		soon = map[string]int{}
	}
	for _, s := range seekers {
		if !s.Granted {
			continue
		}
		at, has := closest(open, s), s.GPUs
		if at == "" {
			if at = s.near(open, soon, promised); at == "" {
				continue
			}
			if has = 0; s.GPUs > 1 {
				has = open[at]
				kept[s.Launch] = Kept{at, has}
			}
			soon[at] = max(0, soon[at]-(s.GPUs-has))
			extra[stand.Kind[at]] += s.GPUs - has
		}
		open[at] -= has
		if s.GPUs > 1 {
			promised[at] += s.GPUs
		}
	}
	waits := slices.DeleteFunc(slices.Clone(seekers), func(s Seeker) bool { return s.Granted })
	if !slices.ContainsFunc(waits, func(s Seeker) bool { return closest(open, s) != "" }) {
		return kept, map[string]int{}
	}
	left := map[string]int{}
	for machine, gpus := range open {
		left[stand.Kind[machine]] += gpus
	}
	raised := map[string]bool{}
	for _, s := range waits {
		// Where enough of a kind is free, the line lets it in by itself.
		if !s.First || s.Yields || slices.ContainsFunc(s.Machines, func(m string) bool {
			return left[stand.Kind[m]] >= s.GPUs
		}) {
			continue
		}
		at, line := s.near(open, nil, promised), s.line(stand)
		kind := stand.Kind[at]
		behind := func(o Seeker) bool {
			return o.Launch != s.Launch && slices.ContainsFunc(o.Machines, func(m string) bool {
				return m != at && open[m] >= o.GPUs
			}) && o.line(stand) == line
		}
		if at != "" && !raised[kind] && slices.ContainsFunc(waits, behind) {
			raised[kind] = true
			extra[kind] += s.GPUs - left[kind]
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

// near is the machine that is kept for it, "" for none: the one that has all it needs
// soon, the one that was kept before, or the one with the most free; and rather one
// that is promised to nobody before it.
func (s Seeker) near(open, soon, promised map[string]int) string {
	best, most := "", 0
	for _, m := range s.Machines {
		worth := open[m] - promised[m]
		if promised[m] == 0 && m == s.Keeps {
			worth += 1 << 20
		}
		if open[m]+soon[m] >= s.GPUs {
			worth += 1 << 21
		}
		if best == "" || worth > most {
			best, most = m, worth
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

// stand is what the machines of the room have.
func (s *Service) stand(active []Launch, room Room, reserved []Need) Stand {
	st := Stand{Free: map[string]int{}, Soon: s.ending(active), Kind: map[string]string{}}
	machines := slices.Clone(room.Nodes)
	for _, need := range reserved {
		book(machines, need)
	}
	for _, n := range machines {
		st.Free[n.Name], st.Kind[n.Name] = n.Free.GPUs, n.Kind
	}
	return st
}

// seeker is a launch that waits for GPUs.
func (s *Service) seeker(l Launch, need Need, room Room) Seeker {
	standing := s.cfg.Line.Standing(l.ID)
	need.Granted, _ = s.granted(l, room)
	return Seeker{
		Launch: l.ID, GPUs: l.GPUs, Machines: fitting(room.Nodes, need), Granted: standing.Admitted,
		First:  standing.Position == 1,
		Yields: s.offers(l), Keeps: s.keptFor(l.ID).Machine,
	}
}

// keep notes what is kept for whom now, and returns what the line is to give away
// of each kind besides what there is.
func (s *Service) keep(stand Stand, seekers []Seeker) (extra map[string]int) {
	since := s.keptSince()
	slices.SortStableFunc(seekers, func(a, b Seeker) int { return cmp.Compare(since(a.Launch), since(b.Launch)) })
	kept, extra := Reserve(stand, seekers)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = kept
	// One that has room now goes before others until it has started.
	var keepers []int64
	for _, one := range seekers {
		if _, has := kept[one.Launch]; has || one.Granted && slices.Contains(s.keepers, one.Launch) {
			keepers = append(keepers, one.Launch)
		}
	}
	s.keepers = keepers
	return extra
}

// keptSince orders launches: those for whom a machine is kept, or was until it had
// room for them, in the order in which they came to it, and then all others.
func (s *Service) keptSince() func(launch int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	rank := map[int64]int{}
	for i, launch := range s.keepers {
		rank[launch] = i - len(s.keepers)
	}
	return func(launch int64) int { return rank[launch] }
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
