package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/users"
)

// DefaultMaxActive is how many launches one person may have at a time, waiting ones included.
const DefaultMaxActive = 5

// historyLimit is how many launches List returns at most.
const historyLimit = 25

const maxTitle = 80 // characters

// People finds the person behind a launch.
type People interface {
	ByID(ctx context.Context, id int64) (users.User, error)
	Members(ctx context.Context, group string) ([]users.Membership, error)
}

// Tenancy makes sure of a person's place in the cluster: namespace, policies, home.
type Tenancy interface {
	Ensure(ctx context.Context, u users.User) error
}

// Servers is the part of the Hub API that launches need; [Hub] implements it.
type Servers interface {
	EnsureUser(ctx context.Context, handle string) error
	StartServer(ctx context.Context, handle, name, title string, options map[string]any) error
	StopServer(ctx context.Context, handle, name string) (done bool, err error)
	Server(ctx context.Context, handle, name string) (HubServer, bool, error)
	FailureMessage(ctx context.Context, handle, name string) (string, error)
	CheckProxy(ctx context.Context) error
}

// Routes tells whether the hub has announced a server to the proxy; [Proxy] implements it.
type Routes interface {
	HasServer(handle, name string) bool
	// Changes delivers a token after the hub added or removed a route.
	Changes() <-chan struct{}
}

