package webui

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
)

// SignIn is the outside identity providers. Errors are sentences for people around the sentinel errors of package
// signin.
type SignIn interface {
	Providers() []signin.Info
	// Homes are the addresses of the lab that a provider sends browsers back to, the lab's own first.
	Homes(provider string) []string
	// Begin returns the address to send a browser to, and Finish takes what it brings back.
	Begin(ctx context.Context, provider string, about signin.Flow) (address string, err error)
	Finish(ctx context.Context, provider, browser string, answer url.Values) (signin.Flow, users.Outside, error)
	// SignIn checks a name and password with a directory; nil where they do not fit.
	SignIn(ctx context.Context, provider, username, password string) (*users.Outside, error)
}

// outsideAccounts are the accounts elsewhere that people sign in with.
type outsideAccounts interface {
	SignInOutside(ctx context.Context, o users.Outside, remote string) (users.User, error)
	JoinOutside(ctx context.Context, o users.Outside, handle, remote string) (users.User, error)
	LimitOutside(who, remote string) (done func(failed bool), err error)
	FailOutside(ctx context.Context, handle, provider, why, remote string)
	LinkOutside(ctx context.Context, userID int64, o users.Outside) error
	Unlink(ctx context.Context, userID, identityID int64, force bool) (users.Identity, error)
	Identities(ctx context.Context, userID int64) ([]users.Identity, error)
	RoleByRules(ctx context.Context, userID int64) error
	ConfirmPassword(ctx context.Context, id int64, password, remote string) error
}

// A newcomer is somebody whom a provider has vouched for and who has to choose a sign-in name.
type newcomer struct {
	needed users.HandleNeeded
	next   string
	key    string // of the browser, as in its form
}

// newcomerTTL is how long somebody may think about their name.
const newcomerTTL = 15 * time.Minute

func newNewcomers() *signin.Vault[newcomer] {
	return signin.NewVault[newcomer](newcomerTTL, 2000, 100)
}

// A providerView is a button on the sign-in page, or a way to it.
type providerView struct {
	Name, Title string
	// Home is the address of this page by the name of the lab that the provider knows, where the browser used another.
	Home string
}

// providers lists the outside identity providers.
func (s *Server) providers() []signin.Info {
	if s.cfg.SignIn == nil {
		return s.network()
	}
	return append(s.cfg.SignIn.Providers(), s.network()...)
}

// provider finds one by its name; false where none is configured so.
func (s *Server) provider(name string) (signin.Info, bool) {
	list := s.providers()
	i := slices.IndexFunc(list, func(p signin.Info) bool { return p.Name == name })
	if i < 0 {
		return signin.Info{}, false
	}
	return list[i], true
}

// providerTitle is what people know a provider as; one that is not configured any more is known by its name.
func (s *Server) providerTitle(name string) string {
	if p, is := s.provider(name); is {
		return p.Title
	}
	return name
}

// addProviders puts the other ways to sign in on the sign-in page.
func (s *Server) addProviders(r *http.Request, view *loginView) {
	var directories []string
	s.addNetwork(r, view)
	for _, p := range s.providers() {
		switch {
		case p.Network:
		case p.Directory:
			directories = append(directories, p.Title)
		default:
			way := providerView{Name: p.Name, Title: p.Title}
			if home, here := s.homeFor(r, p.Name); !here {
				way.Home = home + "/login?next=" + url.QueryEscape(view.Next)
			}
			view.Providers = append(view.Providers, way)
		}
	}
	view.Directories = strings.Join(directories, ", ")
}

// homeFor is the address of the lab at which a provider signs this browser in, and whether the browser uses it. Cookies
// do not follow from one name of the lab to another.
func (s *Server) homeFor(r *http.Request, provider string) (home string, here bool) {
	homes := s.cfg.SignIn.Homes(provider)
	used := "https://" + strings.ToLower(r.Host)
	if slices.Contains(homes, used) {
		return used, true
	}
	return homes[0], false
}

// browserKey ties what is under way to one browser: to its session, or to the cookie that its forms are compared with
// as long as it has none. Neither can be set by another site.
func browserKey(r *http.Request, v visitor) string {
	if v.signedIn {
		return "session " + v.session.ID
	}
	if token := formCookieOf(r); token != "" {
		return "form " + token
	}
	return ""
}

func (s *Server) beginSignIn(w http.ResponseWriter, r *http.Request, v visitor) error {
	if p, is := s.provider(r.PathValue("provider")); is && p.Network {
		return s.enterByNetwork(w, r, v)
	}
	return s.sendTo(w, r, v, r.PathValue("provider"), signin.Flow{Next: localPath(r.PostForm.Get("next"))})
}

