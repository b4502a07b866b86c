package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Service is a program that goes on running and answers browsers on a port.
type Service struct {
	ID          int64      `json:"id"`
	User        string     `json:"user" doc:"Whose, by sign-in name"`
	Name        string     `json:"name"`
	State       string     `json:"state" enum:"waiting,starting,running,stopping,ended"`
	Health      string     `json:"health,omitempty" enum:"starting,ready,not answering,restarting" doc:"While it runs: whether it answers"`
	Reason      string     `json:"reason,omitempty" doc:"Why it waits, what it does, how it ended; for people"`
	EndCode     string     `json:"endCode,omitempty" doc:"How it ended, in one word"`
	ExitCode    *int       `json:"exitCode,omitempty" doc:"Of its program, where that ended by itself for good"`
	Address     string     `json:"address" doc:"For browsers of those who may see it"`
	Share       string     `json:"share" doc:"Who may see it beside its owner: private, group:NAME or lab"`
	Port        int        `json:"port" doc:"Where its program listens"`
	StopAt      time.Time  `json:"stopAt" doc:"When it is stopped"`
	Restarts    bool       `json:"restarts" doc:"Its program is started again when it ends"`
	Profile     string     `json:"profile"`
	GPUs        int        `json:"gpus"`
	Simulated   bool       `json:"simulated,omitempty" doc:"Its GPUs are, and compute nothing"`
	Environment string     `json:"environment,omitempty" doc:"The lab's environment in which it runs, as NAME/VERSION"`
	Position    int        `json:"position,omitempty" doc:"Its place in the line while it waits, from 1"`
	Output      string     `json:"output,omitempty" doc:"The file of its log, in its owner's home"`
	Requested   time.Time  `json:"requested"`
	Ready       *time.Time `json:"ready,omitempty" doc:"When its program began"`
	Ended       *time.Time `json:"ended,omitempty"`
	Page        string     `json:"page,omitempty" doc:"Its page for its owner's browser"`
	Version     string     `json:"version" doc:"Another one whenever something above changes; see the parameter seen"`
}

// ServiceList is some services, the newest first.
type ServiceList struct {
	Services []Service `json:"services"`
}

type servicesInput struct {
	Of string `query:"of" default:"me" enum:"me,others" doc:"me lists yours, ended ones too; others lists those of others that you may see"`
}

type serveInput struct {
	Body struct {
		TensorBoard *string  `json:"tensorboard,omitempty" maxLength:"500" doc:"Runs TensorBoard on this folder of the home, \"\" for all of it; port and command are left out then"`
		Script      string   `json:"script,omitempty" maxLength:"65536" doc:"Text of a script"`
		Command     []string `json:"command,omitempty" maxItems:"1000" doc:"A program with its arguments, instead of a script; no shell reads it"`
		Args        []string `json:"args,omitempty" maxItems:"1000" doc:"Arguments of the script"`
		Name        string   `json:"name,omitempty" maxLength:"80" doc:"A part of its address"`
		Port        int      `json:"port,omitempty" minimum:"0" maximum:"65535" doc:"On which the program listens, from 1024 on"`
		Share       string   `json:"share,omitempty" maxLength:"80" doc:"private, group:NAME or lab; private if left out"`
		StopAfter   string   `json:"stopAfter,omitempty" maxLength:"40" doc:"Such as 12h or 7d; 7d if left out, 90d at most"`
		Once        bool     `json:"once,omitempty" doc:"Its program is not started again when it ends"`
		Profile     string   `json:"profile,omitempty" maxLength:"63" doc:"Its slug; the first with as many GPUs if left out"`
		GPUs        *int     `json:"gpus,omitempty" minimum:"0" maximum:"1000"`
		Environment string   `json:"environment,omitempty" maxLength:"80" doc:"The lab's environment in which it runs, by name or NAME/VERSION"`
		Output      string   `json:"output,omitempty" maxLength:"500" doc:"File of its log, in the home; services/NAME-NUMBER.log if left out"`
		Dir         string   `json:"dir,omitempty" maxLength:"500" doc:"Where it runs, in the home"`
	}
}

type shareInput struct {
	IDInput
	Body struct {
		Share string `json:"share" maxLength:"80" doc:"private, group:NAME or lab"`
	}
}

type keepServiceInput struct {
	IDInput
	Body struct {
		StopAfter string `json:"stopAfter" maxLength:"40" doc:"From now on, such as 12h or 7d; 90d at most"`
	}
}

type served struct {
	Location string `header:"Location"`
	Body     Service
}

