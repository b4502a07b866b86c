package notebooks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Placing is how a lab chooses between machines; the zero value packs GPUs and
// keeps CPU notebooks from no machine.
type Placing struct {
	CPU  string // CPUAnywhere, CPUPrefer or CPURequire
	GPUs string // GPUsPack or GPUsSpread
}

// Where CPU notebooks run.
const (
	CPUAnywhere = ""        // on any machine
	CPUPrefer   = "prefer"  // on machines without GPUs where one has room
	CPURequire  = "require" // on machines without GPUs, or not at all
)

// Where notebooks with GPUs run, of the machines that have room for them.
const (
	GPUsPack   = ""       // where the fewest GPUs are free: others stay whole for who needs several
	GPUsSpread = "spread" // where the most are: each has more of its machine's memory and processors
)

// Placement is where a launch runs by the lab's rules, and why.
type Placement struct {
	Machines []string `json:"machines,omitempty"` // the only ones it may run on, none for any
	Prefer   []string `json:"prefer,omitempty"`   // those that it runs on if they still have room
	Why      string   `json:"why,omitempty"`      // of those, a sentence; "" where there was no choice
}

// WhyHere says in a sentence why a launch runs on its machine, "" where that was
// no choice.
func (l Launch) WhyHere() string {
	switch {
	case l.Node == "" || l.Placement.Why == "":
		return ""
	case len(l.Placement.Prefer) > 0 && !slices.Contains(l.Placement.Prefer, l.Node):
		return "Another machine was meant, and had no room any more when it started."
	}
	return l.Placement.Why
}

func (s *Service) placing() Placing {
	if s.cfg.Placing == nil {
		return Placing{}
	}
	return s.cfg.Placing()
}

// ruled tells whether something keeps it off some machines.
func (n Need) ruled() bool { return n.aside() || len(n.Unfit) > 0 }

// aside tells whether it waits for machines that others do not need.
func (n Need) aside() bool { return n.NoGPUs || len(n.Barred) > 0 || len(n.Lacking) > 0 }

// choose decides between the machines of a pool.
func choose(room Room, need Need, rules Placing) Placement {
	var p Placement
	if need.ruled() || need.Granted != "" {
		p.Machines = fitting(slices.Concat(room.Nodes, room.Cordoned), need)
	}
	if len(room.Nodes) < 2 {
		return p
	}
	var open []NodeRoom
	for _, n := range room.Nodes {
		if n.fits(need) && n.open().covers(need.Amount) {
			open = append(open, n)
		}
	}
	p.keepOff(room, need, open)
	switch {
	case need.Only != "":
		p.Why = "Its home is on no other machine."
	case need.GPUs > 0:
		p.preferOf(open, rules.GPUs == GPUsSpread)
		if passed := room.passedOver(need); passed != "" && len(open) == 1 {
			p.Why = passed
		}
	case need.NoGPUs:
		p.Why = "CPU notebooks run on machines without GPUs only, by the lab’s rules."
	case rules.CPU == CPUPrefer:
		p.preferWithoutGPUs(room, open)
	}
	return p
}

// keepOff leaves only the machines that are open where another one would do whose
// free GPUs are kept for others.
func (p *Placement) keepOff(room Room, need Need, open []NodeRoom) {
	kept := slices.ContainsFunc(room.Nodes, func(n NodeRoom) bool {
		return n.Kept > 0 && n.fits(need) && n.open().GPUs < need.GPUs
	})
	if need.GPUs == 0 || !kept || len(open) == 0 {
		return
	}
	p.Machines = fitting(open, need)
}

// preferOf takes the machine with the fewest free GPUs, or the most.
func (p *Placement) preferOf(open []NodeRoom, spread bool) {
	switch len(open) {
	case 0:
		return
	case 1:
		p.Why = "No other machine had room for it."
	default:
		p.Why = "Of the machines with room for it, it had the fewest free GPUs: others stay whole for notebooks that need " +
			"several."
		if spread {
			p.Why = "Of the machines with room for it, it had the most free GPUs."
		}
	}
	best := open[0]
	for _, n := range open[1:] {
		if has, least := n.open().GPUs, best.open().GPUs; spread && has > least || !spread && has < least {
			best = n
		}
	}
	p.Prefer = []string{best.Name}
}

func (p *Placement) preferWithoutGPUs(room Room, open []NodeRoom) {
	for _, n := range open {
		if !n.HasGPUs {
			p.Prefer = append(p.Prefer, n.Name)
		}
	}
	switch {
	case p.Prefer != nil:
		p.Why = "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules."
	case slices.ContainsFunc(room.Nodes, func(n NodeRoom) bool { return !n.HasGPUs }):
		p.Why = "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules, and none had."
	default:
		p.Why = "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules, and none was ready."
	}
}

