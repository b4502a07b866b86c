package webui

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// A loginView is the sign-in form.
type loginView struct {
	Handle, Next, Error string
	SignedOut           bool
}

func (s *Server) loginPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	next := localPath(r.URL.Query().Get("next"))
	if v.signedIn {
		return seeOther(next)
	}
	view := loginView{Next: next, SignedOut: r.URL.Query().Has("signed-out")}
	s.render(w, r, http.StatusOK, loginPage(s.page(w, r, v, "Sign in", ""), view))
	return nil
}

func (s *Server) login(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := loginView{Handle: clip(strings.TrimSpace(r.PostForm.Get("handle")), 100), Next: localPath(r.PostForm.Get("next"))}
	user, err := s.cfg.Users.Authenticate(r.Context(), view.Handle, r.PostForm.Get("password"), remote(r))
	if err == nil {
		if err := s.replaceSession(w, r, v, user); err != nil {
			return err
		}
		return seeOther(view.Next)
	}
	status := http.StatusUnauthorized
	var limited *users.RateError
	switch {
	case errors.As(err, &limited):
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", seconds(limited.RetryAfter))
		view.Error = message(err)
	case errors.Is(err, users.ErrBadCredentials), errors.Is(err, users.ErrSuspended), errors.Is(err, users.ErrPending):
		view.Error = message(err)
	default:
		return err
	}
	s.render(w, r, status, loginPage(s.page(w, r, visitor{}, "Sign in", ""), view))
	return nil
}

// logout ends the session everywhere in this browser: the notebooks' origin
// asks for the same session.
func (s *Server) logout(w http.ResponseWriter, r *http.Request, v visitor) error {
	if v.signedIn {
		if err := s.cfg.Users.EndSession(r.Context(), v.token); err != nil {
			return err
		}
		s.audit(r, v, "sign-out", v.session.User.Handle, "")
	}
	forgetCookie(w, sessionCookie)
	return seeOther("/login?signed-out")
}
