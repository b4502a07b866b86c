// Package api is gpulab's HTTP API: everything that people can do on the pages, as JSON under /api/v1, for programs
// that show an access token. Package huma reads requests into the types of this package, checks them, and describes
// them in OpenAPI; what is done is done by the same services as on the pages, allowed by the same policy and recorded
// in the same audit log.
//
// A token is the only way in: a browser's session counts for nothing here, so that no page of another site can act in
// somebody's name. Each operation says in its entry of the table which permission it needs; one function checks it.
// What goes wrong is answered as problem details (RFC 9457): what happened, and what to do next.
//
// Only cmd/gpulab may import api.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// Prefix is the path that everything here begins with.
const Prefix = "/api/v1"

// Users are the people of the lab. Errors are sentences for people around the sentinel errors of package users.
type Users interface {
	TokenUser(ctx context.Context, secret, remote string, change bool) (users.User, users.Token, error)
	Authenticate(ctx context.Context, handle, password, remote string) (users.User, error)
	AskDevice(ctx context.Context, ask users.DeviceAsk) (users.DeviceCode, error)
	DeviceToken(ctx context.Context, code, remote string) (secret string, token users.Token, user users.User, err error)

	SetProfile(ctx context.Context, id int64, name, email string) error
	ChangePassword(ctx context.Context, id int64, old, password, remote string) error
	Sessions(ctx context.Context, userID int64) ([]users.SessionInfo, error)
	EndOneSession(ctx context.Context, userID int64, sessionID string) (ended bool, err error)
	EndOtherSessions(ctx context.Context, userID int64, keep string) (ended bool, err error)
	Tokens(ctx context.Context, userID int64) ([]users.Token, error)
	CreateToken(ctx context.Context, userID int64, token users.NewToken) (secret string, made users.Token, err error)
	RevokeToken(ctx context.Context, userID, tokenID int64) (users.Token, error)
	SSHKeys(ctx context.Context, userID int64) ([]users.SSHKey, error)
	AddSSHKey(ctx context.Context, userID int64, name, text string) (users.SSHKey, error)
	RemoveSSHKey(ctx context.Context, userID, keyID int64) (users.SSHKey, error)
	Identities(ctx context.Context, userID int64) ([]users.Identity, error)
	Unlink(ctx context.Context, userID, identityID int64, force bool) (users.Identity, error)
	ConfirmPassword(ctx context.Context, id int64, password, remote string) error

	Find(ctx context.Context, query users.Query) (users.Found, error)
	Person(ctx context.Context, handle string) (users.Person, error)
	ByHandle(ctx context.Context, handle string) (users.User, error)
	Create(ctx context.Context, user users.NewUser) (users.User, error)
	CreateLink(ctx context.Context, link users.Link, ttl time.Duration) (token string, err error)
	Change(ctx context.Context, id int64, change users.Change) error
	Suspend(ctx context.Context, id int64) error
	Resume(ctx context.Context, id int64) error
	Remove(ctx context.Context, id int64) error
	Undelete(ctx context.Context, id int64) error
	RoleByRules(ctx context.Context, userID int64) error

	Groups(ctx context.Context) ([]users.Group, error)
	Group(ctx context.Context, name string) (users.Group, error)
	Members(ctx context.Context, group string) ([]users.Membership, error)
	Memberships(ctx context.Context, userID int64) ([]users.Membership, error)
	CreateGroup(ctx context.Context, name, title string) (users.Group, error)
	SetMember(ctx context.Context, group string, userID int64, lead bool) error
	RemoveMember(ctx context.Context, group string, userID int64) error
	RemoveGroup(ctx context.Context, name string) error

	Invite(ctx context.Context, by users.User, invitation users.NewInvitation) (users.Invitation, string, error)
	Invitations(ctx context.Context, by users.User) ([]users.Invitation, error)
	RevokeInvitation(ctx context.Context, by users.User, id int64) (users.Invitation, error)
	SignUps(ctx context.Context) ([]users.SignUp, error)
	Approve(ctx context.Context, id int64, role users.Role, group string) (users.User, error)
	Decline(ctx context.Context, id int64) (users.SignUp, error)
	PlanImport(ctx context.Context, text []byte, options users.ImportOptions) (users.ImportPlan, error)
	Import(ctx context.Context, who audit.Entry, text []byte,
		options users.ImportOptions) (users.ImportPlan, []users.PersonalLink, error)
}

