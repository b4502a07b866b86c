package webui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Environments are those that all notebooks share. Errors are sentences for people around the sentinel errors of
// package environments.
type Environments interface {
	// List lists them by name, the newest version first.
	List(ctx context.Context) ([]ctl.EnvironmentState, error)
	// Get finds one by NAME/VERSION, or its newest version by its name.
	Get(ctx context.Context, id string) (ctl.EnvironmentState, error)
	Lock(ctx context.Context, id string) (string, error)
	// Catalogue is what can be built without writing anything.
	Catalogue() ([]environments.Offer, error)
	// Building is the build that is under way or was the last, nil for none, and the last lines that it said.
	Building() (build *environments.Build, said []string)
	// Changes counts what became of the list.
	Changes() uint64
	// Start begins a build; built hears of what it comes to.
	Start(ctx context.Context, w ctl.WantedEnvironment, built func(environments.Environment)) (environments.Build, error)
	Cancel() (bool, error)
	SetDefault(ctx context.Context, id string) (ctl.EnvironmentState, error)
	Remove(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error)
	Export(ctx context.Context, id string, w io.Writer) error
	Import(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error)
}

// An environmentsView is what there is, and what can be made.
type environmentsView struct {
	Rows   []environmentRow
	Build  buildView
	Offers []offerView
	// Manages says that the visitor makes and removes them.
	Manages bool
	Missing []string // which is not yet on which machines
	Form    environmentForm
	Import  string // why a file was not taken
	Done    string
}

type environmentRow struct {
	ID, Title, Version, Path string // Path is that of its page
	Python, Packages, Size   string
	Needs, Obstacle          string
	Users                    string
	Default                  bool
}

// A buildView is the build that is under way, or the last one.
type buildView struct {
	ID, Title, By string
	Running       bool
	Step, Line    string
	Elapsed       string
	Failed        string // why there is no environment
	Built         string // the path of its page, once it is there
	Said          string
	MayCancel     bool
}

type offerView struct {
	Name, Title, Note string
	Versions          string // that are there already
	Busy              bool   // something is being built
}

type environmentForm struct {
	Name, Title, Version, Requirements, CUDA, Index, Extra string
	Anyway                                                 bool
	Error                                                  string
}

// An environmentView is the page of one.
type environmentView struct {
	environmentRow
	Kernel, InNotebooks, Built, Lock string
	Asked                            string
	List                             []environments.Package
	Manages                          bool
	HasKernel                        bool
	Missing                          string
	Consequence                      string // of removing it
	Force                            bool   // somebody uses it
}

// maxEnvironmentForm has room for the longest requirements with every character escaped.
const maxEnvironmentForm = 3 << 20

func environmentPath(id string) string { return "/environments/" + id }

func (s *Server) environmentsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := environmentsView{Done: environmentsDone[r.URL.Query().Get("done")]}
	return s.showEnvironments(w, r, v, http.StatusOK, view)
}

// environmentsDone are what was done, by the word in the address.
var environmentsDone = map[string]string{
	"removed":  "The environment is removed.",
	"own":      "Notebooks begin with their own Python from their next start.",
	"imported": "The environment is here.",
}

func (s *Server) showEnvironments(w http.ResponseWriter, r *http.Request, v visitor, status int,
	view environmentsView) error {
	list, err := s.cfg.Environments.List(r.Context())
	if err != nil {
		return fmt.Errorf("list environments: %w", err)
	}
	if err := s.fillEnvironments(&view, v, list); err != nil {
		return err
	}
	s.render(w, r, status, environmentsPage(s.page(w, r, v, "Environments", "view=environments"), view))
	return nil
}

func (s *Server) fillEnvironments(view *environmentsView, v visitor, list []ctl.EnvironmentState) error {
	view.Manages = v.may(users.ActionManageEnvironments)
	view.Build = s.buildView(v, list)
	for i := range list {
		view.Rows = append(view.Rows, environmentRowOf(v, &list[i]))
		if machines := s.missing(&list[i]); machines != "" {
			view.Missing = append(view.Missing, list[i].Words()+" is not on "+machines+" yet.")
		}
	}
	offers, err := s.cfg.Environments.Catalogue()
	if err != nil {
		return fmt.Errorf("the catalogue of environments: %w", err)
	}
	for _, o := range offers {
		offer := offerView{Name: o.Name, Title: o.Title, Note: o.Note, Busy: view.Build.Running}
		var versions []string
		for i := range list {
			if list[i].Name == o.Name {
				versions = append(versions, list[i].Version)
			}
		}
		offer.Versions = strings.Join(versions, ", ")
		view.Offers = append(view.Offers, offer)
	}
	return nil
}

