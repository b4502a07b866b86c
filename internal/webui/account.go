package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// OwnAccounts is what people do with their own accounts.
type OwnAccounts interface {
	SetProfile(ctx context.Context, id int64, name, email string) error
	ChangePassword(ctx context.Context, id int64, old, password, remote string) error
	Sessions(ctx context.Context, userID int64) ([]users.SessionInfo, error)
	EndOneSession(ctx context.Context, userID int64, sessionID string) (ended bool, err error)
	EndOtherSessions(ctx context.Context, userID int64, keep string) (ended bool, err error)
	Tokens(ctx context.Context, userID int64) ([]users.Token, error)
	CreateToken(ctx context.Context, userID int64, token users.NewToken) (secret string, made users.Token, err error)
	RevokeToken(ctx context.Context, userID, tokenID int64) (users.Token, error)
	SSHKeys(ctx context.Context, userID int64) ([]users.SSHKey, error)
	AddSSHKey(ctx context.Context, userID int64, name, key string) (users.SSHKey, error)
	RemoveSSHKey(ctx context.Context, userID, keyID int64) (users.SSHKey, error)
}

// failuresShown is how far back the page tells of sign-ins that failed.
const failuresShown = 7 * 24 * time.Hour

// An accountView is somebody's own account.
type accountView struct {
	Handle, Role string
	Done         string // what was just done, in words
	Warning      string // somebody else may have tried to get in
	Profile      profileForm
	Password     passwordForm
	Sessions     []sessionView
	Tokens       []tokenView
	OtherWays    []identityView // to sign in
	HasPassword  bool
	NewToken     tokenForm
	Files        filesView
	Mail         *mailChoicesView // nil where the lab has no mail server
	// Secret is a token that was just made, TokenName what it is called.
	Secret, TokenName string
}

type profileForm struct{ Name, Email, NameError, EmailError string }

type passwordForm struct{ OldError, NewError string }

type sessionView struct {
	ID, Browser, Agent, Remote, Seen, Since string
	This                                    bool
}

type tokenView struct {
	ID, Name, Scope, Ends, Used string
	Expired                     bool
}

type tokenForm struct {
	Name, Scope, Days string
	Error             string
}

// scopes say what a token lets a program do, the least first.
var scopes = []struct {
	scope     users.TokenScope
	name, may string
}{
	{users.ScopeFiles, "Files", "bring your files in and out, and nothing else"},
	{users.ScopeRead, "Read", "see what you see"},
	{users.ScopeLaunch, "Launch", "see what you see, launch and stop your own notebooks, and bring files in and out"},
	{users.ScopeFull, "Full", "do everything that your role may"},
}

// scopeChoices are those for a new token.
func scopeChoices() []roleView {
	list := make([]roleView, 0, len(scopes))
	for _, s := range scopes {
		list = append(list, roleView{string(s.scope), s.name + ": " + s.may})
	}
	return list
}

// lifetimes are the choices of how long a token lasts.
func lifetimes() []roleView {
	list := make([]roleView, 0, len(users.TokenLifetimes))
	for _, days := range users.TokenLifetimes {
		list = append(list, roleView{strconv.Itoa(days), count(days, "day", "days")})
	}
	return list
}

// accountDone says what was done before the page was opened anew.
var accountDone = map[string]string{
	"profile":  "Name and e-mail are changed.",
	"password": "The password is changed. All other browsers were signed out; access tokens stay.",
	"session":  "That browser is signed out.",
	"mail":     "Which mails you get is changed.",
	"linked":   "It is linked. From now on it signs you in to this account.",
	"unlinked": "It is unlinked and does not sign you in any more.",
	"others":   "All other browsers are signed out; access tokens stay.",
	"token":    "The access token is revoked. Programs that use it are refused from now on.",

	"ssh-key":      "The SSH key is added. You can sign in with it for files now.",
	"ssh-key-gone": "The SSH key is removed. What was open with it ends within seconds.",
	"files-closed": "All connections for files are closed.",
}

func (s *Server) accountPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showAccount(w, r, v, http.StatusOK, accountView{Done: accountDone[r.URL.Query().Get("done")]})
}

