package webui

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// An accountForm is what people say about themselves for an account of their
// own.
type accountForm struct {
	Name, Handle, Email, Note                                                string
	NameError, HandleError, EmailError, NoteError, PasswordError, AnyProblem string
}

func readAccountForm(r *http.Request) accountForm {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	return accountForm{Name: get("name"), Handle: get("handle"), Email: get("email"), Note: get("note")}
}

func (f accountForm) user() users.NewUser {
	return users.NewUser{Handle: f.Handle, Name: f.Name, Email: f.Email}
}

// refused puts an error beside the field that caused it; false where no field
// did.
func (f *accountForm) refused(err error) bool {
	switch {
	case errors.Is(err, errPasswordsDiffer), errors.Is(err, users.ErrPasswordWeak):
		f.PasswordError = message(err)
	case errors.Is(err, users.ErrHandleInvalid), errors.Is(err, users.ErrHandleTaken):
		f.HandleError = message(err)
	case errors.Is(err, users.ErrNameInvalid):
		f.NameError = message(err)
	case errors.Is(err, users.ErrEmailInvalid):
		f.EmailError = message(err)
	case errors.Is(err, users.ErrNoteInvalid):
		f.NoteError = message(err)
	case errors.Is(err, users.ErrIdentityTaken), errors.Is(err, users.ErrIdentityExists):
		f.AnyProblem = message(err)
	default:
		return false
	}
	return true
}

// limited is the status for too many tries, with when to come back.
func limited(w http.ResponseWriter, err error) (status int, is bool) {
	var rate *users.RateError
	if !errors.As(err, &rate) {
		return 0, false
	}
	w.Header().Set("Retry-After", seconds(rate.RetryAfter))
	return http.StatusTooManyRequests, true
}

// A joinView is the form behind an invitation.
type joinView struct {
	Token, As string
	Guest     *invitedView
	Form      accountForm
}

// joinPage shows the form behind an invitation. Looking at it uses nothing up:
// mail programs open links before people do.
func (s *Server) joinPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	token := r.URL.Query().Get("token")
	invitation, err := s.cfg.Users.InvitationInfo(r.Context(), token)
	if err != nil {
		return invitationProblem(err)
	}
	s.showJoin(w, r, v, http.StatusOK, joinView{Token: token, As: invitedAs(invitation), Guest: s.invited(r)})
	return nil
}

func (s *Server) showJoin(w http.ResponseWriter, r *http.Request, v visitor, status int, view joinView) {
	s.render(w, r, status, joinPage(s.page(w, r, v, "Join "+s.cfg.LabName, ""), view))
}

// invitationProblem says why an invitation does not work and how to get
// another.
func invitationProblem(err error) error {
	p := &problem{status: http.StatusGone, text: message(err), linkText: "Go to sign-in", link: "/login", cause: err}
	switch {
	case errors.Is(err, users.ErrInvitationUsed):
		p.title = "This invitation is used up"
	case errors.Is(err, users.ErrInvitationExpired):
		p.title = "This invitation has expired"
	case errors.Is(err, users.ErrInvitationRevoked):
		p.title = "This invitation was taken back"
	case errors.Is(err, users.ErrInvitationUnknown):
		p.status, p.title = http.StatusNotFound, "This invitation is not valid"
	default:
		return err
	}
	return p
}

func (s *Server) join(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := joinView{Token: r.PostForm.Get("token"), Guest: s.invited(r), Form: readAccountForm(r)}
	user, err := s.joined(r, view)
	if err == nil {
		if err := s.replaceSession(w, r, v, user); err != nil {
			return err
		}
		s.rememberBrowser(w, r, user, user.Handle)
		return seeOther("/")
	}
	status, tooMany := limited(w, err)
	switch {
	case tooMany:
		view.Form.AnyProblem = message(err)
	case view.Form.refused(err):
		status = http.StatusUnprocessableEntity
	default:
		return invitationProblem(err)
	}
	if invitation, err := s.cfg.Users.InvitationInfo(r.Context(), view.Token); err == nil {
		view.As = invitedAs(invitation)
	}
	s.showJoin(w, r, v, status, view)
	return nil
}

func (s *Server) joined(r *http.Request, view joinView) (users.User, error) {
	password, user := r.PostForm.Get("password"), view.Form.user()
	if err := s.onlyByNetwork(r, view.Guest); err != nil {
		return users.User{}, err
	}
	if guest := view.Guest; guest != nil && guest.Wanted {
		user.Outside = &guest.Outside
		if guest.Only {
			return s.cfg.Users.Join(r.Context(), view.Token, user, "", remote(r))
		}
		if err := users.CheckPassword(password, user.Handle); err != nil {
			return users.User{}, err // it works on the lab's own network, too
		}
	}
	if password != r.PostForm.Get("again") {
		if _, err := s.cfg.Users.InvitationInfo(r.Context(), view.Token); err != nil {
			return users.User{}, err
		}
		return users.User{}, errPasswordsDiffer
	}
	return s.cfg.Users.Join(r.Context(), view.Token, user, password, remote(r))
}