func environmentRowOf(v visitor, e *ctl.EnvironmentState) environmentRow {
	row := environmentRow{ID: e.ID(), Title: e.Title, Version: e.Version, Path: environmentPath(e.ID()), Python: e.Python,
		Packages: strconv.Itoa(len(e.Packages)),
		Size:     units.Bytes(uint64(max(e.Size, 0))), Obstacle: e.Obstacle, Default: e.Default, Users: usedBy(v, e)}
	if e.CUDA != "" {
		row.Needs = "CUDA " + e.CUDA
	}
	return row
}

// usedBy says who uses an environment; by name to who may see everybody's notebooks.
func usedBy(v visitor, e *ctl.EnvironmentState) string {
	if v.session.User.Scope(users.ActionManageNotebooks) == users.Everybody {
		return strings.Join(e.Users, ", ")
	}
	if len(e.Users) == 0 {
		return ""
	}
	return count(len(e.Users), "notebook or job", "notebooks and jobs")
}

// missing are the machines that do not have an environment yet, in words.
func (s *Server) missing(e *ctl.EnvironmentState) string {
	var names []string
	for _, node := range e.Missing {
		names = append(names, s.called(node))
	}
	return strings.Join(names, ", ")
}

// recently is how long a build that has ended well stays on the page.
const recently = 10 * time.Minute

func (s *Server) buildView(v visitor, list []ctl.EnvironmentState) buildView {
	b, said := s.cfg.Environments.Building()
	if b == nil {
		return buildView{Said: "Nothing has been built since gpulab started."}
	}
	view := buildView{ID: b.ID(), Title: b.Title, By: b.By, Running: b.Running, Step: b.Step, Line: clip(b.Line, 200)}
	if len(said) > 0 && v.may(users.ActionManageEnvironments) {
		view.Said = readable([]byte(strings.Join(said, "\n")))
	}
	switch {
	case b.Running:
		view.Elapsed = units.Duration(s.now().Sub(b.Began))
		view.MayCancel = v.may(users.ActionManageEnvironments)
	case b.Failed != "":
		view.Failed = sentence(b.Failed)
	case s.now().Sub(b.Ended) < recently && slices.ContainsFunc(list, func(e ctl.EnvironmentState) bool {
		return e.ID() == view.ID
	}):
		view.Built = environmentPath(view.ID)
		view.Elapsed = units.Duration(b.Ended.Sub(b.Began))
	default:
		view.ID = "" // it is history, and what it said is kept
	}
	return view
}

// wanted reads the form of another environment.
func wantedEnvironment(r *http.Request) (environmentForm, ctl.WantedEnvironment) {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := environmentForm{Name: get("name"), Title: get("title"), Version: get("version"),
		Requirements: strings.ReplaceAll(r.PostForm.Get("requirements"), "\r\n", "\n"),
		CUDA:         get("cuda"), Index: get("index"), Extra: get("extra"), Anyway: get("anyway") != ""}
	var w ctl.WantedEnvironment
	w.Name, w.Title, w.Version, w.Requirements, w.CUDA, w.Index = form.Name, form.Title, form.Version, form.Requirements,
		form.CUDA, form.Index
	w.ExtraIndexes, w.Anyway = strings.Fields(form.Extra), form.Anyway
	if w.From = get("from"); w.From != "" {
		w.Requirements = ""
	}
	return form, w
}

func (s *Server) createEnvironment(w http.ResponseWriter, r *http.Request, v visitor) error {
	form, wanted := wantedEnvironment(r)
	wanted.By = v.session.User.Handle
	_, err := s.cfg.Environments.Start(r.Context(), wanted, func(e environments.Environment) {
		s.audit(r.WithContext(context.WithoutCancel(r.Context())), v, "environment.create", e.ID(), "")
	})
	if err == nil {
		return seeOther("/environments")
	}
	status := environmentRefusal(err)
	if status == 0 {
		return fmt.Errorf("build an environment: %w", err)
	}
	if wanted.From != "" {
		return &problem{
			status: status, title: "It is not built", text: message(err), linkText: "Go to the environments",
			link: "/environments", cause: err,
		}
	}
	form.Error = message(err)
	return s.showEnvironments(w, r, v, status, environmentsView{Form: form})
}

