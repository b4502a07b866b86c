package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// idleEvery is how often notebooks are looked at; where times are short, more often.
func idleEvery(p idle.Policies) time.Duration {
	return min(max(p.Base.After/6, 2*time.Second), 15*time.Second)
}

// newIdle makes the part that looks after GPUs that nobody uses.
func (l *appliance) newIdle(parts *attached, hub *notebooks.Hub) (*idle.Service, error) {
	policies, err := l.cfg.Idle.Policies(l.cfg.UsualProfiles())
	if err != nil {
		return nil, err
	}
	jupyter := notebooks.NewJupyter(hub, parts.kube)
	return idle.New(idle.Config{
		DB: l.store.DB(), Every: idleEvery(policies), Log: slog.Default(),
		Running: func(ctx context.Context) ([]idle.Notebook, error) { return l.idleNotebooks(ctx, policies) },
		Queue:   l.idleQueue,
		Measure: l.idleUsage,
		Ask: func(ctx context.Context, n idle.Notebook) (idle.Claims, error) {
			d, err := jupyter.Doing(ctx, n.Handle, n.Name)
			if errors.Is(err, notebooks.ErrHubDown) {
				return idle.Claims{CannotAsk: true}, nil
			}
			return idle.Claims{KernelBusy: d.KernelBusy, Kernel: d.Kernel, Terminal: d.Terminal}, err
		},
		Stop: func(ctx context.Context, launch int64, cause idle.Cause, reason string) error {
			code := notebooks.EndIdle
			switch cause {
			case idle.CauseAge:
				code = notebooks.EndAge
			case idle.CauseFreed:
				code = notebooks.EndStopped
			}
			err := l.attached.Load().notebooks.StopIdle(ctx, launch, code, reason)
			if errors.Is(err, notebooks.ErrNotFound) {
				return nil
			}
			return err
		},
		Audit: l.people.AuditLog().Record,
		Changed: func() {
			l.fleet.Idle(l.idle.IdlePods())
			l.attached.Load().notebooks.Wake()
		},
	}), nil
}

// endsBy is when a running notebook is stopped if nobody does anything, zero for never.
func (l *appliance) endsBy(launch notebooks.Launch) time.Time {
	h, known := l.idle.Of(launch.ID)
	switch {
	case !known:
		return time.Time{}
	case h.State == idle.Warned:
		return h.Ends
	case h.Policy.MaxAge > 0:
		return h.Since.Add(h.Policy.MaxAge)
	}
	return time.Time{}
}

// idleNotebooks are the running notebooks, each with the policy that holds for it.
func (l *appliance) idleNotebooks(ctx context.Context, policies idle.Policies) ([]idle.Notebook, error) {
	parts := l.attached.Load()
	if !parts.kube.Synced() {
		return nil, errStarting
	}
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	pods := map[string]notebooks.PodInfo{}
	for _, p := range parts.kube.Notebooks() {
		if !p.Terminating && !p.Finished {
			pods[p.Handle+"/"+p.Server] = p
		}
	}
	groups := map[int64][]string{}
	var list []idle.Notebook
	for i := range active {
		a := &active[i]
		if a.State != notebooks.Running || a.Job != nil { // a job has its time limit
			continue
		}
		if _, known := groups[a.UserID]; !known {
			memberships, err := l.people.Memberships(ctx, a.UserID)
			if err != nil {
				return nil, err
			}
			groups[a.UserID] = []string{}
			for _, m := range memberships {
				groups[a.UserID] = append(groups[a.UserID], m.Group)
			}
		}
		pod := pods[a.Handle+"/"+a.Name]
		policy := policies.Of(a.Profile, groups[a.UserID])
		traffic, _ := parts.proxy.Traffic(a.Handle, a.Name)
		list = append(list, idle.Notebook{Launch: a.ID, UserID: a.UserID, Handle: a.Handle, Name: a.Name, Title: a.Title,
			Profile: a.Profile, GPUs: a.GPUs,
			Node: cmp.Or(pod.Node, a.Node), PodUID: pod.UID, Ready: a.Ready,
			Waited: a.Started.Sub(a.Requested) >= policy.Unopened/10, Browsed: traffic.Out > 0, Policy: policy})
	}
	return list, nil
}

// idleQueue is who waits for GPUs.
func (l *appliance) idleQueue(ctx context.Context) (idle.Queue, error) {
	free, waiting, err := l.attached.Load().notebooks.Wanting(ctx)
	q := idle.Queue{Free: free}
	for _, w := range waiting {
		q.Waiting = append(q.Waiting, idle.Waiting{
			Launch: w.Launch.ID, Handle: w.Launch.Handle, GPUs: w.Launch.GPUs, Nodes: w.Machines, Keeps: w.Keeps,
		})
	}
	return q, err
}

// idleUsage is what notebooks have used of processors and network; what went to browsers is not theirs. The same
// measurement tells how many files they have, which is looked at here.
func (l *appliance) idleUsage(ctx context.Context) (map[string]idle.Usage, error) {
	parts := l.attached.Load()
	found, err := parts.kube.Measure(ctx)
	err = errors.Join(err, parts.notebooks.BoundFiles(ctx, found))
	out := map[string]idle.Usage{}
	for _, p := range parts.kube.Notebooks() {
		u, ok := found[p.UID]
		if !ok {
			continue
		}
		if t, ok := parts.proxy.Traffic(p.Handle, p.Server); ok {
			u.Bytes -= t.In + t.Out
		}
		out[p.UID] = idle.Usage{At: u.At, CPU: u.CPU, Bytes: u.Bytes}
	}
	return out, err
}

// keepIdle keeps a person's notebook that is about to be stopped, and says what came of it.
func (l *appliance) keepIdle(ctx context.Context, u users.User, launch int64, remote string) (text string, done bool) {
	n, err := l.attached.Load().notebooks.Get(ctx, launch)
	if err != nil || n.UserID != u.ID {
		return "There is no such notebook.", false
	}
	h, err := l.idle.Extend(ctx, launch)
	switch {
	case errors.Is(err, idle.ErrTooLate), errors.Is(err, idle.ErrNoMore), errors.Is(err, idle.ErrNotWarned):
		text := err.Error()
		return strings.ToUpper(text[:1]) + text[1:] + ".", false
	case err != nil:
		slog.Error("a notebook could not be kept", "launch", launch, "err", err)
		return "That did not work; try again.", false
	}
	if err := l.people.AuditLog().Record(ctx, audit.Entry{Actor: u.Handle, Action: "idle.extend", Target: u.Handle,
		Detail: n.Audited(), Remote: remote}); err != nil {
		slog.Error("that a notebook was kept is not in the audit log", "err", err)
	}
	return h.Kept(), true
}

// idleNotices are what a person is told within JupyterLab of notebooks that are about to be stopped.
func (l *appliance) idleNotices(userID int64) []notebooks.Notice {
	var list []notebooks.Notice
	for _, h := range l.idle.Warned(userID) {
		n := notebooks.Notice{
			Key: fmt.Sprintf("idle %d %d", h.Launch, h.Extensions), Text: h.Brief(),
			Left: max(1, int(time.Until(h.Ends).Round(time.Second)/time.Second)),
		}
		if h.MayExtend() {
			n.Keep = h.Launch
		}
		list = append(list, n)
	}
	return list
}
