package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/users"
)

// Environments are those that all notebooks share. Errors are sentences for people around the sentinel errors of
// package environments.
type Environments interface {
	List(ctx context.Context) ([]ctl.EnvironmentState, error)
	Get(ctx context.Context, id string) (ctl.EnvironmentState, error)
	Lock(ctx context.Context, id string) (string, error)
	Catalogue() ([]environments.Offer, error)
	Building() (build *environments.Build, said []string)
	Start(ctx context.Context, w ctl.WantedEnvironment, built func(environments.Environment)) (environments.Build, error)
	Cancel() (bool, error)
	SetDefault(ctx context.Context, id string) (ctl.EnvironmentState, error)
	Remove(ctx context.Context, id string, force bool) (ctl.EnvironmentState, error)
	Export(ctx context.Context, id string, w io.Writer) error
	Import(ctx context.Context, r io.Reader) (ctl.EnvironmentState, error)
}

// Environment is Python with packages in it that all notebooks have as a kernel.
type Environment struct {
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Title    string    `json:"title"`
	Kernel   string    `json:"kernel" doc:"The name of its kernel in JupyterLab; empty if it has none and only puts programs on everybody's path"`
	Path     string    `json:"path" doc:"Where it lies in notebooks"`
	Python   string    `json:"python" example:"3.11"`
	CUDA     string    `json:"cuda,omitempty" doc:"The lowest version that the driver has to offer, as 12.0; left out where it needs none"`
	Obstacle string    `json:"obstacle,omitempty" doc:"Why no GPU of the lab can be used with it, for people"`
	Size     int64     `json:"size" doc:"In bytes on disk"`
	Packages int       `json:"packages" doc:"How many"`
	Default  bool      `json:"default,omitempty" doc:"New notebooks begin with it"`
	InUse    int       `json:"inUse" doc:"How many notebooks and jobs use it right now"`
	Users    []string  `json:"users,omitempty" doc:"Which, as HANDLE/NOTEBOOK, for whom they are to see"`
	Missing  []string  `json:"missing,omitempty" doc:"The machines whose notebooks do not have it"`
	Built    time.Time `json:"built"`
	Lock     string    `json:"lockSha256" doc:"SHA-256 of its lock"`
	Page     string    `json:"page" doc:"Its page for browsers"`
}

// EnvironmentPackage is a package of an environment.
type EnvironmentPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// EnvironmentDetail is an environment with its packages.
type EnvironmentDetail struct {
	Environment
	List  []EnvironmentPackage `json:"packageList"`
	Asked string               `json:"asked" doc:"What somebody asked for, as requirements; the lock is what came of it"`
}

// EnvironmentList is all environments, by name, the newest version first.
type EnvironmentList struct {
	Environments []Environment `json:"environments"`
}

// EnvironmentOffer is what can be built without writing anything.
type EnvironmentOffer struct {
	Name         string `json:"name"`
	Title        string `json:"title"`
	Note         string `json:"note" doc:"What is in it, for people"`
	Requirements string `json:"requirements"`
}

// EnvironmentOffers is the catalogue.
type EnvironmentOffers struct {
	Offers []EnvironmentOffer `json:"offers"`
}

