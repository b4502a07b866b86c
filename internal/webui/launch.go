package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// A launchView is the progress page of one launch.
type launchView struct {
	ID, Title, ProfileTitle string
	State                   string
	Headline, Text          string
	Elapsed                 string
	Tone                    tone
	Steps                   []stepView
	Holders                 []launchHolder
	Where                   string // the machine, and why that one; "" in a lab of one
	Scratch                 string // what it may write on its machine's own disk, while it has one
	Own                     bool
	Simulated               bool
	Open                    string // address of the notebook while it runs
	AutoOpen                bool   // whether it opens even if the page sees it ready at once
	MayStop, MayCancel      bool
	// Instead is a profile without a GPU to start while this one waits.
	Instead *notebooks.Profile
	// Again is set when it ended: the profile to start once more.
	Again string
	// Idle is set while it is about to be stopped, Activity while it holds GPUs: when
	// each kind of activity was seen last.
	Idle     *warnedView
	Activity []activityView
}

type launchHolder struct{ User, What, For string }

// autoOpenFor is how long after it became ready a notebook still opens by
// itself when its page is opened. Somebody who comes later wants the page; a
// page that was open while it started leads on whenever it is ready.
const autoOpenFor = 20 * time.Second

// stepNames are the steps of package notebooks in words.
var stepNames = map[string]string{
	notebooks.StepQueue:     "Place in the queue",
	notebooks.StepNamespace: "Your space (namespace)",
	notebooks.StepImage:     "Software (image)",
	notebooks.StepPod:       "Container (pod)",
	notebooks.StepServer:    "JupyterLab (server)",
}

func (s *Server) launch(w http.ResponseWriter, r *http.Request, v visitor) error {
	request := notebooks.Request{Profile: r.PostForm.Get("profile"), Title: strings.TrimSpace(r.PostForm.Get("title"))}
	if instead := r.PostForm.Get("instead"); instead != "" {
		waiting, err := s.launchFor(r.Context(), v, instead)
		if err != nil {
			return err
		}
		request.Instead = waiting.ID
	}
	launched, err := s.cfg.Notebooks.Launch(r.Context(), v.session.User, request)
	if err != nil {
		return launchProblem(err)
	}
	detail := launched.Audited()
	if request.Instead != 0 {
		detail += fmt.Sprintf(", instead of launch %d", request.Instead)
	}
	s.audit(r, v, "notebook.launch", launched.Handle, detail)
	return seeOther("/launches/" + strconv.FormatInt(launched.ID, 10))
}

// launchProblem turns the refusals of package notebooks into pages.
func launchProblem(err error) error {
	var obstacle *notebooks.ObstacleError
	if errors.As(err, &obstacle) || errors.Is(err, quota.ErrUsedUp) {
		return &problem{status: http.StatusConflict, title: "The notebook was not started",
			text: message(err), linkText: "Go to the home page", link: "/", cause: err}
	}
	for refusal, status := range map[error]int{
		notebooks.ErrProfileUnknown: http.StatusBadRequest,
		notebooks.ErrTitleInvalid:   http.StatusBadRequest,
		notebooks.ErrTooMany:        http.StatusConflict,
	} {
		if errors.Is(err, refusal) {
			return &problem{status: status, title: "The notebook was not started",
				text: sentence(refusal.Error()), linkText: "Go to the home page", link: "/", cause: err}
		}
	}
	return fmt.Errorf("launch: %w", err)
}

// launchFor reads a launch that the visitor may act on: their own, or any for
// people who manage theirs. To others it does not exist.
func (s *Server) launchFor(ctx context.Context, v visitor, id string) (notebooks.Launch, error) {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return notebooks.Launch{}, errNoPage
	}
	l, err := s.cfg.Notebooks.Get(ctx, number)
	switch {
	case errors.Is(err, notebooks.ErrNotFound):
		return notebooks.Launch{}, errNoPage
	case err != nil:
		return notebooks.Launch{}, fmt.Errorf("read launch %d: %w", number, err)
	case !v.mayOn(users.ActionManageNotebooks, l.UserID):
		return notebooks.Launch{}, errNoPage
	}
	return l, nil
}

func (s *Server) launchPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.launchFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	if l.IsService() {
		return seeOther("/services/" + r.PathValue("id"))
	}
	if l.Job != nil {
		return seeOther("/jobs/" + r.PathValue("id"))
	}
	view := s.launchView(r, v, &l)
	s.render(w, r, http.StatusOK, launchPage(s.page(w, r, v, view.Title, "view=launch&id="+view.ID), view))
	return nil
}

func (s *Server) stopLaunch(_ http.ResponseWriter, r *http.Request, v visitor) error {
	return s.endLaunch(r, v, s.cfg.Notebooks.Stop, "stop")
}

func (s *Server) cancelLaunch(_ http.ResponseWriter, r *http.Request, v visitor) error {
	return s.endLaunch(r, v, s.cfg.Notebooks.Cancel, "cancel")
}

// endLaunch stops or cancels a launch. One that ended in the meantime is what
// the person wanted, not an error.
func (s *Server) endLaunch(r *http.Request, v visitor, end func(context.Context, int64) error, verb string) error {
	l, err := s.launchFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	if l.Active() {
		if err := end(r.Context(), l.ID); err != nil && !errors.Is(err, notebooks.ErrNotFound) {
			return fmt.Errorf("%s launch %d: %w", verb, l.ID, err)
		}
		action := "notebook.stop"
		if verb == "cancel" {
			action = "notebook.cancel"
		}
		s.audit(r, v, action, l.Handle, l.Audited())
	}
	return seeOther(localPath(r.PostForm.Get("next")))
}

