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
)

// Image is a container image on this machine.
type Image struct {
	Ref string `json:"ref"`
	// Size is in bytes, compressed.
	Size int64 `json:"size"`
	// Needs says what it asks of GPUs and driver, such as "CUDA 12.4 or newer":
	// empty for nothing, nil where that cannot be read.
	Needs *string `json:"needs,omitempty"`
	// Own says that it is part of gpulab, Pinned that it stays when the disk is short.
	Own    bool `json:"own,omitempty"`
	Pinned bool `json:"pinned,omitempty"`
	// Profiles are those that start from it, by slug.
	Profiles []string `json:"profiles,omitempty"`
}

// Pull says how far an image is on its way, in bytes; Total is 0 until it is known.
type Pull struct {
	Done      int64 `json:"done,omitempty"`
	Total     int64 `json:"total,omitempty"`
	Unpacking bool  `json:"unpacking,omitempty"`
	// Image is set once it is there; Failed says in the last message why it is not.
	Image  *Image `json:"image,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// Images is what the socket offers about container images.
type Images interface {
	Images(ctx context.Context) ([]Image, error)
	// ImportImage reads an archive to its end and names what is in it as, or as
	// the archive does.
	ImportImage(ctx context.Context, archive io.Reader, as string) ([]Image, error)
	// PullImage calls fn until the image is there, or fn fails.
	PullImage(ctx context.Context, ref string, fn func(Pull) error) error
	RemoveImage(ctx context.Context, ref string) error
}

// imageName is the body of a request about one image.
type imageName struct {
	Ref string `json:"ref"`
}

func handleImages(mux *http.ServeMux, d Images) {
	mux.HandleFunc("GET /v1/images", answer(func(r *http.Request) (any, error) { return d.Images(r.Context()) }))
	mux.HandleFunc("POST /v1/images/import", answer(func(r *http.Request) (any, error) {
		list, err := d.ImportImage(r.Context(), r.Body, r.URL.Query().Get("as"))
		// Who still sends when the answer comes would not read it.
		_, _ = io.Copy(io.Discard, r.Body)
		return list, err
	}))
	mux.HandleFunc("POST /v1/images/remove", answer(withBody(smallBody, func(r *http.Request, in imageName) (any, error) {
		return struct{}{}, d.RemoveImage(r.Context(), in.Ref)
	})))
	mux.HandleFunc("POST /v1/images/pull", func(w http.ResponseWriter, r *http.Request) {
		in, err := readBody[imageName](r, smallBody)
		enc, flush := json.NewEncoder(w), http.NewResponseController(w)
		tell := func(p Pull) error {
			if err := enc.Encode(p); err != nil {
				return err
			}
			return flush.Flush()
		}
		if err == nil {
			err = d.PullImage(r.Context(), in.Ref, tell)
		}
		if err == nil || r.Context().Err() != nil {
			return
		}
		if err := tell(Pull{Failed: err.Error()}); err != nil {
			slog.Debug("the control client went away", "err", err)
		}
	})
}

// Images implements Daemon.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	return call[[]Image](ctx, c, "GET", "/v1/images", nil)
}

// ImportImage implements Daemon.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, as string) ([]Image, error) {
	resp, err := c.send(ctx, "POST", "/v1/images/import?as="+url.QueryEscape(as), archive)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list []Image
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("gpulab's answer could not be read: %w", err)
	}
	return list, nil
}

// PullImage implements Daemon.
func (c *Client) PullImage(ctx context.Context, ref string, fn func(Pull) error) error {
	resp, err := c.do(ctx, "POST", "/v1/images/pull", imageName{ref})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var p Pull
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("gpulab went away: %w", err)
		}
		if p.Failed != "" {
			return errors.New(p.Failed)
		}
		if err := fn(p); err != nil {
			return err
		}
	}
}

// RemoveImage implements Daemon.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	_, err := call[struct{}](ctx, c, "POST", "/v1/images/remove", imageName{ref})
	return err
}
