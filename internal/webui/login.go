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
	Providers           []providerView // people sign in with on their own pages
	// Guest is who the visitor is in the network that they came over, nil for most; Only says that they come in by that alone.
	Guest *guestView
	Only  bool
	// Directories are those whose accounts sign in with this form, in words; empty for none.
	Directories string
}

func (s *Server) loginPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	next := localPath(r.URL.Query().Get("next"))
	if v.signedIn {
		return seeOther(next)
	}
	s.showLogin(w, r, v, http.StatusOK, loginView{Next: next, SignedOut: r.URL.Query().Has("signed-out")})
	return nil
}

func (s *Server) showLogin(w http.ResponseWriter, r *http.Request, v visitor, status int, view loginView) {
	s.addProviders(r, &view)
	s.render(w, r, status, loginPage(s.page(w, r, v, "Sign in", ""), view))
}

func (s *Server) login(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := loginView{Handle: clip(strings.TrimSpace(r.PostForm.Get("handle")), 100), Next: localPath(r.PostForm.Get("next"))}
	user, err := s.cfg.Users.AuthenticateIn(r.Context(), view.Handle, r.PostForm.Get("password"), remote(r), knownBrowser(r))
	if err == nil {
		if err := s.replaceSession(w, r, v, user); err != nil {
			return err
		}
		s.rememberBrowser(w, r, user, view.Handle)
		return seeOther(view.Next)
	}
	status, tooMany := limited(w, err)
	var needed *users.HandleNeeded
	switch {
	case errors.As(err, &needed):
		return s.chooseFirst(r, v, needed, view.Next)
	case errors.Is(err, users.ErrNotAdmitted), errors.Is(err, users.ErrNoAccount):
		status, view.Error = http.StatusForbidden, message(err)
	case errors.Is(err, users.ErrDirectoryAway):
		status, view.Error = http.StatusServiceUnavailable, message(err)
	case tooMany:
		view.Error = message(err)
	case errors.Is(err, users.ErrBadCredentials), errors.Is(err, users.ErrSuspended), errors.Is(err, users.ErrPending):
		status, view.Error = http.StatusUnauthorized, message(err)
	default:
		return err
	}
	s.showLogin(w, r, visitor{}, status, view)
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
