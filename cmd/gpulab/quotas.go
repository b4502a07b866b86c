package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

func (l *appliance) newQuotas() *quota.Service {
	return quota.New(quota.Config{DB: l.store.DB(), People: l.people, Held: l.asks, Hours: l.gpuHours,
		GPUMemory: l.gpuMemory, GPUMemoryEnforced: l.gpuMemoryEnforced, HomeSize: l.homeSize, HomeFiles: l.homeFiles,
		Term: func() time.Time { return l.cfg.Quotas.TermBegins.Value }, Grace: l.grace(), Asleep: machineAsleep})
}

// grace is how long notebooks and files may exceed a quota. Packages quota and storage take 0 for their default.
func (l *appliance) grace() time.Duration { return max(l.cfg.Quotas.Grace.Value, time.Nanosecond) }

// asks is what somebody's notebooks take, but for one launch.
func (l *appliance) asks(ctx context.Context, userID, without int64) ([]quota.Ask, error) {
	parts := l.attached.Load()
	if parts == nil {
		return nil, errStarting
	}
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	var list []quota.Ask
	for i := range active {
		if n := &active[i]; n.UserID == userID && n.ID != without && !n.Held() {
			list = append(list, l.askOf(n.Profile, n.GPUs, n.GPUUUIDs))
		}
	}
	return list, nil
}

// askOf is what a notebook of a profile takes. Which model its GPUs are is known
// once it has them, or before if its card names one or the lab has no other.
func (l *appliance) askOf(slug string, gpus int, uuids []string) quota.Ask {
	ask := quota.Ask{GPUs: gpus}
	var kind string
	profiles := l.attached.Load().notebooks.Profiles()
	if i := slices.IndexFunc(profiles, func(p notebooks.Profile) bool { return p.Slug == slug }); i >= 0 {
		p := &profiles[i]
		ask.CPUs, kind = p.CPUs, p.GPUModel
		if q, err := resource.ParseQuantity(p.Memory); err == nil && p.Memory != "" {
			ask.Memory = q.Value()
		}
	}
	models := map[string]string{} // by UUID
	for _, s := range l.fleet.Snapshots() {
		for i := range s.GPUs {
			models[s.GPUs[i].UUID] = s.GPUs[i].Name
		}
	}
	for _, uuid := range uuids {
		if name, known := models[uuid]; known {
			ask.Models = append(ask.Models, name)
		}
	}
	if len(ask.Models) > 0 {
		return ask
	}
	if kind == "" {
		only := map[string]bool{}
		for _, name := range models {
			only[name] = true
			kind = name
		}
		if len(only) != 1 {
			return ask
		}
	}
	for range gpus {
		ask.Models = append(ask.Models, kind)
	}
	return ask
}

// gpuHours is what the ledger says somebody held, of the kind of GPUs that the
// lab has: hours of simulated ones never count against real ones.
func (l *appliance) gpuHours(ctx context.Context, handle string, from time.Time) ([]quota.HourUse, error) {
	rows, err := l.history.Usage(ctx, history.Filter{From: from, User: handle}, history.ByHour)
	if err != nil {
		return nil, err
	}
	var list []quota.HourUse
	for _, r := range rows {
		if r.Simulated == (l.cfg.GPUs == config.GPUsSimulated) {
			list = append(list, quota.HourUse{Hour: r.Hour, Held: time.Duration(r.Held * float64(time.Second))})
		}
	}
	slices.SortFunc(list, func(a, b quota.HourUse) int { return a.Hour.Compare(b.Hour) })
	return list, nil
}

// gpuMemory is what somebody's programs have taken of GPUs' memory, in bytes, as
// the driver tells it of each process.
func (l *appliance) gpuMemory(handle string) (bytes uint64) {
	for _, s := range l.fleet.Snapshots() {
		for i := range s.GPUs {
			for _, p := range s.GPUs[i].Processes {
				if p.Pod.User == handle && p.MemoryUsed != nil {
					bytes += *p.MemoryUsed
				}
			}
		}
	}
	return bytes
}

// checkQuota refuses a launch that would go beyond a quota.
func (l *appliance) checkQuota(ctx context.Context, u users.User, p notebooks.Profile, without int64) error {
	return l.quotas.Check(ctx, u, l.askOf(p.Slug, p.GPUs, nil), without)
}

// WithGPU implements quota.Running.
func (l *appliance) WithGPU(ctx context.Context) ([]users.User, error) {
	active, err := l.attached.Load().notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	var list []users.User
	for i := range active {
		n := &active[i]
		if n.GPUs == 0 || n.State == notebooks.Waiting || slices.ContainsFunc(list, func(u users.User) bool {
			return u.ID == n.UserID
		}) {
			continue
		}
		u, err := l.people.ByID(ctx, n.UserID)
		if errors.Is(err, users.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, u)
	}
	return list, nil
}

// StopGPU implements quota.Running.
func (l *appliance) StopGPU(ctx context.Context, u users.User, reason string) error {
	parts := l.attached.Load()
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range active {
		if n := &active[i]; n.UserID == u.ID && n.GPUs > 0 &&
			(n.State == notebooks.Starting || n.State == notebooks.Running) {
			errs = append(errs, parts.notebooks.StopOverQuota(ctx, n.ID, reason),
				l.people.AuditLog().Record(ctx, audit.Entry{
					Actor: "system", Action: "quota.stop", Target: u.Handle, Detail: n.Name,
				}))
		}
	}
	return errors.Join(errs...)
}

// Quotas implements ctl.Daemon.
func (l *appliance) Quotas(ctx context.Context) (ctl.QuotaList, error) {
	rules, err := l.quotas.Rules(ctx)
	if err != nil {
		return ctl.QuotaList{}, err
	}
	grants, err := l.quotas.Grants(ctx)
	return ctl.QuotaList{Rules: rules, Grants: grants}, err
}

// QuotaOf implements ctl.Daemon.
func (l *appliance) QuotaOf(ctx context.Context, handle string) ([]quota.Limit, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return nil, err
	}
	limits, err := l.quotas.Limits(ctx, u)
	if limits == nil {
		limits = []quota.Limit{}
	}
	return limits, err
}

// SetQuota implements ctl.Daemon.
func (l *appliance) SetQuota(ctx context.Context, q ctl.SetQuota) error {
	if err := l.quotas.Set(ctx, q.Subject, q.Kind, q.Model, q.Value); err != nil {
		return err
	}
	action := "quota.set"
	if q.Value == nil {
		action = "quota.unset"
	}
	return l.people.AuditLog().Record(ctx, audit.Entry{
		Actor: "root", Action: action, Target: q.Subject.String(), Detail: quota.Detail(q.Kind, q.Model, q.Value),
	})
}

// GrantQuota implements ctl.Daemon.
func (l *appliance) GrantQuota(ctx context.Context, g quota.Grant) (quota.Grant, error) {
	g.By = "root"
	g, err := l.quotas.Grant(ctx, g)
	if err != nil {
		return g, err
	}
	return g, l.people.AuditLog().Record(ctx,
		audit.Entry{Actor: g.By, Action: "quota.grant", Target: g.User, Detail: g.Detail()})
}

// EndQuotaGrant implements ctl.Daemon.
func (l *appliance) EndQuotaGrant(ctx context.Context, id int64) (quota.Grant, error) {
	g, err := l.quotas.EndGrant(ctx, id)
	if err != nil {
		return g, err
	}
	return g, l.people.AuditLog().Record(ctx, audit.Entry{
		Actor: "root", Action: "quota.end-grant", Target: g.User, Detail: quota.Detail(g.Kind, g.Model, nil),
	})
}