func (s *Server) addServices() {
	add(s, Operation{Method: "GET", Path: "/services", ID: "listServices", Need: users.ActionSee, tag: "services",
		summary: "Your services, or those of others that you may see"}, s.listServices)
	add(s, Operation{Method: "POST", Path: "/services", ID: "startService", Need: users.ActionLaunch, tag: "services",
		summary:     "Start a service",
		description: "It stands in the same line as notebooks and jobs, and starts by itself.", status: http.StatusCreated,
		also: []int{conflict}, maxBody: maxJobBody}, s.startService)
	add(s, Operation{Method: "GET", Path: "/services/{id}", ID: "getService", Need: users.ActionSee, tag: "services",
		summary: "One of your services; waits for a change where asked to"}, s.getService)
	add(s, Operation{Method: "GET", Path: "/services/{id}/log", ID: "readServiceLog", Need: users.ActionSee,
		tag: "services", summary: "What a service of yours has said",
		description: "Of long logs the beginning and the end are kept."}, s.readServiceLog)
	add(s, Operation{Method: "POST", Path: "/services/{id}/share", ID: "shareService", Need: users.ActionLaunch,
		tag: "services", summary: "Change who may see a service of yours",
		description: "Who may not see it any more is cut off within seconds."}, s.shareService)
	add(s, Operation{Method: "POST", Path: "/services/{id}/keep", ID: "keepService", Need: users.ActionLaunch,
		tag: "services", summary: "Put off when a service of yours is stopped"}, s.keepService)
	add(s, Operation{Method: "POST", Path: "/services/{id}/restart", ID: "restartService", Need: users.ActionLaunch,
		tag: "services", summary: "End the program of a service of yours and start it again"}, s.restartService)
	add(s, Operation{Method: "POST", Path: "/services/{id}/again", ID: "startServiceAgain", Need: users.ActionLaunch,
		tag: "services", summary: "Start a service of yours that has ended once more",
		status: http.StatusCreated, also: []int{conflict}}, s.startServiceAgain)
	add(s, Operation{Method: "DELETE", Path: "/services/{id}", ID: "stopService", Need: users.ActionManageNotebooks,
		tag: "services", summary: "Stop a service",
		description: "Its program gets SIGTERM, and half a minute to end. One that has ended is as was wanted."},
		s.stopService)
}

func (s *Server) listServices(ctx context.Context, c *call, in *servicesInput) (*body[ServiceList], error) {
	var launches []notebooks.Launch
	var err error
	if in.Of == "others" {
		launches, err = s.cfg.Notebooks.SharedServices(ctx, c.user)
	} else {
		launches, err = s.cfg.Notebooks.Services(ctx, c.user.ID)
	}
	if err != nil {
		return nil, err
	}
	list := ServiceList{Services: []Service{}}
	for i := range launches {
		list.Services = append(list.Services, s.service(c, &launches[i]))
	}
	return answerWith(list)
}

// service is a service as whoever asks may see it.
func (s *Server) service(c *call, l *notebooks.Launch) Service {
	v := Service{ID: l.ID, User: l.Handle, Name: l.Title, State: string(l.State), Health: string(l.Service.Health),
		Address: s.lastingAddress(c, l.URL), Share: l.Service.Share.String(), Port: l.Service.Port,
		StopAt: l.Service.StopAt.UTC(), Restarts: l.Service.Restarts, Profile: l.Profile, GPUs: l.GPUs,
		Simulated: l.Simulated, Requested: l.Requested, Ready: given(l.Ready), Ended: given(l.Ended)}
	if c.may(users.ActionManageNotebooks, l.UserID) {
		v.Reason, v.EndCode, v.ExitCode, v.Environment, v.Position, v.Output = l.Reason, l.EndCode, l.Job.ExitCode,
			l.Job.Environment, l.Position, l.Job.Output
		v.Page = c.page("/services/" + strconv.FormatInt(l.ID, 10))
	}
	v.Version = versionOf(v)
	return v
}

var errNoService = problem(http.StatusNotFound, "There is no such service",
	"There is no such service: its number may be mistyped, or it is somebody else's. “gpulab services” lists yours.")

// serviceOf reads a service that the caller may see all of. To others it does not exist.
func (s *Server) serviceOf(ctx context.Context, c *call, id int64) (notebooks.Launch, error) {
	l, err := s.cfg.Notebooks.Get(ctx, id)
	if errors.Is(err, notebooks.ErrNotFound) || err == nil &&
		(!l.IsService() || !c.may(users.ActionManageNotebooks, l.UserID)) {
		return l, errNoService
	}
	return l, err
}

// ownService is serviceOf for what is its owner's alone.
func (s *Server) ownService(ctx context.Context, c *call, id int64) (notebooks.Launch, error) {
	l, err := s.serviceOf(ctx, c, id)
	if err == nil && l.UserID != c.user.ID {
		err = problem(http.StatusForbidden, "It is not yours", "What a service runs and says, and who may see it, is for "+
			"its owner alone.")
	}
	return l, err
}

