package notebooks

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/users"
)

// Line decides whose turn it is among the launches that want GPUs;
// [queue.Line] is one.
type Line interface {
	// Keep tells it what the pool has, and every launch with GPUs that has not
	// ended. It does not block.
	Keep(queue.State)
	// Standing is where a launch stands as far as is known.
	Standing(launch int64) queue.Standing
	// Trouble says in a sentence or two why nobody is let in now, "" while it works.
	Trouble() string
	// Changes delivers a token after any of this changed.
	Changes() <-chan struct{}
}

// keepLine tells the line of the pool and of the launches, and notes what is kept for
// whom. reserved are launches that are admitted, and not in the room yet.
func (s *Service) keepLine(ctx context.Context, active []Launch, room Room, reserved []Need) {
	state := queue.State{Stock: stock(active, room)}
	var seekers []Seeker
	first := s.firstByShare(ctx, active)
	s.mu.Lock()
	s.first = first
	s.mu.Unlock()
	for _, l := range active {
		if l.GPUs == 0 {
			continue
		}
		if _, known := s.profile(l.Profile); l.State == Waiting && !known {
			continue // it is ended
		}
		need := s.need(l)
		aside := l.State == Waiting && !s.couldStart(l, need, room)
		if aside {
			need.Lacking = nil // one day it is there
		}
		c := queue.Claim{
			Launch: l.ID, Namespace: "user-" + l.Handle, GPUs: l.GPUs, Turn: turnsOf(l),
			Kinds: kindsFor(state.Stock, room, need), Held: l.State != Waiting, Aside: aside,
			Unready: l.State == Stopping, // its namespace may be going with its owner's account
		}
		if l.State == Waiting {
			if !aside {
				seekers = append(seekers, s.seeker(l, need, room))
			}
			_, goesFirst := first[l.ID]
			c.Priority = s.priority(ctx, l, goesFirst)
			if c.Unready = !s.look(l.ID).housed; c.Unready {
				s.step(ctx, l)
			}
		}
		if len(c.Kinds) == len(state.Stock) {
			c.Kinds = nil
		}
		if aside && s.keepsTurn(l, room) {
			c.Aside, c.Kinds = false, nil
		}
		if n := slices.IndexFunc(room.machines(), func(n NodeRoom) bool { return n.Name == l.Node }); c.Held && n >= 0 {
			c.On = room.machines()[n].Kind
		}
		state.Claims = append(state.Claims, c)
	}
	extra := s.keep(s.stand(active, room, reserved), seekers)
	for i := range state.Stock {
		state.Stock[i].GPUs += extra[state.Stock[i].Kind]
	}
	s.cfg.Line.Keep(state)
}

// turnsOf counts how often a launch has had its turn and lost what it got.
func turnsOf(l Launch) int {
	turns := 0
	if l.Job != nil {
		for _, t := range l.Job.Tries {
			turns += t.runs()
		}
	}
	return turns
}

// couldStart tells whether a waiting launch may stand among the others: not one that
// no open machine could take, or that cannot work here. It would hold up the rest.
func (s *Service) couldStart(l Launch, need Need, room Room) bool {
	return s.unable(l.Profile) == "" && room.opens(need)
}

// keepsTurn tells whether a launch whose turn has come, and that cannot start now, stays let
// in: as long as no open machine has the kind that it was given, nobody else could have that.
func (s *Service) keepsTurn(l Launch, room Room) bool {
	given := s.cfg.Line.Standing(l.ID)
	return given.Admitted && s.unable(l.Profile) == "" &&
		!slices.ContainsFunc(room.Nodes, func(n NodeRoom) bool { return n.Kind == given.Kind })
}

// house makes the namespace that a launch waits in. Many of one person's come
// together, as an array or after a start: then the first one makes it for all.
func (s *Service) house(ctx context.Context, l Launch) error {
	made, _ := s.spaces.LoadOrStore(l.UserID, &space{})
	p := made.(*space)
	p.Lock()
	defer p.Unlock()
	if now := s.now(); now.Sub(p.made) > spaceKept || now.Before(p.made) {
		if err := s.ensurePlace(ctx, l); err != nil {
			return err
		}
		p.made = now
	}
	s.with(l.ID, func(t *track) {
		t.housed = true
		t.clear()
	})
	return nil
}

