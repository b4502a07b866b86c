package ctl

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gpulab/gpulab/internal/mail"
)

// Mail is the outbox of the lab.
type Mail interface {
	MailStatus(ctx context.Context) (mail.Status, error)
	// Mails lists the newest ones; state may be empty for all.
	Mails(ctx context.Context, state mail.State, limit int) ([]mail.Entry, error)
	// TestMail sends a mail now and says what came of it.
	TestMail(ctx context.Context, address string) (mail.Tested, error)
}

// testMail is the body of a request for a test mail.
type testMail struct {
	Address string `json:"address"`
}

func handleMail(mux *http.ServeMux, d Mail) {
	mux.HandleFunc("GET /v1/mail", answer(func(r *http.Request) (any, error) { return d.MailStatus(r.Context()) }))
	mux.HandleFunc("GET /v1/mails", answer(func(r *http.Request) (any, error) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit")) // 0 lists none
		return d.Mails(r.Context(), mail.State(r.URL.Query().Get("state")), limit)
	}))
	mux.HandleFunc("POST /v1/mail/test", answer(withBody(smallBody, func(r *http.Request, in testMail) (any, error) {
		return d.TestMail(r.Context(), in.Address)
	})))
}

// MailStatus implements Daemon.
func (c *Client) MailStatus(ctx context.Context) (mail.Status, error) {
	return call[mail.Status](ctx, c, http.MethodGet, "/v1/mail", nil)
}

// Mails implements Daemon.
func (c *Client) Mails(ctx context.Context, state mail.State, limit int) ([]mail.Entry, error) {
	return call[[]mail.Entry](ctx, c, http.MethodGet,
		"/v1/mails?"+url.Values{"state": {string(state)}, "limit": {strconv.Itoa(limit)}}.Encode(), nil)
}

// TestMail implements Daemon.
func (c *Client) TestMail(ctx context.Context, address string) (mail.Tested, error) {
	return call[mail.Tested](ctx, c, http.MethodPost, "/v1/mail/test", testMail{address})
}