// EnvironmentBuild is the build that is under way, or was the last.
type EnvironmentBuild struct {
	State   string     `json:"state" enum:"none,running,built,failed" doc:"none: nothing was built since gpulab started"`
	Name    string     `json:"name,omitempty"`
	Version string     `json:"version,omitempty" doc:"Of the environment"`
	Step    string     `json:"step,omitempty" doc:"What it does, for people"`
	Line    string     `json:"line,omitempty" doc:"The last that it said"`
	Failed  string     `json:"failed,omitempty" doc:"Why there is no environment"`
	By      string     `json:"by,omitempty" doc:"Who began it; left out for root"`
	Began   *time.Time `json:"began,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	Said    []string   `json:"said,omitempty" doc:"Its last lines, for whom they are to see"`
	Seen    string     `json:"seen" doc:"Another one whenever something above changes; see the parameter seen"`
}

// EnvironmentLock is what an environment was built from.
type EnvironmentLock struct {
	Lock string `json:"lock" doc:"As requirements with hashes; they build the same again"`
}

// EnvironmentInput is the name and version of an environment in a path.
type EnvironmentInput struct {
	Name    string `path:"name" minLength:"1" maxLength:"30"`
	Version string `path:"version" minLength:"1" maxLength:"30"`
}

func (in *EnvironmentInput) id() string { return in.Name + "/" + in.Version }

type removeEnvironmentInput struct {
	EnvironmentInput
	Force bool `query:"force" doc:"Even while somebody's programs use it: they fail at the next thing that they import"`
}

type wantedEnvironmentInput struct {
	Body struct {
		From         string   `json:"from,omitempty" maxLength:"30" doc:"One of the catalogue, instead of a name and requirements"`
		Name         string   `json:"name,omitempty" maxLength:"30"`
		Version      string   `json:"version,omitempty" maxLength:"30" doc:"The date if left out"`
		Title        string   `json:"title,omitempty" maxLength:"60" doc:"What people read; the name if left out"`
		Requirements string   `json:"requirements,omitempty" maxLength:"1048576" doc:"As a requirements file of pip; the lock of another environment works, too"`
		CUDA         string   `json:"cuda,omitempty" maxLength:"6" doc:"The lowest version that the driver has to offer, as 12.4; found out from the packages if left out"`
		Index        string   `json:"index,omitempty" maxLength:"500" doc:"Where packages come from instead of the lab's usual index"`
		ExtraIndexes []string `json:"extraIndexes,omitempty" maxItems:"10"`
		Anyway       bool     `json:"anyway,omitempty" doc:"Build it although no GPU of the lab can be used with it"`
	}
}

type buildInput struct {
	Seen string `query:"seen" maxLength:"64" doc:"Of the last answer: wait until something changes"`
	Wait int    `query:"wait" minimum:"0" maximum:"20" doc:"For how many seconds to wait at most; 0 answers at once"`
}

type defaultEnvironmentInput struct {
	Body struct {
		Environment string `json:"environment" maxLength:"61" doc:"By name or NAME/VERSION; empty for the notebooks' own Python"`
	}
}

// maxEnvironmentBody has room for the longest requirements with every character escaped.
const maxEnvironmentBody = 3 << 20

func (s *Server) addEnvironments() {
	const tag = "environments"
	add(s, Operation{Method: "GET", Path: "/environments", ID: "listEnvironments", Need: users.ActionSee, tag: tag,
		summary: "The environments that all notebooks share"}, s.listEnvironments)
	add(s, Operation{Method: "POST", Path: "/environments", ID: "createEnvironment", Need: users.ActionManageEnvironments,
		tag: tag, summary: "Build an environment",
		description: "It goes on by itself; getEnvironmentBuild tells how far it is. One is built at a time.",
		status:      http.StatusAccepted, also: []int{conflict, http.StatusNotFound}, maxBody: maxEnvironmentBody},
		s.createEnvironment)
	add(s, Operation{Method: "GET", Path: "/environments/{name}/{version}", ID: "getEnvironment", Need: users.ActionSee,
		tag: tag, summary: "One environment, with its packages"}, s.getEnvironment)
	add(s, Operation{Method: "DELETE", Path: "/environments/{name}/{version}", ID: "removeEnvironment",
		Need: users.ActionManageEnvironments, tag: tag, summary: "Remove an environment",
		description: "One that is in use stays, unless force is said. Kernels that people made on top of it stop working.",
		also:        []int{conflict}}, s.removeEnvironment)
	add(s, Operation{Method: "GET", Path: "/environments/{name}/{version}/lock", ID: "getEnvironmentLock",
		Need: users.ActionSee, tag: tag, summary: "What an environment was built from"}, s.getEnvironmentLock)
	add(s, Operation{Method: "GET", Path: "/environments/{name}/{version}/file", ID: "exportEnvironment",
		Need: users.ActionManageEnvironments, tag: tag, summary: "An environment as one file, for another lab"},
		s.exportEnvironment)
	s.api.OpenAPI().Paths["/environments/{name}/{version}/file"].Get.Responses["200"] =
		&huma.Response{Description: "The file", Content: map[string]*huma.MediaType{
			environmentFile: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}}
	add(s, Operation{Method: "POST", Path: "/environment-files", ID: "importEnvironment",
		Need: users.ActionManageEnvironments, tag: tag, summary: "Bring in an environment from a file",
		description: "The body is a file of exportEnvironment or `gpulab env export`, of any size. One that is broken or " +
			"only half sent leaves nothing behind.", status: http.StatusCreated, also: []int{conflict}}, s.importEnvironment)
	s.api.OpenAPI().Paths["/environment-files"].Post.RequestBody = &huma.RequestBody{Required: true,
		Content: map[string]*huma.MediaType{
			environmentFile: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}}
	add(s, Operation{Method: "GET", Path: "/environment-catalogue", ID: "listEnvironmentOffers", Need: users.ActionSee,
		tag: tag, summary: "What can be built without writing anything"}, s.listEnvironmentOffers)
	add(s, Operation{Method: "GET", Path: "/environment-build", ID: "getEnvironmentBuild", Need: users.ActionSee, tag: tag,
		summary: "The build that is under way, or was the last; waits for a change where asked to"}, s.getEnvironmentBuild)
	add(s, Operation{Method: "DELETE", Path: "/environment-build", ID: "cancelEnvironmentBuild",
		Need: users.ActionManageEnvironments, tag: tag, summary: "End the build that is under way",
		description: "Nothing of it is left then. Where nothing is being built, all is as was wanted."},
		s.cancelEnvironmentBuild)
	add(s, Operation{Method: "PUT", Path: "/environment-default", ID: "setDefaultEnvironment",
		Need: users.ActionManageEnvironments, tag: tag, summary: "Choose what new notebooks begin with",
		description: "Servers that run take it over at their next start.", also: []int{conflict, http.StatusNotFound}},
		s.setDefaultEnvironment)
}

// environmentFile is the media type of a file that holds one.
const environmentFile = "application/octet-stream"

func (s *Server) environmentOf(c *call, e *ctl.EnvironmentState) Environment {
	out := Environment{Name: e.Name, Version: e.Version, Title: e.Title, Kernel: e.Kernel(), Path: e.Environment.Path(),
		Python: e.Python, CUDA: e.CUDA, Obstacle: e.Obstacle,
		Size: e.Size, Packages: len(e.Packages), Default: e.Default, InUse: len(e.Users), Missing: e.Missing, Built: e.Built,
		Lock: e.LockSHA256, Page: c.page("/environments/" + e.ID())}
	if !e.HasKernel() {
		out.Kernel = ""
	}
	if c.everybody(users.ActionManageNotebooks) {
		out.Users = e.Users
	}
	return out
}

// environment finds one by name and version.
func (s *Server) environment(ctx context.Context, in *EnvironmentInput) (ctl.EnvironmentState, error) {
	e, err := s.cfg.Environments.Get(ctx, in.id())
	if err == nil && e.ID() != in.id() { // by a name that looks like both
		err = errNotThere
	}
	return e, err
}

func (s *Server) listEnvironments(ctx context.Context, c *call, _ *noInput) (*body[EnvironmentList], error) {
	list, err := s.cfg.Environments.List(ctx)
	if err != nil {
		return nil, err
	}
	out := EnvironmentList{Environments: []Environment{}}
	for i := range list {
		out.Environments = append(out.Environments, s.environmentOf(c, &list[i]))
	}
	return answerWith(out)
}

func (s *Server) getEnvironment(ctx context.Context, c *call, in *EnvironmentInput) (*body[EnvironmentDetail], error) {
	e, err := s.environment(ctx, in)
	if err != nil {
		return nil, err
	}
	out := EnvironmentDetail{Environment: s.environmentOf(c, &e), List: []EnvironmentPackage{}, Asked: e.Asked}
	for _, p := range e.Packages {
		out.List = append(out.List, EnvironmentPackage(p))
	}
	return answerWith(out)
}

func (s *Server) getEnvironmentLock(ctx context.Context, _ *call,
	in *EnvironmentInput) (*body[EnvironmentLock], error) {
	lock, err := s.cfg.Environments.Lock(ctx, in.id())
	if err != nil {
		return nil, err
	}
	return answerWith(EnvironmentLock{lock})
}

func (s *Server) listEnvironmentOffers(context.Context, *call, *noInput) (*body[EnvironmentOffers], error) {
	list, err := s.cfg.Environments.Catalogue()
	if err != nil {
		return nil, err
	}
	out := EnvironmentOffers{Offers: []EnvironmentOffer{}}
	for _, o := range list {
		out.Offers = append(out.Offers, EnvironmentOffer(o))
	}
	return answerWith(out)
}

func (s *Server) createEnvironment(ctx context.Context, c *call,
	in *wantedEnvironmentInput) (*body[EnvironmentBuild], error) {
	b := &in.Body
	w := ctl.WantedEnvironment{Wanted: environments.Wanted{Name: b.Name, Version: b.Version, Title: b.Title,
		Requirements: b.Requirements, CUDA: b.CUDA, Index: b.Index,
		ExtraIndexes: b.ExtraIndexes, By: c.user.Handle}, From: b.From, Anyway: b.Anyway}
	_, err := s.cfg.Environments.Start(ctx, w, func(e environments.Environment) {
		s.audit(ctx, c, "environment.create", e.ID(), "")
	})
	if err != nil {
		return nil, err
	}
	return answerWith(s.buildNow(c))
}

// buildNow is how far a build is, as whoever asks may see it.
func (s *Server) buildNow(c *call) EnvironmentBuild {
	b, said := s.cfg.Environments.Building()
	out := EnvironmentBuild{State: "none"}
	if b != nil {
		out = EnvironmentBuild{
			State: "running", Name: b.Name, Version: b.Version, Step: b.Step, Line: b.Line, Failed: b.Failed, By: b.By,
			Began: given(b.Began), Ended: given(b.Ended),
		}
		switch {
		case b.Failed != "":
			out.State = "failed"
		case !b.Running:
			out.State = "built"
		}
		if c.everybody(users.ActionManageEnvironments) {
			out.Said = said
		}
	}
	out.Seen = versionOf(out)
	return out
}

// buildEvery is how often a build is looked at while somebody waits for it to change.
const buildEvery = 250 * time.Millisecond

func (s *Server) getEnvironmentBuild(ctx context.Context, c *call, in *buildInput) (*body[EnvironmentBuild], error) {
	end := time.Now().Add(time.Duration(min(in.Wait, longestWait)) * time.Second)
	for {
		b := s.buildNow(c)
		if in.Seen == "" || b.Seen != in.Seen || !time.Now().Before(end) {
			return answerWith(b)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(buildEvery):
		}
	}
}

func (s *Server) cancelEnvironmentBuild(context.Context, *call, *noInput) (*nothing, error) {
	_, err := s.cfg.Environments.Cancel()
	return done(err)
}

func (s *Server) setDefaultEnvironment(ctx context.Context, c *call, in *defaultEnvironmentInput) (*nothing, error) {
	e, err := s.cfg.Environments.SetDefault(ctx, in.Body.Environment)
	if err != nil {
		return nil, err
	}
	target := ""
	if in.Body.Environment != "" {
		target = e.ID()
	}
	s.audit(ctx, c, "environment.default", target, "")
	return done(nil)
}

func (s *Server) removeEnvironment(ctx context.Context, c *call, in *removeEnvironmentInput) (*nothing, error) {
	e, err := s.cfg.Environments.Remove(ctx, in.id(), in.Force)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "environment.remove", e.ID(), "")
	return done(nil)
}

func (s *Server) exportEnvironment(ctx context.Context, _ *call, in *EnvironmentInput) (*huma.StreamResponse, error) {
	e, err := s.environment(ctx, in)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(to huma.Context) {
		// The server's limit for a request to arrive would cut a long answer off.
		_, w := humago.Unwrap(to)
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		to.SetHeader("Content-Type", environmentFile)
		to.SetHeader("Content-Disposition", `attachment; filename="`+e.Name+"-"+e.Version+`.env"`)
		if err := s.cfg.Environments.Export(ctx, e.ID(), to.BodyWriter()); err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Error("an environment was not sent whole", "environment", e.ID(), "error", err)
			}
			panic(http.ErrAbortHandler) // part of it is sent: the program must see that it is not all
		}
	}}, nil
}

type imported struct {
	Location string `header:"Location"`
	Body     Environment
}

func (s *Server) importEnvironment(ctx context.Context, c *call, _ *noInput) (*imported, error) {
	e, err := s.cfg.Environments.Import(ctx, environments.Received(c.answer, c.body))
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "environment.import", e.ID(), "")
	return &imported{Prefix + "/environments/" + e.ID(), s.environmentOf(c, &e)}, nil
}
