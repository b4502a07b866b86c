package ctl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// AuditLog is what the socket offers about who did what.
type AuditLog interface {
	// AuditEntries lists entries, the newest first.
	AuditEntries(ctx context.Context, f audit.Filter) ([]audit.Entry, error)
	// ExportAudit writes all entries that fit, the oldest first. One that
	// breaks off returns an error, whatever was written by then.
	ExportAudit(ctx context.Context, w io.Writer, format audit.Format, f audit.Filter) error
	// VerifyAudit checks the whole chain; an error says where it is broken.
	VerifyAudit(ctx context.Context, expect *audit.Hash) (audit.ChainCheck, error)
}

// AccessTokens is what the socket offers about people's access tokens.
type AccessTokens interface {
	UserTokens(ctx context.Context, handle string) ([]users.Token, error)
	// RevokeUserTokens ends all of them and says how many there were.
	RevokeUserTokens(ctx context.Context, handle string) (int, error)
}

// auditExport is the body of a request for an export.
type auditExport struct {
	audit.Filter
	Format audit.Format `json:"format"`
}

// auditCheck is the body of a request to check the chain.
type auditCheck struct {
	Expect *audit.Hash `json:"expect,omitempty"`
}

func auditRoutes(mux *http.ServeMux, d Daemon) {
	mux.HandleFunc("POST /v1/audit", answer(withBody(smallBody, func(r *http.Request, f audit.Filter) (any, error) {
		return d.AuditEntries(r.Context(), f)
	})))
	mux.HandleFunc("POST /v1/audit/verify", answer(withBody(smallBody, func(r *http.Request, in auditCheck) (any, error) {
		return d.VerifyAudit(r.Context(), in.Expect)
	})))
	mux.HandleFunc("POST /v1/audit/export", func(w http.ResponseWriter, r *http.Request) {
		out := &noted{Writer: w}
		in, err := readBody[auditExport](r, smallBody)
		if err == nil {
			err = d.ExportAudit(r.Context(), out, in.Format, in.Filter)
		}
		switch {
		case err == nil:
		case !out.begun:
			answer(func(*http.Request) (any, error) { return nil, err })(w, r)
		default:
			slog.Error("an export of the audit log broke off", "err", err)
			panic(http.ErrAbortHandler) // the client must see that it is not all
		}
	})
	mux.HandleFunc("GET /v1/users/{handle}/tokens", answer(func(r *http.Request) (any, error) {
		return d.UserTokens(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("DELETE /v1/users/{handle}/tokens", answer(func(r *http.Request) (any, error) {
		return d.RevokeUserTokens(r.Context(), r.PathValue("handle"))
	}))
}

// noted remembers whether something was written.
type noted struct {
	io.Writer
	begun bool
}

func (n *noted) Write(p []byte) (int, error) {
	n.begun = true
	return n.Writer.Write(p)
}

// AuditEntries implements Daemon.
func (c *Client) AuditEntries(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return call[[]audit.Entry](ctx, c, "POST", "/v1/audit", f)
}

// VerifyAudit implements Daemon.
func (c *Client) VerifyAudit(ctx context.Context, expect *audit.Hash) (audit.ChainCheck, error) {
	return call[audit.ChainCheck](ctx, c, "POST", "/v1/audit/verify", auditCheck{expect})
}

// ExportAudit implements Daemon.
func (c *Client) ExportAudit(ctx context.Context, w io.Writer, format audit.Format, f audit.Filter) error {
	resp, err := c.do(ctx, "POST", "/v1/audit/export", auditExport{f, format})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("the export broke off, so what is there of it is not all: %w", err)
	}
	return nil
}

// UserTokens implements Daemon.
func (c *Client) UserTokens(ctx context.Context, handle string) ([]users.Token, error) {
	return call[[]users.Token](ctx, c, "GET", "/v1/users/"+url.PathEscape(handle)+"/tokens", nil)
}

// RevokeUserTokens implements Daemon.
func (c *Client) RevokeUserTokens(ctx context.Context, handle string) (int, error) {
	return call[int](ctx, c, "DELETE", "/v1/users/"+url.PathEscape(handle)+"/tokens", nil)
}
