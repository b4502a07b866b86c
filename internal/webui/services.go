package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// A servicesView is somebody's services, those that others share with them, and
// the forms for another.
type servicesView struct {
	Rows, Shared []serviceRow
	MayLaunch    bool
	Groups       []string // with which they can share
	Form         serviceForm
}

// A serviceForm is what was filled in, and what is wrong with it.
type serviceForm struct {
	Folder string // for TensorBoard

	Command, Name, Port, Share, StopAfter, GPUs, Environment string

	Error string
}

type serviceRow struct {
	ID, Title, Owner, Reason, State string
	Tone                            tone
	Address                         string // "" where it cannot be opened
	Door                            string // its port, for visitors who have to forward it; "" for others
	Share                           string // in words
	Stops                           string
	GPU                             string
	Simulated                       bool
	MayStop, MayRestart, MayAgain   bool
}

// A serviceView is the page of one service.
type serviceView struct {
	serviceRow
	Own            bool
	Headline, Text string
	Elapsed        string
	Profile        string
	Facts          []string
	Shares         []shareChoice // for the owner of one that has not ended
	Program        string        // what it runs; "" where it is not the visitor's to see
	Log            logView
}

// A shareChoice is somebody with whom a service can be shared.
type shareChoice struct {
	Value, Words string
	Chosen       bool
}

func newServiceForm() serviceForm { return serviceForm{Share: notebooks.SharePrivate, StopAfter: "7d"} }

func (s *Server) servicesPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := newServiceForm()
	// JupyterLab leads here with the port of a program that runs in a notebook.
	if port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16); err == nil && port > 0 {
		form.Port = strconv.FormatUint(port, 10)
	}
	return s.showServices(w, r, v, http.StatusOK, form)
}

func (s *Server) showServices(w http.ResponseWriter, r *http.Request, v visitor, status int, form serviceForm) error {
	view, err := s.servicesView(r.Context(), r, v)
	if err != nil {
		return err
	}
	view.Form = form
	s.render(w, r, status, servicesPage(s.page(w, r, v, "Services", "view=services"), view))
	return nil
}

func (s *Server) servicesView(ctx context.Context, r *http.Request, v visitor) (servicesView, error) {
	view := servicesView{MayLaunch: v.may(users.ActionLaunch)}
	own, err := s.cfg.Notebooks.Services(ctx, v.session.User.ID)
	if err != nil {
		return view, fmt.Errorf("list own services: %w", err)
	}
	shared, err := s.cfg.Notebooks.SharedServices(ctx, v.session.User)
	if err != nil {
		return view, fmt.Errorf("list shared services: %w", err)
	}
	machines := s.machines(s.cfg.Fleet.Snapshots(), v, false)
	for i := range own {
		view.Rows = append(view.Rows, s.serviceRow(r, v, &own[i], machines))
	}
	for i := range shared {
		view.Shared = append(view.Shared, s.serviceRow(r, v, &shared[i], machines))
	}
	view.Groups, err = s.groupsOf(ctx, v)
	return view, err
}

func (s *Server) groupsOf(ctx context.Context, v visitor) (names []string, err error) {
	list, err := s.cfg.Users.Memberships(ctx, v.session.User.ID)
	for i := range list {
		names = append(names, list[i].Group)
	}
	return names, err
}

// shareChoices are those with whom somebody can share; now is with whom it is.
func shareChoices(groups []string, now string) []shareChoice {
	list := []shareChoice{{Value: notebooks.SharePrivate}}
	for _, g := range groups {
		list = append(list, shareChoice{Value: notebooks.ShareGroup + ":" + g})
	}
	list = append(list, shareChoice{Value: notebooks.ShareLab})
	for i := range list {
		share, _ := notebooks.ParseShare(list[i].Value)
		list[i].Words, list[i].Chosen = shareWords(share), list[i].Value == now
	}
	return list
}

func shareWords(share notebooks.Share) string {
	switch {
	case share.With == notebooks.ShareLab:
		return "Everybody in the lab"
	case share.With == notebooks.ShareGroup && share.Group == "":
		return "Nobody else: the group is gone"
	case share.With == notebooks.ShareGroup:
		return "The group " + share.Group
	}
	return "Nobody else"
}