// Notebooks start, stop and report notebooks.
type Notebooks interface {
	Profiles() []notebooks.Profile
	Obstacle(slug string) string
	Unfit(slug string) []string
	Launch(ctx context.Context, user users.User, request notebooks.Request) (notebooks.Launch, error)
	Get(ctx context.Context, id int64) (notebooks.Launch, error)
	List(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	Active(ctx context.Context) ([]notebooks.Launch, error)
	Stop(ctx context.Context, id int64) error
	Cancel(ctx context.Context, id int64) error
	Subscribe(ctx context.Context) <-chan struct{}

	Submit(ctx context.Context, user users.User, request notebooks.JobRequest) (notebooks.Launch, error)
	Again(ctx context.Context, user users.User, id int64) (notebooks.Launch, error)
	Jobs(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	Tasks(ctx context.Context, array int64) ([]notebooks.Launch, error)
	CancelTask(ctx context.Context, array notebooks.Launch, task int) error
	Log(l notebooks.Launch, from int64) (notebooks.LogPart, error)

	Serve(ctx context.Context, user users.User, request notebooks.ServiceRequest) (notebooks.Launch, error)
	ServeAgain(ctx context.Context, user users.User, id int64) (notebooks.Launch, error)
	Services(ctx context.Context, userID int64) ([]notebooks.Launch, error)
	SharedServices(ctx context.Context, user users.User) ([]notebooks.Launch, error)
	ShareService(ctx context.Context, user users.User, id int64, share notebooks.Share) error
	KeepService(ctx context.Context, id int64, stopAfter time.Duration) error
	RestartService(ctx context.Context, id int64) error
}

// History is what GPUs did, and who used them.
type History interface {
	Series(ctx context.Context, uuid string, from, to time.Time, points int) (history.Series, error)
	Events(ctx context.Context, filter history.EventFilter) ([]history.Event, error)
	Usage(ctx context.Context, filter history.Filter, by history.By) ([]history.Usage, error)
}

// Quotas limit what people may use.
type Quotas interface {
	Limits(ctx context.Context, u users.User) ([]quota.Limit, error)
	Notice(ctx context.Context, userID int64) (string, error)
	Rules(ctx context.Context) ([]quota.Rule, error)
	Grants(ctx context.Context) ([]quota.Grant, error)
	Set(ctx context.Context, subject quota.Subject, kind quota.Kind, model string, value *float64) error
	Grant(ctx context.Context, g quota.Grant) (quota.Grant, error)
	EndGrant(ctx context.Context, id int64) (quota.Grant, error)
}

// Storage is homes and the folders that people share. Errors are sentences for people around the sentinel errors of
// package storage.
type Storage interface {
	FoldersOf(ctx context.Context, u users.User) ([]storage.Seen, error)
	Folder(ctx context.Context, name string) (storage.Folder, error)
	Create(ctx context.Context, n storage.NewFolder) (storage.Folder, error)
	SetAccess(ctx context.Context, name string, c storage.Change) (storage.Folder, error)
	Delete(ctx context.Context, name string) (storage.Folder, error)
	Undelete(ctx context.Context, name string) (storage.Folder, error)
	HomeState(ctx context.Context, u users.User) (storage.HomeState, error)
	HomeNotice(ctx context.Context, userID int64, state storage.HomeState) (string, error)
	Largest(ctx context.Context, user int64) ([]storage.Entry, *storage.Size, error)
	ClearWithin(ctx context.Context, u users.User, name string, wait time.Duration) (done bool, err error)
}

// Idle knows who holds GPUs without use, and what became of that.
type Idle interface {
	Of(launch int64) (idle.Holding, bool)
	Extend(ctx context.Context, launch int64) (idle.Holding, error)
	Free(ctx context.Context, launch int64, by string) (idle.Holding, error)
	Reclaims(ctx context.Context, userID int64, from time.Time, limit int) ([]idle.Reclaim, error)
}

// Config wires a Server. All but Idle, Files, Providers, LabName, HubPort, Limits and Log are required.
type Config struct {
	Users     Users
	Audit     *audit.Log
	Notebooks Notebooks
	History   History
	Quotas    Quotas
	Storage   Storage
	Machines  Machines
	// Environments are those that all notebooks share.
	Environments Environments
	Tailnet      Tailnet
	Mail         Mail
	// Idle knows who holds GPUs without use; nil knows of nobody.
	Idle Idle
	// Barred are the machines that somebody may not use, by name. Nil bars nobody.
	Barred func(userID int64) []string
	// Snapshots are the latest readings of each machine.
	Snapshots func() []gpu.Snapshot
	// Status tells how gpulab itself is.
	Status func(ctx context.Context) (ctl.Status, error)
	// MayLaunch refuses a launch that would go beyond a quota, with the reason, and starts nothing.
	MayLaunch func(ctx context.Context, u users.User, p notebooks.Profile) error
	// Report says what the lab had of its GPUs in so many weeks.
	Report func(ctx context.Context, weeks int) (report.Report, error)
	// CheckGPU lets a test pod compute on a free GPU and returns what it saw, as the end of a sentence that begins
	// with "a test pod saw".
	CheckGPU func(ctx context.Context) (string, error)
	// LendGPU makes a GPU be lent out whoever uses it, or no longer.
	LendGPU func(ctx context.Context, uuid string, anyway bool) error
	// Files is where files are brought in and out over SFTP; nil where the lab takes none.
	Files *FileDoor
	// Providers are the outside identity providers.
	Providers []Provider
	// LabName is shown; empty means "gpulab".
	LabName string
	// HubPort is the port of the lasting addresses of services; 0 means 8443.
	HubPort int
	// NotebooksAt is the authority of a person's notebooks for those who use the API under host.
	NotebooksAt func(ctx context.Context, host string, user int64) (authority string, err error)
	// Limits are how often may be asked; the zero value is the usual.
	Limits Limits
	// Log receives errors that nobody is shown; nil discards them.
	Log *slog.Logger
}

// Server answers the requests of programs.
type Server struct {
	cfg        Config
	handler    http.Handler
	api        huma.API
	operations []Operation
	// tokens and addresses bound how often each may ask.
	tokens, addresses *limiter
	now               func() time.Time
}

// New checks cfg and builds the routes. It starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Users == nil || cfg.Audit == nil || cfg.Notebooks == nil || cfg.History == nil || cfg.Quotas == nil ||
		cfg.Storage == nil ||
		cfg.Machines == nil || cfg.Environments == nil || cfg.Tailnet == nil || cfg.Mail == nil || cfg.Snapshots == nil ||
		cfg.Status == nil ||
		cfg.MayLaunch == nil || cfg.Report == nil || cfg.CheckGPU == nil || cfg.LendGPU == nil || cfg.NotebooksAt == nil {
		return nil, errors.New("api: NotebooksAt, Users, Audit, Notebooks, History, Quotas, Storage, Machines, " +
			"Environments, " +
			"Tailnet, Mail, Snapshots, Status, MayLaunch, Report, CheckGPU and LendGPU are required")
	}
	if cfg.LabName == "" {
		cfg.LabName = "gpulab"
	}
	if cfg.HubPort == 0 {
		cfg.HubPort = 8443
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	limits := cfg.Limits.orUsual()
	s := &Server{cfg: cfg, tokens: newLimiter(limits), addresses: newLimiter(limits.forAddresses()), now: time.Now}
	mux := http.NewServeMux()
	s.addOperations(mux)
	if err := s.addDescription(mux); err != nil {
		return nil, fmt.Errorf("api: describe the API: %w", err)
	}
	s.addRest(mux)
	s.handler = s.recover(headers(mux))
	return s, nil
}

// Description is the API's OpenAPI document as JSON, the same for every lab of this version.
func Description() ([]byte, error) {
	s := &Server{}
	s.addOperations(http.NewServeMux())
	return s.api.OpenAPI().MarshalJSON()
}

func (s *Server) addOperations(mux *http.ServeMux) {
	s.api = humago.NewWithPrefix(mux, Prefix, s.config())
	s.addLab()
	s.addDevice()
	s.addAccount()
	s.addMail()
	s.addNotebooks()
	s.addIdle()
	s.addJobs()
	s.addServices()
	s.addReport()
	s.addFiles()
	s.addSSHKeys()
	s.addFolders()
	s.addEnvironments()
	s.addHome()
	s.addGPUs()
	s.addPeople()
	s.addIdentities()
	s.addGroups()
	s.addWaysIn()
	s.addQuotas()
	s.addMachines()
	s.addTailnet()
	s.addAudit()
}

// config is huma's, without its pages: they load scripts from elsewhere.
func (s *Server) config() huma.Config {
	config := huma.DefaultConfig("gpulab", version.Version)
	config.Info.Description = "Everything that people can do on the pages of a gpulab lab. Ask with an access token, " +
		"which the page of your account " +
		"or `gpulab login` makes: `Authorization: Bearer gpulab_…`. What goes wrong is answered as problem details " +
		"(RFC 9457)."
	config.Tags = tags
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil // no links to schemas in every answer
	config.Transformers = []huma.Transformer{explain}
	config.Formats = map[string]huma.Format{"application/json": strictJSON, "json": strictJSON}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "A personal access token of scope read, launch or full."},
	}
	return config
}