func (s *Server) startService(ctx context.Context, c *call, in *serveInput) (*served, error) {
	b := &in.Body
	if b.Script != "" && len(b.Command) > 0 || b.TensorBoard != nil && (b.Script != "" || len(b.Command) > 0) {
		return nil, &notebooks.JobError{Text: "A service runs a script, a command or TensorBoard, and only one of them."}
	}
	r := notebooks.ServiceRequest{
		JobRequest: notebooks.JobRequest{
			Program: notebooks.Program{Script: b.Script, Args: b.Args, Dir: b.Dir}, Name: strings.TrimSpace(b.Name),
			Profile: b.Profile, GPUs: b.GPUs, Output: b.Output, Environment: b.Environment,
		},
		Port: b.Port, Once: b.Once,
	}
	if b.Script == "" {
		r.Args = b.Command
	}
	if b.TensorBoard != nil {
		r.TensorBoard(*b.TensorBoard)
	}
	var err error
	if r.Share, err = notebooks.ParseShare(b.Share); err != nil {
		return nil, err
	}
	if b.StopAfter != "" {
		if r.StopAfter, err = notebooks.ParseJobTime(b.StopAfter); err != nil {
			return nil, err
		}
	}
	l, err := s.cfg.Notebooks.Serve(ctx, c.user, r)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "service.start", l.Handle, l.Audited())
	return s.served(c, &l), nil
}

func (s *Server) served(c *call, l *notebooks.Launch) *served {
	return &served{Prefix + "/services/" + strconv.FormatInt(l.ID, 10), s.service(c, l)}
}

func (s *Server) startServiceAgain(ctx context.Context, c *call, in *IDInput) (*served, error) {
	if _, err := s.ownService(ctx, c, in.ID); err != nil {
		return nil, err
	}
	l, err := s.cfg.Notebooks.ServeAgain(ctx, c.user, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "service.start", l.Handle, fmt.Sprintf("%s, service %d again", l.Audited(), in.ID))
	return s.served(c, &l), nil
}

func (s *Server) getService(ctx context.Context, c *call, in *notebookInput) (*body[Service], error) {
	return onceChanged(ctx, s, in, func(ctx context.Context) (Service, string, error) {
		l, err := s.serviceOf(ctx, c, in.ID)
		if err != nil {
			return Service{}, "", err
		}
		v := s.service(c, &l)
		return v, v.Version, nil
	})
}

func (s *Server) readServiceLog(ctx context.Context, c *call, in *jobLogInput) (*body[JobLog], error) {
	return s.readLog(ctx, in, func() (notebooks.Launch, error) { return s.ownService(ctx, c, in.ID) })
}

// changeService changes a service of the caller's, and answers with how it is then.
func (s *Server) changeService(ctx context.Context, c *call, id int64, action string,
	change func() error) (*body[Service], error) {
	if _, err := s.ownService(ctx, c, id); err != nil {
		return nil, err
	}
	if err := change(); err != nil {
		return nil, err
	}
	l, err := s.cfg.Notebooks.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, action, l.Handle, l.Audited())
	return answerWith(s.service(c, &l))
}

func (s *Server) shareService(ctx context.Context, c *call, in *shareInput) (*body[Service], error) {
	share, err := notebooks.ParseShare(in.Body.Share)
	if err != nil {
		return nil, err
	}
	return s.changeService(ctx, c, in.ID, "service.share", func() error {
		return s.cfg.Notebooks.ShareService(ctx, c.user, in.ID, share)
	})
}

func (s *Server) keepService(ctx context.Context, c *call, in *keepServiceInput) (*body[Service], error) {
	after, err := notebooks.ParseJobTime(in.Body.StopAfter)
	if err != nil {
		return nil, err
	}
	return s.changeService(ctx, c, in.ID, "service.keep", func() error {
		return s.cfg.Notebooks.KeepService(ctx, in.ID, after)
	})
}

func (s *Server) restartService(ctx context.Context, c *call, in *IDInput) (*body[Service], error) {
	return s.changeService(ctx, c, in.ID, "service.restart", func() error {
		return s.cfg.Notebooks.RestartService(ctx, in.ID)
	})
}

func (s *Server) stopService(ctx context.Context, c *call, in *IDInput) (*body[Service], error) {
	l, err := s.serviceOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if l.Active() {
		if err := s.cfg.Notebooks.Stop(ctx, l.ID); err != nil {
			return nil, fmt.Errorf("stop service %d: %w", l.ID, err)
		}
		s.audit(ctx, c, "service.stop", l.Handle, l.Audited())
		if l, err = s.cfg.Notebooks.Get(ctx, l.ID); err != nil {
			return nil, err
		}
	}
	return answerWith(s.service(c, &l))
}
