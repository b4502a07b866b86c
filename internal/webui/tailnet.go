package webui

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
)

// Tailnet brings the lab into a tailnet and out of it. What cannot be is an ErrTailnet of package ctl with a sentence.
type Tailnet interface {
	Status(ctx context.Context) (ctl.Tailnet, error)
	Up(ctx context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error)
	Down(ctx context.Context) (ctl.Tailnet, error)
	// Funnel opens the lab to the public internet, or closes it.
	Funnel(ctx context.Context, on bool) (ctl.Tailnet, error)
	Logout(ctx context.Context) (ctl.Tailnet, error)
}

// Network lets people sign in as who they are in the network that their connection came over.
type Network struct {
	Info signin.Info
	// Visitor says who sent a request; false for whoever came another way, or whom that network does not know.
	Visitor func(r *http.Request) (users.Outside, bool)
	// Required tells whether who sent a request comes in by that alone.
	Required func(r *http.Request) bool
}

// A tailnetView is what the page about the tailnet shows.
type tailnetView struct {
	ctl.Tailnet
	Tone    tone
	Words   string // the state, in one
	Code    *qrView
	Expires string
	// Problem says why something was not done.
	Problem string
	Form    ctl.TailnetRequest
}

// public tells whether somebody has opened the lab to the internet.
func (v tailnetView) public() bool { return v.Funnel != "" && v.Funnel != ctl.FunnelOff }

func (v tailnetView) off() bool { return v.State == ctl.TailnetOff || v.State == ctl.TailnetFailed }

// refreshing tells whether the page will soon show something else.
func (v tailnetView) refreshing() bool {
	return v.State == ctl.TailnetStarting || v.LoginURL != "" || v.Funnel == ctl.FunnelOpening
}

var tailnetTones = map[string]tone{
	ctl.TailnetUp: "ok", ctl.TailnetStarting: "info", ctl.TailnetLogin: "warn", ctl.TailnetApproval: "warn",
	ctl.TailnetFailed: "bad",
}

var tailnetStates = map[string]string{
	ctl.TailnetUp: "on", ctl.TailnetOff: "off", ctl.TailnetStarting: "starting", ctl.TailnetLogin: "has to be let in",
	ctl.TailnetApproval: "has to be approved", ctl.TailnetFailed: "failed",
}

func (s *Server) tailnetPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Tailnet == nil {
		return errNoPage
	}
	now, err := s.cfg.Tailnet.Status(r.Context())
	if err != nil {
		return err
	}
	return s.showTailnet(w, r, v, http.StatusOK, tailnetView{Tailnet: now})
}

func (s *Server) showTailnet(w http.ResponseWriter, r *http.Request, v visitor, status int,
	view tailnetView) (err error) {
	view.Tone, view.Words = tailnetTones[view.State], tailnetStates[view.State]
	if view.Tailnet.Expires != nil {
		view.Expires = day(*view.Tailnet.Expires)
	}
	if view.LoginURL != "" {
		if view.Code, err = newQR(view.LoginURL); err != nil {
			return err
		}
	}
	if status == http.StatusOK && view.refreshing() {
		w.Header().Set("Refresh", "3")
	}
	p := s.page(w, r, v, "Tailnet", "")
	p.Path = "/status"
	s.render(w, r, status, tailnetPage(p, view))
	return nil
}

func (s *Server) turnTailnetOn(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Tailnet == nil {
		return errNoPage
	}
	ask := ctl.TailnetRequest{
		AuthKey: strings.TrimSpace(r.PostForm.Get("key")), LoginServer: strings.TrimSpace(r.PostForm.Get("server")),
		Hostname: strings.TrimSpace(r.PostForm.Get("hostname")),
	}
	now, err := s.cfg.Tailnet.Up(r.Context(), ask)
	if errors.Is(err, ctl.ErrTailnet) {
		ask.AuthKey = "" // it is typed again
		return s.showTailnet(w, r, v, http.StatusUnprocessableEntity,
			tailnetView{Tailnet: now, Problem: message(err), Form: ask})
	}
	if err != nil {
		return err
	}
	s.audit(r, v, "tailnet.up", "", now.LoginServer)
	return seeOther("/tailnet")
}

