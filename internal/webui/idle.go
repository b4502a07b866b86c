package webui

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Idle knows who holds GPUs without use, and what became of that.
type Idle interface {
	Holdings() []idle.Holding
	Of(launch int64) (idle.Holding, bool)
	// Warned are somebody's notebooks that are about to be stopped.
	Warned(userID int64) []idle.Holding
	Extend(ctx context.Context, launch int64) (idle.Holding, error)
	Free(ctx context.Context, launch int64, by string) (idle.Holding, error)
	// Reclaims is what was taken back since then, of everybody where userID is 0, the newest first.
	Reclaims(ctx context.Context, userID int64, from time.Time, limit int) ([]idle.Reclaim, error)
}

// A warnedView is a notebook that is about to be stopped.
type warnedView struct {
	ID, Title string
	Text      string
	Left      string // of the countdown: "9:41"
	MayKeep   bool
	Times     string // how often it can be kept, for people
}

// An activityView is when one kind of activity was seen last.
type activityView struct{ Name, Seen string }

// An idleHolder is who holds a GPU without use, for somebody who may free it.
type idleHolder struct{ ID, User, For string }

// A reclaimedView is a notebook that was taken back.
type reclaimedView struct{ When, User, Why, Idle, For, By string }

// warned are the visitor's notebooks that are about to be stopped.
func (s *Server) warned(v visitor) []warnedView {
	if s.cfg.Idle == nil {
		return nil
	}
	var list []warnedView
	for _, h := range s.cfg.Idle.Warned(v.session.User.ID) {
		list = append(list, s.warnedView(h))
	}
	return list
}

func (s *Server) warnedView(h idle.Holding) warnedView {
	view := warnedView{
		ID: strconv.FormatInt(h.Launch, 10), Title: h.Title, Text: h.Notice(), Left: idle.Left(h.Ends.Sub(s.now())),
		MayKeep: h.MayExtend(),
	}
	if view.MayKeep {
		view.Times = "It then stays for " + units.Lasting(h.Policy.Extend) + " at least."
		if h.Extensions+1 == h.Policy.Extensions {
			view.Times += " This can be done once more."
		}
	}
	return view
}

// activity is what is known of a running notebook's use.
func (s *Server) activity(l *notebooks.Launch) (*warnedView, []activityView) {
	if s.cfg.Idle == nil || l.State != notebooks.Running {
		return nil, nil
	}
	h, ok := s.cfg.Idle.Of(l.ID)
	if !ok {
		return nil, nil
	}
	var list []activityView
	if h.GPUs > 0 {
		for _, k := range idle.Kinds() {
			list = append(list, activityView{Name: sentenceCase(k.Words()), Seen: s.seen(h, k)})
		}
	}
	if h.State != idle.Warned {
		return nil, list
	}
	view := s.warnedView(h)
	return &view, list
}

// seen says when a kind of activity was seen last.
func (s *Server) seen(h idle.Holding, k idle.Kind) string {
	at := h.Seen[k]
	switch ago := s.now().Sub(at); {
	case !at.After(h.Since):
		return "not yet"
	case ago < time.Minute:
		return "at work"
	default:
		return units.Lasting(ago) + " ago"
	}
}

// idleHolders are the notebooks that hold a GPU without use.
func (s *Server) idleHolders(g *gpu.GPU) []idleHolder {
	if s.cfg.Idle == nil {
		return nil
	}
	var list []idleHolder
	for _, h := range s.cfg.Idle.Holdings() {
		for i := range g.Holders {
			if g.Holders[i].UID == h.PodUID && !g.Holders[i].IdleSince.IsZero() && h.State != idle.Stopped {
				list = append(list, idleHolder{ID: strconv.FormatInt(h.Launch, 10), User: h.Handle, For: units.Lasting(h.Idle)})
			}
		}
	}
	return list
}

// keepLaunch keeps a notebook that is about to be stopped.
func (s *Server) keepLaunch(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.launchFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	err = idle.ErrNotWarned
	if s.cfg.Idle != nil {
		_, err = s.cfg.Idle.Extend(r.Context(), l.ID)
	}
	if err != nil {
		return idleProblem("The notebook was not kept", err, "/launches/"+strconv.FormatInt(l.ID, 10))
	}
	s.audit(r, v, "idle.extend", l.Handle, l.Audited())
	return seeOther(localPath(r.PostForm.Get("next")))
}

// freeLaunch ends a notebook that holds a GPU without use.
func (s *Server) freeLaunch(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.launchFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	back := localPath(r.PostForm.Get("next"))
	err = idle.ErrNotIdle
	if s.cfg.Idle != nil {
		_, err = s.cfg.Idle.Free(r.Context(), l.ID, v.session.User.Handle)
	}
	if err != nil {
		return idleProblem("The GPU was not freed", err, back)
	}
	s.audit(r, v, "idle.free", l.Handle, l.Audited())
	return seeOther(back)
}

// idleProblem turns the refusals of package idle into a page.
func idleProblem(title string, err error, back string) error {
	for _, refusal := range []error{idle.ErrNotWarned, idle.ErrNoMore, idle.ErrTooLate, idle.ErrNotIdle} {
		if errors.Is(err, refusal) {
			return &problem{
				status: http.StatusConflict, title: title, text: sentence(refusal.Error()), linkText: "Go back", link: back,
				cause: err,
			}
		}
	}
	return err
}

// mostReclaims is how many lines the list of what was taken back has at most.
const mostReclaims = 100

// reclaimed is what was taken back: from everybody for who may see that, otherwise from the visitor.
func (s *Server) reclaimed(ctx context.Context, v visitor, from time.Time) ([]reclaimedView, error) {
	if s.cfg.Idle == nil {
		return nil, nil
	}
	whose := v.session.User.ID
	if v.session.User.Scope(users.ActionSeeUse) == users.Everybody {
		whose = 0
	}
	list, err := s.cfg.Idle.Reclaims(ctx, whose, from, mostReclaims)
	if err != nil {
		return nil, err
	}
	var out []reclaimedView
	for _, r := range list {
		view := reclaimedView{
			When: r.At.Local().Format("Mon 2 Jan 15:04"), User: r.User, Why: "nobody used it", Idle: units.Lasting(r.Idle),
			For: r.For, By: r.By,
		}
		switch r.Cause {
		case idle.CauseAge:
			view.Why = "it ran for " + units.Lasting(r.Ran)
		case idle.CauseFreed:
			view.Why = "freed by " + r.By
		}
		out = append(out, view)
	}
	return out, nil
}

func gpuPath(uuid string) string { return "/gpus/" + url.PathEscape(uuid) }