// environmentRefusal is the status of an error that somebody can cause, 0 for others.
func environmentRefusal(err error) int {
	for kind, status := range map[error]int{
		environments.ErrInvalid: http.StatusUnprocessableEntity, environments.ErrNotFound: http.StatusNotFound,
		environments.ErrExists: http.StatusConflict,
		environments.ErrBusy:   http.StatusConflict, environments.ErrInUse: http.StatusConflict,
		environments.ErrUnusable: http.StatusConflict, environments.ErrFull: http.StatusInsufficientStorage,
	} {
		if errors.Is(err, kind) {
			return status
		}
	}
	return 0
}

// environmentProblem turns the refusals of package environments into a page.
func environmentProblem(title, back string, err error) error {
	status := environmentRefusal(err)
	if status == 0 {
		return err
	}
	if status == http.StatusNotFound {
		back = "/environments"
	}
	return &problem{status: status, title: title, text: message(err), linkText: "Go back", link: back, cause: err}
}

func (s *Server) cancelEnvironment(_ http.ResponseWriter, _ *http.Request, _ visitor) error {
	// One that has ended meanwhile is as good.
	if _, err := s.cfg.Environments.Cancel(); err != nil {
		return fmt.Errorf("end the build of an environment: %w", err)
	}
	return seeOther("/environments")
}

func (s *Server) chooseEnvironment(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id := strings.TrimSpace(r.PostForm.Get("environment"))
	e, err := s.cfg.Environments.SetDefault(r.Context(), id)
	if err != nil {
		return environmentProblem("Nothing was changed", "/environments", err)
	}
	if id == "" {
		s.audit(r, v, "environment.default", "", "")
		return seeOther("/environments?done=own")
	}
	s.audit(r, v, "environment.default", e.ID(), "")
	return seeOther(environmentPath(e.ID()))
}

// environment finds the one that a page is about.
func (s *Server) environment(r *http.Request) (ctl.EnvironmentState, error) {
	return s.environmentByID(r.Context(), r.PathValue("name")+"/"+r.PathValue("version"))
}

func (s *Server) environmentByID(ctx context.Context, id string) (ctl.EnvironmentState, error) {
	e, err := s.cfg.Environments.Get(ctx, id)
	if errors.Is(err, environments.ErrNotFound) || err == nil && e.ID() != id {
		return e, errNoPage
	}
	return e, err
}

func (s *Server) environmentPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	e, err := s.environment(r)
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, environmentPage(s.page(w, r, v, e.Title, "view=environment&id="+e.ID()),
		s.environmentView(v, &e)))
	return nil
}

func (s *Server) environmentView(v visitor, e *ctl.EnvironmentState) environmentView {
	view := environmentView{environmentRow: environmentRowOf(v, e), Kernel: e.KernelWords(),
		InNotebooks: e.Environment.Path(), Lock: e.LockSHA256, Asked: environments.Shown(e.Asked),
		Built: e.Built.Local().Format("2 January 2006 15:04"), List: e.Packages,
		Manages: v.may(users.ActionManageEnvironments), Missing: s.missing(e), Force: len(e.Users) > 0,
		HasKernel: e.HasKernel()}
	text := "That frees " + view.Size + ". It can be built again from its lock. "
	if view.HasKernel {
		text += "Kernels that people made for themselves on top of it stop working."
	} else {
		text += "Notebooks and jobs lose its programs."
	}
	switch {
	case view.Force && !view.HasKernel:
		text = "It is in use by " + strings.Join(e.Users, ", ") + ". " + text
	case view.Force:
		text = "It is in use by " + strings.Join(e.Users, ", ") + ": those programs fail at the next thing that they " +
			"import. " + text
	}
	if e.Default {
		text += " New notebooks then begin with their own Python."
	}
	view.Consequence = text
	return view
}

func (s *Server) environmentLock(w http.ResponseWriter, r *http.Request, _ visitor) error {
	e, err := s.environment(r)
	if err != nil {
		return err
	}
	lock, err := s.cfg.Environments.Lock(r.Context(), e.ID())
	if err != nil {
		return fmt.Errorf("the lock of %s: %w", e.ID(), err)
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%s.lock"`, e.Name, e.Version))
	_, _ = io.WriteString(w, lock) // the only possible error is a client that went away
	return nil
}

// exportEnvironment sends one as a file, as it is packed.
func (s *Server) exportEnvironment(w http.ResponseWriter, r *http.Request, _ visitor) error {
	e, err := s.environment(r)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "application/zstd")
	header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%s.env"`, e.Name, e.Version))
	if r.Method == http.MethodHead {
		return nil
	}
	// The server's limit for a request to arrive would cut a long answer off.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err := s.cfg.Environments.Export(r.Context(), e.ID(), w); err != nil {
		if r.Context().Err() == nil {
			s.cfg.Log.Error("an environment was not sent whole", "environment", e.ID(), "error", err)
		}
		// The answer has begun: a browser that is cut off does not take it for the whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s *Server) removeEnvironment(_ http.ResponseWriter, r *http.Request, v visitor) error {
	e, err := s.environment(r)
	if err != nil {
		return err
	}
	if _, err := s.cfg.Environments.Remove(r.Context(), e.ID(), r.PostForm.Get("force") != ""); err != nil {
		return environmentProblem("It was not removed", environmentPath(e.ID()), err)
	}
	s.audit(r, v, "environment.remove", e.ID(), "")
	return seeOther("/environments?done=removed")
}