// tags are what operations are about, in the order in which people look for them.
var tags = []*huma.Tag{
	{Name: "account", Description: "Your own account, quotas and use."},
	{Name: "notebooks", Description: "What you can launch, and what runs or waits."},
	{Name: "jobs", Description: "Programs that run to their end without a browser."},
	{Name: "services", Description: "Programs that go on running and have a page of their own."},
	{Name: "GPUs", Description: "What GPUs are, do and did, and for whom."},
	{Name: "folders", Description: "The room in your home, and folders that people share."},
	{Name: "environments", Description: "Python with packages, such as PyTorch, that all notebooks and jobs share."},
	{Name: "files", Description: "Bringing files in and out over SFTP."},
	{Name: "sign-in", Description: "Access tokens, browsers, and accounts elsewhere."},
	{Name: "people", Description: "Accounts and groups, for those who look after them."},
	{Name: "ways in", Description: "Invitations, requests for an account, and lists of people."},
	{Name: "quotas", Description: "How much somebody may use."},
	{Name: "audit", Description: "Who did what."},
	{Name: "lab", Description: "Which lab this is, and how its parts are."},
}

// ServeHTTP implements http.Handler, for paths that begin with Prefix.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// addDescription serves what the API is, for programs: it holds nothing of the lab.
func (s *Server) addDescription(mux *http.ServeMux) error {
	json, err := s.api.OpenAPI().MarshalJSON()
	if err != nil {
		return err
	}
	yaml, err := s.api.OpenAPI().YAML()
	if err != nil {
		return err
	}
	for name, file := range map[string]struct {
		kind string
		text []byte
	}{"json": {"application/vnd.oai.openapi+json", json}, "yaml": {"application/vnd.oai.openapi", yaml}} {
		mux.HandleFunc("GET "+Prefix+"/openapi."+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind)
			_, _ = w.Write(file.text) // the only possible error is a client that went away
		})
	}
	return nil
}

