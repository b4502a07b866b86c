package idle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Act says when something is done about a GPU that nobody uses.
type Act string

// The ways to act.
const (
	WhenWanted Act = "when-wanted" // only while somebody waits whom it would serve
	Always     Act = "always"
	Never      Act = "never"
)

// Policy is what holds for one notebook.
type Policy struct {
	Act Act
	// After is how long nobody has used its GPUs before it is warned.
	After time.Duration
	// Countdown is how long it goes on after a warning.
	Countdown time.Duration
	// Extend is for how long its owner can say that they still need it, Extensions how often in a row.
	Extend     time.Duration
	Extensions int
	// Unused is how long its GPUs themselves have done nothing before it counts as idle whatever its processors,
	// kernels and terminals do; 0 for never.
	Unused time.Duration
	// Unopened is how long one that was waited for stays if nobody opens it, 0 for as long as any.
	Unopened time.Duration
	// MaxAge is how long a notebook runs at most, 0 for as long as it likes. It holds for notebooks without GPUs too.
	MaxAge time.Duration
}

// Default is the policy of a lab that says nothing.
func Default() Policy {
	return Policy{
		Act: WhenWanted, After: 30 * time.Minute, Countdown: 10 * time.Minute, Extend: 30 * time.Minute, Extensions: 3,
		Unused: 24 * time.Hour, Unopened: 10 * time.Minute,
	}
}

// longest is the longest of all times: more is a slip of the pen.
const longest = 366 * 24 * time.Hour

// Check refuses what makes no sense; its errors are for people.
func (p Policy) Check() error {
	switch {
	case p.Act != WhenWanted && p.Act != Always && p.Act != Never:
		return fmt.Errorf("act is %q; it may be when-wanted, always or never", string(p.Act))
	case p.After < time.Second:
		return errors.New("after is how long a GPU is unused before the warning, and at least 1s; write it as 30m. `act: " +
			"never` turns it off")
	case p.Countdown < time.Second:
		return errors.New("countdown is how long a notebook goes on after a warning, and at least 1s; write it as 10m")
	case p.Extensions < 0 || p.Extensions > 100:
		return fmt.Errorf("extensions is %d; it may be 0 to 100", p.Extensions)
	case p.Extensions > 0 && p.Extend < time.Second:
		return errors.New("extend is for how long somebody can keep a notebook, and at least 1s; write it as 30m. " +
			"`extensions: 0` lets nobody")
	case p.Unused < 0 || p.Unopened < 0 || p.MaxAge < 0:
		return errors.New("unused, unopened and maxAge are times such as 24h, or 0 for no such limit")
	case p.Unused > 0 && p.Unused < p.After:
		return errors.New("unused is shorter than after: what is measured at the GPU alone has to be the longer time; set " +
			"unused too, or to 0")
	case p.MaxAge > 0 && p.MaxAge <= p.Countdown:
		return errors.New("maxAge is not longer than countdown: a notebook would be warned before it has begun")
	case slices.Max([]time.Duration{p.After, p.Countdown, p.Extend, p.Unused, p.Unopened, p.MaxAge}) > longest:
		return errors.New("no time is longer than 366 days (8784h)")
	}
	return nil
}

// Change is what is different for one profile or one group; nil leaves it as it is.
type Change struct {
	Act                                                *Act
	After, Countdown, Extend, Unused, Unopened, MaxAge *time.Duration
	Extensions                                         *int
}

// Apply returns a policy with the change.
func (c Change) Apply(p Policy) Policy {
	set := func(to *time.Duration, by *time.Duration) {
		if by != nil {
			*to = *by
		}
	}
	if c.Act != nil {
		p.Act = *c.Act
	}
	if c.Extensions != nil {
		p.Extensions = *c.Extensions
	}
	set(&p.After, c.After)
	set(&p.Countdown, c.Countdown)
	set(&p.Extend, c.Extend)
	set(&p.Unused, c.Unused)
	set(&p.Unopened, c.Unopened)
	set(&p.MaxAge, c.MaxAge)
	return p
}

// Policies are a lab's: what holds for everybody, what differs by profile, and beyond that by group.
type Policies struct {
	Base     Policy
	Profiles map[string]Change // by slug
	Groups   map[string]Change // by name
}

// Check refuses what makes no sense, also what would come of a change.
func (p Policies) Check() error {
	if err := p.Base.Check(); err != nil {
		return err
	}
	for _, slug := range sortedKeys(p.Profiles) {
		if err := p.Profiles[slug].Apply(p.Base).Check(); err != nil {
			return fmt.Errorf("for the profile %q: %w", slug, err)
		}
	}
	for _, name := range sortedKeys(p.Groups) {
		if err := p.Groups[name].Apply(p.Base).Check(); err != nil {
			return fmt.Errorf("for the group %q: %w", name, err)
		}
	}
	return nil
}

func sortedKeys(m map[string]Change) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Of is the policy of a notebook of this profile whose owner is in these groups. What is said of a group goes before
// what is said of a profile; of several groups, the one with the longest time before a warning holds.
func (p Policies) Of(profile string, groups []string) Policy {
	base := p.Profiles[profile].Apply(p.Base)
	var list []Policy
	for _, g := range groups {
		if c, ok := p.Groups[g]; ok {
			list = append(list, c.Apply(base))
		}
	}
	if len(list) == 0 {
		return base
	}
	return slices.MaxFunc(list, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.patience(), b.patience()), cmp.Compare(a.Countdown, b.Countdown))
	})
}

// patience is how long somebody is left alone; one who always is comes first.
func (p Policy) patience() time.Duration {
	if p.Act == Never {
		return longest + 1
	}
	return p.After
}
