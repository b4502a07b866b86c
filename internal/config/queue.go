package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpulab/gpulab/internal/users"
)

// Queue says how past use counts in the queue for GPUs, which groups go first, and which jobs are preempted.
type Queue struct {
	HalfLife   Duration       `json:"halfLife,omitzero"`
	Sampling   Duration       `json:"sampling,omitzero"`
	Shares     map[string]int `json:"shares,omitempty"`     // GPUs, by group
	Preemption Word           `json:"preemption,omitempty"` // a notebooks.Preemption
	MinimumRun Duration       `json:"minimumRun,omitzero"`
}

// mostShared is more GPUs than any pool of this size has.
const mostShared = 1000

func (c *Config) checkShares() error {
	for _, group := range slices.Sorted(maps.Keys(c.Queue.Shares)) {
		if err := users.CheckGroup(group); err != nil {
			return fmt.Errorf("queue.shares: %w", err)
		}
		if n := c.Queue.Shares[group]; n < 1 || n > mostShared {
			return fmt.Errorf("queue.shares: the share of %s is a number of GPUs from 1 to %d, not %d; leave out a group "+
				"that has none",
				group, mostShared, n)
		}
	}
	return nil
}
