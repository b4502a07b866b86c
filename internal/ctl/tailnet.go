package ctl

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ErrTailnet is about what cannot be asked of the tailnet.
var ErrTailnet = errors.New("not possible with the tailnet")

// States of Tailnet.
const (
	TailnetOff      = "off"      // turned off, or never turned on
	TailnetStarting = "starting" // the control server has not let the lab in yet, or does not answer
	TailnetLogin    = "login"    // a person or a key has to let it in
	TailnetApproval = "approval" // an admin of the tailnet has to approve the machine
	TailnetUp       = "up"
	TailnetFailed   = "failed"
)

// States of the funnel, which opens the lab to the public internet.
const (
	FunnelOff     = "off"
	FunnelOpening = "opening"
	FunnelOpen    = "open"
	FunnelFailed  = "failed"
)

// Tailnet is how the lab stands with its tailnet.
type Tailnet struct {
	State string `json:"state"`
	// Detail is a sentence about it, NextStep what to do, "" for nothing.
	Detail   string `json:"detail"`
	NextStep string `json:"nextStep,omitempty"`
	// LoginServer is the control server, "" for a lab that belongs to no tailnet.
	LoginServer string `json:"loginServer,omitempty"`
	// LoginURL is where somebody of the tailnet lets the lab in, while that is needed.
	LoginURL string `json:"loginURL,omitempty"`
	// URL is where the lab is opened over the tailnet, while it is up.
	URL       string   `json:"url,omitempty"`
	Name      string   `json:"name,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Tailnet   string   `json:"tailnet,omitempty"`
	// Trusted tells that browsers trust its certificate there without knowing the lab's own authority.
	Trusted bool `json:"trusted"`
	// Expires is when somebody has to let it in again; nil for never, or not known.
	Expires *time.Time `json:"expires,omitempty"`
	// Funnel says, while it is up, whether the lab is open to the public internet there too: FunnelOff and so on.
	Funnel string `json:"funnel,omitempty"`
	// SignIn says whether who visits is signed in by that: off, offer or require.
	SignIn string `json:"signIn"`
}

// TailnetRequest is how to join.
type TailnetRequest struct {
	// AuthKey lets the lab in without a person. It is used once and kept nowhere.
	AuthKey     string `json:"authKey,omitempty"`
	LoginServer string `json:"loginServer,omitempty"`
	Hostname    string `json:"hostname,omitempty"`
}

// Tailnets is what the socket offers about the tailnet. What cannot be asked of it is an ErrTailnet.
type Tailnets interface {
	Tailnet(ctx context.Context) (Tailnet, error)
	// TailnetUp turns it on, and keeps it on over restarts; it does not wait until the lab is in.
	TailnetUp(ctx context.Context, r TailnetRequest) (Tailnet, error)
	// TailnetDown turns it off; the lab stays known to the tailnet.
	TailnetDown(ctx context.Context) (Tailnet, error)
	// TailnetFunnelOff closes the lab to the public internet. It is opened by a person, on the page.
	TailnetFunnelOff(ctx context.Context) (Tailnet, error)
	// TailnetLogout turns it off and forgets the tailnet.
	TailnetLogout(ctx context.Context) (Tailnet, error)
}

func handleTailnet(mux *http.ServeMux, d Tailnets) {
	mux.HandleFunc("GET /v1/tailnet", answer(func(r *http.Request) (any, error) { return d.Tailnet(r.Context()) }))
	mux.HandleFunc("POST /v1/tailnet/up", answer(withBody(largeBody,
		func(r *http.Request, in TailnetRequest) (any, error) { return d.TailnetUp(r.Context(), in) })))
	mux.HandleFunc("POST /v1/tailnet/down", answer(func(r *http.Request) (any, error) {
		return d.TailnetDown(r.Context())
	}))
	mux.HandleFunc("DELETE /v1/tailnet/funnel", answer(func(r *http.Request) (any, error) {
		return d.TailnetFunnelOff(r.Context())
	}))
	mux.HandleFunc("DELETE /v1/tailnet", answer(func(r *http.Request) (any, error) {
		return d.TailnetLogout(r.Context())
	}))
}

// Tailnet implements Daemon.
func (c *Client) Tailnet(ctx context.Context) (Tailnet, error) {
	return call[Tailnet](ctx, c, http.MethodGet, "/v1/tailnet", nil)
}

// TailnetUp implements Daemon.
func (c *Client) TailnetUp(ctx context.Context, r TailnetRequest) (Tailnet, error) {
	return call[Tailnet](ctx, c, http.MethodPost, "/v1/tailnet/up", r)
}

// TailnetDown implements Daemon.
func (c *Client) TailnetDown(ctx context.Context) (Tailnet, error) {
	return call[Tailnet](ctx, c, http.MethodPost, "/v1/tailnet/down", nil)
}

// TailnetFunnelOff implements Daemon.
func (c *Client) TailnetFunnelOff(ctx context.Context) (Tailnet, error) {
	return call[Tailnet](ctx, c, http.MethodDelete, "/v1/tailnet/funnel", nil)
}

// TailnetLogout implements Daemon.
func (c *Client) TailnetLogout(ctx context.Context) (Tailnet, error) {
	return call[Tailnet](ctx, c, http.MethodDelete, "/v1/tailnet", nil)
}
