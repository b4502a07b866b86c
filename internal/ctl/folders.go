package ctl

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gpulab/gpulab/internal/storage"
)

// Folders are what people share. Errors are sentences for the person at the
// terminal.
type Folders interface {
	// Folders lists every folder, deleted ones that can come back included.
	Folders(ctx context.Context) ([]storage.Folder, error)
	Folder(ctx context.Context, name string) (storage.Folder, error)
	AddFolder(ctx context.Context, n storage.NewFolder) (storage.Folder, error)
	ChangeFolder(ctx context.Context, name string, c storage.Change) (storage.Folder, error)
	DeleteFolder(ctx context.Context, name string) (storage.Folder, error)
	UndeleteFolder(ctx context.Context, name string) (storage.Folder, error)
}

func handleFolders(mux *http.ServeMux, d Folders) {
	mux.HandleFunc("GET /v1/folders", answer(func(r *http.Request) (any, error) { return d.Folders(r.Context()) }))
	mux.HandleFunc("POST /v1/folders", answer(withBody(largeBody, func(r *http.Request, n storage.NewFolder) (any, error) {
		return d.AddFolder(r.Context(), n)
	})))
	mux.HandleFunc("GET /v1/folders/{name}", answer(func(r *http.Request) (any, error) {
		return d.Folder(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("PATCH /v1/folders/{name}",
		answer(withBody(largeBody, func(r *http.Request, c storage.Change) (any, error) {
			return d.ChangeFolder(r.Context(), r.PathValue("name"), c)
		})))
	mux.HandleFunc("DELETE /v1/folders/{name}", answer(func(r *http.Request) (any, error) {
		return d.DeleteFolder(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("POST /v1/folders/{name}/undelete", answer(func(r *http.Request) (any, error) {
		return d.UndeleteFolder(r.Context(), r.PathValue("name"))
	}))
}

func folderPath(name string) string { return "/v1/folders/" + url.PathEscape(name) }

// Folders implements Daemon.
func (c *Client) Folders(ctx context.Context) ([]storage.Folder, error) {
	return call[[]storage.Folder](ctx, c, http.MethodGet, "/v1/folders", nil)
}

// Folder implements Daemon.
func (c *Client) Folder(ctx context.Context, name string) (storage.Folder, error) {
	return call[storage.Folder](ctx, c, http.MethodGet, folderPath(name), nil)
}

// AddFolder implements Daemon.
func (c *Client) AddFolder(ctx context.Context, n storage.NewFolder) (storage.Folder, error) {
	return call[storage.Folder](ctx, c, http.MethodPost, "/v1/folders", n)
}

// ChangeFolder implements Daemon.
func (c *Client) ChangeFolder(ctx context.Context, name string, change storage.Change) (storage.Folder, error) {
	return call[storage.Folder](ctx, c, http.MethodPatch, folderPath(name), change)
}

// DeleteFolder implements Daemon.
func (c *Client) DeleteFolder(ctx context.Context, name string) (storage.Folder, error) {
	return call[storage.Folder](ctx, c, http.MethodDelete, folderPath(name), nil)
}

// UndeleteFolder implements Daemon.
func (c *Client) UndeleteFolder(ctx context.Context, name string) (storage.Folder, error) {
	return call[storage.Folder](ctx, c, http.MethodPost, folderPath(name)+"/undelete", nil)
}
