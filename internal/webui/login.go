package webui

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

// A loginView is the sign-in form.
type loginView struct {
	Handle, Next, Error string
	SignedOut           bool
	// Planted says that another page has set the session's cookie; Services are what those signed in here have looked at.
	Planted   bool
	Services  []string
	Providers []providerView // people sign in with on their own pages
	// Guest is who the visitor is in the network that they came over, nil for most; Only says that they come in by that
	// alone.
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
	// What is there is dead or not alone. A dead one stays in the way of none that is set anew, but its twin would.
	view := loginView{Next: next, SignedOut: r.URL.Query().Has("signed-out"), Planted: v.planted}
	if v.planted {
		view.Services = s.seenHere(r, v)
	}
	if cookies.Count(r, cookies.Session) > 0 {
		cookies.Expire(w, r, cookies.Session)
	}
	s.showLogin(w, r, v, http.StatusOK, view)
	return nil
}

func (s *Server) showLogin(w http.ResponseWriter, r *http.Request, v visitor, status int, view loginView) {
	s.addProviders(r, &view)
	s.render(w, r, status, loginPage(s.page(w, r, v, "Sign in", ""), view))
}

func (s *Server) login(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := loginView{
		Handle: clip(strings.TrimSpace(r.PostForm.Get("handle")), 100), Next: localPath(r.PostForm.Get("next")),
	}
	user, err := s.cfg.Users.AuthenticateIn(r.Context(), view.Handle, r.PostForm.Get("password"), remote(r),
		knownBrowser(r))
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
// asks for the same session. One that was begun in another browser and planted
// here is not ended: it is forgotten.
func (s *Server) logout(w http.ResponseWriter, r *http.Request, v visitor) error {
	key := postedKey(r)
	if v.signedIn && (v.key == "" || !begunElsewhere(r, v)) {
		if err := s.cfg.Users.EndSession(r.Context(), v.token); err != nil {
			return err
		}
		s.audit(r, v, "sign-out", v.session.User.Handle, "")
	}
	if v.planted && key != "" {
		for _, c := range cookies.All(r) {
			if c.Key != key {
				continue
			}
			if err := s.cfg.Users.EndSession(r.Context(), c.Token); err != nil {
				return err
			}
		}
	}
	cookies.Expire(w, r, cookies.Session)
	cookies.Expire(w, r, cookies.Form)
	return seeOther("/login?signed-out")
}

// An otherSessionView says that the session of this browser is not one that was begun in it.
type otherSessionView struct {
	Name     string // whose it is, "" where there is more than one or none
	Services []string
}

// otherSessionPage is where the script of every page leads when the session was begun in another browser. It leads
// nowhere by itself: a page that sets the cookie again and again must not make the browser go round.
func (s *Server) otherSessionPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := otherSessionView{Services: s.seenHere(r, v)}
	if v.signedIn {
		view.Name = displayName(v.session.User) + " (" + v.session.User.Handle + ")"
	}
	p := s.page(w, r, visitor{}, "Another session", "")
	if v.signedIn {
		p.CSRF = v.session.CSRF
	}
	s.render(w, r, http.StatusOK, otherSessionPage(p, view))
	return nil
}

// seenHere names the services from which a cookie of this browser may come: those that its sessions have looked at, and
// those of a person in whose session it is. Who has no valid session is told none.
func (s *Server) seenHere(r *http.Request, v visitor) (names []string) {
	sessions := []users.Session{}
	if v.signedIn {
		sessions = append(sessions, v.session)
	} else {
		for _, c := range cookies.All(r) {
			if session, err := s.cfg.Users.SessionUser(r.Context(), c.Token); err == nil {
				sessions = append(sessions, session)
			}
		}
	}
	var ids []int64
	for i := range sessions {
		if s.cfg.SeenBy != nil {
			ids = append(ids, s.cfg.SeenBy(sessions[i].ID)...)
		}
		own, err := s.cfg.Notebooks.Services(r.Context(), sessions[i].User.ID)
		if err != nil && r.Context().Err() == nil {
			s.cfg.Log.Error("services not listed", "error", err)
		}
		for k := range own {
			if own[k].Active() {
				ids = append(ids, own[k].ID)
			}
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		l, err := s.cfg.Notebooks.Get(r.Context(), id)
		if err != nil || l.Service == nil {
			continue
		}
		names = append(names, fmt.Sprintf("%s of %s, port %d", l.Title, l.Handle, l.Service.Door))
	}
	return names
}
