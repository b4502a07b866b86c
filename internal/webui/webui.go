// Package webui is gpulab's pages: server-rendered HTML with live parts over
// server-sent events, and the files they load.
//
// The package declares the interfaces it calls and imports other packages of
// gpulab for their types only. Each page is a handler (home.go), its view
// model and its template (home.templ, compiled by templ into
// home_templ.go) side by side.
//
// Every route names the permission it needs in routes.go; one function checks
// it, another checks every form's token, and errors become pages in one place
// (problem.go). Pages carry no inline script or style, so that the strict
// Content-Security-Policy of headers.go holds.
//
// Only cmd/gpulab and test/bench/live may import webui.
package webui

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
)

// Users are the people of the lab, their sessions and one-time links. Errors
// are sentences for people around the sentinel errors of package users.
type Users interface {
	// AuthenticateIn checks a password in a browser that keeps a value of KnownBrowser.
	AuthenticateIn(ctx context.Context, handle, password, remote, browser string) (users.User, error)
	KnownBrowser(ctx context.Context, userID int64, name, before string) (value string, err error)
	StartSession(ctx context.Context, userID int64, meta users.SessionMeta) (token string, err error)
	SessionUser(ctx context.Context, token string) (users.Session, error)
	EndSession(ctx context.Context, token string) error
	// OnSessionsEnded registers a function that hears of every session that
	// ends before its time; an empty session ID means all of the user's.
	OnSessionsEnded(func(userID int64, sessionID string))
	ByHandle(ctx context.Context, handle string) (users.User, error)
	Create(ctx context.Context, user users.NewUser) (users.User, error)
	CreateLink(ctx context.Context, link users.Link, ttl time.Duration) (token string, err error)
	LinkInfo(ctx context.Context, token string) (users.Link, error)
	RedeemLink(ctx context.Context, token, handle, name, password string) (users.User, error)
	RedeemLinkOutside(ctx context.Context, token string, o users.Outside, remote string) (users.User, error)

	OwnAccounts
	accounts
	groups
	waysIn
	outsideAccounts
	deviceCodes
}

