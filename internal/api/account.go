package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

// Me is whose token it is.
type Me struct {
	Handle string    `json:"handle" doc:"The name to sign in with"`
	Name   string    `json:"name"`
	Email  string    `json:"email,omitempty"`
	Role   string    `json:"role" enum:"admin,lead,member,guest"`
	UID    int       `json:"uid" doc:"UID and GID of files and notebooks"`
	Groups []InGroup `json:"groups"`
	Token  TokenInfo `json:"token" doc:"The token that asks"`
}

// InGroup is somebody's place in a group.
type InGroup struct {
	Group string `json:"group"`
	Lead  bool   `json:"lead"`
}

// TokenInfo is an access token; the secret itself is known to its owner alone.
type TokenInfo struct {
	ID       int64      `json:"id"`
	Name     string     `json:"name"`
	Scope    string     `json:"scope" enum:"files,read,launch,full"`
	Created  time.Time  `json:"created"`
	Expires  time.Time  `json:"expires"`
	LastUsed *time.Time `json:"lastUsed,omitempty" doc:"To the minute; left out for never"`
	Remote   string     `json:"remote,omitempty" doc:"From where it was used last"`
	Current  bool       `json:"current" doc:"It is the one that asks"`
}

// TokenList is a person's tokens.
type TokenList struct {
	Tokens []TokenInfo `json:"tokens"`
}

// NewToken is a token that was just made.
type NewToken struct {
	Secret string    `json:"secret" doc:"Shown only now"`
	Token  TokenInfo `json:"token"`
}

// SessionList is where somebody is signed in with a browser.
type SessionList struct {
	Sessions []SessionInfo `json:"sessions"`
}

// SessionInfo is one browser.
type SessionInfo struct {
	ID        string    `json:"id"`
	UserAgent string    `json:"userAgent" doc:"As the browser calls itself"`
	Remote    string    `json:"remote" doc:"From where it signed in"`
	Created   time.Time `json:"created"`
	LastSeen  time.Time `json:"lastSeen" doc:"To the minute"`
}

// QuotaList is what holds for a person.
type QuotaList struct {
	Limits []QuotaLimit `json:"limits"`
	Notice string       `json:"notice,omitempty" doc:"What is about to happen for a quota that is used up"`
}

// QuotaLimit is one limit of a person.
type QuotaLimit struct {
	Kind      string     `json:"kind"`
	Model     string     `json:"model,omitempty" doc:"Of GPUs"`
	What      string     `json:"what" doc:"Kind and model in words"`
	Value     float64    `json:"value" doc:"Grants included; memory in bytes, time in hours"`
	Used      float64    `json:"used"`
	ValueText string     `json:"valueText"`
	UsedText  string     `json:"usedText"`
	From      string     `json:"from" doc:"Which rule it is: everybody, role:guest, group:vision or user:ada"`
	Why       string     `json:"why" doc:"The same in words"`
	Extra     float64    `json:"extra,omitempty" doc:"How much of it is granted for a while"`
	Until     *time.Time `json:"until,omitempty" doc:"When the first grant ends"`
	Kept      string     `json:"kept,omitempty" doc:"Of GPU memory, in words: whether the driver refuses more, or it is measured, with notice and grace beyond it"`
	Frees     *time.Time `json:"frees,omitempty" doc:"When hours begin to drop out of the last seven days"`
}

// UseList is who had how much of the GPUs.
type UseList struct {
	From time.Time       `json:"from"`
	Rows []history.Usage `json:"rows"`
}

// UseInput says of which days, and what a row stands for.
type UseInput struct {
	Days int    `query:"days" default:"7" minimum:"1" maximum:"366" doc:"How many days back, today included"`
	By   string `query:"by" default:"total" enum:"total,user,gpu,hour" doc:"What a row stands for"`
}

// IDInput names what a call is about by its number.
type IDInput struct {
	ID int64 `path:"id" minimum:"1" example:"1"`
}

