package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// environmentsClaim is the claim of the lab's environments in a person's namespace.
const environmentsClaim = "environments"

// EnvironmentsConfig says where environments' packages come from.
type EnvironmentsConfig struct {
	// Index is where packages come from; empty is PyPI.
	Index string `json:"index,omitempty"`
	// Cache is how much of what was downloaded is kept, as "10Gi".
	Cache string `json:"cache,omitempty"`
}

func (c EnvironmentsConfig) cacheBytes() (int64, error) {
	q, err := resource.ParseQuantity(c.Cache)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("environments.cache is %q, which is no size; write it as 10Gi", c.Cache)
	}
	return q.Value(), nil
}

func (l *appliance) environmentsDir() string { return filepath.Join(l.cfg.DataDir, "environments") }

// newEnvironments makes the part that keeps environments.
func (l *appliance) newEnvironments(ctx context.Context, client kubernetes.Interface, kube *notebooks.KubeCluster) (*environments.Service, error) {
	most, err := l.cfg.Environments.cacheBytes()
	if err != nil {
		return nil, err
	}
	builder := environmentPod{client: client, node: l.id.NodeName, env: l.cfg.Network.proxyEnv(l.id), forbidden: l.forbidden}
	return environments.New(ctx, environments.Config{
		Dir: l.environmentsDir(), Run: builder.run, Stop: builder.stop, CacheBytes: most, Log: slog.Default(), Refusal: l.disk.Refusal,
		Image: func() string { return l.images.Refs()[notebookImage] },
		Users: func() ([]environments.Use, error) { return environmentUses("/proc", podIndex{kube}) },
	})
}

// environmentUses finds processes of environments by what their kernels put into everything that they start.
func environmentUses(proc string, pods gpu.Pods) ([]environments.Use, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var list []environments.Use
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// One that has ended meanwhile has nothing to tell.
		id := environmentOf(filepath.Join(proc, entry.Name(), "environ"))
		if id == "" {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(proc, entry.Name(), "cgroup"))
		if err != nil {
			continue
		}
		for _, uid := range gpu.PodUIDs(cgroup) {
			pod, ok := pods.ByUID(uid)
			use := environments.Use{Environment: id, Handle: pod.User, Notebook: pod.Notebook}
			if ok && !slices.Contains(list, use) {
				list = append(list, use)
			}
		}
	}
	slices.SortFunc(list, func(a, b environments.Use) int {
		return cmp.Or(cmp.Compare(a.Handle, b.Handle), cmp.Compare(a.Notebook, b.Notebook))
	})
	return list, nil
}

// environmentOf reads it from a process's environment, of which at most the first megabyte counts.
func environmentOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, mebibyte))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if id, ok := bytes.CutPrefix(entry, []byte(environments.EnvironmentVariable+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// environments are the part that keeps them, once the cluster is there.
func (l *appliance) environments() (*environments.Service, error) {
	parts := l.attached.Load()
	if parts == nil {
		return nil, errStarting
	}
	return parts.environments, nil
}

// jobEnvironment finds an environment for a job.
func (l *appliance) jobEnvironment(name string) (notebooks.Environment, error) {
	service, err := l.environments()
	if err != nil {
		return notebooks.Environment{}, err
	}
	e, err := service.Get(name)
	if errors.Is(err, environments.ErrNotFound) {
		return notebooks.Environment{}, l.noEnvironment(service, name)
	}
	return notebooks.Environment{ID: e.ID(), Path: e.Path(), Mount: environments.MountPath, Variable: environments.EnvironmentVariable}, err
}

// noEnvironment says which ones there are instead.
func (l *appliance) noEnvironment(service *environments.Service, name string) error {
	list, err := service.List()
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return &notebooks.JobError{Text: "This lab has no environments yet. An admin makes them, with `gpulab env create`."}
	}
	var ids []string
	for i := range list {
		ids = append(ids, list[i].ID())
	}
	return &notebooks.JobError{Text: fmt.Sprintf("This lab has no environment %q. It has %s.", name, strings.Join(ids, ", "))}
}

// environmentObstacle says why no GPU of the lab can be used with what needs that version of CUDA, "" where one can,
// where there is none, or where that cannot be told.
func (l *appliance) environmentObstacle(title, cuda string) string {
	if cuda == "" {
		return ""
	}
	needs, err := gpu.RequirementOf([]string{"NVIDIA_REQUIRE_CUDA=cuda>=" + cuda})
	if err != nil {
		return ""
	}
	why := ""
	for _, s := range l.fleet.Snapshots() {
		if len(s.GPUs) == 0 {
			continue
		}
		if why = needs.ObstacleTo(title, s); why == "" {
			return ""
		}
	}
	return strings.ReplaceAll(why, "another notebook", "another environment")
}

func (l *appliance) describeEnvironment(e environments.Environment, uses []environments.Use) ctl.EnvironmentState {
	out := ctl.EnvironmentState{Environment: e, Users: []string{}, Obstacle: l.environmentObstacle(e.Words(), e.CUDA)}
	for _, u := range uses {
		if u.Environment == e.ID() {
			out.Users = append(out.Users, u.Handle+"/"+u.Notebook)
		}
	}
	// Environments lie on the head alone.
	for _, n := range l.pool.list() {
		out.Missing = append(out.Missing, n.Name)
	}
	return out
}

// environmentStates are all environments, as admins see them.
func (l *appliance) environmentStates() ([]ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return nil, err
	}
	list, err := service.List()
	if err != nil {
		return nil, err
	}
	uses, err := environmentUses("/proc", podIndex{l.attached.Load().kube})
	if err != nil {
		return nil, err
	}
	out := make([]ctl.EnvironmentState, 0, len(list))
	for i := range list {
		out = append(out, l.describeEnvironment(list[i], uses))
	}
	return out, nil
}