// Notebooks start, stop and report notebooks.
type Notebooks interface {
	Profiles() []notebooks.Profile
	Launch(ctx context.Context, user users.User, request notebooks.Request) (notebooks.Launch, error)
	Get(ctx context.Context, id int64) (notebooks.Launch, error)
	// List returns a user's launches, newest first.
	List(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	// Active returns everybody's launches that have not ended.
	Active(ctx context.Context) ([]notebooks.Launch, error)
	Stop(ctx context.Context, id int64) error
	Cancel(ctx context.Context, id int64) error
	// Jobs returns a user's jobs, newest first.
	Jobs(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	// Tasks returns the elements of an array of jobs that have been in line.
	Tasks(ctx context.Context, array int64) ([]notebooks.Launch, error)
	Submit(ctx context.Context, user users.User, request notebooks.JobRequest) (notebooks.Launch, error)
	// Again submits a job once more.
	Again(ctx context.Context, user users.User, id int64) (notebooks.Launch, error)
	// Program is what a job runs.
	Program(ctx context.Context, id int64) (notebooks.Program, error)
	// Log reads what a job has said, from a position on or so many bytes from its end.
	Log(l notebooks.Launch, from int64) (notebooks.LogPart, error)
	// Services returns a user's services, newest first, SharedServices those of
	// others that they may see.
	Services(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	SharedServices(ctx context.Context, user users.User) ([]notebooks.Launch, error)
	Serve(ctx context.Context, user users.User, request notebooks.ServiceRequest) (notebooks.Launch, error)
	// ServeAgain starts a service that has ended once more.
	ServeAgain(ctx context.Context, user users.User, id int64) (notebooks.Launch, error)
	ShareService(ctx context.Context, user users.User, id int64, share notebooks.Share) error
	KeepService(ctx context.Context, id int64, stopAfter time.Duration) error
	RestartService(ctx context.Context, id int64) error
	// Obstacle says in a sentence why a profile cannot work on this lab's GPUs,
	// "" where nothing is known against it; Unfit are the machines on which its
	// image cannot.
	Obstacle(slug string) string
	Unfit(slug string) []string
	// Subscribe signals that some launch changed, until ctx ends.
	Subscribe(ctx context.Context) <-chan struct{}
}

// Fleet is the machines of the pool and what their GPUs do.
type Fleet interface {
	Snapshots() []gpu.Snapshot
	Subscribe(ctx context.Context) <-chan gpu.Snapshot
}

// History is what the GPUs did.
type History interface {
	// Series returns a GPU's readings in [from, to) as at most points points.
	Series(ctx context.Context, uuid string, from, to time.Time, points int) (history.Series, error)
	// Events lists what happened to GPUs, the newest first.
	Events(ctx context.Context, filter history.EventFilter) ([]history.Event, error)
	// Problem is why readings cannot be kept at the moment, if they cannot.
	Problem() (history.Problem, bool)
	// Noted counts events: Events has something new where it has changed.
	Noted() uint64
	// Usage sums up who had GPUs, and what they did with them.
	Usage(ctx context.Context, filter history.Filter, by history.By) ([]history.Usage, error)
}

// StatusSource tells how gpulab itself is.
type StatusSource interface {
	Status(ctx context.Context) (ctl.Status, error)
	// Charts lists the Helm releases that gpulab keeps applied.
	Charts(ctx context.Context) ([]ctl.Chart, error)
}

// Config is what the pages need. Users, Notebooks, Fleet, Status, Machines, History,
// Quotas, Storage, Environments, CheckGPU and LendGPU are required; every other zero value works.
type Config struct {
	Users     Users
	Audit     *audit.Log
	Notebooks Notebooks
	Fleet     Fleet
	Status    StatusSource
	Machines  Machines
	History   History
	Quotas    Quotas
	Storage   Storage
	// Environments are those that all notebooks share.
	Environments Environments
	// Mail writes to people; nil does not.
	Mail Mail
	// Idle knows who holds GPUs without use; nil knows of nobody.
	Idle Idle
	// Report says what the lab had of its GPUs in so many weeks; nil says nothing.
	Report func(ctx context.Context, weeks int) (report.Report, error)
	// CheckGPU lets a test pod compute on a free GPU and returns what it saw, as
	// the end of a sentence that begins with "a test pod saw".
	CheckGPU func(ctx context.Context) (string, error)
	// GPULabels are a machine's labels about its GPUs, as "name=value"; nil knows none.
	GPULabels func(node string) []string
	// LendGPU makes a GPU be lent out whoever uses it, or no longer.
	LendGPU func(ctx context.Context, uuid string, anyway bool) error
	// Backup says in two sentences without a full stop when the lab was saved last,
	// and what to do about it, "" for nothing; nil shows neither.
	Backup func(ctx context.Context) (text, next string, err error)
	// QuotaAdvice says in the same way which quotas the lab should have, and which command sets them.
	QuotaAdvice func(ctx context.Context) (text, next string, err error)
	// CA returns the lab's web certificate authority in PEM, for download.
	CA func() []byte
	// Machine returns what everybody should know of the machine, a sentence each:
	// that it stays awake, that it was asleep. Nil knows nothing.
	Machine func() []string
	// Scratch is what notebooks may write beside their homes, such as "20 GiB"; ""
	// says nothing of it.
	Scratch string
	// Barred are the machines that somebody may not use, by name. Nil bars nobody.
	Barred func(userID int64) []string
	// Emptying is what somebody (by handle) is told whose notebooks end because
	// their machine is being emptied, a sentence or more each. Nil knows of none.
	Emptying func(handle string) []string
	// Elsewhere says where the lab is, for a visitor who has opened it under a
	// host (without a port): moved is its address if that has become another, ""
	// where the host is as good as any, and others are further ways in, for when
	// this one ends. They are addresses with https:// and without a path. Nil
	// knows of none.
	Elsewhere func(host string) (moved string, others []string)
	// SignIn is the outside identity providers; nil for none.
	SignIn SignIn
	// SeenBy are the services, by launch, that a session has looked at, to say which tabs to close; nil knows none.
	SeenBy func(sessionID string) []int64
	// Network lets people sign in as who they are in the network that they come over; nil for nobody.
	Network *Network
	// Tailnet brings the lab into a tailnet; nil has no page about it.
	Tailnet Tailnet
	// Clients are the programs for people's own computers, as packaging/clients
	// packed them; nil means those that are embedded.
	Clients fs.FS
	// API is the HTTP API's OpenAPI document as JSON; nil shows no page about it.
	API []byte
	// Files is where files are brought in and out; nil where the lab takes none.
	Files *FileDoor
	// DiskNotice is what administrators are to know of the lab's disks, "" for
	// nothing. Nil has nothing to say.
	DiskNotice func() string
	// SignUp lets anybody ask for an account, which an admin approves or not.
	SignUp bool
	// LabName is shown on every page; empty means "gpulab".
	LabName string
	// Version is shown in the foot of every page.
	Version string
	// HTTPSPort and HubPort are the ports browsers use for the pages and for the
	// lasting addresses of services; 0 means 443 and 8443.
	HTTPSPort, HubPort int
	// NotebooksAt is the authority of a person's notebooks, such as lab.example:21000, for
	// those who use the pages under host. The error is notebooks.ErrNoOrigin where none is left.
	NotebooksAt func(ctx context.Context, host string, user int64) (authority string, err error)
	// Log receives errors that a person is not shown; nil discards them.
	Log *slog.Logger
}

// Server answers the requests of browsers. Its Run must be active
// for pages to be live.
type Server struct {
	cfg       Config
	handler   http.Handler
	files     *files
	builds    []clientBuild
	api       apiReference
	trends    *trends
	board     board
	streams   *streams
	check     lastCheck
	newcomers *signin.Vault[newcomer]
	now       func() time.Time
}

// New checks cfg and builds the routes. It starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Users == nil || cfg.Audit == nil || cfg.Notebooks == nil || cfg.Fleet == nil || cfg.Status == nil ||
		cfg.Machines == nil || cfg.History == nil || cfg.Quotas == nil || cfg.Storage == nil || cfg.Environments == nil ||
		cfg.CheckGPU == nil || cfg.LendGPU == nil || cfg.NotebooksAt == nil {
		return nil, errors.New("webui: Users, Audit, Notebooks, Fleet, Status, Machines, History, Quotas, Storage, " +
			"Environments, CheckGPU, LendGPU and NotebooksAt are required")
	}
	if cfg.HTTPSPort == 0 {
		cfg.HTTPSPort = 443
	}
	if cfg.HubPort == 0 {
		cfg.HubPort = 8443
	}
	if cfg.LabName == "" {
		cfg.LabName = "gpulab"
	}
	if cfg.CA == nil {
		cfg.CA = func() []byte { return nil }
	}
	if cfg.Clients == nil {
		cfg.Clients = assets.Clients()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	builds, err := readClients(cfg.Clients)
	if err != nil {
		return nil, fmt.Errorf("webui: read the programs for people's computers: %w", err)
	}
	files, err := loadFiles()
	if err != nil {
		return nil, fmt.Errorf("webui: read embedded files: %w", err)
	}
	reference, err := readAPI(cfg.API)
	if err != nil {
		return nil, fmt.Errorf("webui: read the description of the API: %w", err)
	}
	s := &Server{cfg: cfg, files: files, builds: builds, api: reference, trends: newTrends(), streams: newStreams(),
		now:   time.Now,
		board: board{fleet: cfg.Fleet}, newcomers: newNewcomers()}
	cfg.Users.OnSessionsEnded(s.streams.end)
	s.handler = s.routes()
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Run keeps live pages up to date until ctx ends, then ends every live
// connection. It returns nil.
func (s *Server) Run(ctx context.Context) error {
	s.run(ctx)
	s.streams.close()
	return nil
}