// sendTo sends the browser to a provider. It is a page that goes on by itself rather than a redirect: the
// Content-Security-Policy lets a form lead nowhere but here, through every redirect on the way.
func (s *Server) sendTo(w http.ResponseWriter, r *http.Request, v visitor, provider string, about signin.Flow) error {
	if s.cfg.SignIn == nil {
		return errNoPage
	}
	home, here := s.homeFor(r, provider)
	if !here {
		return &problem{status: http.StatusMisdirectedRequest, title: "Open the lab by its own name first",
			text:     s.providerTitle(provider) + " sends nobody back to the name that you came by. Nothing was changed.",
			linkText: "Go on at " + strings.TrimPrefix(home, "https://"), link: home + "/login"}
	}
	about.Browser, about.Remote, about.Home = flowKey(r, v), remote(r), home
	if about.Browser == "" {
		return errFormToken
	}
	address, err := s.cfg.SignIn.Begin(r.Context(), provider, about)
	if err != nil {
		return outsideProblem(err)
	}
	title := s.providerTitle(provider)
	w.Header().Set("Refresh", "0; url="+address)
	s.render(w, r, http.StatusOK, goingOnPage(s.page(w, r, v, "Going on to "+title, ""), title, address))
	return nil
}

// flowKey ties a sign-in at a provider to one browser: by a cookie, and by the key that a page of another port cannot
// have sent. It is for forms alone.
func flowKey(r *http.Request, v visitor) string {
	key := browserKey(r, v)
	if key == "" {
		return ""
	}
	return key + " " + postedKey(r)
}

// A returnView is what a provider's answer says, as the fields of a form.
type returnView struct {
	Action string
	Fields [][2]string
}

// returnPage is where a provider sends the browser back to. Anybody can make a browser open this address, with an
// answer that was meant for somebody else, and in some browsers another port can plant the cookie of the one that
// began it. So nothing is done yet: the page sends itself on, with the key of the browser.
func (s *Server) returnPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if p, is := s.provider(r.PathValue("provider")); !is || p.Network {
		return errNoPage
	}
	view := returnView{Action: r.URL.EscapedPath()}
	for name, values := range r.URL.Query() {
		for _, value := range values {
			if name != "csrf" && name != "browser-key" {
				view.Fields = append(view.Fields, [2]string{name, value})
			}
		}
	}
	s.render(w, r, http.StatusOK, returnPage(s.page(w, r, v, "Signing in", ""), view))
	return nil
}

// finishSignIn takes what a provider has sent the browser back with.
func (s *Server) finishSignIn(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.SignIn == nil {
		return errNoPage
	}
	provider := r.PathValue("provider")
	done, err := s.cfg.Users.LimitOutside(browserKey(r, v), remote(r))
	if err != nil {
		return outsideProblem(err)
	}
	answer := maps.Clone(r.PostForm)
	delete(answer, "csrf")
	delete(answer, "browser-key")
	flow, outside, err := s.cfg.SignIn.Finish(r.Context(), provider, flowKey(r, v), answer)
	done(errors.Is(err, signin.ErrExpired) || errors.Is(err, signin.ErrInvalid))
	switch {
	case errors.Is(err, signin.ErrExpired):
		s.cfg.Users.FailOutside(r.Context(), "", s.known(provider), "begun in another browser, too long ago, or over already",
			remote(r))
		return outsideProblem(err)
	case errors.Is(err, signin.ErrInvalid):
		why := "the answer failed a security check"
		var theirs *signin.Error
		if errors.As(err, &theirs) && theirs.Why != "" {
			why += ", " + theirs.Why
		}
		s.cfg.Users.FailOutside(r.Context(), "", s.known(provider), why, remote(r))
		return outsideProblem(err)
	case err != nil:
		return outsideProblem(err)
	case flow.LinkTo != 0:
		return s.finishLink(r, v, flow, outside)
	}
	user, err := s.cfg.Users.SignInOutside(r.Context(), outside, remote(r))
	return s.enter(w, r, v, user, err, flow.Next)
}

// known is the name of a provider that there is: what somebody writes into an address is not recorded.
func (s *Server) known(provider string) string {
	if _, is := s.provider(provider); is {
		return provider
	}
	return "an unknown provider"
}