func (s *Server) serviceRow(r *http.Request, v visitor, l *notebooks.Launch, machines []machineView) serviceRow {
	row := serviceRow{
		ID: strconv.FormatInt(l.ID, 10), Title: l.Title, Owner: l.Handle, Reason: l.Reason,
		Share: shareWords(l.Service.Share), GPU: gpuNames(l, machines), Simulated: simulated(l, machines),
	}
	row.State, row.Tone = serviceStateWords(l)
	if hub, ok := authorityAt(r, s.cfg.HubPort); ok && l.Active() {
		row.Address = "https://" + hub + l.URL
		if s.forwarded(r) { // the pages' port leads there too, and is forwarded
			row.Address, row.Door = s.address(r)+l.URL, strconv.Itoa(l.Service.Door)
		}
	}
	if now := s.now(); l.Active() {
		row.Stops = "in " + units.Lasting(max(l.Service.StopAt.Sub(now), 0))
	} else {
		row.Stops = "ended " + units.Lasting(now.Sub(l.Ended)) + " ago"
	}
	own := l.UserID == v.session.User.ID
	if !own {
		row.Reason = ""
	}
	row.MayStop = l.Active() && l.State != notebooks.Stopping && v.mayOn(users.ActionManageNotebooks, l.UserID)
	row.MayRestart = own && l.State == notebooks.Running && v.may(users.ActionLaunch)
	row.MayAgain = own && !l.Active() && v.may(users.ActionLaunch)
	return row
}

// serviceStateWords names a service's state for people.
func serviceStateWords(l *notebooks.Launch) (string, tone) {
	switch {
	case l.State == notebooks.Ended && (l.EndCode == notebooks.EndFailed || l.EndCode == notebooks.EndExited):
		return "failed", "bad"
	case l.State == notebooks.Ended:
		return "ended", ""
	case l.State != notebooks.Running:
		return stateWords(l)
	case l.Service.Health == notebooks.HealthReady:
		return "ready", "ok"
	case l.Service.Health == notebooks.HealthSilent, l.Service.Health == notebooks.HealthRestarting:
		return string(l.Service.Health), "bad"
	}
	return "starting", "info"
}

func (s *Server) startService(w http.ResponseWriter, r *http.Request, v visitor) error {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := serviceForm{
		Command: get("command"), Name: get("name"), Port: get("port"), Share: get("share"), StopAfter: get("stop-after"),
		GPUs: get("gpus"), Environment: get("environment"),
	}
	request := notebooks.ServiceRequest{JobRequest: notebooks.JobRequest{Program: notebooks.Program{Script: form.Command},
		Name: form.Name, Environment: form.Environment}}
	var err error
	if request.Port, err = strconv.Atoi(form.Port); err != nil {
		err = &notebooks.JobError{Text: "The port is the number on which the program listens, such as 7860."}
	}
	if form.GPUs != "" && err == nil {
		var n int
		if n, err = strconv.Atoi(form.GPUs); err != nil {
			err = &notebooks.JobError{Text: "The number of GPUs is a whole number, such as 1."}
		}
		request.GPUs = &n
	}
	if form.StopAfter != "" && err == nil {
		request.StopAfter, err = notebooks.ParseJobTime(form.StopAfter)
	}
	return s.serve(w, r, v, request, form, err)
}

// startTensorBoard starts TensorBoard on a folder.
func (s *Server) startTensorBoard(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := newServiceForm()
	form.Folder = strings.TrimSpace(r.PostForm.Get("folder"))
	var request notebooks.ServiceRequest
	request.TensorBoard(form.Folder)
	return s.serve(w, r, v, request, form, nil)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, v visitor, request notebooks.ServiceRequest,
	form serviceForm, err error) error {
	if err == nil {
		request.Share, err = notebooks.ParseShare(form.Share)
	}
	var l notebooks.Launch
	if err == nil {
		l, err = s.cfg.Notebooks.Serve(r.Context(), v.session.User, request)
	}
	if status := jobRefusal(err); status != 0 {
		form.Error = message(err)
		return s.showServices(w, r, v, status, form)
	}
	if err != nil {
		return fmt.Errorf("start a service: %w", err)
	}
	s.audit(r, v, "service.start", l.Handle, l.Audited())
	return seeOther("/services/" + strconv.FormatInt(l.ID, 10))
}