// importEnvironment takes a file that is larger than any memory, as it comes. That the form is ours says its first
// field, before the file.
func (s *Server) importEnvironment(w http.ResponseWriter, r *http.Request, v visitor) error {
	r.Body = struct {
		io.Reader
		io.Closer
	}{environments.Received(w, r.Body), r.Body}
	parts, err := r.MultipartReader()
	if err != nil {
		return errFormToken
	}
	token, err := parts.NextPart()
	if err != nil || token.FormName() != "csrf" {
		return errFormToken
	}
	said, err := io.ReadAll(io.LimitReader(token, 1<<10))
	if err != nil || !v.session.ValidCSRF(string(said)) {
		return errFormToken
	}
	file, err := parts.NextPart()
	if err == nil && file.FormName() == "browser-key" {
		said, unread := io.ReadAll(io.LimitReader(file, 1<<10))
		if key := cookies.Key(string(said)); unread != nil || key != "" && key != v.key {
			return errOtherSession
		}
		file, err = parts.NextPart()
	}
	if err != nil || file.FormName() != "file" || file.FileName() == "" {
		return s.showEnvironments(w, r, v, http.StatusUnprocessableEntity, environmentsView{Import: "Choose a file first."})
	}
	e, err := s.cfg.Environments.Import(r.Context(), file)
	if err != nil {
		if r.Context().Err() != nil {
			return r.Context().Err() // nobody is there to read an answer
		}
		// A browser that still sends does not read the answer; a large file is cut off all the same.
		_, _ = io.CopyN(io.Discard, file, 64<<20)
		status := environmentRefusal(err)
		if status == 0 {
			return fmt.Errorf("bring in an environment: %w", err)
		}
		return s.showEnvironments(w, r, v, status, environmentsView{Import: message(err)})
	}
	s.audit(r, v, "environment.import", e.ID(), "")
	return seeOther(environmentPath(e.ID()))
}

// environmentsAt are the environments of a tick.
func (s *Server) environmentsAt(ctx context.Context, t *tick) ([]ctl.EnvironmentState, error) {
	// Others may be waiting for what this stream reads, even if it ends.
	ctx = context.WithoutCancel(ctx)
	return t.news.environments.get(s.cfg.Environments.Changes(), func() ([]ctl.EnvironmentState, error) {
		return s.cfg.Environments.List(ctx)
	})
}

// environmentsParts are the live parts of the page of all environments.
func (s *Server) environmentsParts(v visitor, p page) parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		there, err := s.environmentsAt(ctx, t)
		if err != nil {
			return nil, err
		}
		var view environmentsView
		if err := s.fillEnvironments(&view, v, there); err != nil {
			return nil, err
		}
		list := []part{
			{id: "environment-build", body: environmentBuild(view.Build)},
			{id: "environments-missing", body: environmentsMissing(view)}, {id: "environments", body: environmentList(view)},
		}
		if view.Manages {
			list = append(list, part{id: "environment-cancel", body: environmentCancel(p, view.Build)},
				part{id: "environment-said", body: environmentSaid(view.Build)},
				part{id: "environment-offers", body: environmentOffers(p, view)})
		}
		return list, nil
	}
}

// environmentParts are the live parts of the page of one.
func (s *Server) environmentParts(v visitor, p page, id string) parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		list, err := s.environmentsAt(ctx, t)
		if err != nil {
			return nil, err
		}
		state, actions := part{id: "environment-state", body: environmentGone()},
			part{id: "environment-actions", body: noEnvironmentActions()}
		if i := slices.IndexFunc(list, func(e ctl.EnvironmentState) bool { return e.ID() == id }); i >= 0 {
			view := s.environmentView(v, &list[i])
			state.body, actions.body = environmentFacts(view), environmentActions(p, view)
		}
		if !v.may(users.ActionManageEnvironments) {
			return []part{state}, nil
		}
		return []part{state, actions}, nil
	}
}
