package history

import (
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

const (
	// BusyShare is from what share of a GPU's time, in percent, somebody counts
	// as busy: the smallest that NVIDIA's driver reports.
	BusyShare = 1
	// DesktopShare is from what share, in percent, a process that only draws
	// counts as use. Below it belongs to a desktop session, which is nobody's
	// use of the pool.
	DesktopShare = 10
)

// Kind says what sort of somebody has used a GPU.
type Kind string

// The kinds of users.
const (
	KindUser         Kind = "user"         // a person of the lab, by handle
	KindUnix         Kind = "unix"         // a user of the machine, outside gpulab
	KindPod          Kind = "pod"          // a pod that is nobody's, as namespace/name
	KindUnattributed Kind = "unattributed" // what cannot be told
	kindCard         Kind = "card"         // the card itself
)

// who is somebody who uses GPUs.
type who struct {
	kind Kind
	name string
}

// claim is what somebody has of a GPU at one moment.
type claim struct {
	who
	// taken is what their processes take, as far as these are use.
	taken gpu.Taken[who]
	// whole says that they have the GPU as a whole, or turns on it; instances are
	// the MIG instances that they have.
	whole     bool
	instances []string
}

// part is what part of the GPU they have, from 0 to 1.
func (c *claim) part(g *gpu.GPU) float64 {
	if c.whole {
		return 1
	}
	return g.PartOf(c.instances)
}

func (c *claim) has(instance string) {
	if instance == "" {
		c.whole = true
	} else {
		c.instances = append(c.instances, instance)
	}
}

// share is how a stretch of a GPU's time is divided.
type share struct {
	card         amounts
	claims       map[who]amounts
	unattributed amounts
}

// spent is a GPU's energy since it was last known, and over how many seconds
// that was. late says that these reach further back than the stretch.
type spent struct {
	joules, seconds float64
	late            bool
}

// claimsOf lists who holds a GPU or has processes on it. While the GPU cannot
// be read, its processes are not known.
func claimsOf(g *gpu.GPU, readable bool) []claim {
	var out []claim
	at := func(w who) *claim {
		i := slices.IndexFunc(out, func(c claim) bool { return c.who == w })
		if i < 0 {
			i = len(out)
			out = append(out, claim{who: w})
		}
		return &out[i]
	}
	for _, h := range g.Holders {
		at(podOwner(h.PodRef)).has(h.Instance)
	}
	if !readable {
		return out
	}
	for i := range g.Processes {
		p := &g.Processes[i]
		if w, uses := user(p); uses && p.Instance != "" {
			at(w).has(p.Instance)
		}
	}
	for _, taken := range gpu.TakenBy(g, user) {
		at(taken.By).taken = taken
	}
	return out
}

// user says whose use a process is; false for what a desktop session draws.
func user(p *gpu.Process) (who, bool) {
	sm := p.Share()
	return owner(p), !p.Graphics || sm != nil && *sm >= DesktopShare
}

func podOwner(p gpu.PodRef) who {
	switch {
	case p.User != "":
		return named(KindUser, p.User)
	case p.Name != "":
		return named(KindPod, p.Namespace+"/"+p.Name)
	}
	return who{kind: KindUnattributed} // a pod the cluster does not know, yet or any more
}

func owner(p *gpu.Process) who {
	if p.Pod != (gpu.PodRef{}) {
		return podOwner(p.Pod)
	}
	return named(KindUnix, p.UnixUser)
}

func named(k Kind, name string) who {
	if name = tidy(name); name == "" {
		return who{kind: KindUnattributed}
	}
	return who{k, name}
}

// share is the claim's part of the GPU's time in percent, nil if it cannot be
// told. lists says that the driver is known to list processes; alone that
// nobody else has a claim.
func (c *claim) share(g *gpu.GPU, readable, lists, alone bool) *float64 {
	use := sane(g.Utilization, mostPercent)
	idle := g.Asleep || use != nil && *use < BusyShare
	known := c.taken.SM()
	switch {
	case !readable:
		return nil
	case g.ProcessesUnknown && !idle: // there may be more
		if alone {
			return use
		}
		return nil
	case c.taken.Processes > 0 && known != nil:
		most := min(*known, mostPercent)
		return &most
	case idle, c.taken.Processes == 0 && lists:
		return new(float64)
	case alone:
		return use
	}
	return nil
}

// bytes is the claim's part of the GPU's memory, nil if it cannot be told.
func (c *claim) bytes(g *gpu.GPU, readable, lists, alone bool) *float64 {
	known := c.taken.Memory()
	switch {
	case !readable:
		return nil
	case c.taken.Processes > 0 && known != nil && !g.ProcessesUnknown:
		return known
	case c.taken.Processes == 0 && lists:
		return new(float64)
	case len(c.instances) > 0:
		return inBounds(g.OwnMemory(func(h *gpu.Holder) bool { return podOwner(h.PodRef) == c.who }))
	case alone:
		return usedMemory(g)
	}
	return nil
}

func usedMemory(g *gpu.GPU) *float64 { return inBounds(g.MemoryUsed) }

// inBounds drops a figure that no card can have.
func inBounds(bytes *uint64) *float64 {
	if bytes == nil || *bytes > mostMemory {
		return nil
	}
	v := float64(*bytes)
	return &v
}

// divide says who had what of a GPU in the seconds before a snapshot.
func divide(g *gpu.GPU, readable, lists bool, seconds float64, e spent) share {
	claims := claimsOf(g, readable)
	lists = (lists || len(g.Processes) > 0) && !g.ProcessesUnknown
	out := share{claims: make(map[who]amounts, len(claims))}
	parts := make([]*float64, len(claims)) // percent
	var memory float64
	anyBusy, anyUnknown := false, false
	for i := range claims {
		c := &claims[i]
		parts[i] = c.share(g, readable, lists, len(claims) == 1)
		had := seconds * c.part(g)
		a := amounts{held: had}
		a.use(parts[i], had)
		if b := c.bytes(g, readable, lists, len(claims) == 1); b != nil {
			a.memory, a.memoryFor = *b*seconds, seconds
			memory += *b
		}
		anyBusy, anyUnknown = anyBusy || a.busy > 0, anyUnknown || a.unknown > 0
		out.claims[c.who] = a
	}
	out.card = cardAmounts(g, readable, seconds, seconds*heldPart(g, claims), anyBusy, anyUnknown)
	if used := usedMemory(g); readable {
		switch {
		case used != nil:
			rest := max(*used-memory, 0)
			out.unattributed.memory, out.unattributed.memoryFor = rest*seconds, seconds
			out.card.memory, out.card.memoryFor = (memory+rest)*seconds, seconds
		case memory > 0:
			out.card.memory, out.card.memoryFor = memory*seconds, seconds
		}
	}
	out.divideEnergy(claims, parts, e)
	return out
}

// heldPart is what part of the card anybody has, from 0 to 1.
func heldPart(g *gpu.GPU, claims []claim) float64 {
	all := claim{whole: len(g.Instances) == 0}
	for i := range claims {
		all.whole = all.whole || claims[i].whole || len(claims[i].instances) == 0
		all.instances = append(all.instances, claims[i].instances...)
	}
	if len(claims) == 0 {
		return 0
	}
	return all.part(g)
}

// cardAmounts is what the whole card did: it is busy if anybody is, or by its
// own word.
func cardAmounts(g *gpu.GPU, readable bool, seconds, held float64, anyBusy, anyUnknown bool) amounts {
	a := amounts{watched: seconds}
	var use *float64
	if readable {
		use = sane(g.Utilization, mostPercent)
	}
	if use != nil {
		a.compute, a.computeFor = *use/100*seconds, seconds
	}
	if held == 0 {
		return a
	}
	a.held = held
	switch {
	case anyBusy, use != nil && *use >= BusyShare:
		a.busy = held
	case anyUnknown && use == nil:
		a.unknown = held
	}
	return a
}

// divideEnergy splits energy by the measured shares of the GPU's time; among
// people who are all idle, evenly; what was spent before, by nobody in sight,
// or by several whose shares are not known, is nobody's.
func (s *share) divideEnergy(claims []claim, parts []*float64, e spent) {
	if e.seconds == 0 {
		return
	}
	s.card.energy, s.card.energyFor = e.joules, e.seconds
	nobodys := e.late || len(claims) == 0
	var total float64
	for _, p := range parts {
		if p == nil {
			nobodys = nobodys || len(claims) > 1
			continue
		}
		total += *p
	}
	if nobodys {
		s.unattributed.energy, s.unattributed.energyFor = e.joules, e.seconds
		return
	}
	for i := range claims {
		fraction := 1 / float64(len(claims))
		if total > 0 && parts[i] != nil {
			fraction = *parts[i] / total
		}
		a := s.claims[claims[i].who]
		a.energy, a.energyFor = e.joules*fraction, e.seconds
		s.claims[claims[i].who] = a
	}
}

// spent returns the energy since the last time it was known: the difference of
// the card's counter, or power times time where it has none or it began anew.
func (st *gpuState) spent(g *gpu.GPU, readable bool, passed, running, limit time.Duration) spent {
	if !readable {
		return spent{}
	}
	var e spent
	counts := passed > 0 && passed <= limit
	counter := sane(g.Energy, 1e15)
	if counter != nil && st.energy != nil {
		since := running - st.energyAt
		joules := *counter - *st.energy
		// A counter that jumps by more than any card can draw has not counted.
		if joules >= 0 && joules <= mostPower*max(since.Seconds(), 1) {
			e = spent{joules: joules, seconds: since.Seconds(), late: since > passed || !counts}
		}
	}
	if power := sane(g.Power, mostPower); e.seconds == 0 && power != nil && counts {
		e = spent{joules: *power * passed.Seconds(), seconds: passed.Seconds()}
	}
	if counter != nil {
		st.energy, st.energyAt = new(float64), running
		*st.energy = *counter
	}
	return e
}
