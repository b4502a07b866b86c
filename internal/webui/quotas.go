package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

// Quotas limit what people may use.
type Quotas interface {
	// Limits is what holds for a person, and how much of it is used.
	Limits(ctx context.Context, u users.User) ([]quota.Limit, error)
	// Notice is what somebody is told whose notebooks will be stopped, "" for nothing.
	Notice(ctx context.Context, userID int64) (string, error)
	Rules(ctx context.Context) ([]quota.Rule, error)
	Grants(ctx context.Context) ([]quota.Grant, error)
	// Set makes, changes or (value nil) takes away a limit.
	Set(ctx context.Context, subject quota.Subject, kind quota.Kind, model string, value *float64) error
	Grant(ctx context.Context, g quota.Grant) (quota.Grant, error)
	EndGrant(ctx context.Context, id int64) (quota.Grant, error)
}

// A limitView is one limit of a person against what they use.
type limitView struct {
	What, Used, Limit string
	Meter             reading
	Why               string
}

// limits are the quotas of a person in the words for who reads them. What
// cannot be read is left out: no page fails for it.
func (s *Server) limits(ctx context.Context, u users.User, reader int64) []limitView {
	list, err := s.cfg.Quotas.Limits(ctx, u)
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Log.Error("quotas not read", "user", u.Handle, "error", err)
		}
		return nil
	}
	var views []limitView
	for _, l := range list {
		view := limitView{What: l.What(), Used: l.Kind.Format(l.Used), Limit: l.Kind.Format(l.Value), Why: l.Why(u, reader)}
		if l.Extra > 0 {
			view.Why += "; " + l.Kind.Format(l.Extra) + " of it is granted until " + l.Until.Local().Format("Mon 2 Jan, 15:04")
		}
		if how := l.How(); how != "" {
			view.Why += "; " + how
		}
		if !l.Measured.IsZero() {
			view.Why += "; " + s.measured(l.Measured)
		}
		if l.Unknown {
			view.Used, view.Why = "", view.Why+"; not measured yet"
			views = append(views, view)
			continue
		}
		part := 1.0
		if l.Value > 0 {
			part = min(l.Used/l.Value, 1)
		}
		view.Meter = reading{Fraction: &part, High: l.Used >= l.Value}
		views = append(views, view)
	}
	return views
}

// quotaNotice is what stands on top of a person's home page, "" for nothing.
func (s *Server) quotaNotice(ctx context.Context, u users.User) string {
	text, err := s.cfg.Quotas.Notice(ctx, u.ID)
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Error("notice of a quota not read", "user", u.Handle, "error", err)
	}
	return text
}

// quotaAdvice is what whoever looks after the lab should know of quotas that it does not have.
func (s *Server) quotaAdvice(ctx context.Context) (text, next string) {
	if s.cfg.QuotaAdvice == nil {
		return "", ""
	}
	text, next, err := s.cfg.QuotaAdvice(ctx)
	if err != nil {
		s.cfg.Log.Error("recommended quotas not known", "error", err)
		return "", ""
	}
	return text, next
}

type quotasView struct {
	Advice, AdviceNext string

	Rules  []ruleView
	Grants []grantView
	Set    quotaForm
	Grant  quotaForm
	Kinds  []roleView
}

type ruleView struct{ Subject, Kind, Model, What, Value string }

type grantView struct{ ID, User, What, Extra, Until, By, Note string }

type quotaForm struct{ Subject, Kind, Model, Value, Ends, Note, Error string }

func (s *Server) quotasPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showQuotas(w, r, v, http.StatusOK, quotasView{})
}

