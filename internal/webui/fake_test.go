package webui_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// fakeUsers keeps people, sessions and links in memory. Every password is the
// handle with "-password" behind it until one is set.
type fakeUsers struct {
	mu        sync.Mutex
	people    []users.User
	passwords map[int64]string
	sessions  map[string]users.Session
	links     map[string]*fakeLink
	failures  int
	ended     []func(int64, string)
	audit     []users.Entry
	next      int64
}

type fakeLink struct {
	users.Link
	used, expired bool
}

func newFakeUsers(people ...users.User) *fakeUsers {
	f := &fakeUsers{passwords: map[int64]string{}, sessions: map[string]users.Session{}, links: map[string]*fakeLink{}}
	for _, u := range people {
		f.next++
		u.ID = f.next
		f.people = append(f.people, u)
		if u.HasPassword {
			f.passwords[u.ID] = u.Handle + "-password"
		}
	}
	return f
}

// tooMany is the number of failed sign-ins after which the fake makes people
// wait.
const tooMany = 5

func (f *fakeUsers) Authenticate(_ context.Context, handle, password, _ string) (users.User, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures >= tooMany {
		return users.User{}, &users.RateError{RetryAfter: 40 * time.Second}
	}
	for _, u := range f.people {
		if u.Handle == handle && f.passwords[u.ID] != "" && f.passwords[u.ID] == password {
			return u, nil
		}
	}
	f.failures++
	return users.User{}, fmt.Errorf("sign in: %w", users.ErrBadCredentials)
}

func (f *fakeUsers) StartSession(_ context.Context, userID int64, _ users.SessionMeta) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	token := "token-" + strconv.FormatInt(f.next, 10)
	for _, u := range f.people {
		if u.ID == userID {
			f.sessions[token] = users.Session{ID: "session-" + token, User: u, CSRF: "csrf-of-" + token, Created: time.Now()}
			return token, nil
		}
	}
	return "", users.ErrNotFound
}

func (f *fakeUsers) SessionUser(_ context.Context, token string) (users.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	session, ok := f.sessions[token]
	if !ok {
		return users.Session{}, users.ErrSignedOut
	}
	return session, nil
}

func (f *fakeUsers) EndSession(_ context.Context, token string) error {
	f.mu.Lock()
	session, ok := f.sessions[token]
	delete(f.sessions, token)
	ended := slices.Clone(f.ended)
	f.mu.Unlock()
	if ok {
		for _, tell := range ended {
			tell(session.User.ID, session.ID)
		}
	}
	return nil
}

func (f *fakeUsers) OnSessionsEnded(tell func(int64, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, tell)
}

func (f *fakeUsers) List(context.Context) ([]users.User, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.people), nil
}

func (f *fakeUsers) find(match func(users.User) bool) (users.User, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.people {
		if match(u) {
			return u, nil
		}
	}
	return users.User{}, users.ErrNotFound
}

func (f *fakeUsers) ByID(_ context.Context, id int64) (users.User, error) {
	return f.find(func(u users.User) bool { return u.ID == id })
}

func (f *fakeUsers) ByHandle(_ context.Context, handle string) (users.User, error) {
	return f.find(func(u users.User) bool { return u.Handle == handle })
}

func (f *fakeUsers) Create(ctx context.Context, n users.NewUser) (users.User, error) {
	if err := users.CheckHandle(n.Handle); err != nil {
		return users.User{}, err
	}
	if _, err := f.ByHandle(ctx, n.Handle); err == nil {
		return users.User{}, users.ErrHandleTaken
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	u := users.User{ID: f.next, Handle: n.Handle, Name: n.Name, Email: n.Email, Role: n.Role, Created: time.Now()}
	f.people = append(f.people, u)
	return u, nil
}

func (f *fakeUsers) Remove(_ context.Context, id int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.people = slices.DeleteFunc(f.people, func(u users.User) bool { return u.ID == id })
	return nil
}

func (f *fakeUsers) CreateLink(_ context.Context, link users.Link, _ time.Duration) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	token := "link-" + strconv.FormatInt(f.next, 10)
	f.links[token] = &fakeLink{Link: link}
	return token, nil
}

func (f *fakeUsers) link(token string) (*fakeLink, error) {
	link, ok := f.links[token]
	switch {
	case !ok:
		return nil, users.ErrLinkUnknown
	case link.used:
		return nil, users.ErrLinkUsed
	case link.expired:
		return nil, users.ErrLinkExpired
	}
	return link, nil
}

func (f *fakeUsers) LinkInfo(_ context.Context, token string) (users.Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	link, err := f.link(token)
	if err != nil {
		return users.Link{}, err
	}
	info := link.Link
	for _, u := range f.people {
		if info.UserID != nil && u.ID == *info.UserID {
			info.Handle, info.Name, info.Role = u.Handle, u.Name, u.Role
		}
	}
	return info, nil
}

func (f *fakeUsers) RedeemLink(ctx context.Context, token, handle, name, password string) (users.User, error) {
	f.mu.Lock()
	link, err := f.link(token)
	f.mu.Unlock()
	if err != nil {
		return users.User{}, err
	}
	if len(password) < 10 {
		return users.User{}, users.ErrPasswordWeak
	}
	var user users.User
	if link.UserID != nil {
		user, err = f.ByID(ctx, *link.UserID)
	} else {
		user, err = f.Create(ctx, users.NewUser{Handle: handle, Name: name, Role: users.RoleAdmin})
	}
	if err != nil {
		return users.User{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	link.used = true
	f.passwords[user.ID] = password
	return user, nil
}

func (f *fakeUsers) Audit(_ context.Context, entry users.Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audit = append(f.audit, entry)
	return nil
}

// fakeNotebooks keeps launches in memory and tells subscribers of changes.
type fakeNotebooks struct {
	mu       sync.Mutex
	launches []notebooks.Launch
	changed  []chan struct{}
	more     []notebooks.Profile
	// obstacles are why profiles cannot work, by slug.
	obstacles map[string]string
}

func (f *fakeNotebooks) Profiles() []notebooks.Profile {
	return append(notebooks.DefaultProfiles(), f.more...)
}

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
	return f.filter(func(l notebooks.Launch) bool { return l.UserID == userID }), nil
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

// edit changes a person, in their sessions too.
func (f *fakeUsers) edit(handle string, change func(*users.User)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.people {
		if f.people[i].Handle == handle {
			change(&f.people[i])
		}
	}
	for token, session := range f.sessions {
		if session.User.Handle == handle {
			change(&session.User)
			f.sessions[token] = session
		}
	}
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
	return slices.DeleteFunc(slices.Clone(f.events), func(e history.Event) bool { return e.UUID != filter.UUID }), nil
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
