package ctl

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/gpulab/gpulab/internal/users"
)

// WaysIn are how people get accounts of their own: by invitation, or by asking.
type WaysIn interface {
	Invitations(ctx context.Context) ([]users.Invitation, error)
	Invite(ctx context.Context, n NewInvitation) (Invited, error)
	RevokeInvitation(ctx context.Context, id int64) (users.Invitation, error)

	// Requests are those of people who asked for an account, the oldest first.
	Requests(ctx context.Context) ([]users.SignUp, error)
	ApproveRequest(ctx context.Context, id int64, a Approval) (users.User, error)
	DeclineRequest(ctx context.Context, id int64) (users.SignUp, error)
}

// NewInvitation is what `gpulab invitation add` sends.
type NewInvitation struct {
	Role  users.Role `json:"role,omitempty"`
	Group string     `json:"group,omitempty"`
	Note  string     `json:"note,omitempty"`
	Uses  int        `json:"uses"`
	Days  int        `json:"days"` // how long it works
	// Emails are the addresses that it is sent to.
	Emails []string `json:"emails,omitempty"`
}

// Invited is an invitation with its link, which is told only once.
type Invited struct {
	users.Invitation
	URL string `json:"url"`
}

// Approval is what somebody who asked for an account becomes.
type Approval struct {
	Role  users.Role `json:"role"`
	Group string     `json:"group,omitempty"`
}

func handleWaysIn(mux *http.ServeMux, d WaysIn) {
	mux.HandleFunc("GET /v1/invitations", answer(func(r *http.Request) (any, error) { return d.Invitations(r.Context()) }))
	mux.HandleFunc("POST /v1/invitations", answer(withBody(largeBody, func(r *http.Request, n NewInvitation) (any, error) {
		return d.Invite(r.Context(), n)
	})))
	mux.HandleFunc("DELETE /v1/invitations/{id}",
		answer(numbered("an invitation", "gpulab invitation list", func(r *http.Request, id int64) (any, error) {
			return d.RevokeInvitation(r.Context(), id)
		})))
	mux.HandleFunc("GET /v1/requests", answer(func(r *http.Request) (any, error) { return d.Requests(r.Context()) }))
	mux.HandleFunc("POST /v1/requests/{id}/approve",
		answer(withBody(smallBody, func(r *http.Request, a Approval) (any, error) {
			return numbered("a request", "gpulab request list", func(r *http.Request, id int64) (any, error) {
				return d.ApproveRequest(r.Context(), id, a)
			})(r)
		})))
	mux.HandleFunc("DELETE /v1/requests/{id}",
		answer(numbered("a request", "gpulab request list", func(r *http.Request, id int64) (any, error) {
			return d.DeclineRequest(r.Context(), id)
		})))
}

// numbered reads the number of the thing that a request is about.
func numbered(what, list string, handle func(*http.Request, int64) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			return nil, errors.New(what + " is named by its number, as `" + list + "` shows it")
		}
		return handle(r, id)
	}
}

// Invitations implements Daemon.
func (c *Client) Invitations(ctx context.Context) ([]users.Invitation, error) {
	return call[[]users.Invitation](ctx, c, http.MethodGet, "/v1/invitations", nil)
}

// Invite implements Daemon.
func (c *Client) Invite(ctx context.Context, n NewInvitation) (Invited, error) {
	return call[Invited](ctx, c, http.MethodPost, "/v1/invitations", n)
}

// RevokeInvitation implements Daemon.
func (c *Client) RevokeInvitation(ctx context.Context, id int64) (users.Invitation, error) {
	return call[users.Invitation](ctx, c, http.MethodDelete, "/v1/invitations/"+strconv.FormatInt(id, 10), nil)
}

// Requests implements Daemon.
func (c *Client) Requests(ctx context.Context) ([]users.SignUp, error) {
	return call[[]users.SignUp](ctx, c, http.MethodGet, "/v1/requests", nil)
}

// ApproveRequest implements Daemon.
func (c *Client) ApproveRequest(ctx context.Context, id int64, a Approval) (users.User, error) {
	return call[users.User](ctx, c, http.MethodPost, "/v1/requests/"+strconv.FormatInt(id, 10)+"/approve", a)
}

// DeclineRequest implements Daemon.
func (c *Client) DeclineRequest(ctx context.Context, id int64) (users.SignUp, error) {
	return call[users.SignUp](ctx, c, http.MethodDelete, "/v1/requests/"+strconv.FormatInt(id, 10), nil)
}
