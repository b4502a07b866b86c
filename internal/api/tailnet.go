package api

import (
	"context"
	"net/http"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Tailnet brings the lab into a tailnet and out of it. What cannot be is an ErrTailnet of package ctl with a sentence.
type Tailnet interface {
	Status(ctx context.Context) (ctl.Tailnet, error)
	Up(ctx context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error)
	Down(ctx context.Context) (ctl.Tailnet, error)
	// Funnel opens the lab to the public internet, or closes it; only pages open it.
	Funnel(ctx context.Context, on bool) (ctl.Tailnet, error)
	Logout(ctx context.Context) (ctl.Tailnet, error)
}

type tailnetInput struct {
	Body struct {
		AuthKey     string `json:"authKey,omitempty" maxLength:"4096" doc:"A key of the tailnet that lets the lab in without a person; it is used once and kept nowhere"`
		LoginServer string `json:"loginServer,omitempty" maxLength:"200" doc:"A control server of your own; empty is the one the lab is known to, or Tailscale's" example:"https://headscale.example.org"`
		Hostname    string `json:"hostname,omitempty" maxLength:"63" doc:"What the lab is called in the tailnet; empty leaves it as it is"`
	}
}

func (s *Server) addTailnet() {
	add(s, Operation{Method: "GET", Path: "/tailnet", ID: "getTailnet", Need: users.ActionManageLab, tag: "lab",
		summary:     "How the lab stands with its tailnet",
		description: "What `gpulab tailnet status --json` prints."}, s.getTailnet)
	add(s, Operation{Method: "POST", Path: "/tailnet/up", ID: "turnTailnetOn", Need: users.ActionManageLab, tag: "lab",
		summary:     "Join a tailnet, or turn it on again",
		description: "It does not wait: getTailnet says when the lab is in, or where somebody has to let it in."},
		s.turnTailnetOn)
	add(s, Operation{Method: "POST", Path: "/tailnet/down", ID: "turnTailnetOff", Need: users.ActionManageLab, tag: "lab",
		summary:     "Turn the tailnet off",
		description: "The lab stays known to it. Whoever asks over the tailnet loses the connection.", status: http.StatusOK},
		s.turnTailnetOff)
	add(s, Operation{Method: "DELETE", Path: "/tailnet/funnel", ID: "closeFunnel", Need: users.ActionManageLab, tag: "lab",
		summary:     "Close the lab to the public internet",
		description: "The tailnet stays on. To open the lab to the internet takes a person, on the page Tailnet.",
		status:      http.StatusOK}, s.closeFunnel)
	add(s, Operation{Method: "DELETE", Path: "/tailnet", ID: "leaveTailnet", Need: users.ActionManageLab, tag: "lab",
		summary:     "Leave the tailnet",
		description: "To come back, somebody has to let the lab in again.", status: http.StatusOK}, s.leaveTailnet)
}

func (s *Server) getTailnet(ctx context.Context, c *call, _ *noInput) (*body[ctl.Tailnet], error) {
	now, err := s.cfg.Tailnet.Status(ctx)
	if err != nil {
		return nil, err
	}
	if c.token.Scope != users.ScopeFull {
		now.LoginURL = "" // whoever opens it may take the lab into a tailnet of theirs
	}
	return answerWith(now)
}

func (s *Server) turnTailnetOn(ctx context.Context, c *call, in *tailnetInput) (*body[ctl.Tailnet], error) {
	now, err := s.cfg.Tailnet.Up(ctx, ctl.TailnetRequest{
		AuthKey: in.Body.AuthKey, LoginServer: in.Body.LoginServer, Hostname: in.Body.Hostname,
	})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "tailnet.up", "", now.LoginServer)
	return answerWith(now)
}

func (s *Server) turnTailnetOff(ctx context.Context, c *call, _ *noInput) (*body[ctl.Tailnet], error) {
	ctx = context.WithoutCancel(ctx) // the connection may be lost by it
	now, err := s.cfg.Tailnet.Down(ctx)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "tailnet.down", "", "")
	return answerWith(now)
}

func (s *Server) closeFunnel(ctx context.Context, c *call, _ *noInput) (*body[ctl.Tailnet], error) {
	ctx = context.WithoutCancel(ctx)
	now, err := s.cfg.Tailnet.Funnel(ctx, false)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "tailnet.funnel-off", "", "")
	return answerWith(now)
}

func (s *Server) leaveTailnet(ctx context.Context, c *call, _ *noInput) (*body[ctl.Tailnet], error) {
	ctx = context.WithoutCancel(ctx)
	now, err := s.cfg.Tailnet.Logout(ctx)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "tailnet.logout", "", "")
	return answerWith(now)
}
