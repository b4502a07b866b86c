package webui_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// fakeNotebooks keeps launches in memory and tells subscribers of changes.
type fakeNotebooks struct {
	mu       sync.Mutex
	launches []notebooks.Launch
	changed  []chan struct{}
	more     []notebooks.Profile
	// obstacles are why profiles cannot work, by slug.
	obstacles map[string]string
	// programs are what jobs run, said is what they have said.
	programs []notebooks.Program
	asked    []notebooks.JobRequest
	said     string
}

func (f *fakeNotebooks) Profiles() []notebooks.Profile {
	return append(notebooks.DefaultProfiles(), f.more...)
}

// Unfit knows of none.
func (f *fakeNotebooks) Unfit(string) []string { return nil }

func (f *fakeNotebooks) Obstacle(slug string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.obstacles[slug]
}

// block makes a profile one that cannot work, until why is "".
func (f *fakeNotebooks) block(slug, why string) {
	f.change(func(*[]notebooks.Launch) { f.obstacles = map[string]string{slug: why} })
}

// also adds a profile for one GPU of at least this memory.
func (f *fakeNotebooks) also(title, memory string) {
	f.more = append(f.more, notebooks.Profile{Slug: "kind", Title: title, GPUs: 1, GPUMemory: memory})
}

// change edits the launches and tells subscribers.
func (f *fakeNotebooks) change(edit func(launches *[]notebooks.Launch)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(&f.launches)
	for _, c := range f.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (f *fakeNotebooks) Launch(_ context.Context, u users.User, request notebooks.Request) (notebooks.Launch, error) {
	i := slices.IndexFunc(f.Profiles(), func(p notebooks.Profile) bool { return p.Slug == request.Profile })
	if i < 0 {
		return notebooks.Launch{}, notebooks.ErrProfileUnknown
	}
	if why := f.Obstacle(request.Profile); why != "" {
		return notebooks.Launch{}, &notebooks.ObstacleError{Text: why}
	}
	if len(request.Title) > 80 {
		return notebooks.Launch{}, notebooks.ErrTitleInvalid
	}
	if request.Instead != 0 {
		if err := f.finish(request.Instead, notebooks.EndCancelled); err != nil {
			return notebooks.Launch{}, err
		}
	}
	profile := f.Profiles()[i]
	l := notebooks.Launch{UserID: u.ID, Handle: u.Handle, Name: profile.Slug, Title: request.Title, Profile: profile.Slug,
		GPUs: profile.GPUs, State: notebooks.Starting, Requested: time.Now(), Started: time.Now()}
	if l.Title == "" {
		l.Title = profile.Title
	}
	f.change(func(list *[]notebooks.Launch) {
		l.ID = int64(len(*list) + 1)
		l.URL = "/user/" + u.Handle + "/" + l.Name + "/"
		*list = append(*list, l)
	})
	return l, nil
}

func (f *fakeNotebooks) Get(_ context.Context, id int64) (notebooks.Launch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.launches {
		if l.ID == id {
			return l, nil
		}
	}
	return notebooks.Launch{}, notebooks.ErrNotFound
}

func (f *fakeNotebooks) filter(keep func(notebooks.Launch) bool) []notebooks.Launch {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []notebooks.Launch
	for _, l := range f.launches {
		if keep(l) {
			list = append(list, l)
		}
	}
	return list
}

func (f *fakeNotebooks) List(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	return f.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.Job == nil }), nil
}

func (f *fakeNotebooks) Jobs(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	return f.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.IsJob() && l.Job.ArrayJob == 0 }), nil
}

func (f *fakeNotebooks) Tasks(_ context.Context, array int64) ([]notebooks.Launch, error) {
	return f.filter(func(l notebooks.Launch) bool { return l.Job != nil && l.Job.ArrayJob == array }), nil
}

