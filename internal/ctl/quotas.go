package ctl

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gpulab/gpulab/internal/quota"
)

// Quotas are how much people may use.
type Quotas interface {
	// Quotas is every limit that is set, and every grant that lasts.
	Quotas(ctx context.Context) (QuotaList, error)
	// QuotaOf is what holds for one person, and how much of it is used.
	QuotaOf(ctx context.Context, handle string) ([]quota.Limit, error)
	SetQuota(ctx context.Context, q SetQuota) error
	// RecommendedQuotas returns the quotas that new labs begin with, after it has done what act says: "" nothing,
	// SettleSet sets them for everybody, SettleDecline ends the notice about them.
	RecommendedQuotas(ctx context.Context, act string) (RecommendedQuotas, error)
	GrantQuota(ctx context.Context, g quota.Grant) (quota.Grant, error)
	EndQuotaGrant(ctx context.Context, id int64) (quota.Grant, error)
}

// QuotaList is limits and what is granted on top of them.
type QuotaList struct {
	Rules  []quota.Rule  `json:"rules"`
	Grants []quota.Grant `json:"grants"`
}

// SetQuota is one limit to set, or with no value to take away.
type SetQuota struct {
	Subject quota.Subject `json:"subject"`
	Kind    quota.Kind    `json:"kind"`
	Model   string        `json:"model,omitempty"`
	Value   *float64      `json:"value"`
}

// What can be done with recommended quotas.
const (
	SettleSet     = "set"
	SettleDecline = "decline"
)

// RecommendedQuotas are the quotas that new labs begin with.
type RecommendedQuotas struct {
	Rules []quota.Rule `json:"rules"`
	// Advised says that admins are told of them, because the lab has no such quotas.
	Advised bool `json:"advised"`
}

func handleQuotas(mux *http.ServeMux, d Quotas) {
	mux.HandleFunc("GET /v1/quotas", answer(func(r *http.Request) (any, error) { return d.Quotas(r.Context()) }))
	mux.HandleFunc("GET /v1/quotas/{handle}", answer(func(r *http.Request) (any, error) {
		return d.QuotaOf(r.Context(), r.PathValue("handle"))
	}))
	mux.HandleFunc("POST /v1/quotas", answer(withBody(smallBody, func(r *http.Request, q SetQuota) (any, error) {
		return struct{}{}, d.SetQuota(r.Context(), q)
	})))
	mux.HandleFunc("POST /v1/quota-recommendation",
		answer(withBody(smallBody, func(r *http.Request, act string) (any, error) {
			return d.RecommendedQuotas(r.Context(), act)
		})))
	mux.HandleFunc("POST /v1/quota-grants", answer(withBody(smallBody, func(r *http.Request, g quota.Grant) (any, error) {
		return d.GrantQuota(r.Context(), g)
	})))
	mux.HandleFunc("DELETE /v1/quota-grants/{id}",
		answer(numbered("a grant", "gpulab quota list", func(r *http.Request, id int64) (any, error) {
			return d.EndQuotaGrant(r.Context(), id)
		})))
}

// Quotas implements Daemon.
func (c *Client) Quotas(ctx context.Context) (QuotaList, error) {
	return call[QuotaList](ctx, c, http.MethodGet, "/v1/quotas", nil)
}

// QuotaOf implements Daemon.
func (c *Client) QuotaOf(ctx context.Context, handle string) ([]quota.Limit, error) {
	return call[[]quota.Limit](ctx, c, http.MethodGet, "/v1/quotas/"+url.PathEscape(handle), nil)
}

// SetQuota implements Daemon.
func (c *Client) SetQuota(ctx context.Context, q SetQuota) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, "/v1/quotas", q)
	return err
}

// RecommendedQuotas implements Daemon.
func (c *Client) RecommendedQuotas(ctx context.Context, act string) (RecommendedQuotas, error) {
	return call[RecommendedQuotas](ctx, c, http.MethodPost, "/v1/quota-recommendation", act)
}

// GrantQuota implements Daemon.
func (c *Client) GrantQuota(ctx context.Context, g quota.Grant) (quota.Grant, error) {
	return call[quota.Grant](ctx, c, http.MethodPost, "/v1/quota-grants", g)
}

// EndQuotaGrant implements Daemon.
func (c *Client) EndQuotaGrant(ctx context.Context, id int64) (quota.Grant, error) {
	return call[quota.Grant](ctx, c, http.MethodDelete, "/v1/quota-grants/"+strconv.FormatInt(id, 10), nil)
}