// Environments implements ctl.Daemon.
func (l *appliance) Environments(context.Context) ([]ctl.EnvironmentState, error) {
	return l.environmentStates()
}

// Environment implements ctl.Daemon.
func (l *appliance) Environment(_ context.Context, id string) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := service.Get(id)
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	uses, err := service.Users(e.ID())
	return l.describeEnvironment(e, uses), err
}

// EnvironmentLock implements ctl.Daemon.
func (l *appliance) EnvironmentLock(_ context.Context, id string) (string, error) {
	service, err := l.environments()
	if err != nil {
		return "", err
	}
	e, err := service.Get(id)
	if err != nil {
		return "", err
	}
	return service.Lock(e)
}

// EnvironmentCatalogue implements ctl.Daemon.
func (l *appliance) EnvironmentCatalogue(context.Context) ([]environments.Offer, error) {
	return environments.Catalogue()
}

// wantEnvironment completes what somebody wants, and refuses what no GPU of the lab could be used with.
func (l *appliance) wantEnvironment(w ctl.WantedEnvironment) (environments.Wanted, error) {
	want := w.Wanted
	if w.From != "" {
		offer, err := environments.Offered(w.From)
		if err != nil {
			return want, err
		}
		if err := offer.Take(&want); err != nil {
			return want, err
		}
	}
	want.Index = cmp.Or(want.Index, l.cfg.Environments.Index)
	if why := l.environmentObstacle(cmp.Or(want.Title, want.Name), want.CUDA); why != "" && !w.Anyway {
		return want, fmt.Errorf("%s It was not built; `--anyway` builds it all the same", why)
	}
	return want, nil
}

// CreateEnvironment implements ctl.Daemon.
func (l *appliance) CreateEnvironment(ctx context.Context, w ctl.WantedEnvironment, fn func(ctl.EnvironmentBuild) error) error {
	service, err := l.environments()
	if err != nil {
		return err
	}
	if !l.canLaunch.Load() {
		return errors.New(l.holdLaunches() + " Try again in a minute")
	}
	want, err := l.wantEnvironment(w)
	if err != nil {
		return err
	}
	if _, err := service.Start(ctx, want); err != nil {
		return err
	}
	last := environments.Build{}
	err = service.Watch(ctx, func(b environments.Build) error {
		if last = b; !b.Running {
			return nil
		}
		return fn(ctl.EnvironmentBuild{Build: b})
	})
	if err != nil {
		// Who asked has gone.
		service.Cancel()
		return err
	}
	if last.Failed != "" {
		return errors.New(last.Failed)
	}
	e, err := service.Get(last.ID())
	if err != nil {
		return err
	}
	l.audit(ctx, "environment.create", e.ID())
	there := l.describeEnvironment(e, nil)
	return fn(ctl.EnvironmentBuild{Build: last, Environment: &there})
}

// CancelEnvironment implements ctl.Daemon.
func (l *appliance) CancelEnvironment(context.Context) (bool, error) {
	service, err := l.environments()
	if err != nil {
		return false, err
	}
	return service.Cancel(), nil
}

// DefaultEnvironment implements ctl.Daemon.
func (l *appliance) DefaultEnvironment(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	return l.defaultEnvironment(ctx, id, "root", "")
}

func (l *appliance) defaultEnvironment(ctx context.Context, id, actor, remote string) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := service.SetDefault(ctx, id)
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	target := ""
	if id != "" {
		target = e.ID()
	}
	l.auditEnvironment(ctx, actor, remote, "environment.default", target)
	return l.describeEnvironment(e, nil), nil
}

// RemoveEnvironment implements ctl.Daemon.
func (l *appliance) RemoveEnvironment(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error) {
	return l.removeEnvironment(ctx, id, force, "root", "")
}

func (l *appliance) removeEnvironment(ctx context.Context, id string, force bool, actor, remote string) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := service.Remove(ctx, id, force)
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	l.auditEnvironment(ctx, actor, remote, "environment.remove", e.ID())
	return l.describeEnvironment(e, nil), nil
}

// ExportEnvironment implements ctl.Daemon.
func (l *appliance) ExportEnvironment(ctx context.Context, id string, w io.Writer) error {
	service, err := l.environments()
	if err != nil {
		return err
	}
	return service.Export(ctx, id, w)
}

// ImportEnvironment implements ctl.Daemon.
func (l *appliance) ImportEnvironment(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := service.Import(ctx, r)
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	l.audit(ctx, "environment.import", e.ID())
	return l.describeEnvironment(e, nil), nil
}

func (l *appliance) auditEnvironment(ctx context.Context, actor, remote, action, target string) {
	if err := l.people.Audit(ctx, users.Entry{Actor: actor, Action: action, Target: target, Remote: remote}); err != nil {
		slog.Error("the audit log misses an entry", "action", action, "err", err)
	}
}