func (f *fakeNotebooks) Submit(_ context.Context, u users.User, r notebooks.JobRequest) (notebooks.Launch, error) {
	if strings.TrimSpace(r.Script) == "" && len(r.Args) == 0 {
		return notebooks.Launch{}, &notebooks.JobError{Text: "The job has nothing to run. Give it a script or a command."}
	}
	l := notebooks.Launch{UserID: u.ID, Handle: u.Handle, Name: "job", Title: cmp.Or(r.Name, "job"), Profile: "cpu", State: notebooks.Waiting,
		Reason: "Both GPUs are in use. It is next in line.", Requested: time.Now(), Job: &notebooks.Job{Limit: cmp.Or(r.Limit, time.Hour)}}
	if r.GPUs != nil {
		l.GPUs = *r.GPUs
	}
	f.change(func(list *[]notebooks.Launch) {
		l.ID = int64(len(*list) + 1)
		l.Job.Output = fmt.Sprintf("jobs/job-%d.log", l.ID)
		f.programs, f.asked = append(f.programs, r.Program), append(f.asked, r)
		*list = append(*list, l)
	})
	return l, nil
}

func (f *fakeNotebooks) Again(ctx context.Context, u users.User, id int64) (notebooks.Launch, error) {
	l, err := f.Get(ctx, id)
	if err != nil {
		return l, err
	}
	return f.Submit(ctx, u, notebooks.JobRequest{Program: notebooks.Program{Script: "true"}, Name: l.Title})
}

func (f *fakeNotebooks) Serve(ctx context.Context, u users.User, r notebooks.ServiceRequest) (notebooks.Launch, error) {
	if r.Port < 1024 {
		return notebooks.Launch{}, &notebooks.JobError{Text: "A service needs the port on which its program listens, from 1024 to 65535."}
	}
	l, err := f.Submit(ctx, u, r.JobRequest)
	if err != nil {
		return l, err
	}
	l.URL = "/service/" + u.Handle + "/" + l.Name + "/"
	l.Service = &notebooks.WebService{Port: r.Port, Door: 8500, Share: r.Share, Restarts: !r.Once, StopAt: time.Now().Add(cmp.Or(r.StopAfter, notebooks.DefaultServiceTime))}
	return l, f.edit(l.ID, func(had *notebooks.Launch) { *had = l })
}

func (f *fakeNotebooks) edit(id int64, change func(l *notebooks.Launch)) error {
	err := notebooks.ErrNotFound
	f.change(func(list *[]notebooks.Launch) {
		for i := range *list {
			if (*list)[i].ID == id {
				change(&(*list)[i])
				err = nil
			}
		}
	})
	return err
}

func (f *fakeNotebooks) ServeAgain(ctx context.Context, u users.User, id int64) (notebooks.Launch, error) {
	l, err := f.Get(ctx, id)
	if err != nil {
		return l, err
	}
	return f.Serve(ctx, u, notebooks.ServiceRequest{JobRequest: notebooks.JobRequest{Program: notebooks.Program{Script: "true"}, Name: l.Title}, Port: l.Service.Port, Share: l.Service.Share})
}

func (f *fakeNotebooks) Services(_ context.Context, userID int64) ([]notebooks.Launch, error) {
	return f.filter(func(l notebooks.Launch) bool { return l.UserID == userID && l.IsService() }), nil
}

func (f *fakeNotebooks) SharedServices(_ context.Context, u users.User) ([]notebooks.Launch, error) {
	return f.filter(func(l notebooks.Launch) bool {
		return l.UserID != u.ID && l.IsService() && l.Active() && l.Service.Share.With == notebooks.ShareLab
	}), nil
}

func (f *fakeNotebooks) ShareService(_ context.Context, _ users.User, id int64, share notebooks.Share) error {
	return f.edit(id, func(l *notebooks.Launch) { l.Service.Share = share })
}

