package webui

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// sessionCookie holds the session's token. It is sent to the notebooks' origin
// too (cookies do not know ports); the proxy there takes it off.
const sessionCookie = "__Host-gpulab"

// formCookie ties a form to the browser it was shown in while there is no
// session yet (sign-in, one-time links).
const formCookie = "__Host-gpulab-form"

// maxForm is the largest form accepted, in bytes.
const maxForm = 64 << 10

// A visitor is who sent a request: the zero value is somebody not signed in.
type visitor struct {
	session  users.Session
	token    string // the session's token, to end it
	signedIn bool
}

// may reports whether the visitor may do the action to anybody at all, which
// is what a route asks. On whom, its handler asks mayOn.
func (v visitor) may(action users.Action) bool {
	return action == public || v.signedIn && v.session.User.Scope(action) > users.Nobody
}

// mayOn reports whether the visitor may do the action to that account and what
// it owns.
func (v visitor) mayOn(action users.Action, user int64) bool {
	return v.signedIn && v.session.User.May(action, user)
}

// mayOnOthers reports whether the visitor may do the action to anybody else.
func (v visitor) mayOnOthers(action users.Action) bool {
	return v.signedIn && v.session.User.Scope(action) > users.Own
}

// visitor finds the session of a request. Every failure means "not signed in".
func (s *Server) visitor(r *http.Request) visitor {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return visitor{}
	}
	session, err := s.cfg.Users.SessionUser(r.Context(), cookie.Value)
	if err != nil {
		if !errors.Is(err, users.ErrSignedOut) && r.Context().Err() == nil {
			s.cfg.Log.Error("session not read", "error", err)
		}
		return visitor{}
	}
	return visitor{session: session, token: cookie.Value, signedIn: true}
}

// guard lets a request through to the route's handler when the visitor may
// make it and, for a form, when the form was ours.
func (s *Server) guard(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := s.visitor(r)
		if err := s.admit(w, r, rt, v); err != nil {
			s.fail(w, r, v, err)
			return
		}
		if err := rt.handler(w, r, v); err != nil {
			s.fail(w, r, v, err)
		}
	})
}

func (s *Server) admit(w http.ResponseWriter, r *http.Request, rt route, v visitor) error {
	if !v.may(rt.need) {
		switch {
		case v.signedIn:
			return errNotAllowed
		case rt.script || r.Method != http.MethodGet && r.Method != http.MethodHead:
			return errSignInFirst
		default:
			return seeOther("/login?next=" + url.QueryEscape(r.URL.RequestURI()))
		}
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead || rt.streams {
		return nil
	}
	if err := parseForm(w, r, rt.maxForm); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return errFormTooLarge
		}
		return errFormUnreadable
	}
	return checkFormToken(r, v)
}

// parseForm reads a form of at most limit bytes. Only a route with a limit of
// its own takes files; they stay in memory.
func parseForm(w http.ResponseWriter, r *http.Request, limit int64) error {
	if limit == 0 {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		return r.ParseForm()
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "multipart/form-data" {
		return r.ParseMultipartForm(limit)
	}
	return r.ParseForm()
}

// checkFormToken compares the token of a form with the one its page was given.
func checkFormToken(r *http.Request, v visitor) error {
	got := r.PostForm.Get("csrf")
	if v.signedIn {
		if !v.session.ValidCSRF(got) {
			return errFormToken
		}
		return nil
	}
	cookie, err := r.Cookie(formCookie)
	if err != nil || cookie.Value == "" || subtle.ConstantTimeCompare([]byte(got), []byte(cookie.Value)) != 1 {
		return errFormToken
	}
	return nil
}

// formToken returns the token for the forms of a page, and sets the cookie it
// will be compared with where there is no session.
func formToken(w http.ResponseWriter, r *http.Request, v visitor) string {
	if v.signedIn {
		return v.session.CSRF
	}
	if token := formCookieOf(r); token != "" {
		return token
	}
	token := rand.Text()
	http.SetCookie(w, &http.Cookie{Name: formCookie, Value: token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	return token
}

// formCookieOf is the token that a browser without a session was given, "" for
// none that can be ours.
func formCookieOf(r *http.Request) string {
	cookie, err := r.Cookie(formCookie)
	if err != nil || len(cookie.Value) < 26 || len(cookie.Value) > 64 {
		return ""
	}
	return cookie.Value
}

// replaceSession starts a session for user in this browser, in place of the one
// it had.
func (s *Server) replaceSession(w http.ResponseWriter, r *http.Request, v visitor, user users.User) error {
	if v.signedIn {
		if err := s.cfg.Users.EndSession(r.Context(), v.token); err != nil {
			return err
		}
	}
	token, err := s.cfg.Users.StartSession(r.Context(), user.ID, users.SessionMeta{Remote: remote(r), UserAgent: clip(r.UserAgent(), 300)})
	if err != nil {
		return err
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	forgetCookie(w, formCookie)
	return nil
}

func forgetCookie(w http.ResponseWriter, name string) {
	http.SetCookie(w, &http.Cookie{Name: name, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

// localPath returns target when it is a path on this origin, otherwise "/". A
// sign-in link must not be able to send people elsewhere.
func localPath(target string) string {
	if !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") || strings.ContainsAny(target, "\\\r\n\t") {
		return "/"
	}
	parsed, err := url.Parse(target)
	if err != nil || parsed.IsAbs() || parsed.Host != "" || parsed.User != nil {
		return "/"
	}
	switch parsed.Path {
	case "/login", "/logout": // would come straight back
		return "/"
	}
	return parsed.RequestURI()
}

// pathID is the number of what a request is about.
func pathID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0, errNoPage
	}
	return id, nil
}

// remote is the address of the client without its port.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

func clip(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "")
}