// space is somebody's namespace, and when it was made sure of last.
type space struct {
	sync.Mutex
	made time.Time
}

// spaceKept is how long a space is taken to be as it was made.
const spaceKept = 10 * time.Second

// knownRole is somebody's role, and when it was read.
type knownRole struct {
	role string
	read time.Time
}

// roleKept is how long a role is taken to be as it was read.
const roleKept = 2 * time.Second

// roleOf is the role of a launch's owner.
func (s *Service) roleOf(ctx context.Context, l Launch) string {
	now := s.now()
	if last, ok := s.roles.Load(l.UserID); ok {
		if known := last.(knownRole); !now.Before(known.read) && now.Sub(known.read) < roleKept {
			return known.role
		}
	}
	u, err := s.cfg.People.ByID(ctx, l.UserID)
	if err != nil || u.Role == "" {
		return string(users.RoleGuest) // who is being removed needs no more
	}
	s.roles.Store(l.UserID, knownRole{string(u.Role), now})
	return string(u.Role)
}

// kindsFor are the kinds of GPU that would do for need, in the order of the stock.
func kindsFor(stock []queue.Stock, room Room, need Need) []string {
	kinds := []string{}
	for _, s := range stock {
		if slices.ContainsFunc(room.machines(), func(n NodeRoom) bool { return n.Kind == s.Kind && n.fits(need) }) {
			kinds = append(kinds, s.Kind)
		}
	}
	return kinds
}

// stock is what the pool lends out of each kind. A machine that takes no new
// work counts with what launches hold of it, because they count, too; what pods
// beside the launches hold is not to be had.
//
// What fewest launches can have comes first, so that it is given to them before
// what the others need: GPUs that are for some people only, then small ones.
func stock(active []Launch, room Room) []queue.Stock {
	var list []queue.Stock
	of := map[string]NodeRoom{} // a machine by kind
	add := func(n NodeRoom, gpus int) {
		if n.Kind == "" {
			return
		}
		of[n.Kind] = n
		i := slices.IndexFunc(list, func(s queue.Stock) bool { return s.Kind == n.Kind })
		if i < 0 {
			list = append(list, queue.Stock{Kind: n.Kind})
			i = len(list) - 1
		}
		list[i].GPUs += gpus
	}
	for _, n := range room.Nodes {
		add(n, max(0, n.Total.GPUs-n.Withheld-foreign(active, room, n.Name)))
	}
	for _, n := range slices.Concat(room.Cordoned, room.Away) {
		add(n, heldOn(active, n.Name))
	}
	everybodys := func(n NodeRoom) int {
		if n.Kind == cmp.Or(n.GPUModel, unknownGPU) {
			return 1
		}
		return 0
	}
	slices.SortFunc(list, func(a, b queue.Stock) int {
		x, y := of[a.Kind], of[b.Kind]
		return cmp.Or(cmp.Compare(everybodys(x), everybodys(y)), cmp.Compare(x.GPUMemory, y.GPUMemory),
			cmp.Compare(a.Kind, b.Kind))
	})
	return list
}

// foreign counts the GPUs of a machine that pods of no launch hold.
func foreign(active []Launch, room Room, machine string) int {
	n := 0
	for _, h := range room.Holders {
		if h.Node == machine && !slices.ContainsFunc(active, func(l Launch) bool {
			return l.Handle == h.Handle && l.Name == h.Notebook
		}) {
			n += h.GPUs
		}
	}
	return n
}

func heldOn(active []Launch, machine string) int {
	n := 0
	for _, l := range active {
		if l.State != Waiting && l.Node == machine {
			n += l.GPUs
		}
	}
	return n
}

// granted is the kind of GPU that the line has given to a launch, "" where the
// pool has one kind only. It is false while the line has not said.
func (s *Service) granted(l Launch, room Room) (string, bool) {
	kinds := map[string]bool{}
	for _, n := range room.machines() {
		if n.Kind != "" {
			kinds[n.Kind] = true
		}
	}
	if l.GPUs == 0 || len(kinds) < 2 {
		return "", true
	}
	standing := s.cfg.Line.Standing(l.ID)
	if !kinds[standing.Kind] {
		return "", standing.Admitted // the machines are others than a moment ago
	}
	return standing.Kind, standing.Admitted
}
