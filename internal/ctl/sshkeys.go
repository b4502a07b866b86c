package ctl

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gpulab/gpulab/internal/users"
)

// SSHKeys are the keys with which people bring files in and out. Errors are
// sentences for the person at the terminal.
type SSHKeys interface {
	UserSSHKeys(ctx context.Context, handle string) ([]users.SSHKey, error)
	// AddUserSSHKey takes the one line of a .pub file; without a name the key's
	// comment is its name.
	AddUserSSHKey(ctx context.Context, handle string, k NewSSHKey) (users.SSHKey, error)
	// RemoveUserSSHKey takes the key with that number or fingerprint away.
	RemoveUserSSHKey(ctx context.Context, handle, which string) (users.SSHKey, error)
}

// NewSSHKey is what `gpulab user ssh-key add` sends.
type NewSSHKey struct {
	Name string `json:"name,omitempty"`
	Key  string `json:"key"`
}

func handleSSHKeys(mux *http.ServeMux, d SSHKeys) {
	mux.HandleFunc("GET /v1/users/{handle}/ssh-keys", answer(func(r *http.Request) (any, error) {
		return d.UserSSHKeys(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("POST /v1/users/{handle}/ssh-keys",
		answer(withBody(largeBody, func(r *http.Request, k NewSSHKey) (any, error) {
			return d.AddUserSSHKey(r.Context(), r.PathValue("handle"), k)
		})))
	mux.HandleFunc("DELETE /v1/users/{handle}/ssh-keys/{key}", answer(func(r *http.Request) (any, error) {
		return d.RemoveUserSSHKey(r.Context(), r.PathValue("handle"), r.PathValue("key"))
	}))
}

// UserSSHKeys implements Daemon.
func (c *Client) UserSSHKeys(ctx context.Context, handle string) ([]users.SSHKey, error) {
	return call[[]users.SSHKey](ctx, c, http.MethodGet, userPath(handle)+"/ssh-keys", nil)
}

// AddUserSSHKey implements Daemon.
func (c *Client) AddUserSSHKey(ctx context.Context, handle string, k NewSSHKey) (users.SSHKey, error) {
	return call[users.SSHKey](ctx, c, http.MethodPost, userPath(handle)+"/ssh-keys", k)
}

// RemoveUserSSHKey implements Daemon.
func (c *Client) RemoveUserSSHKey(ctx context.Context, handle, which string) (users.SSHKey, error) {
	return call[users.SSHKey](ctx, c, http.MethodDelete, userPath(handle)+"/ssh-keys/"+url.PathEscape(which), nil)
}
