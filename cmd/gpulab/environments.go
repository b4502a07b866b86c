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

	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// environmentsClaim is the claim of the lab's environments in a person's namespace.
const environmentsClaim = "environments"

func (l *appliance) environmentsDir() string { return filepath.Join(l.cfg.DataDir, "environments") }

// newEnvironments makes the part that keeps environments.
func (l *appliance) newEnvironments(ctx context.Context, client kubernetes.Interface,
	kube *notebooks.KubeCluster) (*environments.Service, error) {
	builder := environmentPod{
		client: client, node: l.id.NodeName, env: l.cfg.Network.ProxyEnv(l.id), forbidden: l.forbidden,
	}
	return environments.New(ctx, environments.Config{
		Dir: l.environmentsDir(), Run: builder.run, Stop: builder.stop, CacheBytes: l.cfg.Environments.Cache.Bytes(),
		Log: slog.Default(), Refusal: l.disk.Refusal,
		Image: func() string { return l.images.Refs()[notebookImage] },
		Users: func() ([]environments.Use, error) { return l.certainUses(kube) },
	})
}

// environmentUser is a pod in which programs of an environment run.
type environmentUser struct {
	environment, uid string
	node             string // the machine that says so
}

// environmentPods finds processes of environments by what their kernels put into everything that they start.
func environmentPods(proc, node string) ([]environmentUser, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var list []environmentUser
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
			if user := (environmentUser{id, uid, node}); !slices.Contains(list, user) {
				list = append(list, user)
			}
		}
	}
	return list, nil
}

// usesOf names the people whose pods they are. Of pods, a machine knows its own alone.
func usesOf(users []environmentUser, pods []notebooks.PodInfo) []environments.Use {
	var list []environments.Use
	for _, u := range users {
		for i := range pods {
			use := environments.Use{Environment: u.environment, Handle: pods[i].Handle, Notebook: pods[i].Server}
			if pods[i].UID == u.uid && pods[i].Node == u.node && !slices.Contains(list, use) {
				list = append(list, use)
			}
		}
	}
	slices.SortFunc(list, func(a, b environments.Use) int {
		return cmp.Or(cmp.Compare(a.Handle, b.Handle), cmp.Compare(a.Notebook, b.Notebook))
	})
	return list
}

// longestEnvironmentID is the length of NAME/VERSION, 30 bytes each.
const longestEnvironmentID = 61

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
			if len(id) > longestEnvironmentID { // it is what a program says of itself
				return ""
			}
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
	return notebooks.Environment{ID: e.ID(), Path: e.Path(), Variable: environments.EnvironmentVariable}, err
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
	return &notebooks.JobError{Text: fmt.Sprintf("This lab has no environment %q. It has %s.", name,
		strings.Join(ids, ", "))}
}

// needsOfCUDA is what an environment that needs that version of CUDA asks of GPUs: of
// none, "", and of one that cannot be read, nothing.
func needsOfCUDA(version string) gpu.Requirement {
	if version == "" {
		return gpu.Requirement{}
	}
	needs, err := gpu.RequirementOf([]string{"NVIDIA_REQUIRE_CUDA=cuda>=" + version})
	if err != nil {
		return gpu.Requirement{}
	}
	return needs
}

// environmentObstacle says why no GPU of the lab can be used with what needs that version of CUDA, "" where one can,
// where there is none, or where that cannot be told.
func (l *appliance) environmentObstacle(title, cuda string) string {
	needs := needsOfCUDA(cuda)
	if !needs.Asks() {
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
	out.Missing = l.lackingEnvironment(e.ID())
	return out
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
	want.Debian = cmp.Or(want.Debian, l.cfg.Environments.Debian)
	if why := l.environmentObstacle(cmp.Or(want.Title, want.Name), want.CUDA); why != "" && !w.Anyway {
		return want, &users.Error{Kind: environments.ErrUnusable, Text: why + " It was not built; `--anyway` builds it " +
			"all the same."}
	}
	return want, nil
}

// labEnvironments are the environments for the pages, the HTTP API and the control socket, which record who does what.
type labEnvironments struct{ *appliance }

// List lists all, by name, the newest version first.
func (l labEnvironments) List(context.Context) ([]ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return nil, err
	}
	list, err := service.List()
	if err != nil {
		return nil, err
	}
	uses, err := l.environmentUses(l.attached.Load().kube)
	if err != nil {
		return nil, err
	}
	out := make([]ctl.EnvironmentState, 0, len(list))
	for i := range list {
		out = append(out, l.describeEnvironment(list[i], uses))
	}
	return out, nil
}

// Get finds one by name, or by name and version.
func (l labEnvironments) Get(_ context.Context, id string) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := service.Get(id)
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	uses, err := l.environmentUses(l.attached.Load().kube)
	return l.describeEnvironment(e, uses), err
}