func (s *Server) addAccount() {
	add(s, Operation{Method: "GET", Path: "/me", ID: "getMe", Need: users.ActionOwnAccount, tag: "account",
		summary: "Whose token this is, and what it may do"}, s.getMe)
	add(s, Operation{Method: "PATCH", Path: "/me", ID: "changeMe", Need: users.ActionOwnAccount, tag: "account",
		summary: "Change your shown name or e-mail address"}, s.changeMe)
	add(s, Operation{Method: "POST", Path: "/me/password", ID: "changePassword", Need: users.ActionOwnAccount,
		tag: "account", summary: "Change your password",
		description: "Every browser is signed out; tokens stay.", status: http.StatusNoContent}, s.changePassword)
	add(s, Operation{
		Method: "GET", Path: "/me/quotas", ID: "listMyQuotas", Need: users.ActionOwnAccount, tag: "account",
		summary: "Your quotas, why they hold, and how much is used",
	},
		func(ctx context.Context, c *call, _ *noInput) (*body[QuotaList], error) {
			return s.quotasOf(ctx, c, c.user)
		})
	add(s, Operation{Method: "GET", Path: "/me/use", ID: "listMyUse", Need: users.ActionOwnAccount, tag: "account",
		summary: "How much of the GPUs you had"}, s.myUse)

	add(s, Operation{Method: "GET", Path: "/me/tokens", ID: "listMyTokens", Need: users.ActionOwnAccount, tag: "sign-in",
		summary: "Your access tokens"}, s.myTokens)
	add(s, Operation{Method: "DELETE", Path: "/me/tokens/{id}", ID: "revokeMyToken", Need: users.ActionOwnAccount,
		tag: "sign-in", summary: "Revoke one of your access tokens"}, s.revokeToken)
	add(s, Operation{Method: "DELETE", Path: "/me/token", ID: "revokeThisToken", anyToken: true, Need: public,
		tag: "sign-in", summary: "Revoke the token that asks",
		description: "Any token may end itself, whatever its scope.", also: []int{http.StatusNotFound}}, s.revokeThisToken)
	add(s, Operation{Method: "POST", Path: "/tokens", ID: "createToken", Need: public, tag: "sign-in",
		summary: "Make an access token with your password",
		description: "A token makes no other: this asks for the password, and limits wrong ones as the sign-in page does. " +
			"Programs that people run should ask for /device instead, so that nobody types a password into them.",
		status: http.StatusCreated, also: []int{http.StatusForbidden, conflict, http.StatusNotFound,
			http.StatusServiceUnavailable}}, s.createToken)

	add(s, Operation{Method: "GET", Path: "/me/sessions", ID: "listMySessions", Need: users.ActionOwnAccount,
		tag: "sign-in", summary: "The browsers that you are signed in with"}, s.mySessions)
	add(s, Operation{Method: "DELETE", Path: "/me/sessions/{id}", ID: "endMySession", Need: users.ActionOwnAccount,
		tag: "sign-in", summary: "Sign one of your browsers out"}, s.endSession)
	add(s, Operation{Method: "DELETE", Path: "/me/sessions", ID: "endMySessions", Need: users.ActionOwnAccount,
		tag: "sign-in", summary: "Sign all of your browsers out"}, s.endSessions)
}

func tokenInfo(t users.Token, current int64) TokenInfo {
	return TokenInfo{
		ID: t.ID, Name: t.Name, Scope: string(t.Scope), Created: t.Created, Expires: t.Expires, LastUsed: t.LastUsed,
		Remote: t.Remote, Current: t.ID == current,
	}
}

func (s *Server) getMe(ctx context.Context, c *call, _ *noInput) (*body[Me], error) {
	groups, err := s.cfg.Users.Memberships(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	return answerWith(Me{Handle: c.user.Handle, Name: c.user.Name, Email: c.user.Email, Role: string(c.user.Role),
		UID:    c.user.UID,
		Groups: inGroups(groups), Token: tokenInfo(c.token, c.token.ID)})
}

func inGroups(list []users.Membership) []InGroup {
	groups := []InGroup{}
	for _, m := range list {
		groups = append(groups, InGroup{m.Group, m.Lead})
	}
	return groups
}

type changeMeInput struct {
	Body struct {
		Name  *string `json:"name,omitempty" maxLength:"100" doc:"Empty becomes the sign-in name"`
		Email *string `json:"email,omitempty" maxLength:"254" doc:"Empty for none"`
	}
}

func (s *Server) changeMe(ctx context.Context, c *call, in *changeMeInput) (*body[Me], error) {
	if in.Body.Name != nil {
		c.user.Name = *in.Body.Name
	}
	if in.Body.Email != nil {
		c.user.Email = *in.Body.Email
	}
	if err := s.cfg.Users.SetProfile(ctx, c.user.ID, c.user.Name, c.user.Email); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "account.change", c.user.Handle, "")
	now, err := s.cfg.Users.Person(ctx, c.user.Handle)
	if err != nil {
		return nil, err
	}
	c.user.Name, c.user.Email = now.Name, now.Email
	return s.getMe(ctx, c, nil)
}

type passwordInput struct {
	Body struct {
		Old string `json:"old" maxLength:"1000" doc:"The current password"`
		New string `json:"new" minLength:"1" maxLength:"1000" doc:"At least 10 characters; a few words are good"`
	}
}

func (s *Server) changePassword(ctx context.Context, c *call, in *passwordInput) (*nothing, error) {
	return done(s.cfg.Users.ChangePassword(ctx, c.user.ID, in.Body.Old, in.Body.New, c.remote))
}

// quotasOf are a person's quotas, in the words for whoever asks.
func (s *Server) quotasOf(ctx context.Context, c *call, of users.User) (*body[QuotaList], error) {
	limits, err := s.cfg.Quotas.Limits(ctx, of)
	if err != nil {
		return nil, err
	}
	list := QuotaList{Limits: []QuotaLimit{}}
	for _, l := range limits {
		list.Limits = append(list.Limits, quotaLimit(l, of, c.user.ID))
	}
	list.Notice, err = s.cfg.Quotas.Notice(ctx, of.ID)
	if err != nil {
		return nil, err
	}
	return answerWith(list)
}