func (f *fakeNotebooks) KeepService(_ context.Context, id int64, stopAfter time.Duration) error {
	return f.edit(id, func(l *notebooks.Launch) { l.Service.StopAt = time.Now().Add(stopAfter) })
}

func (f *fakeNotebooks) RestartService(_ context.Context, id int64) error {
	return f.edit(id, func(*notebooks.Launch) {})
}

func (f *fakeNotebooks) Program(context.Context, int64) (notebooks.Program, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.programs) == 0 {
		return notebooks.Program{}, nil
	}
	return f.programs[len(f.programs)-1], nil
}

func (f *fakeNotebooks) Log(_ notebooks.Launch, from int64) (notebooks.LogPart, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.said == "" {
		return notebooks.LogPart{}, notebooks.ErrNoLog
	}
	if from < 0 {
		from = max(0, int64(len(f.said))+from)
	}
	return notebooks.LogPart{Data: []byte(f.said[from:]), From: from, Next: int64(len(f.said))}, nil
}

func (f *fakeNotebooks) Active(context.Context) ([]notebooks.Launch, error) {
	return f.filter(notebooks.Launch.Active), nil
}

func (f *fakeNotebooks) finish(id int64, code string) error {
	found := false
	f.change(func(list *[]notebooks.Launch) {
		for i := range *list {
			if l := &(*list)[i]; l.ID == id {
				found = true
				l.State, l.EndCode, l.Ended = notebooks.Ended, code, time.Now()
			}
		}
	})
	if !found {
		return notebooks.ErrNotFound
	}
	return nil
}

func (f *fakeNotebooks) Stop(_ context.Context, id int64) error {
	return f.finish(id, notebooks.EndStopped)
}

func (f *fakeNotebooks) Cancel(_ context.Context, id int64) error {
	return f.finish(id, notebooks.EndCancelled)
}

func (f *fakeNotebooks) Subscribe(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, changes)
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changed = slices.DeleteFunc(f.changed, func(c chan struct{}) bool { return c == changes })
		close(changes)
	})
	return changes
}

// fakeFleet holds snapshots and hands new ones to subscribers.
type fakeFleet struct {
	mu        sync.Mutex
	snapshots map[string]gpu.Snapshot
	readers   []chan gpu.Snapshot
}

func (f *fakeFleet) publish(s gpu.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snapshots == nil {
		f.snapshots = map[string]gpu.Snapshot{}
	}
	f.snapshots[s.Node] = s
	for _, c := range f.readers {
		select {
		case c <- s:
		default:
		}
	}
}

// forget makes a machine one that never reported.
func (f *fakeFleet) forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.snapshots, node)
}

func (f *fakeFleet) Snapshots() []gpu.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []gpu.Snapshot
	for _, s := range f.snapshots {
		list = append(list, s)
	}
	return list
}

func (f *fakeFleet) Subscribe(ctx context.Context) <-chan gpu.Snapshot {
	snapshots := make(chan gpu.Snapshot, 200)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers = append(f.readers, snapshots)
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.readers = slices.DeleteFunc(f.readers, func(c chan gpu.Snapshot) bool { return c == snapshots })
		close(snapshots)
	})
	return snapshots
}

// fakeStatus answers with what a test put in.
type fakeStatus struct {
	status ctl.Status
	charts []ctl.Chart
}

func (f *fakeStatus) Status(context.Context) (ctl.Status, error) {
	if f.status.Components == nil {
		return f.status, errors.New("no status")
	}
	return f.status, nil
}

func (f *fakeStatus) Charts(context.Context) ([]ctl.Chart, error) {
	if f.charts == nil {
		return nil, errors.New("the cluster does not answer")
	}
	return f.charts, nil
}

func ptr[T any](value T) *T { return &value }