// place chooses for a launch that is about to be asked for, remembers it, and
// puts into options what the hub has to know.
func (s *Service) place(ctx context.Context, l Launch, options map[string]any) error {
	room, need := s.room(), s.need(l)
	var known bool
	if need.Granted, known = s.granted(l, room); !known {
		return errNoGrant
	}
	p := choose(room, need, s.placing())
	if (need.ruled() || need.Granted != "") && p.Machines == nil {
		return errors.New("none of the machines that it may run on is ready")
	}
	if p.Machines != nil {
		options["machines"] = p.Machines
	}
	if p.Prefer != nil {
		options["prefer"] = p.Prefer
	}
	return s.rows.placed(ctx, l.ID, p)
}

// nowhere says why the lab's rules leave a profile no machine of the pool, "" where
// they leave one, or may.
func (s *Service) nowhere(p Profile) string {
	need := s.need(Launch{Profile: p.Slug})
	if p.GPUs > 0 || !need.NoGPUs || !s.cfg.Cluster.Synced() {
		return ""
	}
	room := s.room()
	switch {
	case room.has(need):
		return ""
	case need.Only != "":
		return fmt.Sprintf("CPU notebooks run on machines without GPUs only, by the lab’s rules, and this one starts on "+
			"%s only, because its home is nowhere else. An admin can change the rule on the page of the machines.",
			s.called(need.Only))
	}
	return "CPU notebooks run on machines without GPUs only, by the lab’s rules, and this lab has no such machine. An " +
		"admin can change the rule on the page of the machines."
}

// away says why a launch waits for a machine that the lab's rules want, "" where
// that is not so; never says that there is none.
func (s *Service) away(l Launch) (why string, never bool) {
	need := s.need(l)
	if !need.ruled() {
		return "", false
	}
	room := s.room()
	if _, image := s.withoutImage(need, room); image || len(room.Nodes) == 0 || room.open(need) {
		return "", false
	}
	if others := s.closedTo(need, room); others != "" {
		return "No machine that could take it is for you. " + others + " Ask an admin, or launch another notebook.",
			!room.has(need)
	}
	if !need.NoGPUs {
		return "", false
	}
	return "CPU notebooks run on machines without GPUs only, by the lab’s rules, and none of these is ready. It starts " +
		"when one is.", false
}

// closedTo names machines that would do for a launch, and are for others; "" where
// there are none.
func (s *Service) closedTo(need Need, room Room) string {
	anywhere := need
	anywhere.Barred = nil
	var list []string
	for _, n := range room.Nodes {
		if !n.fits(need) && n.fits(anywhere) {
			list = append(list, s.called(n.Name)+" is for "+s.cfg.ForWhom(n.Name)+" only")
		}
	}
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, ", ") + "."
}

// passedOver names the machines that would do for a launch if its image could use
// their GPUs; "" where there are none.
func (r Room) passedOver(need Need) string {
	if list := r.unfit(need, r.Nodes); len(list) > 0 {
		return "Its " + cmp.Or(need.Thing, "image") + " cannot use the GPUs of " + strings.Join(list, ", ") + "."
	}
	return ""
}

// unfit are those of some machines that would do but for its image, as they are shown.
func (r Room) unfit(need Need, machines []NodeRoom) (list []string) {
	able := need
	able.Unfit, able.Granted = nil, ""
	for _, n := range machines {
		if slices.Contains(need.Unfit, n.Name) && n.fits(able) {
			list = append(list, r.called(n.Name))
		}
	}
	return list
}

// withoutImage says which machines could take a launch once they have its image,
// or environment,
// "" where there are none; all tells that no other could.
func (s *Service) withoutImage(need Need, room Room) (words string, all bool) {
	whole := need
	whole.Lacking = nil
	var list []string
	for _, n := range room.Nodes {
		if n.fits(need) || !n.fits(whole) {
			continue
		}
		text := "not on " + s.called(n.Name) + " yet"
		if s.cfg.Getting != nil {
			if how := s.cfg.Getting(n.Name); how != "" {
				text += " (" + how + ")"
			}
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		return "", false
	}
	return "Its " + cmp.Or(need.Thing, "image") + " is " + strings.Join(list, ", ") + ".", !room.opens(need)
}

// join puts a space between sentences where there are two.
func join(a, b string) string { return strings.TrimSpace(a + " " + b) }

// placed writes where a launch is to run.
func (t rows) placed(ctx context.Context, id int64, p Placement) error {
	text, err := json.Marshal(p)
	if err == nil {
		_, err = t.db.ExecContext(ctx, `UPDATE launches SET placement = ? WHERE id = ?`, string(text), id)
	}
	if err != nil {
		return fmt.Errorf("note where launch %d runs: %w", id, err)
	}
	return nil
}
