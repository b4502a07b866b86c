package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/gpulab/gpulab/internal/environments"
)

// EnvironmentState is an environment as admins see it.
type EnvironmentState struct {
	environments.Environment
	// Users are those in whose notebooks its programs run right now, as HANDLE/NOTEBOOK.
	Users []string `json:"users"`
	// Obstacle says why it cannot use the GPUs of the lab, "" where nothing is known against it.
	Obstacle string `json:"obstacle,omitempty"`
	// Missing are the machines whose notebooks do not have it.
	Missing []string `json:"missing,omitempty"`
}

// WantedEnvironment is an environment to be built.
type WantedEnvironment struct {
	environments.Wanted
	// From is one of the catalogue instead of requirements.
	From string `json:"from,omitempty"`
	// Anyway builds what no GPU of the lab can be used with, too.
	Anyway bool `json:"anyway,omitempty"`
}

// EnvironmentBuild says how far a build is; Environment is set once it is there.
type EnvironmentBuild struct {
	environments.Build
	Environment *EnvironmentState `json:"environment,omitempty"`
}

// Environments is what the socket offers about them. Errors are sentences for people.
type Environments interface {
	Environments(ctx context.Context) ([]EnvironmentState, error)
	Environment(ctx context.Context, id string) (EnvironmentState, error)
	EnvironmentLock(ctx context.Context, id string) (string, error)
	EnvironmentCatalogue(ctx context.Context) ([]environments.Offer, error)
	// CreateEnvironment calls fn until it is there, or fn fails. Who goes away ends the build.
	CreateEnvironment(ctx context.Context, w WantedEnvironment, fn func(EnvironmentBuild) error) error
	// CancelEnvironment ends the build that is under way, whoever began it.
	CancelEnvironment(ctx context.Context) (bool, error)
	DefaultEnvironment(ctx context.Context, id string) (EnvironmentState, error)
	RemoveEnvironment(ctx context.Context, id string, force bool) (EnvironmentState, error)
	ExportEnvironment(ctx context.Context, id string, w io.Writer) error
	ImportEnvironment(ctx context.Context, r io.Reader) (EnvironmentState, error)
}

// environmentName is the body of a request about one environment.
type environmentName struct {
	ID    string `json:"id"`
	Force bool   `json:"force,omitempty"`
}

// exportFailed is the trailer that says why a file that was begun is not whole.
const exportFailed = "Gpulab-Failed"

func handleEnvironments(mux *http.ServeMux, d Environments) {
	mux.HandleFunc("GET /v1/environments", answer(func(r *http.Request) (any, error) {
		return d.Environments(r.Context())
	}))
	mux.HandleFunc("GET /v1/environments/catalogue", answer(func(r *http.Request) (any, error) {
		return d.EnvironmentCatalogue(r.Context())
	}))
	mux.HandleFunc("GET /v1/environments/one", answer(func(r *http.Request) (any, error) {
		return d.Environment(r.Context(), r.URL.Query().Get("id"))
	}))
	mux.HandleFunc("GET /v1/environments/lock", answer(func(r *http.Request) (any, error) {
		return d.EnvironmentLock(r.Context(), r.URL.Query().Get("id"))
	}))
	mux.HandleFunc("POST /v1/environments/cancel", answer(func(r *http.Request) (any, error) {
		return d.CancelEnvironment(r.Context())
	}))
	mux.HandleFunc("POST /v1/environments/default",
		answer(withBody(smallBody, func(r *http.Request, in environmentName) (any, error) {
			return d.DefaultEnvironment(r.Context(), in.ID)
		})))
	mux.HandleFunc("POST /v1/environments/remove",
		answer(withBody(smallBody, func(r *http.Request, in environmentName) (any, error) {
			return d.RemoveEnvironment(r.Context(), in.ID, in.Force)
		})))
	mux.HandleFunc("POST /v1/environments/import", answer(func(r *http.Request) (any, error) {
		e, err := d.ImportEnvironment(r.Context(), r.Body)
		// Who still sends when the answer comes would not read it.
		_, _ = io.Copy(io.Discard, r.Body)
		return e, err
	}))
	mux.HandleFunc("GET /v1/environments/export", func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Query().Get("id")
		if _, err := d.Environment(r.Context(), id); err != nil {
			answer(func(*http.Request) (any, error) { return nil, err })(w, r)
			return
		}
		w.Header().Set("Trailer", exportFailed)
		if err := d.ExportEnvironment(r.Context(), id, w); err != nil {
			w.Header().Set(exportFailed, err.Error())
		}
	})
	mux.HandleFunc("POST /v1/environments", func(w http.ResponseWriter, r *http.Request) {
		in, err := readBody[WantedEnvironment](r, maxImport)
		enc, flush := json.NewEncoder(w), http.NewResponseController(w)
		tell := func(b EnvironmentBuild) error {
			if err := enc.Encode(b); err != nil {
				return err
			}
			return flush.Flush()
		}
		if err == nil {
			err = d.CreateEnvironment(r.Context(), in, tell)
		}
		if err == nil || r.Context().Err() != nil {
			return
		}
		if err := tell(EnvironmentBuild{Build: environments.Build{Failed: err.Error()}}); err != nil {
			slog.Debug("the control client went away", "err", err)
		}
	})
}

