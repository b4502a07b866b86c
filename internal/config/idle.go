package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// Idle says what becomes of GPUs that nobody uses, and how old notebooks get.
type Idle struct {
	IdleRule
	// Profiles and Groups say what differs for a profile (by slug) or a group (by name).
	Profiles map[string]IdleRule `json:"profiles,omitempty"`
	Groups   map[string]IdleRule `json:"groups,omitempty"`
}

// IdleRule is a part of a policy; what is left out stays as it is.
type IdleRule struct {
	// Act is when-wanted, always or never.
	Act string `json:"act,omitempty"`
	// After is how long nobody used a GPU before the warning, Countdown how long it goes on after it, as "10m".
	After     string `json:"after,omitempty"`
	Countdown string `json:"countdown,omitempty"`
	// Extend is for how long its owner can keep it, Extensions how often in a row.
	Extend     string `json:"extend,omitempty"`
	Extensions *int   `json:"extensions,omitempty"`
	// Unused is how long a GPU itself has done nothing before its notebook counts as idle whatever else it does.
	Unused Time `json:"unused,omitempty"`
	// Unopened is how long a notebook stays that was waited for and nobody opens.
	Unopened Time `json:"unopened,omitempty"`
	// MaxAge is how long a notebook runs at most.
	MaxAge Time `json:"maxAge,omitempty"`
}

// Time is a time as people write it, "24h", or 0.
type Time string

// UnmarshalJSON takes the number 0, too.
func (t *Time) UnmarshalJSON(data []byte) error {
	var word string
	if string(data) == "0" {
		word = "0s"
	} else if json.Unmarshal(data, &word) != nil {
		word = string(data)
	}
	*t = Time(word)
	return nil
}

func (r IdleRule) change() (c idle.Change, err error) {
	if r.Act != "" {
		act := idle.Act(r.Act)
		c.Act = &act
	}
	c.Extensions = r.Extensions
	for _, f := range []struct {
		name, text string
		to         **time.Duration
	}{
		{"after", r.After, &c.After}, {"countdown", r.Countdown, &c.Countdown}, {"extend", r.Extend, &c.Extend},
		{"unused", string(r.Unused), &c.Unused}, {"unopened", string(r.Unopened), &c.Unopened}, {"maxAge", string(r.MaxAge), &c.MaxAge},
	} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil {
			return c, fmt.Errorf("%s is %q, which is no time; write it as 30m or 1h", f.name, f.text)
		}
		*f.to = &d
	}
	return c, nil
}

// setDefaults writes the usual policy where nothing is said, for people to read.
func (c *Idle) SetDefaults() {
	d := idle.Default()
	for field, usual := range map[*string]time.Duration{&c.After: d.After, &c.Countdown: d.Countdown, &c.Extend: d.Extend} {
		if *field == "" {
			*field = shortTime(usual)
		}
	}
	c.Act = cmp.Or(c.Act, string(d.Act))
	c.Unopened = cmp.Or(c.Unopened, Time(shortTime(d.Unopened)))
	c.Unused, c.MaxAge = cmp.Or(c.Unused, Time(shortTime(d.Unused))), cmp.Or(c.MaxAge, Time(shortTime(d.MaxAge)))
	if c.Extensions == nil {
		c.Extensions = &d.Extensions
	}
}

// shortTime writes 30m0s as 30m.
func shortTime(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = text[:len(text)-2]
	}
	if strings.HasSuffix(text, "h0m") {
		text = text[:len(text)-2]
	}
	return text
}

// policies are what the configuration says; profiles are those of the lab.
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

// usualProfiles are the profiles that a configuration means.
func (c *Config) UsualProfiles() []notebooks.Profile {
	if list := c.LaunchProfiles(); len(list) > 0 {
		return list
	}
	return notebooks.DefaultProfiles()
}
