package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// peopleOnPage is how many people one page of the list shows.
const peopleOnPage = 50

// A usersView is one page of the list of people, with the form that adds one.
type usersView struct {
	People []personRowView
	// Filter is what the list was narrowed to; Filtered that it was.
	Filter   peopleFilter
	Filtered bool
	Groups   []roleView
	// Range says which people of how many are shown.
	Range, Before, Next string // Before and Next are addresses of pages, or empty
	Roles               []roleView
	Form                addForm
	// Link is a one-time link that was just made, For whom.
	Link, For string
}

type peopleFilter struct{ Text, Role, Group, State string }

type personRowView struct {
	Handle, Name, Email, Role string
	Groups                    []string
	SignedIn, With            string // With what, besides a password
	Tags                      []tagView
}

type tagView struct {
	Tone tone
	Text string
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
	{string(users.RoleLead), "Lead: looks after the groups they lead"},
	{string(users.RoleAdmin), "Admin: runs the lab"},
}

// roleFilters are the roles to filter by.
var roleFilters = []roleView{
	{"", "Any role"}, {string(users.RoleAdmin), "Admin"}, {string(users.RoleLead), "Lead"},
	{string(users.RoleMember), "Member"}, {string(users.RoleGuest), "Guest"},
}

// peopleStates are the states to filter by, the usual one first.
var peopleStates = []roleView{
	{"", "Everybody"},
	{string(users.StateActive), "Can sign in"},
	{string(users.StateInvited), "No password yet"},
	{string(users.StateSuspended), "Suspended"},
	{string(users.StateRemoved), "Removed"},
}

func (s *Server) usersPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showUsers(w, r, v, http.StatusOK, usersView{Form: addForm{Role: roles[0].Value}})
}

func (s *Server) showUsers(w http.ResponseWriter, r *http.Request, v visitor, status int, view usersView) error {
	asked := r.URL.Query()
	view.Filter = peopleFilter{
		Text: clip(strings.TrimSpace(asked.Get("q")), 100), Role: asked.Get("role"), Group: asked.Get("group"),
		State: asked.Get("state"),
	}
	view.Filtered = view.Filter != peopleFilter{}
	number, err := strconv.Atoi(orElse(asked.Get("page"), "1"))
	if err != nil || number < 1 || number > 1e6 {
		return errNoPage
	}
	offset := (number - 1) * peopleOnPage
	found, err := s.cfg.Users.Find(r.Context(),
		users.Query{Text: view.Filter.Text, Role: users.Role(view.Filter.Role), Group: view.Filter.Group,
			State: users.State(view.Filter.State), Limit: peopleOnPage, Offset: offset})
	if err != nil {
		return fmt.Errorf("find people: %w", err)
	}
	for i := range found.People {
		view.People = append(view.People, s.personRowView(&found.People[i]))
	}
	if view.Groups, err = s.groupChoices(r.Context()); err != nil {
		return err
	}
	view.Groups[0].Text = "Any group"
	view.Range = "Nobody"
	if len(found.People) > 0 {
		view.Range = fmt.Sprintf("%d–%d of %d", offset+1, offset+len(found.People), found.Total)
	}
	if number > 1 {
		view.Before = view.Filter.address(min(number-1, max(1, (found.Total+peopleOnPage-1)/peopleOnPage)))
	}
	if offset+len(found.People) < found.Total && len(found.People) > 0 {
		view.Next = view.Filter.address(number + 1)
	}
	view.Roles = roles
	s.render(w, r, status, usersPage(s.page(w, r, v, "Users", ""), view))
	return nil
}

// address is a page of the list with this filter.
func (f peopleFilter) address(page int) string {
	query := url.Values{}
	for name, value := range map[string]string{"q": f.Text, "role": f.Role, "group": f.Group, "state": f.State} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if page > 1 {
		query.Set("page", strconv.Itoa(page))
	}
	if len(query) == 0 {
		return "/users"
	}
	return "/users?" + query.Encode()
}

func (s *Server) personRowView(p *users.Person) personRowView {
	row := personRowView{
		Handle: p.Handle, Name: p.Name, Email: p.Email, Role: string(p.Role), SignedIn: s.ago(p.SignedIn),
		Tags: personTags(p),
	}
	row.With = strings.Join(s.titles(p.Identities), ", ")
	for _, m := range p.Groups {
		row.Groups = append(row.Groups, m.Group)
	}
	return row
}

// ago says how long something is past, "never" for what never was.
func (s *Server) ago(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return units.Lasting(s.now().Sub(*t)) + " ago"
}

// personTags are what is unusual about an account.
func personTags(p *users.Person) []tagView {
	var tags []tagView
	switch p.State() {
	case users.StateRemoved:
		tags = append(tags, tagView{"bad", "removed, until " + date(*p.Purge)})
	case users.StateSuspended:
		tags = append(tags, tagView{"warn", "suspended"})
	case users.StateInvited:
		tags = append(tags, tagView{"", "no password yet"})
	}
	return tags
}

// date writes a day for people.
func date(t time.Time) string { return t.Local().Format("2 January 2006") }

func (s *Server) addUser(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := addForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Handle: strings.TrimSpace(r.PostForm.Get("handle")),
		Email: strings.TrimSpace(r.PostForm.Get("email")), Role: r.PostForm.Get("role")}
	user, err := s.cfg.Users.Create(r.Context(),
		users.NewUser{Handle: form.Handle, Name: form.Name, Email: form.Email, Role: users.Role(form.Role)})
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
	return s.showLink(w, r, v, user)
}

// showLink makes a one-time link for the password of somebody who was just
// added and shows it. The answer is the page itself: the link must not stand in
// an address.
func (s *Server) showLink(w http.ResponseWriter, r *http.Request, v visitor, user users.User) error {
	link, err := s.passwordLink(r, v, user)
	if err != nil {
		return err
	}
	return s.showUsers(w, r, v, http.StatusOK,
		usersView{Form: addForm{Role: roles[0].Value}, For: displayName(user), Link: link})
}

// passwordLink makes a one-time link with which somebody chooses a password.
func (s *Server) passwordLink(r *http.Request, v visitor, user users.User) (string, error) {
	token, err := s.cfg.Users.CreateLink(r.Context(), users.Link{Purpose: users.PurposePassword, UserID: &user.ID},
		users.PasswordLinkTTL)
	if err != nil {
		return "", fmt.Errorf("make a password link: %w", err)
	}
	s.audit(r, v, "user.password-link", user.Handle, "")
	return "https://" + r.Host + "/welcome?token=" + url.QueryEscape(token), nil
}

// audit records what an admin did. What was done stands even if it cannot be
// recorded; the log then says so.
func (s *Server) audit(r *http.Request, v visitor, action, target, detail string) {
	entry := audit.Entry{Actor: v.session.User.Handle, Action: action, Target: target, Detail: detail, Remote: remote(r)}
	if err := s.cfg.Audit.Record(context.WithoutCancel(r.Context()), entry); err != nil {
		s.cfg.Log.Error("audit entry lost", "action", action, "target", target, "error", err)
	}
}