// snapshotAt makes a machine with n simulated GPUs whose readings move with
// time like a training run; the first held are held by the given handles.
func snapshotAt(at time.Time, n int, held ...string) gpu.Snapshot {
	s := gpu.Snapshot{Node: "gpu-box", Time: at, DriverVersion: "570.86.10", CUDAVersion: "12.8", Simulated: true}
	seconds := float64(at.UnixMilli()%1e8) / 1000
	for i := range n {
		g := gpu.GPU{Device: gpu.Device{UUID: fmt.Sprintf("GPU-5f0c1a7e-0000-4000-8000-00000000000%d", i), Index: i,
			Name: "NVIDIA A100-SXM4-40GB", MemoryTotal: ptr(uint64(40 << 30)), PowerLimit: ptr(400.0), Simulated: true}}
		g.Utilization, g.MemoryUsed, g.Power, g.Temperature = ptr(0.0), ptr(uint64(430<<20)), ptr(52.0), ptr(34.0)
		if i < len(held) {
			wave := math.Sin(seconds/9+float64(i)) * 0.5
			g.Utilization = ptr(min(100, 78+wave*30+math.Sin(seconds*1.7)*9))
			g.MemoryUsed = ptr(uint64((21 + 6*wave) * (1 << 30)))
			g.Power = ptr(255 + wave*110)
			g.Temperature = ptr(63 + wave*8)
			pod := gpu.PodRef{UID: fmt.Sprintf("uid-%d", i), Namespace: "user-" + held[i], Name: "jupyter-" + held[i], User: held[i], Notebook: "gpu"}
			g.Holders = []gpu.Holder{{PodRef: pod, Since: at.Add(-time.Duration(12+i*47) * time.Minute)}}
			g.Processes = []gpu.Process{
				{PID: 41230 + i, Name: "python", MemoryUsed: g.MemoryUsed, SMUtilization: g.Utilization, Pod: pod, UnixUser: strconv.Itoa(20000 + i)},
			}
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s
}

// fakeHistory has a curve for every GPU it knows of, and the ledger and events
// a test gives it.
type fakeHistory struct {
	mu      sync.Mutex
	known   map[string]bool
	events  []history.Event
	usage   map[history.By][]history.Usage
	filters []history.Filter
	problem history.Problem
}

func (f *fakeHistory) Series(_ context.Context, uuid string, from, to time.Time, points int) (history.Series, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	step := to.Sub(from) / time.Duration(points)
	series := history.Series{UUID: uuid, From: from, To: to, Step: step}
	if !f.known[uuid] {
		return series, nil
	}
	for i := range points {
		wave := math.Sin(float64(i) / 40)
		p := history.Point{Time: from.Add(time.Duration(i) * step)}
		if i < points/3 || i > points/3+40 { // a while in which nothing was read
			p.Use, p.UseMax = ptr(55+wave*40), ptr(min(100, 70+wave*40))
			p.Memory, p.Temperature, p.SMClock = ptr((20+wave*6)*(1<<30)), ptr(60+wave*8), ptr(1400+wave*80)
			p.Power, p.PowerMax = ptr(240+wave*100), ptr(270+wave*100)
		}
		series.Points = append(series.Points, p)
	}
	return series, nil
}

func (f *fakeHistory) Events(_ context.Context, filter history.EventFilter) ([]history.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.events), func(e history.Event) bool {
		return e.UUID != filter.UUID && (e.UUID != "" || e.Kind != history.EventAsleep || e.Node != filter.Node)
	}), nil
}

func (f *fakeHistory) Problem() (history.Problem, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem, f.problem.Text != ""
}

func (f *fakeHistory) Noted() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.events))
}

func (f *fakeHistory) Usage(_ context.Context, filter history.Filter, by history.By) ([]history.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filters = append(f.filters, filter)
	return f.usage[by], nil
}

// fakeLending remembers what was asked for.
type fakeLending struct {
	mu     sync.Mutex
	anyway map[string]bool
}

func (f *fakeLending) set(_ context.Context, uuid string, anyway bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.anyway[uuid] = anyway
	return nil
}