// Environments implements Daemon.
func (c *Client) Environments(ctx context.Context) ([]EnvironmentState, error) {
	return call[[]EnvironmentState](ctx, c, http.MethodGet, "/v1/environments", nil)
}

// Environment implements Daemon.
func (c *Client) Environment(ctx context.Context, id string) (EnvironmentState, error) {
	return call[EnvironmentState](ctx, c, http.MethodGet, "/v1/environments/one?id="+url.QueryEscape(id), nil)
}

// EnvironmentLock implements Daemon.
func (c *Client) EnvironmentLock(ctx context.Context, id string) (string, error) {
	return call[string](ctx, c, http.MethodGet, "/v1/environments/lock?id="+url.QueryEscape(id), nil)
}

// EnvironmentCatalogue implements Daemon.
func (c *Client) EnvironmentCatalogue(ctx context.Context) ([]environments.Offer, error) {
	return call[[]environments.Offer](ctx, c, http.MethodGet, "/v1/environments/catalogue", nil)
}

// CreateEnvironment implements Daemon.
func (c *Client) CreateEnvironment(ctx context.Context, w WantedEnvironment, fn func(EnvironmentBuild) error) error {
	resp, err := c.do(ctx, http.MethodPost, "/v1/environments", w)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var b EnvironmentBuild
		if err := dec.Decode(&b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("gpulab went away: %w", err)
		}
		if b.Failed != "" {
			return errors.New(b.Failed)
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}

// CancelEnvironment implements Daemon.
func (c *Client) CancelEnvironment(ctx context.Context) (bool, error) {
	return call[bool](ctx, c, http.MethodPost, "/v1/environments/cancel", nil)
}

// DefaultEnvironment implements Daemon.
func (c *Client) DefaultEnvironment(ctx context.Context, id string) (EnvironmentState, error) {
	return call[EnvironmentState](ctx, c, http.MethodPost, "/v1/environments/default", environmentName{ID: id})
}

// RemoveEnvironment implements Daemon.
func (c *Client) RemoveEnvironment(ctx context.Context, id string, force bool) (EnvironmentState, error) {
	return call[EnvironmentState](ctx, c, http.MethodPost, "/v1/environments/remove", environmentName{id, force})
}

// ExportEnvironment implements Daemon.
func (c *Client) ExportEnvironment(ctx context.Context, id string, w io.Writer) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/environments/export?id="+url.QueryEscape(id), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("gpulab went away, or the file could not be written: %w", err)
	}
	if why := resp.Trailer.Get(exportFailed); why != "" {
		return errors.New(why)
	}
	return nil
}

// ImportEnvironment implements Daemon.
func (c *Client) ImportEnvironment(ctx context.Context, r io.Reader) (EnvironmentState, error) {
	var e EnvironmentState
	resp, err := c.send(ctx, http.MethodPost, "/v1/environments/import", r)
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		return e, fmt.Errorf("gpulab's answer could not be read: %w", err)
	}
	return e, nil
}
