package webui

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gpulab/gpulab/internal/users"
)

// A signUpView is the form with which anybody asks for an account.
type signUpView struct {
	Form accountForm
	Sent bool
}

// signUpPage is not there where the lab takes no requests.
func (s *Server) signUpPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if !s.cfg.SignUp {
		return errNoPage
	}
	s.showSignUp(w, r, v, http.StatusOK, signUpView{Sent: r.URL.Query().Has("sent")})
	return nil
}

func (s *Server) showSignUp(w http.ResponseWriter, r *http.Request, v visitor, status int, view signUpView) {
	s.render(w, r, status, signUpPage(s.page(w, r, v, "Ask for an account", ""), view))
}

func (s *Server) signUp(w http.ResponseWriter, r *http.Request, v visitor) error {
	if !s.cfg.SignUp {
		return errNoPage
	}
	view := signUpView{Form: readAccountForm(r)}
	password := r.PostForm.Get("password")
	err := errPasswordsDiffer
	if password == r.PostForm.Get("again") {
		err = s.cfg.Users.AskToJoin(r.Context(), view.Form.user(), view.Form.Note, password, remote(r))
	}
	if err == nil {
		return seeOther("/signup?sent")
	}
	status, tooMany := limited(w, err)
	switch {
	case tooMany:
		view.Form.AnyProblem = message(err)
	case errors.Is(err, users.ErrTooManySignUps):
		status, view.Form.AnyProblem = http.StatusServiceUnavailable, message(err)
	case view.Form.refused(err):
		status = http.StatusUnprocessableEntity
	default:
		return err
	}
	s.showSignUp(w, r, v, status, view)
	return nil
}

// wishField is for a sign-in name that is not checked while it is typed:
// strangers are not told who is there.
func wishField(value, wrong string) field {
	f := handleField(value, wrong, "")
	f.CheckURL = ""
	return f
}

// A requestsView is who asks for an account.
type requestsView struct {
	List          []requestView
	Roles, Groups []roleView
	// Done says what was just decided.
	Done string
}

type requestView struct {
	ID                               int64
	Name, Handle, Wanted, Email, Why string
	Since, Remote                    string
}

func (q requestView) id(part string) string {
	return "request-" + strconv.FormatInt(q.ID, 10) + "-" + part
}

func (q requestView) path(verb string) string {
	return "/requests/" + strconv.FormatInt(q.ID, 10) + "/" + verb
}

func (s *Server) requestsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showRequests(w, r, v, http.StatusOK, requestsView{})
}

func (s *Server) showRequests(w http.ResponseWriter, r *http.Request, v visitor, status int, view requestsView) error {
	list, err := s.cfg.Users.SignUps(r.Context())
	if err != nil {
		return err
	}
	for _, q := range list {
		view.List = append(view.List, requestView{ID: q.ID, Name: q.Name, Handle: q.Handle, Wanted: q.Wanted, Email: q.Email,
			Why:   q.Note,
			Since: s.ago(&q.Requested), Remote: q.Remote})
	}
	view.Roles = roles
	if view.Groups, err = s.groupChoices(r.Context()); err != nil {
		return err
	}
	s.render(w, r, status, requestsPage(s.belowUsers(w, r, v, "Requests"), view))
	return nil
}

// asking is how many people wait, in words.
func asking(n int) string {
	if n == 1 {
		return "1 person asks for an account"
	}
	return strconv.Itoa(n) + " people ask for an account"
}

// requestProblem is for two admins who decide at once, and for a group that has
// gone since the page was opened.
func requestProblem(err error) error {
	p := &problem{
		status: http.StatusConflict, text: message(err), linkText: "Back to the requests", link: "/requests", cause: err,
	}
	switch {
	case errors.Is(err, users.ErrSignUpNotFound):
		p.status, p.title = http.StatusNotFound, "This request is not there any more"
	case errors.Is(err, users.ErrGroupNotFound), errors.Is(err, users.ErrRoleInvalid):
		p.title = "The account was not made"
	default:
		return err
	}
	return p
}

func (s *Server) approveRequest(w http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	role, group := users.Role(r.PostForm.Get("role")), r.PostForm.Get("group")
	wanted := s.wanted(r, id)
	user, err := s.cfg.Users.Approve(r.Context(), id, role, group)
	if err != nil {
		return requestProblem(err)
	}
	s.audit(r, v, "sign-up.approve", user.Handle, users.RoleDetail(role, group))
	done := fmt.Sprintf("%s has an account now and signs in as %s.", displayName(user), user.Handle)
	if wanted != "" && wanted != user.Handle {
		done += fmt.Sprintf(" Tell them: they asked for %s, which was taken.", wanted)
	}
	return s.showRequests(w, r, v, http.StatusOK, requestsView{Done: done})
}

// wanted is the sign-in name somebody asked for, "" where it is not known.
func (s *Server) wanted(r *http.Request, id int64) string {
	list, err := s.cfg.Users.SignUps(r.Context())
	if err != nil {
		return ""
	}
	for _, q := range list {
		if q.ID == id {
			return q.Wanted
		}
	}
	return ""
}

func (s *Server) declineRequest(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	request, err := s.cfg.Users.Decline(r.Context(), id)
	if err != nil {
		return requestProblem(err)
	}
	s.audit(r, v, "sign-up.decline", request.Handle, "")
	return seeOther("/requests")
}
