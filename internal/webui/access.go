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

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

// maxForm is the largest form accepted, in bytes.
const maxForm = 64 << 10

// A visitor is who sent a request: the zero value is somebody not signed in.
type visitor struct {
	session  users.Session
	token    string // the session's token, to end it
	key      string // of the browser that it was begun in, see [cookies.Credential]
	signedIn bool
	// planted says that the request has more than one session's cookie, so that it counts as none: a page at another
	// port of this host has set one.
	planted bool
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
	cookie, ok := cookies.FromRequest(r)
	if !ok {
		return visitor{planted: cookies.Count(r, cookies.Session) > 1}
	}
	session, err := s.cfg.Users.SessionUser(r.Context(), cookie.Token)
	if err != nil {
		if !errors.Is(err, users.ErrSignedOut) && r.Context().Err() == nil {
			s.cfg.Log.Error("session not read", "error", err)
		}
		return visitor{}
	}
	return visitor{session: session, token: cookie.Token, key: cookie.Key, signedIn: true}
}

// guard lets a request through to the route's handler when the visitor may
// make it and, for a form, when the form was ours.
func (s *Server) guard(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := s.visitor(r)
		if err := s.admit(w, r, rt, &v); err != nil {
			s.fail(w, r, v, err)
			return
		}
		if err := rt.handler(w, r, v); err != nil {
			s.fail(w, r, v, err)
		}
	})
}

// admit checks what a request may do. Who signs in past a session that was planted in this browser is nobody before.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, rt route, v *visitor) error {
	if !v.may(rt.need) {
		switch {
		case v.signedIn:
			return errNotAllowed
		case rt.script || r.Method != http.MethodGet && r.Method != http.MethodHead:
			return errSignInFirst
		default:
			// The sign-in page does not see a twin that is sent to this path alone.
			cookies.ExpireHere(w, r, cookies.Session)
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
	if _, proven := sentFromHere(r); rt.leaves && proven && (v.planted || v.signedIn && begunElsewhere(r, *v)) {
		return nil
	}
	if rt.need == public && v.signedIn && begunElsewhere(r, *v) {
		*v = visitor{}
	}
	return checkForm(r, *v)
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

// sentFromHere reports whether a request that changes something may have been sent by a page of this origin, and
// whether that is proven. Another port of this host is another origin, whose page may have planted the cookie that a
// form is compared with. Programs and very old browsers say nothing; they need the form's token.
func sentFromHere(r *http.Request) (may, proven bool) {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return true, true
	case "none": // somebody typed the address
		return true, false
	case "":
	default:
		return false, false
	}
	from := r.Header.Get("Origin")
	if from == "" {
		from = r.Header.Get("Referer")
	}
	if from == "" {
		return true, false
	}
	u, err := url.Parse(from)
	here := err == nil && u.Scheme == "https" && authority(u.Host) == authority(r.Host)
	return here, here
}

// authority is a host without the port that browsers leave out.
func authority(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":443") }

// onlyFromHere refuses what another origin's page makes a browser send, the one of another port of this host included.
func (s *Server) onlyFromHere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
		default:
			if may, _ := sentFromHere(r); !may {
				s.fail(w, r, s.visitor(r), errOtherSite)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// checkForm compares the token of a form with the one its page was given, and the key of the browser with the one that
// the session was begun with.
func checkForm(r *http.Request, v visitor) error {
	got := r.PostForm.Get("csrf")
	if v.signedIn {
		if !v.session.ValidCSRF(got) {
			return errFormToken
		}
		if begunElsewhere(r, v) {
			return errOtherSession
		}
		return nil
	}
	// Another port may have planted a second cookie, with which nobody could sign in any more. It does not matter
	// where the browser itself says that the form is ours.
	list := cookies.Values(r, cookies.Form)
	if _, proven := sentFromHere(r); len(list) > 1 && !proven {
		return errFormToken
	}
	for _, token := range list {
		if token != "" && subtle.ConstantTimeCompare([]byte(got), []byte(token)) == 1 {
			return nil
		}
	}
	return errFormToken
}

// begunElsewhere reports whether a form comes from another browser than the one that the session was begun in.
func begunElsewhere(r *http.Request, v visitor) bool {
	key := postedKey(r)
	return key != "" && key != v.key
}

// postedKey is the key of the browser that a form was sent by: the page's script adds it. It is empty without script.
func postedKey(r *http.Request) string { return cookies.Key(r.PostForm.Get("browser-key")) }

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
	cookies.Set(w, r, cookies.Form, token)
	return token
}

// formCookieOf is the token that a browser without a session was given, "" for
// none that can be ours.
func formCookieOf(r *http.Request) string {
	value, ok := cookies.One(r, cookies.Form)
	if !ok || len(value) < 26 || len(value) > 64 {
		return ""
	}
	return value
}

// replaceSession starts a session for user in this browser, in place of the one
// it had.
func (s *Server) replaceSession(w http.ResponseWriter, r *http.Request, v visitor, user users.User) error {
	if v.signedIn {
		if err := s.cfg.Users.EndSession(r.Context(), v.token); err != nil {
			return err
		}
	}
	token, err := s.cfg.Users.StartSession(r.Context(), user.ID,
		users.SessionMeta{Remote: remote(r), UserAgent: clip(r.UserAgent(), 300)})
	if err != nil {
		return err
	}
	key := postedKey(r)
	if key == "" && v.signedIn {
		key = v.key
	}
	cookies.Set(w, r, cookies.Session, cookies.Credential{Token: token, Key: key}.String())
	cookies.Expire(w, r, cookies.Form)
	return nil
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
