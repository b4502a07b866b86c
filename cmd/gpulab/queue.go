package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/users"
)

func newLine(config *rest.Config) (*queue.Line, error) {
	return queue.New(queue.Config{REST: config, Namespace: systemNamespace, Log: slog.Default()})
}

// auditPreempted enters a job that gives way.
func (l *appliance) auditPreempted(ctx context.Context, job, waits notebooks.Launch) {
	entry := audit.Entry{
		Actor: "system", Action: "job.preempt", Target: job.Handle,
		Detail: fmt.Sprintf("%s, for %s (launch %d)", job.Audited(), waits.Handle, waits.ID),
	}
	if err := l.people.AuditLog().Record(ctx, entry); err != nil && ctx.Err() == nil {
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
		Name: "shares", State: ctl.Warning, Detail: "queue.shares gives GPUs to groups that are not there: " +
			strings.Join(missing, ", "),
		NextStep: fmt.Sprintf("`gpulab group add %s`, or correct queue.shares in %s and run `gpulab init`", missing[0],
			config.DefaultPath),
	}}
}

// lineComponents tell why nobody is let in who waits for a GPU, if that is so.
func lineComponents(trouble string) []ctl.Component {
	if trouble == "" || trouble == queue.Preparing {
		return nil // a lab without GPUs needs no line
	}
	return []ctl.Component{{Name: "line", State: ctl.Warning, Detail: trouble,
		NextStep: fmt.Sprintf("wait a minute; then `gpulab kubectl -n %s logs deployment/kueue-controller-manager`",
			systemNamespace)}}
}
