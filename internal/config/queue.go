package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Queue says how past use counts in the line for GPUs, which groups go first,
// and which jobs give way.
type Queue struct {
	// HalfLife is the time after which past use of GPUs counts half, as "168h".
	HalfLife string `json:"halfLife,omitempty"`
	// Sampling is how often use is counted anew, as "1m".
	Sampling string `json:"sampling,omitempty"`
	// Shares are how many GPUs groups go first for, by their names.
	Shares map[string]int `json:"shares,omitempty"`
	// Preemption is off, offered or roles; MinimumRun is how long a job runs before it
	// gives way, as "5m".
	Preemption string `json:"preemption,omitempty"`
	MinimumRun Time   `json:"minimumRun,omitempty"`
}

func (q Queue) PreemptionKind() (notebooks.Preemption, error) {
	kind := notebooks.Preemption(q.Preemption)
	switch kind {
	case "", notebooks.PreemptNothing, notebooks.PreemptOffered, notebooks.PreemptByRole:
		return kind, nil
	}
	return "", fmt.Errorf("queue.preemption is %q; it may be off (no job gives way), offered (jobs whose owners say so) or roles (those, and jobs of people of a lower role)", q.Preemption)
}

func (q Queue) MinimumRunTime() (time.Duration, error) {
	if q.MinimumRun == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(string(q.MinimumRun))
	if err != nil || d < 0 || d > 24*time.Hour {
		return 0, errors.New("queue.minimumRun is no time between 0 and 24h; write it as 5m")
	}
	return d, nil
}

// mostShared is more GPUs than any pool of this size has.
const mostShared = 1000

func (q Queue) CheckedShares() (map[string]int, error) {
	for _, group := range slices.Sorted(maps.Keys(q.Shares)) {
		if err := users.CheckGroup(group); err != nil {
			return nil, fmt.Errorf("queue.shares: %w", err)
		}
		if n := q.Shares[group]; n < 1 || n > mostShared {
			return nil, fmt.Errorf("queue.shares: the share of %s is a number of GPUs from 1 to %d, not %d; leave out a group that has none", group, mostShared, n)
		}
	}
	return q.Shares, nil
}

func (q Queue) HalfLifeTime() (time.Duration, error) {
	if q.HalfLife == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.HalfLife)
	if err != nil || d < time.Second || d > 365*24*time.Hour {
		return 0, errors.New("queue.halfLife is no time between 1s and 8760h; write seven days as 168h")
	}
	return d, nil
}

func (q Queue) SamplingTime() (time.Duration, error) {
	if q.Sampling == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.Sampling)
	if err != nil || d < time.Second || d > time.Hour {
		return 0, errors.New("queue.sampling is no time between 1s and 1h; write it as 1m")
	}
	return d, nil
}