// serviceFor reads a service that the visitor may act on. To others it does not exist.
func (s *Server) serviceFor(ctx context.Context, v visitor, id string) (notebooks.Launch, error) {
	l, err := s.launchFor(ctx, v, id)
	if err == nil && !l.IsService() {
		err = errNoPage
	}
	return l, err
}

// ownService is serviceFor for what is its owner's alone.
func (s *Server) ownService(r *http.Request, v visitor) (notebooks.Launch, error) {
	l, err := s.serviceFor(r.Context(), v, r.PathValue("id"))
	if err == nil && l.UserID != v.session.User.ID {
		err = errNotAllowed
	}
	return l, err
}

func (s *Server) servicePage(w http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.serviceFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	view := s.serviceView(r, v, &l)
	if view.Own {
		program, err := s.cfg.Notebooks.Program(r.Context(), l.ID)
		if err != nil {
			return fmt.Errorf("what service %d runs: %w", l.ID, err)
		}
		view.Program = programText(program)
		groups, err := s.groupsOf(r.Context(), v)
		if err != nil {
			return err
		}
		if l.Active() {
			view.Shares = shareChoices(groups, l.Service.Share.String())
		}
	}
	s.render(w, r, http.StatusOK, servicePage(s.page(w, r, v, view.Title, "view=service&id="+view.ID), view))
	return nil
}

func (s *Server) serviceView(r *http.Request, v visitor, l *notebooks.Launch) serviceView {
	view := serviceView{
		serviceRow: s.serviceRow(r, v, l, s.machines(s.cfg.Fleet.Snapshots(), v, false)), Own: l.UserID == v.session.User.ID,
		Profile: s.profileTitle(l.Profile),
	}
	view.Text = sentence(l.Reason)
	now := s.now()
	switch l.State {
	case notebooks.Waiting:
		var common launchView
		s.describeWaiting(&common, v, l)
		if view.Headline = common.Headline; l.Held() {
			view.Headline = "Waiting"
		}
		view.Text, view.Elapsed = common.Text, units.Duration(now.Sub(l.Requested))
	case notebooks.Starting:
		view.Headline, view.Elapsed = "Starting", units.Duration(now.Sub(l.Started))
	case notebooks.Running:
		view.Headline, view.Elapsed = strings.ToUpper(view.State[:1])+view.State[1:], units.Duration(now.Sub(l.Ready))
	case notebooks.Stopping:
		view.Headline = "Ending"
	case notebooks.Ended:
		view.Headline = "It has ended"
	}
	if l.GPUs > 0 {
		view.Facts = append(view.Facts, view.GPU)
	}
	if l.Job.Environment != "" {
		view.Facts = append(view.Facts, l.Job.Environment)
	}
	view.Facts = append(view.Facts, fmt.Sprintf("port %d", l.Service.Port))
	if l.Active() {
		view.Facts = append(view.Facts, "stopped "+view.Stops)
	}
	if !l.Service.Restarts {
		view.Facts = append(view.Facts, "not started again when it ends")
	}
	if view.Own {
		view.Facts = append(view.Facts, "log in "+l.Job.Output)
		view.Log = s.logView(l)
	}
	return view
}

// serviceLog sends all that is kept of a log.
func (s *Server) serviceLog(w http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.ownService(r, v)
	if err != nil {
		return err
	}
	return s.sendLog(w, l)
}

// changeService does something with a service of the visitor's, and shows its page.
func (s *Server) changeService(r *http.Request, v visitor, action string,
	change func(l *notebooks.Launch) error) error {
	l, err := s.ownService(r, v)
	if err == nil {
		err = change(&l)
	}
	page := "/services/" + r.PathValue("id")
	if status := jobRefusal(err); status != 0 {
		return &problem{
			status: status, title: "Nothing was changed", text: message(err), linkText: "Back to the service", link: page,
			cause: err,
		}
	}
	if err != nil {
		return err
	}
	if now, err := s.cfg.Notebooks.Get(r.Context(), l.ID); err == nil {
		l = now
	}
	s.audit(r, v, action, l.Handle, l.Audited())
	return seeOther(page)
}

