package webui

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/gpulab/gpulab/internal/users"
)

// A linkView is the form behind a one-time link: the first admin's account, or
// a password for an account that exists.
type linkView struct {
	Action, Token string
	Link          users.Link
	Guest         *invitedView
	accountForm
}

func (v linkView) newAccount() bool { return v.Link.UserID == nil }

func (v linkView) title() string {
	switch {
	case v.newAccount():
		return "Create your account"
	case v.Guest != nil:
		return "Choose how you sign in"
	}
	return "Choose a password"
}

// offer takes back that somebody may sign in by the network, where the link makes a new account, or is there to replace
// a password that others may know.
func (v *linkView) offer() {
	if v.Guest != nil && (v.newAccount() || v.Link.HasPassword && !v.Guest.Only) {
		v.Guest = nil
	}
}

// linkPage shows the form behind a link. Looking at it does not use it up: mail
// programs open links before people do.
func (s *Server) linkPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := linkView{Action: r.URL.Path, Token: r.URL.Query().Get("token"), Guest: s.invited(r)}
	link, err := s.cfg.Users.LinkInfo(r.Context(), view.Token)
	if err != nil {
		return linkProblem(err)
	}
	view.Link = link
	view.offer()
	s.render(w, r, http.StatusOK, linkPage(s.page(w, r, v, view.title(), ""), view))
	return nil
}

// linkProblem says why a link does not work and how to get another.
func linkProblem(err error) error {
	p := &problem{status: http.StatusGone, text: message(err), linkText: "Go to sign-in", link: "/login", cause: err}
	switch {
	case errors.Is(err, users.ErrLinkUsed):
		p.title = "This link was already used"
	case errors.Is(err, users.ErrLinkExpired):
		p.title = "This link has expired"
	case errors.Is(err, users.ErrAdminExists):
		p.title = "This lab has an admin already"
	case errors.Is(err, users.ErrLinkUnknown):
		p.status, p.title = http.StatusNotFound, "This link is not valid"
	default:
		return err
	}
	return p
}

func (s *Server) redeemLink(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := linkView{
		Action: r.URL.Path, Token: r.PostForm.Get("token"), Guest: s.invited(r), accountForm: readAccountForm(r),
	}
	link, err := s.cfg.Users.LinkInfo(r.Context(), view.Token)
	if err != nil {
		return linkProblem(err)
	}
	view.Link = link
	view.offer()
	user, err := s.redeem(r, view)
	switch {
	case err == nil:
		if err := s.replaceSession(w, r, v, user); err != nil {
			return err
		}
		s.rememberBrowser(w, r, user, user.Handle)
		return seeOther("/")
	case view.refused(err):
	default:
		return linkProblem(err)
	}
	s.render(w, r, http.StatusUnprocessableEntity, linkPage(s.page(w, r, v, view.title(), ""), view))
	return nil
}

var errPasswordsDiffer = errors.New("the two passwords are not the same")

func (s *Server) redeem(r *http.Request, view linkView) (users.User, error) {
	if err := s.onlyByNetwork(r, view.Guest); err != nil {
		return users.User{}, err
	}
	if view.Guest != nil && view.Guest.Wanted {
		return s.cfg.Users.RedeemLinkOutside(r.Context(), view.Token, view.Guest.Outside, remote(r))
	}
	password := r.PostForm.Get("password")
	if password != r.PostForm.Get("again") {
		return users.User{}, errPasswordsDiffer
	}
	return s.cfg.Users.RedeemLink(r.Context(), view.Token, view.Handle, view.Name, password)
}

// checkHandle answers, while somebody types, whether a sign-in name can be had.
// It is for people who may create an account; others could list the lab's.
func (s *Server) checkHandle(w http.ResponseWriter, r *http.Request, v visitor) error {
	query := r.URL.Query()
	if !v.may(users.ActionManageUsers) && !s.mayMakeAccount(r) {
		return errNotAllowed
	}
	handle := query.Get("handle")
	var wrong, right, hint string
	switch err := users.CheckHandle(handle); {
	case handle == "":
		hint = handleHint
	case err != nil:
		wrong = message(err)
	default:
		switch err := s.cfg.Users.HandleFree(r.Context(), handle); {
		case err == nil:
			right = "Free."
		case errors.Is(err, users.ErrHandleTaken):
			wrong = message(err)
		default:
			return err
		}
	}
	s.render(w, r, http.StatusOK, fieldNote("handle-note", hint, wrong, right))
	return nil
}

// mayMakeAccount reports whether a request carries a link with which somebody
// makes an account.
func (s *Server) mayMakeAccount(r *http.Request) bool {
	token := r.URL.Query().Get("token")
	if info, err := s.cfg.Users.LinkInfo(r.Context(), token); err == nil {
		return info.UserID == nil
	}
	_, err := s.cfg.Users.InvitationInfo(r.Context(), token)
	return err == nil
}

// handleHint says what a sign-in name looks like.
const handleHint = "2 to 30 of a–z, 0–9 and single hyphens, a letter first. It cannot be changed later."

func handleField(value, wrong, token string) field {
	check := "/handle/check"
	if token != "" {
		check += "?token=" + url.QueryEscape(token)
	}
	return field{ID: "handle", Name: "handle", Label: "Sign-in name", Value: value, Error: wrong, Hint: handleHint,
		Autocomplete: "username", MaxLength: 30, SuggestFrom: "name", CheckURL: check}
}