// addRest answers what is no operation: other methods on a path, and other paths.
func (s *Server) addRest(mux *http.ServeMux) {
	methods := map[string][]string{}
	for _, o := range s.operations {
		methods[o.Path] = append(methods[o.Path], o.Method)
	}
	for path, allowed := range methods {
		slices.Sort(allowed)
		// One by one: a path for every method would contradict one with a variable in its place.
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} {
			if !slices.Contains(allowed, method) {
				mux.HandleFunc(method+" "+Prefix+path, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Allow", strings.Join(allowed, ", "))
					writeProblem(w, problem(http.StatusMethodNotAllowed, "This cannot be done here",
						"The address exists, but takes "+strings.Join(allowed, " or ")+" only. See "+Prefix+"/openapi.json."))
				})
			}
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem(http.StatusNotFound, "There is no such thing in the API",
			"The address may be mistyped. "+Prefix+"/openapi.json lists what there is."))
	})
}

// headers sets what every answer carries. Nothing here is for a browser to show, keep or run.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// recover turns a panic in a handler into an answer.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(cause) // how a handler asks for the connection to be cut
			}
			if r.Context().Err() != nil {
				return // nobody is there to read an answer
			}
			s.cfg.Log.Error("API panicked", "method", r.Method, "path", r.URL.Path, "panic", cause)
			writeProblem(w, errOurs)
		}()
		next.ServeHTTP(w, r)
	})
}