func (s *Server) turnTailnetOff(_ http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Tailnet == nil {
		return errNoPage
	}
	// Whoever is here over the tailnet loses the connection by it; it is recorded all the same.
	ctx := context.WithoutCancel(r.Context())
	if _, err := s.cfg.Tailnet.Down(ctx); err != nil {
		return err
	}
	s.audit(r.WithContext(ctx), v, "tailnet.down", "", "")
	return seeOther("/tailnet")
}

func (s *Server) leaveTailnet(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Tailnet == nil {
		return errNoPage
	}
	ctx := context.WithoutCancel(r.Context())
	now, err := s.cfg.Tailnet.Logout(ctx)
	if err != nil {
		return err
	}
	s.audit(r.WithContext(ctx), v, "tailnet.logout", "", "")
	if now.NextStep != "" {
		return s.showTailnet(w, r, v, http.StatusOK, tailnetView{Tailnet: now})
	}
	return seeOther("/tailnet")
}

// onlyByNetwork refuses somebody who comes in by the network alone, and whom it does not vouch for at the moment.
func (s *Server) onlyByNetwork(r *http.Request, guest *invitedView) error {
	if s.cfg.Network != nil && s.cfg.Network.Required(r) && guest == nil {
		return errNotOverNetwork
	}
	return nil
}

// network is the way to sign in by the connection, for providers that pages list.
func (s *Server) network() []signin.Info {
	if s.cfg.Network == nil {
		return nil
	}
	return []signin.Info{s.cfg.Network.Info}
}

// A guestView is who a visitor is in the network that they come over.
type guestView struct {
	Name, Title, Username string
	Refused               string
}

// addNetwork puts signing in by the connection on the sign-in page, for whoever came over that network.
func (s *Server) addNetwork(r *http.Request, view *loginView) {
	if s.cfg.Network == nil {
		return
	}
	view.Only = s.cfg.Network.Required(r)
	if who, ok := s.cfg.Network.Visitor(r); ok {
		view.Guest = &guestView{Name: s.cfg.Network.Info.Name, Title: who.Title, Username: who.Username, Refused: who.Refused}
		if who.ByHand && who.Refused != "" && !view.Only {
			view.Guest.Refused += " If you have an account here, sign in with its password, and link the two on its page."
		}
	}
}

// An invitedView is whom the network vouches for that somebody came over who was sent a link; nil for nobody.
type invitedView struct {
	users.Outside
	Wanted bool // that signs them in from now on
	Only   bool // and no password is taken
}

// invited says who somebody with an invitation or a one-time link is in the network that they came over.
func (s *Server) invited(r *http.Request) *invitedView {
	if s.cfg.Network == nil {
		return nil
	}
	who, ok := s.cfg.Network.Visitor(r)
	if !ok || who.Machine || who.Refused != "" && !who.ByHand {
		return nil
	}
	only := s.cfg.Network.Required(r)
	return &invitedView{Outside: who, Only: only, Wanted: only || r.Method == http.MethodGet ||
		r.PostForm.Get("guest") != ""}
}

var errNotOverNetwork = &problem{status: http.StatusForbidden, title: "You did not come over the tailnet",
	text: "This way to sign in is for whoever opens the lab by its name in the tailnet, with a device that is in it. " +
		"Nothing was changed.", linkText: "Back to sign-in", link: "/login"}

// enterByNetwork signs in who sent the request, as the network vouches.
func (s *Server) enterByNetwork(w http.ResponseWriter, r *http.Request, v visitor) error {
	done, err := s.cfg.Users.LimitOutside(browserKey(r, v), remote(r))
	if err != nil {
		return outsideProblem(err)
	}
	who, ok := s.cfg.Network.Visitor(r)
	done(!ok)
	if !ok {
		s.cfg.Users.FailOutside(r.Context(), "", s.cfg.Network.Info.Name, "came another way", remote(r))
		return errNotOverNetwork
	}
	user, err := s.cfg.Users.SignInOutside(r.Context(), who, remote(r))
	return s.enter(w, r, v, user, err, localPath(r.PostForm.Get("next")))
}

// linkByNetwork links who sent the request with the account that is signed in.
func (s *Server) linkByNetwork(r *http.Request, v visitor) error {
	who, ok := s.cfg.Network.Visitor(r)
	if !ok {
		return errNotOverNetwork
	}
	return s.link(r, v, who)
}
