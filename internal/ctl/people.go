package ctl

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// People are accounts and groups. Errors are sentences for the person at the
// terminal.
type People interface {
	Users(ctx context.Context, q users.Query) ([]users.Person, error)
	// User finds one account, removed ones included.
	User(ctx context.Context, handle string) (users.Person, error)
	ChangeUser(ctx context.Context, handle string, c users.Change) (users.Person, error)
	// SuspendUser keeps somebody out and ends their notebooks, or lets them in
	// again.
	SuspendUser(ctx context.Context, handle string, suspend bool) (users.Person, error)
	// RemoveUser removes an account, or with purge deletes it and its home for
	// good.
	RemoveUser(ctx context.Context, handle string, purge bool) (Removal, error)
	UndeleteUser(ctx context.Context, handle string) (users.Person, error)

	Groups(ctx context.Context) ([]users.Group, error)
	Group(ctx context.Context, name string) (GroupWithMembers, error)
	AddGroup(ctx context.Context, g NewGroup) (users.Group, error)
	RemoveGroup(ctx context.Context, name string) error
	// SetMember adds somebody to a group, or changes whether they lead it.
	SetMember(ctx context.Context, group, handle string, lead bool) error
	RemoveMember(ctx context.Context, group, handle string) error
}

// Removal is what became of an account and its home.
type Removal struct {
	Handle string `json:"handle"`
	Home   string `json:"home"` // a folder on the head
	// Purge is when account and home are deleted for good; the zero time where
	// that has happened.
	Purge time.Time `json:"purge,omitzero"`
	// HomeDeleted is false while a home that is to go is still there.
	HomeDeleted bool `json:"homeDeleted"`
}

// NewGroup is what `gpulab group add` sends.
type NewGroup struct {
	Name  string `json:"name"`
	Title string `json:"title,omitempty"`
}

// GroupWithMembers is a group and who is in it, leads first.
type GroupWithMembers struct {
	users.Group
	People []users.Membership `json:"people"`
}

type member struct {
	Lead bool `json:"lead"`
}

func handlePeople(mux *http.ServeMux, d People) {
	// A question, asked by POST because of its length.
	mux.HandleFunc("POST /v1/users/find", answer(withBody(largeBody, func(r *http.Request, q users.Query) (any, error) {
		return d.Users(r.Context(), q)
	})))
	mux.HandleFunc("GET /v1/users/{handle}", answer(func(r *http.Request) (any, error) {
		return d.User(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("PATCH /v1/users/{handle}",
		answer(withBody(largeBody, func(r *http.Request, c users.Change) (any, error) {
			return d.ChangeUser(r.Context(), r.PathValue("handle"), c)
		})))
	for verb, suspend := range map[string]bool{"suspend": true, "resume": false} {
		mux.HandleFunc("POST /v1/users/{handle}/"+verb, answer(func(r *http.Request) (any, error) {
			return d.SuspendUser(r.Context(), r.PathValue("handle"), suspend)
		}))
	}
	mux.HandleFunc("DELETE /v1/users/{handle}", answer(func(r *http.Request) (any, error) {
		return d.RemoveUser(r.Context(), r.PathValue("handle"), r.URL.Query().Get("purge") == "true")
	}))
	mux.HandleFunc("POST /v1/users/{handle}/undelete", answer(func(r *http.Request) (any, error) {
		return d.UndeleteUser(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("GET /v1/groups", answer(func(r *http.Request) (any, error) { return d.Groups(r.Context()) }))
	mux.HandleFunc("POST /v1/groups", answer(withBody(largeBody, func(r *http.Request, g NewGroup) (any, error) {
		return d.AddGroup(r.Context(), g)
	})))
	mux.HandleFunc("GET /v1/groups/{group}", answer(func(r *http.Request) (any, error) {
		return d.Group(r.Context(), r.PathValue("group"))
	}))
	mux.HandleFunc("DELETE /v1/groups/{group}", answer(func(r *http.Request) (any, error) {
		return struct{}{}, d.RemoveGroup(r.Context(), r.PathValue("group"))
	}))
	mux.HandleFunc("PUT /v1/groups/{group}/members/{handle}",
		answer(withBody(largeBody, func(r *http.Request, m member) (any, error) {
			return struct{}{}, d.SetMember(r.Context(), r.PathValue("group"), r.PathValue("handle"), m.Lead)
		})))
	mux.HandleFunc("DELETE /v1/groups/{group}/members/{handle}", answer(func(r *http.Request) (any, error) {
		return struct{}{}, d.RemoveMember(r.Context(), r.PathValue("group"), r.PathValue("handle"))
	}))
}

func userPath(handle string) string { return "/v1/users/" + url.PathEscape(handle) }
func groupPath(name string) string  { return "/v1/groups/" + url.PathEscape(name) }

// Users implements Daemon.
func (c *Client) Users(ctx context.Context, q users.Query) ([]users.Person, error) {
	return call[[]users.Person](ctx, c, http.MethodPost, "/v1/users/find", q)
}

// User implements Daemon.
func (c *Client) User(ctx context.Context, handle string) (users.Person, error) {
	return call[users.Person](ctx, c, http.MethodGet, userPath(handle), nil)
}

// ChangeUser implements Daemon.
func (c *Client) ChangeUser(ctx context.Context, handle string, change users.Change) (users.Person, error) {
	return call[users.Person](ctx, c, http.MethodPatch, userPath(handle), change)
}

// SuspendUser implements Daemon.
func (c *Client) SuspendUser(ctx context.Context, handle string, suspend bool) (users.Person, error) {
	verb := "/resume"
	if suspend {
		verb = "/suspend"
	}
	return call[users.Person](ctx, c, http.MethodPost, userPath(handle)+verb, nil)
}

// RemoveUser implements Daemon.
func (c *Client) RemoveUser(ctx context.Context, handle string, purge bool) (Removal, error) {
	return call[Removal](ctx, c, http.MethodDelete, userPath(handle)+"?purge="+strconv.FormatBool(purge), nil)
}

// UndeleteUser implements Daemon.
func (c *Client) UndeleteUser(ctx context.Context, handle string) (users.Person, error) {
	return call[users.Person](ctx, c, http.MethodPost, userPath(handle)+"/undelete", nil)
}

// Groups implements Daemon.
func (c *Client) Groups(ctx context.Context) ([]users.Group, error) {
	return call[[]users.Group](ctx, c, http.MethodGet, "/v1/groups", nil)
}

// Group implements Daemon.
func (c *Client) Group(ctx context.Context, name string) (GroupWithMembers, error) {
	return call[GroupWithMembers](ctx, c, http.MethodGet, groupPath(name), nil)
}

// AddGroup implements Daemon.
func (c *Client) AddGroup(ctx context.Context, g NewGroup) (users.Group, error) {
	return call[users.Group](ctx, c, http.MethodPost, "/v1/groups", g)
}

// RemoveGroup implements Daemon.
func (c *Client) RemoveGroup(ctx context.Context, name string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, groupPath(name), nil)
	return err
}

// SetMember implements Daemon.
func (c *Client) SetMember(ctx context.Context, group, handle string, lead bool) error {
	_, err := call[struct{}](ctx, c, http.MethodPut, groupPath(group)+"/members/"+url.PathEscape(handle), member{lead})
	return err
}

// RemoveMember implements Daemon.
func (c *Client) RemoveMember(ctx context.Context, group, handle string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, groupPath(group)+"/members/"+url.PathEscape(handle), nil)
	return err
}