// Config wires a Service. DB, People, Tenancy, Servers, Cluster, Routes and Line are required.
type Config struct {
	DB      *sql.DB
	People  People
	Tenancy Tenancy
	Servers Servers
	Cluster Cluster
	Routes  Routes
	Line    Line
	// HalfLife is the time after which past use of GPUs counts half for the order
	// of the line, 0 = a week; Sampling is how often use is counted anew, 0 = a minute.
	HalfLife, Sampling time.Duration
	// Shares are how many GPUs groups go first for, by their names: while a group
	// holds fewer, its launches come before others'. Nil = no group does.
	Shares map[string]int
	// Preemption says which jobs give way, "" = none; MinimumRun is how long one runs
	// before it does. Preempted is told of each job that does, and for whose launch;
	// it may be nil.
	Preemption Preemption
	MinimumRun time.Duration
	Preempted  func(ctx context.Context, job, waits Launch)

	Profiles []Profile // none = DefaultProfiles
	// Simulated says that the lab's GPUs are. Launches that get one are marked,
	// and end when the lab simulates none any more.
	Simulated bool
	// SharedGPUs says that several notebooks take turns on each GPU: what the
	// cluster counts as GPUs are then shares of them.
	SharedGPUs bool
	// MaxActive is how many launches one person may have at a time, 0 = DefaultMaxActive.
	MaxActive int
	// StartsAtOnce is how many launches begin at the same time; a class that
	// starts together would only make each other slow, and the hub run into its
	// time limits. 0 = any number.
	StartsAtOnce int
	// Devices names the GPUs (UUIDs) that a pod holds, nil or empty while unknown.
	Devices func(podUID string) []string
	// MemoryKills counts the processes of a pod that ran into its memory limit
	// and were ended for it; false while unknown, nil for never known.
	MemoryKills func(PodInfo) (int, bool)
	// Hold says in a sentence why no launch can start now, "" when they can;
	// launches wait meanwhile. Nil never holds. Call Wake when its answer changes.
	Hold func() string
	// Closed says in a sentence or two for people why the lab takes no launch now,
	// "" when it does. Those that wait stay in the queue. Nil never refuses. Call
	// Wake when its answer changes.
	Closed func() string
	// Head is the name of the machine that gpulab runs on.
	Head string
	// Booted is when that machine was started, zero when that is not known. What ran
	// there before has ended with it.
	Booted time.Time
	// Unfit are the machines whose GPUs a profile's image cannot use, each with a
	// sentence or two for people that say why, as far as is known. It answers at
	// once, and is asked about profiles with GPUs only. Nil knows of none.
	Unfit func(p Profile) map[string]string
	// Learn finds out what Unfit has to know of a profile's image. It is called
	// before each launch and every few seconds. Nil if there is nothing to find out.
	Learn func(ctx context.Context, p Profile)
	// Quota refuses a launch of this profile that would take u beyond a quota, with
	// the reason; without is a launch that ends in exchange, 0 for none. Nil
	// refuses nothing.
	Quota func(ctx context.Context, u users.User, p Profile, without int64) error
	// QuotaLater tells whether what Quota refused may fit later, so that a job can
	// wait for it. Nil: it never does.
	QuotaLater func(refusal error) bool
	// Options makes ready what a launch gets besides its profile, such as shared
	// folders, and returns what the hub is told of it. It may be asked several
	// times for one launch. Nil adds nothing.
	Options func(ctx context.Context, u users.User, launch int64) (map[string]any, error)
	// OnlyOn names the machine that a profile's notebooks have to run on, "" for
	// any. Nil keeps none to one.
	OnlyOn func(profile string) string
	// Home is the folder of somebody's home on this machine, where the logs of
	// their jobs are read. Required where jobs are to run.
	Home func(userID int64) string
	// JobImage is the container image of jobs whose profile names none.
	JobImage func() string
	// Environment finds an environment of the lab by name, the newest version, or by
	// NAME/VERSION; an unknown one is a *JobError. LackingEnvironment are the machines
	// that do not have one yet, by NAME/VERSION, UnfitForEnvironment those whose GPUs it
	// cannot use. Nil: there are none.
	Environment                             func(name string) (Environment, error)
	LackingEnvironment, UnfitForEnvironment func(id string) []string
	// EnvironmentsMount is where jobs and services see all environments; "" without any.
	EnvironmentsMount string
	// Origins assigns the ports of people's notebooks.
	Origins PersonalOrigins
	// Doors are the head's ports that services can have, none for no services;
	// DoorFree tells of one whether no other program listens there.
	Doors    []int
	DoorFree func(port int) bool
	// ScratchSize is what a job may write beside its home; zero is 20 GiB.
	ScratchSize resource.Quantity
	// MailTrouble returns a sentence that says why a person gets no mail about their jobs, or "" if they do. Nil: they do.
	MailTrouble func(u users.User) string
	// JobEnv is in the environment of every job, such as the proxy it is to use.
	JobEnv map[string]string
	// TimeZone returns the lab's time zone now, such as "Europe/Berlin", or "" if it
	// is unknown. Nil leaves it to images.
	TimeZone func() string
	// ImageEnv returns the environment that an image sets, each as "NAME=value", as far
	// as it is known. It has to answer within seconds. Nil knows none.
	ImageEnv func(ctx context.Context, image string) []string
	// CordonReason says why a machine takes no new work, in a few words, "" for
	// no reason. Nil knows none.
	CordonReason func(machine string) string
	// Note is what else the owner of a launch should know of it now, in a sentence
	// or two, "" for nothing. It must not call the service, and stands behind the
	// launch's reason until the launch has ended. Nil knows nothing.
	Note func(launch int64) string
	// EndsBy is when a launch that has GPUs is stopped at the latest, zero where
	// that is open. It must not call the service. Nil knows of none.
	EndsBy func(Launch) time.Time
	// Barred are machines that somebody may not use, ForWhom says whom one is for.
	// Limited are all that are not for everybody. Nil bars nobody.
	Barred  func(userID int64) []string
	ForWhom func(machine string) string
	Limited func() []string
	// Lacking are the machines that do not have a container image yet, "" for
	// gpulab's own; Getting says how far one is with what it lacks, "" for nothing to
	// say. Nil: all have all.
	Lacking func(image string) []string
	Getting func(machine string) string
	// Placing is how machines are chosen. Nil is the zero value.
	Placing func() Placing
	// Called is what a machine is shown as. Nil shows names.
	Called func(machine string) string
	Log    *slog.Logger
}

// Environment is one of the lab's in which jobs can run.
type Environment struct {
	ID       string // NAME/VERSION
	Path     string // where pods see it
	Variable string // tells its programs the ID
}