func (s *Server) launchView(r *http.Request, v visitor, l *notebooks.Launch) launchView {
	view := launchView{ID: strconv.FormatInt(l.ID, 10), Title: l.Title, ProfileTitle: s.profileTitle(l.Profile),
		State: string(l.State), Own: l.UserID == v.session.User.ID,
		Simulated: simulated(l, s.machines(s.cfg.Fleet.Snapshots(), v, false))}
	_, view.Tone = stateWords(l)
	view.Idle, view.Activity = s.activity(l)
	for _, step := range l.Detail {
		if strings.TrimSuffix(step.Text, ".") == strings.TrimSuffix(l.Reason, ".") {
			step.Text = "" // the headline says it
		}
		view.Steps = append(view.Steps, stepViewOf(step))
	}
	if l.Node != "" && l.Active() && len(s.cfg.Fleet.Snapshots()) > 1 {
		view.Where = strings.TrimSpace("It runs on " + s.called(l.Node) + ". " + l.WhyHere())
	}
	if l.Active() && l.State != notebooks.Waiting {
		view.Scratch = s.cfg.Scratch
	}
	view.MayCancel = l.State == notebooks.Waiting
	view.MayStop = l.State == notebooks.Starting || l.State == notebooks.Running
	now := s.now()
	switch l.State {
	case notebooks.Waiting:
		if !l.Never {
			view.Elapsed = units.Duration(now.Sub(l.Requested))
		}
		s.describeWaiting(&view, v, l)
	case notebooks.Starting:
		view.Elapsed = units.Duration(now.Sub(l.Started))
		// What it does at the moment stands beside its step.
		view.Headline, view.Text = "Starting", "It opens here by itself as soon as it is ready."
	case notebooks.Running:
		view.Headline = "Running"
		view.Text = strings.TrimSpace("It has been ready for " + units.Lasting(now.Sub(l.Ready)) + ". " + sentence(l.Reason))
		if view.Own {
			view.Open = s.notebookURL(r, l)
			view.AutoOpen = now.Sub(l.Ready) < autoOpenFor
		}
	case notebooks.Stopping:
		view.Headline, view.Text = "Stopping", orElse(l.Reason, "Files in the home folder stay.")
	case notebooks.Ended:
		describeEnded(&view, l)
	}
	return view
}

// describeWaiting says why a launch waits, who is in its way, and what to do.
func (s *Server) describeWaiting(view *launchView, v visitor, l *notebooks.Launch) {
	view.Headline = "Waiting"
	if l.GPUs > 0 {
		view.Headline = "Waiting for " + count(l.GPUs, "GPU", "GPUs")
	}
	if l.Never {
		view.Headline = "This can never start here"
		view.Text = orElse(l.Reason, "It asks for "+count(l.GPUs, "GPU", "GPUs")+", more than a machine of this lab has.")
	} else {
		view.Text = strings.TrimSpace(sentence(l.Reason) + " It starts by itself, even if you close this page.")
	}
	for _, h := range l.Holders {
		what := count(h.GPUs, "GPU", "GPUs")
		if h.Node != "" && len(s.cfg.Fleet.Snapshots()) > 1 {
			what += " on " + s.called(h.Node)
		}
		view.Holders = append(view.Holders, launchHolder{
			User: personName(h.Handle, h.Pod, v), What: what, For: since(h.Since, s.now()),
		})
	}
	if l.GPUs == 0 || !view.Own {
		return
	}
	if roomIn(s.machines(s.cfg.Fleet.Snapshots(), v, false), notebooks.GPUKind{}).closed {
		return // one without a GPU would wait as well
	}
	for _, p := range s.cfg.Notebooks.Profiles() {
		if p.GPUs == 0 {
			view.Instead = &p
			return
		}
	}
}

func describeEnded(view *launchView, l *notebooks.Launch) {
	view.Text = sentence(l.Reason)
	if view.Own {
		view.Again = l.Profile
	}
	switch l.EndCode {
	case notebooks.EndStopped:
		view.Headline = "Stopped"
	case notebooks.EndCancelled:
		view.Headline = "Cancelled"
	case notebooks.EndFailed:
		view.Headline = "It could not be started"
	case notebooks.EndQuota:
		view.Headline = "Stopped: the quota is used up"
	case notebooks.EndIdle:
		view.Headline = "Stopped: nobody used its GPU"
	case notebooks.EndAge:
		view.Headline = "Stopped: it ran as long as one may"
	case notebooks.EndOutOfMemory:
		view.Headline = "It ran out of memory"
	case notebooks.EndInterrupted:
		view.Headline = "It was interrupted"
	default:
		view.Headline = "It has ended"
	}
	if !l.Ready.IsZero() {
		view.Steps = nil // how it once started is no news any more
	}
}

func stepViewOf(step notebooks.Step) stepView {
	name, known := stepNames[step.Name]
	if !known {
		name = step.Name
	}
	view := stepView{State: step.State, Name: name}
	if step.State != "waiting" { // what it will do is in its name
		view.Text, view.Took = step.Text, units.Duration(step.Elapsed)
	}
	return view
}

// launchParts are the live parts of a launch's page. Its steps count seconds,
// so the launch is read every time.
func (s *Server) launchParts(r *http.Request, v visitor, p page, id string) parts {
	return func(ctx context.Context, _ *tick) ([]part, error) {
		l, err := s.launchFor(ctx, v, id)
		if err != nil {
			return nil, err
		}
		view := s.launchView(r, v, &l)
		return []part{
			{id: "launch-state", body: launchState(view)},
			{id: "launch-clock", body: launchClock(view)},
			{id: "launch-idle", body: launchIdle(p, view)},
			{id: "launch-detail", body: launchDetail(view)},
			{id: "launch-actions", body: launchActions(p, view)},
		}, nil
	}
}