func (s *Server) shareService(_ http.ResponseWriter, r *http.Request, v visitor) error {
	return s.changeService(r, v, "service.share", func(l *notebooks.Launch) error {
		share, err := notebooks.ParseShare(r.PostForm.Get("share"))
		if err != nil {
			return err
		}
		return s.cfg.Notebooks.ShareService(r.Context(), v.session.User, l.ID, share)
	})
}

func (s *Server) keepService(_ http.ResponseWriter, r *http.Request, v visitor) error {
	return s.changeService(r, v, "service.keep", func(l *notebooks.Launch) error {
		after, err := notebooks.ParseJobTime(strings.TrimSpace(r.PostForm.Get("stop-after")))
		if err != nil {
			return err
		}
		return s.cfg.Notebooks.KeepService(r.Context(), l.ID, after)
	})
}

func (s *Server) restartService(_ http.ResponseWriter, r *http.Request, v visitor) error {
	return s.changeService(r, v, "service.restart", func(l *notebooks.Launch) error {
		return s.cfg.Notebooks.RestartService(r.Context(), l.ID)
	})
}

func (s *Server) stopService(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.serviceFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	if l.Active() {
		if err := s.cfg.Notebooks.Stop(r.Context(), l.ID); err != nil {
			return fmt.Errorf("stop service %d: %w", l.ID, err)
		}
		s.audit(r, v, "service.stop", l.Handle, l.Audited())
	}
	next := r.PostForm.Get("next")
	if next == "" {
		next = "/services/" + strconv.FormatInt(l.ID, 10)
	}
	return seeOther(localPath(next))
}

func (s *Server) startServiceAgain(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.ownService(r, v)
	if err != nil {
		return err
	}
	again, err := s.cfg.Notebooks.ServeAgain(r.Context(), v.session.User, l.ID)
	if status := jobRefusal(err); status != 0 {
		return &problem{
			status: status, title: "The service was not taken", text: message(err), linkText: "Go to the services",
			link: "/services", cause: err,
		}
	}
	if err != nil {
		return fmt.Errorf("start service %d again: %w", l.ID, err)
	}
	s.audit(r, v, "service.start", again.Handle, fmt.Sprintf("%s, service %d again", again.Audited(), l.ID))
	return seeOther("/services/" + strconv.FormatInt(again.ID, 10))
}

// servicesParts are the live parts of the list of services.
func (s *Server) servicesParts(r *http.Request, v visitor, p page) parts {
	return func(ctx context.Context, _ *tick) ([]part, error) {
		view, err := s.servicesView(ctx, r, v)
		return []part{{id: "services", body: serviceList(p, "services", view.Rows)},
			{id: "shared", body: sharedList(view.Shared)}}, err
	}
}

// serviceParts are the live parts of a service's page.
func (s *Server) serviceParts(r *http.Request, v visitor, p page, id string) parts {
	return func(ctx context.Context, _ *tick) ([]part, error) {
		l, err := s.serviceFor(ctx, v, id)
		if err != nil {
			return nil, err
		}
		view := s.serviceView(r, v, &l)
		return []part{
			{id: "service-state", body: serviceState(view)},
			{id: "job-clock", body: jobClock(jobView{Elapsed: view.Elapsed})},
			{id: "service-detail", body: serviceDetail(view)},
			{id: "service-actions", body: serviceActions(p, view)},
			{id: "job-log", body: jobLogBox("/services/"+view.ID+"/log", view.Log)},
		}, nil
	}
}

// sendLog sends all that is kept of a log.
func (s *Server) sendLog(w http.ResponseWriter, l notebooks.Launch) error {
	part, err := s.cfg.Notebooks.Log(l, 0)
	if errors.Is(err, notebooks.ErrNoLog) {
		return errNoPage
	}
	kind := "job"
	if l.IsService() {
		kind = "service"
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%d.log"`, kind, l.ID))
	for err == nil && len(part.Data) > 0 {
		if part.LeftOut > 0 {
			_, _ = fmt.Fprintf(w, "\n[%d bytes are left out here]\n", part.LeftOut)
		}
		if _, err = w.Write(part.Data); err != nil {
			return nil // a client that went away
		}
		part, err = s.cfg.Notebooks.Log(l, part.Next)
	}
	return nil
}