// showAccount completes a view, of which a handler fills in the part that it
// refused or made.
func (s *Server) showAccount(w http.ResponseWriter, r *http.Request, v visitor, status int, view accountView) error {
	ctx, me := r.Context(), v.session.User
	view.Handle, view.Role = me.Handle, string(me.Role)
	if view.Profile == (profileForm{}) {
		view.Profile = profileForm{Name: me.Name, Email: me.Email}
	}
	if view.NewToken == (tokenForm{}) {
		view.NewToken = tokenForm{Scope: string(users.ScopeRead), Days: strconv.Itoa(users.TokenLifetime)}
	}
	sessions, err := s.cfg.Users.Sessions(ctx, me.ID)
	if err != nil {
		return err
	}
	for i := range sessions {
		view.Sessions = append(view.Sessions, s.sessionView(&sessions[i], v))
	}
	tokens, err := s.cfg.Users.Tokens(ctx, me.ID)
	if err != nil {
		return err
	}
	for i := range tokens {
		view.Tokens = append(view.Tokens, s.tokenView(&tokens[i]))
	}
	identities, err := s.cfg.Users.Identities(ctx, me.ID)
	if err != nil {
		return err
	}
	view.OtherWays, view.HasPassword = s.otherWays(identities), me.HasPassword
	if view.Files, err = s.filesView(r, v, view.Files.NewKey); err != nil {
		return err
	}
	if view.Mail, err = s.mailChoices(ctx, me); err != nil {
		return err
	}
	if view.Warning, err = s.failedSignIns(ctx, me.Handle); err != nil {
		return err
	}
	s.render(w, r, status, accountPage(s.page(w, r, v, "Your account", ""), view))
	return nil
}

// failedSignIns says whether somebody tried to get in as that person.
func (s *Server) failedSignIns(ctx context.Context, handle string) (string, error) {
	n, last, err := s.cfg.Audit.FailedSignIns(ctx, handle, s.now().Add(-failuresShown))
	if err != nil || last == nil {
		return "", err
	}
	times := "At least " + strconv.Itoa(n) + " times"
	if n == 1 {
		times = "Once"
	}
	return fmt.Sprintf("%s in the last 7 days somebody tried to sign in as %s and could not, the last time %s. "+
		"If that was you, all is well. If not, your password still kept them out: make sure that it is one you use "+
		"nowhere else, and tell an admin of the lab.",
		times, handle, s.usedFrom(last.At, last.Remote)), nil
}

func (s *Server) sessionView(info *users.SessionInfo, v visitor) sessionView {
	view := sessionView{ID: info.ID, Browser: browserWords(info.UserAgent), Agent: info.UserAgent,
		Remote: orElse(info.Remote, "not known"),
		Seen:   s.ago(&info.LastSeen), Since: day(info.Created), This: info.ID == v.session.ID}
	if view.This {
		view.Seen = "now"
	}
	return view
}

func (s *Server) tokenView(t *users.Token) tokenView {
	view := tokenView{ID: strconv.FormatInt(t.ID, 10), Name: t.Name, Scope: string(t.Scope), Ends: day(t.Expires),
		Used:    "never",
		Expired: !s.now().Before(t.Expires)}
	if t.LastUsed != nil {
		view.Used = s.usedFrom(*t.LastUsed, t.Remote)
	}
	return view
}

// usedFrom says when and from where something was used last.
func (s *Server) usedFrom(at time.Time, remote string) string {
	return s.ago(&at) + " from " + orElse(remote, unknownAddress)
}

// unknownAddress stands in the place of one that was not recorded.
const unknownAddress = "an address that is not known"

// day writes a date for people.
func day(t time.Time) string { return t.Local().Format("2 Jan 2006") }

func (s *Server) changeProfile(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := profileForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Email: strings.TrimSpace(r.PostForm.Get("email"))}
	err := s.cfg.Users.SetProfile(r.Context(), v.session.User.ID, form.Name, form.Email)
	switch {
	case err == nil:
		s.audit(r, v, "account.change", v.session.User.Handle, "")
		return seeOther("/account?done=profile")
	case errors.Is(err, users.ErrNameInvalid):
		form.NameError = message(err)
	case errors.Is(err, users.ErrEmailInvalid):
		form.EmailError = message(err)
	default:
		return err
	}
	return s.showAccount(w, r, v, http.StatusUnprocessableEntity, accountView{Profile: form})
}

