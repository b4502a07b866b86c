package webui

import (
	"net/http"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// knownCookie says as whom somebody has signed in with this browser before, so that strangers who guess passwords do
// not make it wait (users.KnownBrowser). It grants nothing else, and stays after signing out.
const knownCookie = "__Host-Http-gpulab-known"

// knownFor is as long as browsers keep a cookie.
const knownFor = 400 * 24 * time.Hour

// knownBrowser is the cookie's value. One that arrives twice is none: a page on another port may have added it.
func knownBrowser(r *http.Request) string {
	if found := r.CookiesNamed(knownCookie); len(found) == 1 {
		return found[0].Value
	}
	return ""
}

// rememberBrowser lets the browser know user, who has just signed in with that name. Without it, signing in works, too.
func (s *Server) rememberBrowser(w http.ResponseWriter, r *http.Request, user users.User, name string) {
	value, err := s.cfg.Users.KnownBrowser(r.Context(), user.ID, name, knownBrowser(r))
	if err != nil {
		if r.Context().Err() == nil {
			s.cfg.Log.Error("browser not remembered", "error", err)
		}
		return
	}
	cookie := http.Cookie{Name: knownCookie, Value: value, Path: "/", MaxAge: int(knownFor / time.Second),
		Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if len(r.CookiesNamed(knownCookie)) > 1 {
		// A page at another port has set the twin, which browsers keep apart from ours. It would stay for ever.
		twin := cookie
		twin.Value, twin.MaxAge, twin.Partitioned = "", -1, true
		http.SetCookie(w, &twin)
	}
	http.SetCookie(w, &cookie)
}