// Service keeps every launch from the click to its end. Launch, Stop and the
// readers may be called at any time and from any goroutine; things happen while
// Run runs.
type Service struct {
	cfg  Config
	rows rows
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{}

	patience  patience
	connected atomic.Bool // see Connected

	launching sync.Mutex // from asking for the quota until the row that counts is there

	used pastUse // the loop's own
	ran  struct {
		at time.Time
		of pastRuns
	}

	spaces sync.Map // *space by the number of its owner
	roles  sync.Map // knownRole by the number of whose it is

	mu          sync.Mutex
	tracks      map[int64]*track     // of launches that have not ended
	orphans     map[string]time.Time // pod UID → first seen without a launch
	subscribers map[chan struct{}]struct{}
	shown       string            // what subscribers were last told of
	expect      map[int64]string  // what jobs that give way bring, by the launch that waits
	kept        map[int64]Kept    // by launch
	keepers     []int64           // launches, see keptSince
	first       map[int64]string  // launches that go first for their group, see goFirst
	obstacles   map[string]string // by slug, see Obstacle
	steps       sync.WaitGroup
}

// New checks the profiles and returns a service that does nothing until Run.
func New(cfg Config) (*Service, error) {
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = DefaultProfiles()
	}
	if cfg.MaxActive == 0 {
		cfg.MaxActive = DefaultMaxActive
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.ScratchSize.IsZero() {
		cfg.ScratchSize = resource.MustParse("20Gi")
	}
	if err := CheckProfiles(cfg.Profiles); err != nil {
		return nil, err
	}
	return &Service{
		cfg: cfg, rows: rows{cfg.DB, cfg.Doors, cfg.DoorFree}, log: cfg.Log, now: time.Now, patience: usualPatience,
		wake:        make(chan struct{}, 1),
		tracks:      map[int64]*track{},
		orphans:     map[string]time.Time{},
		subscribers: map[chan struct{}]struct{}{},
	}, nil
}

// Profiles are what a notebook can be launched with, in the order of the cards.
func (s *Service) Profiles() []Profile { return append([]Profile(nil), s.cfg.Profiles...) }

// Launch records a request; it starts when there is room. The caller has
// checked that u may launch. Errors: ErrProfileUnknown, ErrTitleInvalid,
// ErrTooMany, *ObstacleError, and what the quota refuses with.
func (s *Service) Launch(ctx context.Context, u users.User, r Request) (Launch, error) {
	profile, ok := s.profile(r.Profile)
	if !ok {
		return Launch{}, ErrProfileUnknown
	}
	if r.Title = norm.NFC.String(r.Title); !validTitle(r.Title) {
		return Launch{}, ErrTitleInvalid
	}
	if _, err := s.cfg.Origins.Port(ctx, u.ID); err != nil {
		return Launch{}, err
	}
	stem, title := slug(r.Title), r.Title
	if stem == "" {
		stem = profile.Slug
	}
	if title == "" {
		title = profile.Title
	}
	return s.enter(ctx, u, profile, Launch{Title: title}, stem, r.Instead, Program{})
}

// launch records a job; one without a name of its own to be found by is called one.
func (s *Service) launch(ctx context.Context, u users.User, profile Profile, l Launch, stem string,
	p Program) (Launch, error) {
	return s.enter(ctx, u, profile, l, cmp.Or(stem, "job"), 0, p)
}