func (s *Server) showQuotas(w http.ResponseWriter, r *http.Request, v visitor, status int, view quotasView) error {
	rules, err := s.cfg.Quotas.Rules(r.Context())
	if err != nil {
		return fmt.Errorf("read quotas: %w", err)
	}
	grants, err := s.cfg.Quotas.Grants(r.Context())
	if err != nil {
		return fmt.Errorf("read quotas: %w", err)
	}
	for _, rule := range rules {
		view.Rules = append(view.Rules, ruleView{Subject: rule.Subject.String(), Kind: string(rule.Kind), Model: rule.Model,
			What: quota.Limit{Kind: rule.Kind, Model: rule.Model}.What(), Value: rule.Kind.Format(rule.Value)})
	}
	for _, g := range grants {
		view.Grants = append(view.Grants, grantView{ID: strconv.FormatInt(g.ID, 10), User: g.User,
			Extra: "+" + g.Kind.Format(g.Extra),
			What:  quota.Limit{Kind: g.Kind, Model: g.Model}.What(), Until: g.Ends.Local().Format("2 Jan 2006, 15:04"), By: g.By,
			Note: g.Note})
	}
	view.Advice, view.AdviceNext = s.quotaAdvice(r.Context())
	for _, k := range quota.Kinds() {
		view.Kinds = append(view.Kinds, roleView{string(k), strings.ToUpper(k.Words()[:1]) + k.Words()[1:]})
	}
	s.render(w, r, status, quotasPage(s.page(w, r, v, "Quotas", ""), view))
	return nil
}

func (s *Server) setQuota(w http.ResponseWriter, r *http.Request, v visitor) error {
	f := quotaForm{Subject: strings.TrimSpace(r.PostForm.Get("subject")), Kind: r.PostForm.Get("kind"),
		Model: strings.TrimSpace(r.PostForm.Get("model")), Value: strings.TrimSpace(r.PostForm.Get("value"))}
	subject, err := quota.ParseSubject(f.Subject)
	var kind quota.Kind
	var model string
	if err == nil {
		kind, model, err = quota.ParseKind(quota.KindName(quota.Kind(f.Kind), f.Model))
	}
	var value *float64 // none: take it away
	if err == nil && !r.PostForm.Has("unset") {
		var number float64
		number, err = kind.Parse(f.Value)
		value = &number
	}
	if err == nil {
		err = s.cfg.Quotas.Set(r.Context(), subject, kind, model, value)
	}
	if text, ok := users.Message(err); ok {
		f.Error = text
		return s.showQuotas(w, r, v, http.StatusUnprocessableEntity, quotasView{Set: f})
	}
	if err != nil {
		return fmt.Errorf("set a quota: %w", err)
	}
	action := "quota.set"
	if value == nil {
		action = "quota.unset"
	}
	s.audit(r, v, action, subject.String(), quota.Detail(kind, model, value))
	return seeOther("/quotas")
}

func (s *Server) grantQuota(w http.ResponseWriter, r *http.Request, v visitor) error {
	f := quotaForm{Subject: strings.TrimSpace(r.PostForm.Get("user")), Kind: r.PostForm.Get("kind"),
		Model: strings.TrimSpace(r.PostForm.Get("model")),
		Value: strings.TrimSpace(r.PostForm.Get("extra")), Ends: r.PostForm.Get("ends"),
		Note: strings.TrimSpace(r.PostForm.Get("note"))}
	kind, model, err := quota.ParseKind(quota.KindName(quota.Kind(f.Kind), f.Model))
	var extra float64
	if err == nil {
		extra, err = kind.Parse(f.Value)
	}
	var ends time.Time
	if err == nil {
		if ends, err = time.ParseInLocation(time.DateOnly, f.Ends, time.Local); err != nil {
			err = &users.Error{Kind: quota.ErrGrant, Text: "Say on which day it ends."}
		}
		ends = ends.AddDate(0, 0, 1).Add(-time.Minute) // that day included
	}
	var g quota.Grant
	if err == nil {
		g, err = s.cfg.Quotas.Grant(r.Context(),
			quota.Grant{User: f.Subject, Kind: kind, Model: model, Extra: extra, Ends: ends,
				Note: f.Note, By: v.session.User.Handle})
	}
	if text, ok := users.Message(err); ok {
		f.Error = text
		return s.showQuotas(w, r, v, http.StatusUnprocessableEntity, quotasView{Grant: f})
	}
	if err != nil {
		return fmt.Errorf("grant more of a quota: %w", err)
	}
	s.audit(r, v, "quota.grant", g.User, g.Detail())
	return seeOther("/quotas")
}

func (s *Server) endGrant(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	g, err := s.cfg.Quotas.EndGrant(r.Context(), id)
	if errors.Is(err, quota.ErrGrant) {
		return seeOther("/quotas") // it is over, as was wanted
	}
	if err != nil {
		return fmt.Errorf("end a grant: %w", err)
	}
	s.audit(r, v, "quota.end-grant", g.User, quota.Detail(g.Kind, g.Model, nil))
	return seeOther("/quotas")
}