// Lock is what one was built from.
func (l labEnvironments) Lock(_ context.Context, id string) (string, error) {
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

// Catalogue is what can be built without writing anything.
func (l labEnvironments) Catalogue() ([]environments.Offer, error) { return environments.Catalogue() }

// Building is the build that is under way or was the last, nil where there was none, and the last lines that it said.
func (l labEnvironments) Building() (*environments.Build, []string) {
	service, err := l.environments()
	if err != nil {
		return nil, nil
	}
	return service.Building(), service.Said()
}

// Changes counts what became of the list.
func (l labEnvironments) Changes() uint64 {
	service, err := l.environments()
	if err != nil {
		return 0
	}
	return service.Changes()
}

// Start begins a build; built hears of what it comes to.
func (l labEnvironments) Start(ctx context.Context, w ctl.WantedEnvironment,
	built func(environments.Environment)) (environments.Build, error) {
	service, err := l.environments()
	if err != nil {
		return environments.Build{}, err
	}
	if !l.canLaunch.Load() {
		return environments.Build{}, &users.Error{
			Kind: environments.ErrBusy, Text: l.holdLaunches() + " Try again in a minute.",
		}
	}
	want, err := l.wantEnvironment(w)
	if err != nil {
		return environments.Build{}, err
	}
	return service.Start(ctx, want, built)
}

// Cancel ends the build that is under way, and tells whether there was one.
func (l labEnvironments) Cancel() (bool, error) {
	service, err := l.environments()
	if err != nil {
		return false, err
	}
	return service.Cancel(), nil
}

// SetDefault chooses what new notebooks begin with; "" their own Python.
func (l labEnvironments) SetDefault(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	return l.changed(func(s *environments.Service) (environments.Environment, error) { return s.SetDefault(ctx, id) })
}

// Remove takes one away; force even while somebody uses it.
func (l labEnvironments) Remove(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error) {
	return l.changed(func(s *environments.Service) (environments.Environment, error) { return s.Remove(ctx, id, force) })
}

// Import brings one in from a file.
func (l labEnvironments) Import(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error) {
	return l.changed(func(s *environments.Service) (environments.Environment, error) { return s.Import(ctx, r) })
}

func (l labEnvironments) changed(
	change func(*environments.Service) (environments.Environment, error)) (ctl.EnvironmentState, error) {
	service, err := l.environments()
	if err != nil {
		return ctl.EnvironmentState{}, err
	}
	e, err := change(service)
	if err != nil || e.Name == "" {
		return ctl.EnvironmentState{}, err
	}
	return l.describeEnvironment(e, nil), nil
}

// Export writes one as a file.
func (l labEnvironments) Export(ctx context.Context, id string, w io.Writer) error {
	service, err := l.environments()
	if err != nil {
		return err
	}
	return service.Export(ctx, id, w)
}

// Environments implements ctl.Daemon.
func (l *appliance) Environments(ctx context.Context) ([]ctl.EnvironmentState, error) {
	return labEnvironments{l}.List(ctx)
}

// Environment implements ctl.Daemon.
func (l *appliance) Environment(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	return labEnvironments{l}.Get(ctx, id)
}

// EnvironmentLock implements ctl.Daemon.
func (l *appliance) EnvironmentLock(ctx context.Context, id string) (string, error) {
	return labEnvironments{l}.Lock(ctx, id)
}

// EnvironmentCatalogue implements ctl.Daemon.
func (l *appliance) EnvironmentCatalogue(context.Context) ([]environments.Offer, error) {
	return environments.Catalogue()
}

// CreateEnvironment implements ctl.Daemon.
func (l *appliance) CreateEnvironment(ctx context.Context, w ctl.WantedEnvironment,
	fn func(ctl.EnvironmentBuild) error) error {
	service, err := l.environments()
	if err != nil {
		return err
	}
	built := func(e environments.Environment) {
		l.recordRoot(context.WithoutCancel(ctx), "environment.create", e.ID(), "")
	}
	if _, err := (labEnvironments{l}).Start(ctx, w, built); err != nil {
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
	there := l.describeEnvironment(e, nil)
	return fn(ctl.EnvironmentBuild{Build: last, Environment: &there})
}

// CancelEnvironment implements ctl.Daemon.
func (l *appliance) CancelEnvironment(context.Context) (bool, error) {
	return labEnvironments{l}.Cancel()
}

// DefaultEnvironment implements ctl.Daemon.
func (l *appliance) DefaultEnvironment(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	e, err := labEnvironments{l}.SetDefault(ctx, id)
	if err != nil {
		return e, err
	}
	target := ""
	if id != "" {
		target = e.ID()
	}
	l.recordRoot(ctx, "environment.default", target, "")
	return e, nil
}

// RemoveEnvironment implements ctl.Daemon.
func (l *appliance) RemoveEnvironment(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error) {
	e, err := labEnvironments{l}.Remove(ctx, id, force)
	if err == nil {
		l.recordRoot(ctx, "environment.remove", e.ID(), "")
	}
	return e, err
}

// ExportEnvironment implements ctl.Daemon.
func (l *appliance) ExportEnvironment(ctx context.Context, id string, w io.Writer) error {
	return labEnvironments{l}.Export(ctx, id, w)
}

// ImportEnvironment implements ctl.Daemon.
func (l *appliance) ImportEnvironment(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error) {
	e, err := labEnvironments{l}.Import(ctx, r)
	if err == nil {
		l.recordRoot(ctx, "environment.import", e.ID(), "")
	}
	return e, err
}