// changePassword ends every session; this browser gets a new one at once.
func (s *Server) changePassword(w http.ResponseWriter, r *http.Request, v visitor) error {
	var form passwordForm
	err := errPasswordsDiffer
	if password := r.PostForm.Get("password"); password == r.PostForm.Get("again") {
		err = s.cfg.Users.ChangePassword(r.Context(), v.session.User.ID, r.PostForm.Get("old"), password, remote(r))
	}
	status, tooMany := limited(w, err)
	switch {
	case err == nil:
		if err := s.replaceSession(w, r, v, v.session.User); err != nil {
			return err
		}
		s.rememberBrowser(w, r, v.session.User, v.session.User.Handle)
		return seeOther("/account?done=password")
	case tooMany:
		form.OldError = message(err)
	case errors.Is(err, users.ErrBadCredentials):
		status, form.OldError = http.StatusUnprocessableEntity, message(err)
	case errors.Is(err, errPasswordsDiffer), errors.Is(err, users.ErrPasswordWeak):
		status, form.NewError = http.StatusUnprocessableEntity, message(err)
	default:
		return err
	}
	return s.showAccount(w, r, v, status, accountView{Password: form})
}

func (s *Server) endSession(_ http.ResponseWriter, r *http.Request, v visitor) error {
	ended, err := s.cfg.Users.EndOneSession(r.Context(), v.session.User.ID, r.PathValue("id"))
	if err != nil {
		return err
	}
	if ended {
		s.audit(r, v, "session.end", v.session.User.Handle, "")
	}
	return seeOther("/account?done=session")
}

func (s *Server) endOtherSessions(_ http.ResponseWriter, r *http.Request, v visitor) error {
	ended, err := s.cfg.Users.EndOtherSessions(r.Context(), v.session.User.ID, v.session.ID)
	if err != nil {
		return err
	}
	if ended {
		s.audit(r, v, "session.end-others", v.session.User.Handle, "")
	}
	return seeOther("/account?done=others")
}

// createToken shows the secret in the answer itself, once: it must not stand in
// an address.
func (s *Server) createToken(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := tokenForm{
		Name: strings.TrimSpace(r.PostForm.Get("name")), Scope: r.PostForm.Get("scope"), Days: r.PostForm.Get("days"),
	}
	days, err := strconv.Atoi(form.Days)
	if err != nil {
		days = 0 // none of the choices
	}
	secret, made, err := s.cfg.Users.CreateToken(r.Context(), v.session.User.ID,
		users.NewToken{Name: form.Name, Scope: users.TokenScope(form.Scope), Days: days})
	switch {
	case err == nil:
		s.audit(r, v, "token.create", v.session.User.Handle, made.Detail())
		return s.showAccount(w, r, v, http.StatusOK, accountView{Secret: secret, TokenName: made.Name})
	case errors.Is(err, users.ErrTokenInvalid), errors.Is(err, users.ErrTokenLimit):
		form.Error = message(err)
		return s.showAccount(w, r, v, http.StatusUnprocessableEntity, accountView{NewToken: form})
	}
	return err
}

func (s *Server) revokeToken(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	revoked, err := s.cfg.Users.RevokeToken(r.Context(), v.session.User.ID, id)
	switch {
	case errors.Is(err, users.ErrTokenNotFound): // as was wanted
	case err != nil:
		return err
	default:
		s.audit(r, v, "token.revoke", v.session.User.Handle, fmt.Sprintf("token %d", revoked.ID))
	}
	return seeOther("/account?done=token")
}

// browserWords says in plain words what a browser calls itself.
func browserWords(agent string) string {
	first := func(words [][2]string) string {
		for _, w := range words {
			if strings.Contains(agent, w[0]) {
				return w[1]
			}
		}
		return ""
	}
	// Nearly all call themselves Safari and Chrome too, so those come last.
	browser := first([][2]string{{"Edg", "Edge"}, {"OPR/", "Opera"}, {"Vivaldi/", "Vivaldi"},
		{"SamsungBrowser/", "Samsung Internet"},
		{"Firefox/", "Firefox"}, {"FxiOS/", "Firefox"}, {"CriOS/", "Chrome"}, {"Chromium/", "Chromium"},
		{"Chrome/", "Chrome"},
		{"Safari/", "Safari"}, {"curl/", "curl"}, {"python-requests/", "a Python program"},
		{"Go-http-client/", "a Go program"}})
	system := first([][2]string{{"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Android", "Android"}, {"CrOS", "ChromeOS"},
		{"Windows", "Windows"}, {"Macintosh", "Mac"}, {"Linux", "Linux"}, {"X11", "Unix"}})
	switch {
	case browser == "" && system == "":
		return "A browser or program that does not say what it is"
	case browser == "":
		return "A browser on " + system
	case system == "":
		return browser
	}
	return browser + " on " + system
}
