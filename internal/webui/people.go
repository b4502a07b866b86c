package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// passwordLinkTTL is how long a link for a password works.
const passwordLinkTTL = 72 * time.Hour

// A usersView is the list of people with the form that adds one.
type usersView struct {
	People []personView
	Roles  []roleView
	Form   addForm
	// Link is a one-time link that was just made, For whom.
	Link, For string
	Added     bool
}

type personView struct {
	Handle, Name, Email, Role string
	Since                     string
	Tags                      []string
	Self                      bool
}

type roleView struct{ Value, Text string }

type addForm struct {
	Name, Handle, Email, Role                     string
	NameError, HandleError, EmailError, RoleError string
}

// roles are the choices of the form, the usual one first.
var roles = []roleView{
	{string(users.RoleMember), "Member: works here"},
	{string(users.RoleGuest), "Guest: works here for a while"},
	{string(users.RoleLead), "Lead: may also stop anybody’s notebooks"},
	{string(users.RoleAdmin), "Admin: runs the lab"},
}

func (s *Server) usersPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showUsers(w, r, v, http.StatusOK, usersView{Form: addForm{Role: roles[0].Value}})
}

func (s *Server) showUsers(w http.ResponseWriter, r *http.Request, v visitor, status int, view usersView) error {
	everybody, err := s.cfg.Users.List(r.Context())
	if err != nil {
		return fmt.Errorf("list users: %w", err)
	}
	sort.Slice(everybody, func(i, j int) bool { return everybody[i].Handle < everybody[j].Handle })
	for i := range everybody {
		view.People = append(view.People, s.personView(&everybody[i], v))
	}
	view.Roles = roles
	s.render(w, r, status, usersPage(s.page(w, r, v, "Users", ""), view))
	return nil
}

func (s *Server) personView(u *users.User, v visitor) personView {
	person := personView{Handle: u.Handle, Name: u.Name, Email: u.Email, Role: string(u.Role),
		Self: u.ID == v.session.User.ID, Since: lasting(s.now().Sub(u.Created)) + " ago"}
	if u.Suspended {
		person.Tags = append(person.Tags, "suspended")
	}
	if !u.HasPassword {
		person.Tags = append(person.Tags, "no password yet")
	}
	return person
}

func (s *Server) addUser(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := addForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Handle: strings.TrimSpace(r.PostForm.Get("handle")),
		Email: strings.TrimSpace(r.PostForm.Get("email")), Role: r.PostForm.Get("role")}
	user, err := s.cfg.Users.Create(r.Context(), users.NewUser{Handle: form.Handle, Name: form.Name, Email: form.Email, Role: users.Role(form.Role)})
	switch {
	case err == nil:
	case errors.Is(err, users.ErrHandleInvalid), errors.Is(err, users.ErrHandleTaken):
		form.HandleError = message(err)
	case errors.Is(err, users.ErrNameInvalid):
		form.NameError = message(err)
	case errors.Is(err, users.ErrEmailInvalid):
		form.EmailError = message(err)
	case errors.Is(err, users.ErrRoleInvalid):
		form.RoleError = message(err)
	default:
		return fmt.Errorf("add user: %w", err)
	}
	if err != nil {
		return s.showUsers(w, r, v, http.StatusUnprocessableEntity, usersView{Form: form})
	}
	s.audit(r, v, "user.add", user.Handle, "role "+string(user.Role))
	return s.showLink(w, r, v, user, true)
}

func (s *Server) newPasswordLink(w http.ResponseWriter, r *http.Request, v visitor) error {
	user, err := s.cfg.Users.ByHandle(r.Context(), r.PathValue("handle"))
	if err != nil {
		return err
	}
	return s.showLink(w, r, v, user, false)
}

// showLink makes a one-time link for user's password and shows it. The answer
// is the page itself: the link must not stand in an address.
func (s *Server) showLink(w http.ResponseWriter, r *http.Request, v visitor, user users.User, added bool) error {
	token, err := s.cfg.Users.CreateLink(r.Context(), users.Link{Purpose: users.PurposePassword, UserID: &user.ID}, passwordLinkTTL)
	if err != nil {
		return fmt.Errorf("make a password link: %w", err)
	}
	s.audit(r, v, "user.password-link", user.Handle, "")
	view := usersView{Form: addForm{Role: roles[0].Value}, For: displayName(user), Added: added,
		Link: "https://" + r.Host + "/welcome?token=" + url.QueryEscape(token)}
	return s.showUsers(w, r, v, http.StatusOK, view)
}

func (s *Server) removeUser(_ http.ResponseWriter, r *http.Request, v visitor) error {
	user, err := s.cfg.Users.ByHandle(r.Context(), r.PathValue("handle"))
	if err != nil {
		return err
	}
	if user.ID == v.session.User.ID {
		return &problem{status: http.StatusConflict, title: "You cannot remove yourself",
			text: "Another admin can do it.", linkText: "Back to the users", link: "/users"}
	}
	if err := s.cfg.Users.Remove(r.Context(), user.ID); err != nil {
		return fmt.Errorf("remove user: %w", err)
	}
	s.audit(r, v, "user.remove", user.Handle, "")
	return seeOther("/users")
}

// audit records what an admin did. What was done stands even if it cannot be
// recorded; the log then says so.
func (s *Server) audit(r *http.Request, v visitor, action, target, detail string) {
	entry := users.Entry{Actor: v.session.User.Handle, Action: action, Target: target, Detail: detail, Remote: remote(r)}
	if err := s.cfg.Users.Audit(context.WithoutCancel(r.Context()), entry); err != nil {
		s.cfg.Log.Error("audit entry lost", "action", action, "target", target, "error", err)
	}
}
