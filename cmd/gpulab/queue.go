package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/users"
	"k8s.io/client-go/rest"
)

// QueueConfig says how past use counts in the line for GPUs, and which jobs give way.
type QueueConfig struct {
	// HalfLife is the time after which past use of GPUs counts half, as "168h".
	HalfLife string `json:"halfLife,omitempty"`
	// Sampling is how often use is counted anew, as "1m".
	Sampling string `json:"sampling,omitempty"`
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

// lineComponents tell why nobody is let in who waits for a GPU, if that is so.
func lineComponents(trouble string) []ctl.Component {
	if trouble == "" || trouble == queue.Preparing {
		return nil // a lab without GPUs needs no line
	}
	return []ctl.Component{{Name: "line", State: ctl.Warning, Detail: trouble, NextStep: fmt.Sprintf("wait a minute; then `gpulab kubectl -n %s logs deployment/kueue-controller-manager`", systemNamespace)}}
}