// enter checks that a request can be met, and makes its row.
func (s *Service) enter(ctx context.Context, u users.User, profile Profile, l Launch, stem string, instead int64,
	p Program) (Launch, error) {
	if why := s.closed(); why != "" {
		return Launch{}, &ObstacleError{why}
	}
	if why := s.obstacle(ctx, profile); why != "" {
		return Launch{}, &ObstacleError{why}
	}
	if why := s.impossible(profile); why != "" {
		return Launch{}, &ObstacleError{why}
	}
	if l.Job != nil {
		l.Handle = u.Handle
		if err := s.checkSize(l, p, profile); err != nil {
			return Launch{}, err
		}
	}
	s.launching.Lock()
	defer s.launching.Unlock()
	instead, err := s.givenUp(ctx, u, instead)
	if err != nil {
		return Launch{}, err
	}
	if s.cfg.Quota != nil {
		err := s.cfg.Quota(ctx, u, profile, instead)
		if err != nil && (l.Job == nil || s.cfg.QuotaLater == nil || !s.cfg.QuotaLater(err)) {
			return Launch{}, err
		}
		if err != nil {
			l.Job.Held = true // until it fits
		}
	}
	// Only a request that can be met gives up a place in the queue.
	if instead != 0 {
		still, err := s.givenUp(ctx, u, instead)
		if err == nil && still == 0 {
			err = &ObstacleError{"The one that waited has begun at this moment, and stays. Start this one again if you " +
				"want both."}
		}
		if err == nil {
			err = s.Cancel(ctx, instead)
		}
		if err != nil {
			return Launch{}, err
		}
	}
	l.UserID, l.Handle, l.Profile, l.GPUs, l.Requested = u.ID, u.Handle, profile.Slug, profile.GPUs, s.now()
	most := s.cfg.MaxActive
	switch {
	case l.Service != nil:
		most = maxServices
	case l.Job != nil:
		most = maxJobs
	}
	l, err = s.rows.insert(ctx, l, stem, most, p)
	if err != nil {
		return Launch{}, err
	}
	s.kick()
	return s.decorate(l), nil
}

// givenUp is the launch that ends in exchange for one of u's: instead, if that is u's
// and still waits. What runs by now stays, and counts.
func (s *Service) givenUp(ctx context.Context, u users.User, instead int64) (int64, error) {
	if instead == 0 {
		return 0, nil
	}
	l, err := s.rows.get(ctx, instead)
	if err != nil || l.State != Waiting || l.UserID != u.ID {
		return 0, err
	}
	return l.ID, nil
}

// Get returns one launch or ErrNotFound. Whose it is, the caller checks.
func (s *Service) Get(ctx context.Context, id int64) (Launch, error) {
	l, err := s.rows.get(ctx, id)
	if err != nil {
		return Launch{}, err
	}
	list, err := s.counted(ctx, []Launch{s.decorate(l)}, nil)
	return list[0], err
}

// List is a user's active notebooks, newest first, then the latest ended ones.
func (s *Service) List(ctx context.Context, userID int64) ([]Launch, error) {
	return s.decorated(s.rows.ofUser(ctx, userID, historyLimit, kindNotebook))
}

// Active is every launch that has not ended, of all users, oldest request first.
func (s *Service) Active(ctx context.Context) ([]Launch, error) {
	return s.decorated(s.rows.active(ctx))
}

// What a launch's owner reads when somebody ended it by hand.
const (
	stopped   = "It was stopped."
	cancelled = "It was cancelled."
)

// Stop ends a launch in whatever state it is; ended already is no error.
func (s *Service) Stop(ctx context.Context, id int64) error {
	return s.end(ctx, id, EndStopped, stopped)
}

// StopOverQuota ends a launch because its owner's quota is used up.
func (s *Service) StopOverQuota(ctx context.Context, id int64, reason string) error {
	return s.end(ctx, id, EndQuota, reason)
}

// StopIdle ends a launch whose GPUs nobody used, or that ran as long as one may:
// code is EndIdle or EndAge.
func (s *Service) StopIdle(ctx context.Context, id int64, code, reason string) error {
	return s.end(ctx, id, code, reason)
}

// StopForFolder ends a launch because its owner may no longer use a folder that
// it has open.
func (s *Service) StopForFolder(ctx context.Context, id int64, reason string) error {
	return s.end(ctx, id, EndFolder, reason)
}

// StopForMachine ends a launch because its machine is emptied; its owner may
// start it again elsewhere.
func (s *Service) StopForMachine(ctx context.Context, id int64, reason string) error {
	return s.end(ctx, id, EndInterrupted, reason)
}

// Files beside the home: one for so many bytes that a launch may write there, as on a usual file system, and never
// fewer than some programs need.
const (
	bytesPerFile = 32 << 10
	leastFiles   = 100_000
)

// mostFiles is how many files and folders a launch may have beside its home. Kubernetes bounds their size only.
func mostFiles(scratch int64) int64 { return max(scratch/bytesPerFile, leastFiles) }

