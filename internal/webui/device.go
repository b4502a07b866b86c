package webui

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// deviceCodes are programs that ask for an access token.
type deviceCodes interface {
	// DeviceRequest is what a program asks for under a code.
	DeviceRequest(ctx context.Context, by users.User, code string) (users.DeviceRequest, error)
	// DecideDevice confirms it, or denies it.
	DecideDevice(ctx context.Context, by users.User, code string, allow bool, remote string) (users.DeviceRequest, error)
}

// A deviceView is the page on which somebody decides about a program, or types its code.
type deviceView struct {
	Typed, Error string // of the form for the code
	// Code is empty while no program is shown.
	Code, Client, Remote, May, Days, Left string
	Elsewhere                             string // this browser's address, where the program asks from another one
	Decided                               bool
	Allowed                               bool
}

func (s *Server) devicePage(w http.ResponseWriter, r *http.Request, v visitor) error {
	typed := clip(strings.TrimSpace(r.URL.Query().Get("code")), 40)
	if typed == "" {
		return s.showDevice(w, r, v, http.StatusOK, deviceView{})
	}
	asks, err := s.cfg.Users.DeviceRequest(r.Context(), v.session.User, typed)
	if err != nil {
		return s.deviceRefused(w, r, v, typed, err)
	}
	return s.showDevice(w, r, v, http.StatusOK, s.deviceView(r, asks))
}

func (s *Server) deviceView(r *http.Request, d users.DeviceRequest) deviceView {
	view := deviceView{Code: d.UserCode, Client: d.Client, Remote: orElse(d.Remote, unknownAddress),
		Days: count(d.Days, "day", "days"), Left: units.Lasting(d.Expires.Sub(s.now()))}
	for _, s := range scopes {
		if s.scope == d.Scope {
			view.May = s.may
		}
	}
	if here := remote(r); here != d.Remote {
		view.Elsewhere = here
	}
	return view
}

// deviceRefused shows the form for a code again, with what was typed.
func (s *Server) deviceRefused(w http.ResponseWriter, r *http.Request, v visitor, typed string, err error) error {
	status, tooMany := limited(w, err)
	switch {
	case tooMany:
	case errors.Is(err, users.ErrDeviceUnknown):
		status = http.StatusNotFound
	default:
		return err
	}
	return s.showDevice(w, r, v, status, deviceView{Typed: typed, Error: message(err)})
}

func (s *Server) showDevice(w http.ResponseWriter, r *http.Request, v visitor, status int, view deviceView) error {
	s.render(w, r, status, devicePage(s.page(w, r, v, "Let a program in", ""), view))
	return nil
}

func (s *Server) decideDevice(w http.ResponseWriter, r *http.Request, v visitor) error {
	code := clip(strings.TrimSpace(r.PostForm.Get("code")), 40)
	decision := r.PostForm.Get("decision")
	if decision != "allow" && decision != "deny" {
		return errFormUnreadable
	}
	asks, err := s.cfg.Users.DecideDevice(r.Context(), v.session.User, code, decision == "allow", remote(r))
	if err != nil {
		return s.deviceRefused(w, r, v, code, err)
	}
	view := s.deviceView(r, asks)
	view.Decided, view.Allowed = true, decision == "allow"
	return s.showDevice(w, r, v, http.StatusOK, view)
}
