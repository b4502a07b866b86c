package webui

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
)

// A funnelView is the form that opens the lab to the public internet, after it was asked once whether that is meant.
type funnelView struct {
	Name        string // of the lab there, which is typed
	Typed       string
	HasPassword bool
	Stale       bool // there is no password, and the sign-in is too long ago

	Problem, NameError, PasswordError string
}

// mayFunnel is how the tailnet is, where the lab can be opened to the internet, and it is not yet.
func (s *Server) mayFunnel(r *http.Request) (ctl.Tailnet, error) {
	if s.cfg.Tailnet == nil {
		return ctl.Tailnet{}, errNoPage
	}
	now, err := s.cfg.Tailnet.Status(r.Context())
	if err == nil && (now.State != ctl.TailnetUp || now.Name == "" || now.Funnel != ctl.FunnelOff) {
		err = seeOther("/tailnet")
	}
	return now, err
}

func (s *Server) funnelPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	now, err := s.mayFunnel(r)
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, funnelPage(s.funnelFrame(w, r, v), now))
	return nil
}

func (s *Server) funnelFrame(w http.ResponseWriter, r *http.Request, v visitor) page {
	p := s.page(w, r, v, "Open the lab to the internet", "")
	p.Path = "/status"
	return p
}

func (s *Server) funnelView(v visitor, now ctl.Tailnet) funnelView {
	return funnelView{Name: now.Name, HasPassword: v.session.User.HasPassword, Stale: s.stale(v)}
}

func (s *Server) funnelOpenPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	now, err := s.mayFunnel(r)
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, funnelOpenPage(s.funnelFrame(w, r, v), s.funnelView(v, now)))
	return nil
}

// openFunnel opens the lab to the internet for an admin who has typed its name there and their password.
func (s *Server) openFunnel(w http.ResponseWriter, r *http.Request, v visitor) error {
	now, err := s.mayFunnel(r)
	if err != nil {
		return err
	}
	view := s.funnelView(v, now)
	view.Typed = clip(strings.TrimSpace(r.PostForm.Get("name")), 200)
	again := func(status int) error {
		s.render(w, r, status, funnelOpenPage(s.funnelFrame(w, r, v), view))
		return nil
	}
	if view.Stale {
		return again(http.StatusForbidden)
	}
	if !strings.EqualFold(view.Typed, now.Name) {
		view.NameError = "This is not the lab’s name in the tailnet. Nothing was changed."
		return again(http.StatusUnprocessableEntity)
	}
	status, why, err := s.tryOwnPassword(w, r, v, "password")
	if err != nil {
		return err
	}
	if why != "" {
		view.PasswordError = why
		return again(status)
	}
	if _, err := s.cfg.Tailnet.Funnel(r.Context(), true); errors.Is(err, ctl.ErrTailnet) {
		view.Problem = message(err)
		return again(http.StatusUnprocessableEntity)
	} else if err != nil {
		return err
	}
	s.audit(r, v, "tailnet.funnel-on", "", now.Name)
	return seeOther("/tailnet")
}

func (s *Server) closeFunnel(_ http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Tailnet == nil {
		return errNoPage
	}
	// Whoever came over the internet loses the connection by it.
	ctx := context.WithoutCancel(r.Context())
	if _, err := s.cfg.Tailnet.Funnel(ctx, false); err != nil {
		return err
	}
	s.audit(r.WithContext(ctx), v, "tailnet.funnel-off", "", "")
	return seeOther("/tailnet")
}
