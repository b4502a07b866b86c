package config

import (
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// Idle says what happens to GPUs that are not used, and how old notebooks get.
type Idle struct {
	IdleRule
	Profiles map[string]IdleRule `json:"profiles,omitempty"` // by slug
	Groups   map[string]IdleRule `json:"groups,omitempty"`   // by name
}

// IdleRule is a part of a policy. An absent key changes nothing.
type IdleRule struct {
	Act        Word     `json:"act,omitempty"` // an idle.Act
	After      Duration `json:"after,omitzero"`
	Countdown  Duration `json:"countdown,omitzero"`
	Extend     Duration `json:"extend,omitzero"`
	Extensions *int     `json:"extensions,omitempty"`
	Unused     Duration `json:"unused,omitzero"`
	Unopened   Duration `json:"unopened,omitzero"`
	MaxAge     Duration `json:"maxAge,omitzero"`
}

// change returns what the rule changes. Errors name the key without those above it.
func (r IdleRule) change() (c idle.Change, err error) {
	if r.Act != "" {
		act := idle.Act(r.Act)
		c.Act = &act
	}
	c.Extensions = r.Extensions
	for _, f := range []struct {
		name string
		Duration
		to **time.Duration
	}{
		{"after", r.After, &c.After}, {"countdown", r.Countdown, &c.Countdown}, {"extend", r.Extend, &c.Extend},
		{"unused", r.Unused, &c.Unused}, {"unopened", r.Unopened, &c.Unopened}, {"maxAge", r.MaxAge, &c.MaxAge},
	} {
		if f.wrong {
			return c, fmt.Errorf("%s is %q, which is no time; write it as 30m or 1h", f.name, f.text)
		}
		if !f.IsZero() {
			*f.to = &f.Value
		}
	}
	return c, nil
}

// Policies returns the policies for a lab with these profiles.
func (c Idle) Policies(profiles []notebooks.Profile) (idle.Policies, error) {
	p := idle.Policies{Profiles: map[string]idle.Change{}, Groups: map[string]idle.Change{}}
	base, err := c.change()
	if err != nil {
		return p, fmt.Errorf("idle: %w", err)
	}
	p.Base = base.Apply(idle.Default())
	known := map[string]bool{}
	for _, profile := range profiles {
		known[profile.Slug] = true
	}
	for slug, rule := range c.Profiles {
		if !known[slug] {
			return p, fmt.Errorf("idle.profiles holds %q, but there is no such profile", slug)
		}
		if p.Profiles[slug], err = rule.change(); err != nil {
			return p, fmt.Errorf("idle.profiles.%s: %w", slug, err)
		}
	}
	for name, rule := range c.Groups {
		if p.Groups[name], err = rule.change(); err != nil {
			return p, fmt.Errorf("idle.groups.%s: %w", name, err)
		}
	}
	if err := p.Check(); err != nil {
		return p, fmt.Errorf("idle: %w", err)
	}
	return p, nil
}