func quotaLimit(l quota.Limit, of users.User, reader int64) QuotaLimit {
	return QuotaLimit{Kind: string(l.Kind), Model: l.Model, What: l.What(), Value: l.Value, Used: l.Used,
		ValueText: l.Kind.Format(l.Value),
		UsedText:  l.Kind.Format(l.Used), From: l.From.String(), Why: l.Why(of, reader), Kept: l.How(), Extra: l.Extra,
		Until: given(l.Until), Frees: given(l.Frees)}
}

// given is a time, nil for none.
func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *Server) myUse(ctx context.Context, c *call, in *UseInput) (*body[UseList], error) {
	return s.useSince(ctx, in, c.user.Handle, func(history.Usage) bool { return true })
}

// useSince reads the ledger for some days; handle is whose rows, "" for everybody's that show lets through.
func (s *Server) useSince(ctx context.Context, in *UseInput, handle string,
	show func(history.Usage) bool) (*body[UseList], error) {
	now := s.now()
	y, m, d := now.Date()
	list := UseList{From: time.Date(y, m, d+1-in.Days, 0, 0, 0, 0, now.Location()), Rows: []history.Usage{}}
	rows, err := s.cfg.History.Usage(ctx, history.Filter{From: list.From, User: handle}, history.By(in.By))
	if err != nil {
		return nil, fmt.Errorf("read the use of GPUs: %w", err)
	}
	for _, row := range rows {
		if show(row) {
			list.Rows = append(list.Rows, row)
		}
	}
	return answerWith(list)
}

func (s *Server) myTokens(ctx context.Context, c *call, _ *noInput) (*body[TokenList], error) {
	tokens, err := s.cfg.Users.Tokens(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	list := TokenList{Tokens: []TokenInfo{}}
	for _, t := range tokens {
		list.Tokens = append(list.Tokens, tokenInfo(t, c.token.ID))
	}
	return answerWith(list)
}

func (s *Server) revokeToken(ctx context.Context, c *call, in *IDInput) (*nothing, error) {
	revoked, err := s.cfg.Users.RevokeToken(ctx, c.user.ID, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "token.revoke", c.user.Handle, fmt.Sprintf("token %d", revoked.ID))
	return done(nil)
}

func (s *Server) revokeThisToken(ctx context.Context, c *call, _ *noInput) (*nothing, error) {
	return s.revokeToken(ctx, c, &IDInput{c.token.ID})
}

type createTokenInput struct {
	Body struct {
		Handle   string `json:"handle" minLength:"1" maxLength:"100" doc:"Your sign-in name"`
		Password string `json:"password" minLength:"1" maxLength:"1000"`
		Name     string `json:"name" minLength:"1" maxLength:"60" doc:"What it is for"`
		Scope    string `json:"scope" enum:"files,read,launch,full"`
		Days     int    `json:"days,omitempty" enum:"7,30,90,365" default:"90"`
	}
}

func (s *Server) createToken(ctx context.Context, c *call, in *createTokenInput) (*body[NewToken], error) {
	user, err := s.cfg.Users.Authenticate(ctx, in.Body.Handle, in.Body.Password, c.remote)
	if err != nil {
		return nil, err
	}
	secret, made, err := s.cfg.Users.CreateToken(ctx, user.ID,
		users.NewToken{Name: in.Body.Name, Scope: users.TokenScope(in.Body.Scope), Days: in.Body.Days})
	if err != nil {
		return nil, err
	}
	c.user = user
	s.audit(ctx, c, "token.create", user.Handle, made.Detail())
	return answerWith(NewToken{Secret: secret, Token: tokenInfo(made, 0)})
}

func (s *Server) mySessions(ctx context.Context, c *call, _ *noInput) (*body[SessionList], error) {
	sessions, err := s.cfg.Users.Sessions(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	list := SessionList{Sessions: []SessionInfo{}}
	for _, i := range sessions {
		list.Sessions = append(list.Sessions, SessionInfo{
			ID: i.ID, UserAgent: i.UserAgent, Remote: i.Remote, Created: i.Created, LastSeen: i.LastSeen,
		})
	}
	return answerWith(list)
}

type sessionInput struct {
	ID string `path:"id" maxLength:"64"`
}

func (s *Server) endSession(ctx context.Context, c *call, in *sessionInput) (*nothing, error) {
	ended, err := s.cfg.Users.EndOneSession(ctx, c.user.ID, in.ID)
	if err != nil {
		return nil, err
	}
	if !ended {
		return nil, errNotThere
	}
	s.audit(ctx, c, "session.end", c.user.Handle, "")
	return done(nil)
}

func (s *Server) endSessions(ctx context.Context, c *call, _ *noInput) (*nothing, error) {
	ended, err := s.cfg.Users.EndOtherSessions(ctx, c.user.ID, "")
	if err == nil && ended {
		s.audit(ctx, c, "session.end-others", c.user.Handle, "")
	}
	return done(err)
}
