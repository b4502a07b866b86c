package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

// QuotaRule is one limit that is set.
type QuotaRule struct {
	Subject string  `json:"subject" minLength:"1" maxLength:"80" doc:"everybody, role:guest, group:NAME or user:HANDLE"`
	Kind    string  `json:"kind" enum:"notebooks,gpus,gpu-hours-week,gpu-hours-term,gpu-memory,cpus,memory,home-size,home-files"`
	Model   string  `json:"model,omitempty" maxLength:"100" doc:"Of GPUs, such as NVIDIA-A100-SXM4-80GB; any if left out"`
	Value   float64 `json:"value" minimum:"0" maximum:"1e18" doc:"At most; memory in bytes, time in hours; 0 for none at all"`
}

// QuotaRules are the limits that are set.
type QuotaRules struct {
	Rules []QuotaRule `json:"rules"`
}

// Grant is more of something for one person and a while.
type Grant struct {
	ID    int64     `json:"id"`
	User  string    `json:"user"`
	Kind  string    `json:"kind"`
	Model string    `json:"model,omitempty"`
	Extra float64   `json:"extra" doc:"On top of the quota"`
	Note  string    `json:"note,omitempty"`
	By    string    `json:"by"`
	At    time.Time `json:"at"`
	Ends  time.Time `json:"ends"`
}

// GrantList is the grants that last.
type GrantList struct {
	Grants []Grant `json:"grants"`
}

type quotaKindInput struct {
	Subject string `query:"subject" required:"true" minLength:"1" maxLength:"80"`
	Kind    string `query:"kind" required:"true" enum:"notebooks,gpus,gpu-hours-week,gpu-hours-term,gpu-memory,cpus,memory,home-size,home-files"`
	Model   string `query:"model" maxLength:"100"`
}

type grantInput struct {
	Body struct {
		User  string    `json:"user" minLength:"1" maxLength:"64"`
		Kind  string    `json:"kind" enum:"notebooks,gpus,gpu-hours-week,gpu-hours-term,gpu-memory,cpus,memory,home-size,home-files"`
		Model string    `json:"model,omitempty" maxLength:"100"`
		Extra float64   `json:"extra" exclusiveMinimum:"0" maximum:"1e18"`
		Ends  time.Time `json:"ends" doc:"A year from now at most"`
		Note  string    `json:"note,omitempty" maxLength:"200"`
	}
}

func (s *Server) addQuotas() {
	add(s, Operation{Method: "GET", Path: "/quotas", ID: "listQuotas", Need: users.ActionManageQuotas, tag: "quotas",
		summary: "Every quota that is set"}, s.listQuotas)
	add(s, Operation{Method: "PUT", Path: "/quotas", ID: "setQuota", Need: users.ActionManageQuotas, tag: "quotas",
		summary: "Set a quota; what runs goes on", also: []int{http.StatusNotFound}}, s.setQuota)
	add(s, Operation{Method: "DELETE", Path: "/quotas", ID: "unsetQuota", Need: users.ActionManageQuotas, tag: "quotas",
		summary:     "Take a quota away",
		description: "One that is not there is as was wanted.", also: []int{http.StatusNotFound}}, s.unsetQuota)
	add(s, Operation{Method: "GET", Path: "/grants", ID: "listGrants", Need: users.ActionManageQuotas, tag: "quotas",
		summary: "What is granted beyond quotas"}, s.listGrants)
	add(s, Operation{Method: "POST", Path: "/grants", ID: "grant", Need: users.ActionManageQuotas, tag: "quotas",
		summary: "Give one person more for a while", status: http.StatusCreated, also: []int{http.StatusNotFound}}, s.grant)
	add(s, Operation{Method: "DELETE", Path: "/grants/{id}", ID: "endGrant", Need: users.ActionManageQuotas, tag: "quotas",
		summary: "End a grant now"}, s.endGrant)
}

func (s *Server) listQuotas(ctx context.Context, _ *call, _ *noInput) (*body[QuotaRules], error) {
	rules, err := s.cfg.Quotas.Rules(ctx)
	if err != nil {
		return nil, err
	}
	list := QuotaRules{Rules: []QuotaRule{}}
	for _, r := range rules {
		list.Rules = append(list.Rules, QuotaRule{r.Subject.String(), string(r.Kind), r.Model, r.Value})
	}
	return answerWith(list)
}

// parseQuota reads whom and what a quota is for.
func parseQuota(subject, kind, model string) (quota.Subject, quota.Kind, string, error) {
	s, err := quota.ParseSubject(subject)
	if err != nil {
		return s, "", "", err
	}
	k, m, err := quota.ParseKind(quota.KindName(quota.Kind(kind), model))
	return s, k, m, err
}

func (s *Server) setQuota(ctx context.Context, c *call, in *body[QuotaRule]) (*body[QuotaRule], error) {
	subject, kind, model, err := parseQuota(in.Body.Subject, in.Body.Kind, in.Body.Model)
	if err == nil {
		err = s.cfg.Quotas.Set(ctx, subject, kind, model, &in.Body.Value)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "quota.set", subject.String(), quota.Detail(kind, model, &in.Body.Value))
	return answerWith(QuotaRule{subject.String(), string(kind), model, in.Body.Value})
}

func (s *Server) unsetQuota(ctx context.Context, c *call, in *quotaKindInput) (*nothing, error) {
	subject, kind, model, err := parseQuota(in.Subject, in.Kind, in.Model)
	if err == nil {
		err = s.cfg.Quotas.Set(ctx, subject, kind, model, nil)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "quota.unset", subject.String(), quota.Detail(kind, model, nil))
	return done(nil)
}

func grantOf(g quota.Grant) Grant {
	return Grant{
		ID: g.ID, User: g.User, Kind: string(g.Kind), Model: g.Model, Extra: g.Extra, Note: g.Note, By: g.By, At: g.At,
		Ends: g.Ends,
	}
}

func (s *Server) listGrants(ctx context.Context, _ *call, _ *noInput) (*body[GrantList], error) {
	grants, err := s.cfg.Quotas.Grants(ctx)
	if err != nil {
		return nil, err
	}
	list := GrantList{Grants: []Grant{}}
	for _, g := range grants {
		list.Grants = append(list.Grants, grantOf(g))
	}
	return answerWith(list)
}

func (s *Server) grant(ctx context.Context, c *call, in *grantInput) (*body[Grant], error) {
	kind, model, err := quota.ParseKind(quota.KindName(quota.Kind(in.Body.Kind), in.Body.Model))
	if err != nil {
		return nil, err
	}
	g, err := s.cfg.Quotas.Grant(ctx, quota.Grant{
		User: in.Body.User, Kind: kind, Model: model, Extra: in.Body.Extra, Ends: in.Body.Ends, Note: in.Body.Note,
		By: c.user.Handle,
	})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "quota.grant", g.User, g.Detail())
	return answerWith(grantOf(g))
}

func (s *Server) endGrant(ctx context.Context, c *call, in *IDInput) (*body[Grant], error) {
	g, err := s.cfg.Quotas.EndGrant(ctx, in.ID)
	if errors.Is(err, quota.ErrGrant) {
		return nil, problem(http.StatusNotFound, "There is no such grant", message(err))
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "quota.end-grant", g.User, quota.Detail(g.Kind, g.Model, nil))
	return answerWith(grantOf(g))
}
