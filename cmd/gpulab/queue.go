package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/users"
	"k8s.io/client-go/rest"
)

// QueueConfig says how past use counts in the line for GPUs, which groups go first,
// and which jobs give way.
type QueueConfig struct {
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

func (q QueueConfig) preemption() (notebooks.Preemption, error) {
	kind := notebooks.Preemption(q.Preemption)
	switch kind {
	case "", notebooks.PreemptNothing, notebooks.PreemptOffered, notebooks.PreemptByRole:
		return kind, nil
	}
	return "", fmt.Errorf("queue.preemption is %q; it may be off (no job gives way), offered (jobs whose owners say so) or roles (those, and jobs of people of a lower role)", q.Preemption)
}

func (q QueueConfig) minimumRun() (time.Duration, error) {
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

func (q QueueConfig) shares() (map[string]int, error) {
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

func (q QueueConfig) halfLife() (time.Duration, error) {
	if q.HalfLife == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.HalfLife)
	if err != nil || d < time.Second || d > 365*24*time.Hour {
		return 0, errors.New("queue.halfLife is no time between 1s and 8760h; write seven days as 168h")
	}
	return d, nil
}

func (q QueueConfig) sampling() (time.Duration, error) {
	if q.Sampling == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(q.Sampling)
	if err != nil || d < time.Second || d > time.Hour {
		return 0, errors.New("queue.sampling is no time between 1s and 1h; write it as 1m")
	}
	return d, nil
}

func newLine(config *rest.Config) (*queue.Line, error) {
	return queue.New(queue.Config{REST: config, Namespace: systemNamespace, Log: slog.Default()})
}

// auditPreempted enters a job that gives way.
func (l *appliance) auditPreempted(ctx context.Context, job, waits notebooks.Launch) {
	entry := users.Entry{Actor: "system", Action: "job.preempt", Target: job.Handle, Detail: fmt.Sprintf("%s, for %s (launch %d)", job.Audited(), waits.Handle, waits.ID)}
	if err := l.people.Audit(ctx, entry); err != nil && ctx.Err() == nil {
		slog.Error("a job that gives way is not in the audit log", "job", job.ID, "error", err)
	}
}

// sharesWithoutGroup says which shares of GPUs are nobody's, because there is no such group.
func (l *appliance) sharesWithoutGroup(ctx context.Context) []ctl.Component {
	var missing []string
	for _, group := range slices.Sorted(maps.Keys(l.cfg.Queue.Shares)) {
		if _, err := l.people.Group(ctx, group); errors.Is(err, users.ErrGroupNotFound) {
			missing = append(missing, group)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []ctl.Component{{
		Name: "shares", State: ctl.Warning, Detail: "queue.shares gives GPUs to groups that are not there: " + strings.Join(missing, ", "),
		NextStep: fmt.Sprintf("`gpulab group add %s`, or correct queue.shares in %s and run `gpulab init`", missing[0], defaultConfigPath),
	}}
}

// lineComponents tell why nobody is let in who waits for a GPU, if that is so.
func lineComponents(trouble string) []ctl.Component {
	if trouble == "" || trouble == queue.Preparing {
		return nil // a lab without GPUs needs no line
	}
	return []ctl.Component{{Name: "line", State: ctl.Warning, Detail: trouble, NextStep: fmt.Sprintf("wait a minute; then `gpulab kubectl -n %s logs deployment/kueue-controller-manager`", systemNamespace)}}
}
