package webui

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// A linkView is the form behind a one-time link: the first admin's account, an
// invitation, or a new password for an existing account.
type linkView struct {
	Action, Token string
	// Existing is the account the link sets a password for; its zero value
	// means that the link makes a new account.
	Existing                           users.User
	Name, Handle                       string
	NameError, HandleError, PasswordError string
}

func (v linkView) newAccount() bool { return v.Existing.ID == 0 }

func (v linkView) title() string {
	if v.newAccount() {
		return "Create your account"
	}
	return "Choose a password"
}

// linkPage shows the form behind a link. Looking at it does not use it up: mail
// programs open links before people do.
func (s *Server) linkPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, err := s.linkView(r, r.URL.Query().Get("token"))
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, linkPage(s.page(w, r, v, view.title(), ""), view))
	return nil
}

// linkView reads what a link is for, or says why it is for nothing any more.
func (s *Server) linkView(r *http.Request, token string) (linkView, error) {
	view := linkView{Action: r.URL.Path, Token: token}
	info, err := s.cfg.Users.LinkInfo(r.Context(), token)
	if err != nil {
		return view, linkProblem(r.URL.Path, err)
	}
	if info.UserID != nil {
		if view.Existing, err = s.cfg.Users.ByID(r.Context(), *info.UserID); err != nil {
			return view, err
		}
	}
	return view, nil
}

// linkProblem says why a link does not work and how to get another.
func linkProblem(path string, err error) error {
	next := "Ask an admin of the lab for a new one."
	if path == "/setup" {
		next = "Run “gpulab admin-link” on the lab's machine for a new one."
	}
	p := &problem{status: http.StatusGone, linkText: "Go to sign-in", link: "/login", cause: err}
	switch {
	case errors.Is(err, users.ErrLinkUsed):
		p.title, p.text = "This link was already used", "Each link works once. "+next
	case errors.Is(err, users.ErrLinkExpired):
		p.title, p.text = "This link has expired", next
	case errors.Is(err, users.ErrNotFound):
		p.status = http.StatusNotFound
		p.title, p.text = "This link is not valid", "It may be incomplete. "+next
	default:
		return err
	}
	return p
}

func (s *Server) redeemLink(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := r.PostForm
	view, err := s.linkView(r, form.Get("token"))
	if err != nil {
		return err
	}
	view.Name, view.Handle = strings.TrimSpace(form.Get("name")), strings.TrimSpace(form.Get("handle"))
	if !view.newAccount() {
		view.Name, view.Handle = view.Existing.Name, view.Existing.Handle
	}
	user, err := s.redeem(r, view, form)
	var limited *users.RateError
	switch {
	case err == nil:
		if v.signedIn {
			if err := s.cfg.Users.EndSession(r.Context(), v.token); err != nil {
				return err
			}
		}
		if err := s.signIn(w, r, user); err != nil {
			return err
		}
		return seeOther("/")
	case errors.As(err, &limited):
		view.PasswordError = tooManyTries(w, limited)
	case errors.Is(err, errPasswordsDiffer), errors.Is(err, users.ErrPasswordWeak):
		view.PasswordError = sentence(err.Error())
	case errors.Is(err, users.ErrHandleInvalid), errors.Is(err, users.ErrHandleTaken):
		view.HandleError = sentence(err.Error())
	case errors.Is(err, users.ErrNameInvalid):
		view.NameError = sentence(err.Error())
	default:
		return linkProblem(r.URL.Path, err)
	}
	s.render(w, r, http.StatusUnprocessableEntity, linkPage(s.page(w, r, v, view.title(), ""), view))
	return nil
}

var errPasswordsDiffer = errors.New("the two passwords are not the same")

func (s *Server) redeem(r *http.Request, view linkView, form url.Values) (users.User, error) {
	if form.Get("password") != form.Get("again") {
		return users.User{}, errPasswordsDiffer
	}
	return s.cfg.Users.RedeemLink(r.Context(), view.Token, view.Handle, view.Name, form.Get("password"))
}

// checkHandle answers, while somebody types, whether a login name can be had.
// It is for people who may create an account; others could list the lab's.
func (s *Server) checkHandle(w http.ResponseWriter, r *http.Request, v visitor) error {
	query := r.URL.Query()
	if !v.may(users.ActionManageUsers) {
		info, err := s.cfg.Users.LinkInfo(r.Context(), query.Get("token"))
		if err != nil || info.UserID != nil {
			return errNotAllowed
		}
	}
	handle := query.Get("handle")
	var wrong, right, hint string
	switch err := users.CheckHandle(handle); {
	case handle == "":
		hint = handleHint
	case err != nil:
		wrong = sentence(err.Error())
	default:
		_, err := s.cfg.Users.ByHandle(r.Context(), handle)
		switch {
		case err == nil:
			wrong = "Somebody has this login name already."
		case errors.Is(err, users.ErrNotFound):
			right = "Free."
		default:
			return err
		}
	}
	s.render(w, r, http.StatusOK, fieldNote("handle-note", hint, wrong, right))
	return nil
}

// handleHint says what a login name looks like.
const handleHint = "2 to 30 of a–z, 0–9 and single hyphens, a letter first. It cannot be changed later."

func handleField(value, wrong, token string) field {
	check := "/handle/check"
	if token != "" {
		check += "?token=" + url.QueryEscape(token)
	}
	return field{ID: "handle", Name: "handle", Label: "Login name", Value: value, Error: wrong, Hint: handleHint,
		Autocomplete: "username", MaxLength: 30, SuggestFrom: "name", CheckURL: check}
}
