package quota

import (
	"context"
	"slices"

	"github.com/gpulab/gpulab/internal/store"
)

// Bounds of what is recommended.
const (
	fewestLaunches, mostLaunches = 3, 10
	// Of the room that a launch takes at least on a machine, one person gets half. These are what a launch card sets
	// aside that does not say.
	launchesPerCore = 10
	launchMemory    = 512 << 20
	gibibyte        = 1 << 30
)

// Recommended are quotas for everybody in a lab whose largest machine has so many cores and so much memory (bytes), and
// whose launch cards take that. They leave room for others on a small machine: one person holds at most half of the
// launches that fit, as many cores as the machine has, and half of its memory, but always two of the largest card. A
// kind that some card does not bound is left out, because a quota would refuse that card.
func Recommended(cores int, memory int64, cards []Ask) []Rule {
	fit := min(int64(cores)*launchesPerCore, memory/launchMemory)
	rules := []Rule{{Kind: Notebooks, Value: float64(min(max(fit/2, fewestLaunches), mostLaunches))}}
	amounts := map[Kind]float64{CPUs: float64(cores), Memory: float64(memory / 2 / gibibyte * gibibyte)}
	for _, kind := range []Kind{CPUs, Memory} {
		amount, bounded := amounts[kind], true
		for _, card := range cards {
			amount = max(amount, 2*card.of(kind, ""))
			bounded = bounded && card.of(kind, "") > 0
		}
		if bounded {
			rules = append(rules, Rule{Kind: kind, Value: amount})
		}
	}
	return rules
}

// recommendedKey is the setting that says what became of the recommendation: "set" or "declined", "" for neither.
const recommendedKey = "quotas.recommended"

// SetRecommended sets rules for everybody and notes that the recommendation is settled.
func (s *Service) SetRecommended(ctx context.Context, rules []Rule) error {
	for _, r := range rules {
		if err := s.Set(ctx, r.Subject, r.Kind, r.Model, &r.Value); err != nil {
			return err
		}
	}
	return store.SetSetting(ctx, s.cfg.DB, recommendedKey, "set")
}

// DeclineRecommended notes that the lab wants no recommendation.
func (s *Service) DeclineRecommended(ctx context.Context) error {
	return store.SetSetting(ctx, s.cfg.DB, recommendedKey, "declined")
}

// Settled tells whether the recommended quotas were set or declined.
func (s *Service) Settled(ctx context.Context) (bool, error) {
	settled, err := store.Setting(ctx, s.cfg.DB, recommendedKey)
	return settled != "", err
}

// Advised tells whether admins should hear of the recommendation: nobody has set or declined it, and no quota for
// everybody bounds what somebody launches.
func (s *Service) Advised(ctx context.Context) (bool, error) {
	if settled, err := s.Settled(ctx); err != nil || settled {
		return false, err
	}
	rules, err := s.Rules(ctx)
	return err == nil && !slices.ContainsFunc(rules, func(r Rule) bool {
		return r.Subject == Subject{} && slices.Contains([]Kind{Notebooks, CPUs, Memory}, r.Kind)
	}), err
}