// enter lets somebody in whom a provider vouched for, or says why not.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, v visitor, user users.User, err error,
	next string) error {
	var needed *users.HandleNeeded
	switch {
	case errors.As(err, &needed):
		return s.chooseFirst(r, v, needed, next)
	case err != nil:
		return outsideProblem(err)
	}
	if err := s.replaceSession(w, r, v, user); err != nil {
		return err
	}
	s.rememberBrowser(w, r, user, user.Handle)
	return seeOther(localPath(next))
}

// outsideProblem says why somebody did not come in, and what to do.
func outsideProblem(err error) error {
	text := message(err)
	var theirs *signin.Error
	if errors.As(err, &theirs) {
		text = theirs.Text
	}
	p := &problem{text: text, linkText: "Back to sign-in", link: "/login", cause: err}
	switch {
	case errors.Is(err, signin.ErrNoProvider):
		return errNoPage
	case errors.Is(err, signin.ErrUnavailable):
		p.status, p.title = http.StatusBadGateway, "This way to sign in does not work at the moment"
	case errors.Is(err, signin.ErrExpired):
		p.status, p.title = http.StatusForbidden, "This sign-in cannot go on"
	case errors.Is(err, signin.ErrCancelled):
		p.status, p.title = http.StatusForbidden, "You were not signed in"
	case errors.Is(err, signin.ErrInvalid):
		p.status, p.title = http.StatusForbidden, "You were not signed in"
	case errors.Is(err, users.ErrNotAdmitted):
		p.status, p.title = http.StatusForbidden, "Your account may not use this lab"
	case errors.Is(err, users.ErrNoAccount):
		p.status, p.title = http.StatusForbidden, "You have no account here yet"
	case errors.Is(err, users.ErrIdentityTaken), errors.Is(err, users.ErrIdentityExists):
		p.status, p.title = http.StatusConflict, "It was not linked"
		p.linkText, p.link = "Back to your account", "/account"
	case errors.Is(err, users.ErrTooManyTries):
		p.status, p.title = http.StatusTooManyRequests, "Too many tries"
	default:
		return err
	}
	return p
}

// chooseFirst sends somebody new to the page on which they choose a sign-in name. Who they are stays here.
func (s *Server) chooseFirst(r *http.Request, v visitor, needed *users.HandleNeeded, next string) error {
	key := s.newcomers.Put(newcomer{*needed, next, postedKey(r)}, browserKey(r, v), remote(r))
	return seeOther("/handle/choose?key=" + url.QueryEscape(key))
}

// A chooseView is the form on which somebody new chooses a sign-in name.
type chooseView struct {
	Key, Title, Name, Wanted string
	Handle, Error            string
}

var errNoNewcomer = &problem{status: http.StatusGone, title: "This page was open for too long",
	text: "No account was made. Sign in again to get one.", linkText: "Back to sign-in", link: "/login"}

func (s *Server) choosePage(w http.ResponseWriter, r *http.Request, v visitor) error {
	key := r.URL.Query().Get("key")
	who, ok := s.newcomers.Look(key, browserKey(r, v))
	if !ok {
		return errNoNewcomer
	}
	s.showChoose(w, r, v, http.StatusOK, who, chooseView{Key: key, Handle: who.needed.Suggest})
	return nil
}

func (s *Server) showChoose(w http.ResponseWriter, r *http.Request, v visitor, status int, who newcomer,
	view chooseView) {
	o := who.needed.Outside
	view.Title, view.Name, view.Wanted = o.Title, orElse(o.Name, o.Username), who.needed.Wanted
	s.render(w, r, status, choosePage(s.page(w, r, v, "Choose a sign-in name", ""), view))
}

func (s *Server) choose(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := chooseView{Key: r.PostForm.Get("key"), Handle: strings.TrimSpace(r.PostForm.Get("handle"))}
	who, ok := s.newcomers.Look(view.Key, browserKey(r, v))
	if !ok || who.key != postedKey(r) {
		return errNoNewcomer
	}
	user, err := s.cfg.Users.JoinOutside(r.Context(), who.needed.Outside, view.Handle, remote(r))
	if errors.Is(err, users.ErrHandleInvalid) || errors.Is(err, users.ErrHandleTaken) {
		view.Error = message(err)
		s.showChoose(w, r, v, http.StatusUnprocessableEntity, who, view)
		return nil
	}
	s.newcomers.Take(view.Key, browserKey(r, v))
	return s.enter(w, r, v, user, err, who.next)
}

// newNameField is for a sign-in name that follows from nothing else on the page.
func newNameField(value, wrong string) field {
	f := wishField(value, wrong)
	f.SuggestFrom, f.Autofocus = "", true
	return f
}