// BoundFiles ends launches that have more files beside their homes than they may, as Measure has counted them.
func (s *Service) BoundFiles(ctx context.Context, usage map[string]PodUsage) error {
	most := mostFiles(s.cfg.ScratchSize.Value())
	var errs []error
	for _, p := range s.cfg.Cluster.Notebooks() {
		u := usage[p.UID]
		if u.Files <= most || p.LaunchID == 0 || p.Terminating || p.Finished {
			continue
		}
		errs = append(errs, s.end(ctx, p.LaunchID, EndEvicted, fmt.Sprintf(
			"It had %d files and folders outside of its home, such as in /scratch and /tmp; %d are allowed. "+
				"So it was ended. What is in the home is still there.", u.Files, most)))
	}
	return errors.Join(errs...)
}

// Cancel ends a launch that does not run yet. It is Stop with other words.
func (s *Service) Cancel(ctx context.Context, id int64) error {
	return s.end(ctx, id, EndCancelled, cancelled)
}

// StopUser ends everything a user has, as suspending or removing an account needs.
func (s *Service) StopUser(ctx context.Context, userID int64, reason string) error {
	list, err := s.rows.active(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range list {
		if l.UserID == userID {
			errs = append(errs, s.end(ctx, l.ID, EndStopped, reason))
		}
	}
	return errors.Join(errs...)
}

// Room is what the cluster has, free and in all, and who holds GPUs.
func (s *Service) Room() Room { return s.cfg.Cluster.Room() }

// Subscribe delivers a token after any launch changed, until ctx ends. Tokens
// that are not taken in time are merged into one.
func (s *Service) Subscribe(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	s.subscribers[ch] = struct{}{}
	s.mu.Unlock()
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		delete(s.subscribers, ch)
		s.mu.Unlock()
	})
	return ch
}

// end moves a launch towards its end. Losing a race against the reconcile loop
// only means that the row is in a later state: look again.
func (s *Service) end(ctx context.Context, id int64, code, reason string) error {
	for range 5 {
		l, err := s.rows.get(ctx, id)
		if err != nil {
			return err
		}
		from := l.State
		switch from {
		case Ended:
			return nil
		case Stopping:
			if !l.triesAgain() {
				return nil
			}
		case Waiting:
			l.State, l.Ended = Ended, s.now()
			if code == EndStopped && reason == stopped {
				reason = cancelled
			}
			code = EndCancelled
		default:
			l.State = Stopping
		}
		l.EndCode, l.Reason = code, reason
		err = s.rows.move(ctx, from, l)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return err
		}
		s.kick()
		if l.IsArray() {
			return s.endTasks(context.WithoutCancel(ctx), l.ID, code, reason)
		}
		return nil
	}
	return fmt.Errorf("stop launch %d: %w", id, errMoved)
}

func (s *Service) profile(slug string) (Profile, bool) {
	if slug == "" {
		return s.cfg.Profiles[0], true
	}
	for _, p := range s.cfg.Profiles {
		if p.Slug == slug {
			return p, true
		}
	}
	return Profile{}, false
}

// validTitle refuses what could make a title look like another one, such as
// the marks that turn the direction of writing.
func validTitle(s string) bool {
	return utf8.ValidString(s) && utf8.RuneCountInString(s) <= maxTitle &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// kick makes the loop look at once and tells subscribers.
func (s *Service) kick() {
	s.again()
	s.notify()
}

// Wake makes Run look at once whether launches can go on.
func (s *Service) Wake() { s.again() }

func (s *Service) again() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Service) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (s *Service) decorated(list []Launch, err error) ([]Launch, error) {
	for i := range list {
		list[i] = s.decorate(list[i])
	}
	return list, err
}

// decorate adds what is known only while gpulab runs.
func (s *Service) decorate(l Launch) Launch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.tracks[l.ID]; ok && l.Active() {
		t.show(&l, s.now())
	}
	l.Reason = join(join(l.Reason, s.shareWords(l)), s.wayWords(l))
	if s.cfg.Note != nil && l.Active() && l.State != Stopping {
		l.Reason = strings.TrimSpace(l.Reason + " " + s.cfg.Note(l.ID))
	}
	return l
}
