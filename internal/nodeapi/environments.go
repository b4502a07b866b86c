package nodeapi

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Environments are those of the lab that every machine of a pool is to have.
type Environments struct {
	// Version changes with the rest; it is in the head's orders.
	Version string        `json:"version"`
	List    []Environment `json:"list"`
	// Default is the ID of the one that new notebooks begin with, "" for none.
	Default string `json:"default,omitempty"`
}

// Environment is one of them.
type Environment struct {
	ID   string `json:"id"`   // NAME/VERSION
	Mark string `json:"mark"` // another one when it was built anew
	Size int64  `json:"size"` // bytes on disk
}

// EnvironmentState is how far a machine is with the lab's environments.
type EnvironmentState struct {
	// Have are the marks of those that are there whole.
	Have []string `json:"have,omitempty"`
	// Loading is the ID of the one under way, "" without one, and Done how many
	// bytes of it, packed, have come.
	Loading string `json:"loading,omitempty"`
	Done    int64  `json:"done,omitempty"`
	// Failed is why the latest try ended, until one goes well.
	Failed string `json:"failed,omitempty"`
	// Uses are pods in which programs of an environment run.
	Uses []EnvironmentUse `json:"uses,omitempty"`
}

// EnvironmentUse is a pod in which programs of an environment run.
type EnvironmentUse struct {
	ID  string `json:"id"`
	Pod string `json:"pod"` // its UID
}

// environment hands an environment over.
func (h *handler) environment(w http.ResponseWriter, r *http.Request) {
	n, err := h.member(r)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	if !h.environments.begin(n) {
		h.later(w)
		return
	}
	defer h.environments.end(n)
	id := r.PathValue("name") + "/" + r.PathValue("version")
	out := &patientWriter{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/octet-stream")
	switch err := h.Head.Environment(r.Context(), id, out); {
	case err == nil:
	case !out.begun:
		h.answer(w, nil, &Problem{Message: err.Error(), Status: http.StatusNotFound})
	default:
		h.Log.Debug("an environment was not handed over whole", "machine", n.Name, "environment", id, "err", err)
		panic(http.ErrAbortHandler) // or it would look as if that were all
	}
}

// patientWriter waits for a machine as long as it takes pieces.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (p *patientWriter) Write(data []byte) (int, error) {
	p.begun = true
	if err := p.control.SetWriteDeadline(time.Now().Add(transferPatience)); err != nil {
		return 0, err
	}
	return p.w.Write(data)
}

// Environments asks which environments every machine is to have.
func (c *Client) Environments(ctx context.Context) (Environments, error) {
	return call[Environments](ctx, c, http.MethodGet, "/v1/environments", nil)
}

// Environment asks for one by its ID: what `gpulab env export` writes. While other
// machines load, it waits for its turn.
func (c *Client) Environment(ctx context.Context, id string) (io.ReadCloser, error) {
	return c.inTurn(ctx, "/v1/environments/"+id, nil)
}
