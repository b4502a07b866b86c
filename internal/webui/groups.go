package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// groups are people who work together.
type groups interface {
	Groups(ctx context.Context) ([]users.Group, error)
	Group(ctx context.Context, name string) (users.Group, error)
	Members(ctx context.Context, group string) ([]users.Membership, error)
	Memberships(ctx context.Context, userID int64) ([]users.Membership, error)
	CreateGroup(ctx context.Context, name, title string) (users.Group, error)
	SetMember(ctx context.Context, group string, userID int64, lead bool) error
	RemoveMember(ctx context.Context, group string, userID int64) error
	RemoveGroup(ctx context.Context, name string) error
}

// A groupsView lists the groups that the visitor may see.
type groupsView struct {
	List    []groupRowView
	Manages bool
	Form    groupForm
}

type groupRowView struct {
	Name, Title, Leads string
	Members            string
}

type groupForm struct{ Name, Title, NameError, TitleError string }

// A groupView is the page of one group.
type groupView struct {
	Name, Title string
	Members     []memberView
	Manages     bool
	Form        memberForm
}

type memberView struct {
	Handle, Name, Role string
	Lead, MayLead      bool // guests lead no group
}

type memberForm struct {
	Handles, Error string
	Lead           bool
}

// mostAtOnce is how many people one form may add to a group.
const mostAtOnce = 200

func (s *Server) groupsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showGroups(w, r, v, http.StatusOK, groupForm{})
}

func (s *Server) showGroups(w http.ResponseWriter, r *http.Request, v visitor, status int, form groupForm) error {
	list, err := s.cfg.Users.Groups(r.Context())
	if err != nil {
		return err
	}
	view := groupsView{Manages: v.mayOnOthers(users.ActionManageUsers), Form: form}
	for _, g := range list {
		if v.session.User.Scope(users.ActionSeePeople) == users.Everybody || slices.Contains(g.Leads, v.session.User.Handle) {
			view.List = append(view.List, groupRowView{
				Name: g.Name, Title: g.Title, Leads: orElse(joined(g.Leads...), "nobody"),
				Members: count(g.Members, "person", "people"),
			})
		}
	}
	s.render(w, r, status, groupsPage(s.page(w, r, v, "Groups", ""), view))
	return nil
}

func (s *Server) addGroup(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := groupForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Title: strings.TrimSpace(r.PostForm.Get("title"))}
	group, err := s.cfg.Users.CreateGroup(r.Context(), form.Name, form.Title)
	if errors.Is(err, users.ErrGroupInvalid) || errors.Is(err, users.ErrGroupTaken) {
		form.NameError = message(err)
		return s.showGroups(w, r, v, http.StatusUnprocessableEntity, form)
	}
	if err != nil {
		return fmt.Errorf("make a group: %w", err)
	}
	s.audit(r, v, "group.add", group.Name, "")
	return seeOther(groupPath(group.Name))
}

func groupPath(name string) string { return "/groups/" + name }

// group finds the group a page is about. Who does not lead it is not told
// whether it exists.
func (s *Server) group(ctx context.Context, v visitor, name string) (users.Group, error) {
	group, err := s.cfg.Users.Group(ctx, name)
	if v.session.User.Scope(users.ActionSeePeople) != users.Everybody &&
		(errors.Is(err, users.ErrGroupNotFound) || err == nil && !slices.Contains(group.Leads, v.session.User.Handle)) {
		return users.Group{}, errNotAllowed
	}
	return group, err
}

func (s *Server) groupPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showGroup(w, r, v, http.StatusOK, r.PathValue("group"), memberForm{})
}

func (s *Server) showGroup(w http.ResponseWriter, r *http.Request, v visitor, status int, name string,
	form memberForm) error {
	group, err := s.group(r.Context(), v, name)
	if err != nil {
		return err
	}
	members, err := s.cfg.Users.Members(r.Context(), group.Name)
	if err != nil {
		return err
	}
	view := groupView{Name: group.Name, Title: group.Title, Manages: v.mayOnOthers(users.ActionManageUsers), Form: form}
	for _, m := range members {
		view.Members = append(view.Members, memberView{
			Handle: m.Handle, Name: orElse(m.Name, m.Handle), Role: string(m.Role), Lead: m.Lead,
			MayLead: m.Role != users.RoleGuest,
		})
	}
	s.render(w, r, status, groupPage(s.page(w, r, v, group.Title, ""), view))
	return nil
}

// setMembers adds people to a group, or changes whether they lead it: all of
// them or nobody, as far as can be known before.
func (s *Server) setMembers(w http.ResponseWriter, r *http.Request, v visitor) error {
	group, err := s.group(r.Context(), v, r.PostForm.Get("group"))
	if err != nil {
		return err
	}
	form := memberForm{Handles: strings.TrimSpace(r.PostForm.Get("handles")), Lead: r.PostForm.Get("lead") != ""}
	people, err := s.namedPeople(r.Context(), form.Handles)
	if err == nil {
		err = s.putIn(r, v, group.Name, people, form.Lead)
	}
	var wrong *users.Error
	if !errors.As(err, &wrong) {
		if err != nil {
			return err
		}
		return seeOther(backFrom(r, group.Name, form.Handles))
	}
	form.Error = wrong.Text
	if r.PostForm.Get("from") == "person" && len(people) == 1 {
		who, err := s.cfg.Users.Person(r.Context(), people[0].Handle)
		if err != nil {
			return err
		}
		return s.showPerson(w, r, v, http.StatusUnprocessableEntity, &who, func(view *personView) {
			view.AddGroup.Error = form.Error
		})
	}
	return s.showGroup(w, r, v, http.StatusUnprocessableEntity, group.Name, form)
}

// namedPeople finds everybody whose sign-in name stands in a text.
func (s *Server) namedPeople(ctx context.Context, text string) ([]users.User, error) {
	handles := strings.FieldsFunc(text, func(r rune) bool {
		return r == ' ' || r == ',' || r == ';' || r == '\n' || r == '\r' || r == '\t'
	})
	if len(handles) == 0 {
		return nil, &users.Error{Kind: users.ErrNotFound, Text: "Type the sign-in name of at least one person."}
	}
	if len(handles) > mostAtOnce {
		return nil, &users.Error{
			Kind: users.ErrNotFound, Text: "Add at most " + strconv.Itoa(mostAtOnce) +
				" people at once. A longer list can be imported as a file.",
		}
	}
	var people []users.User
	var unknown []string
	for _, handle := range handles {
		u, err := s.cfg.Users.ByHandle(ctx, handle)
		switch {
		case err == nil:
			people = append(people, u)
		case errors.Is(err, users.ErrNotFound):
			unknown = append(unknown, clip(handle, 40))
		default:
			return nil, err
		}
	}
	if len(unknown) > 0 {
		return nil, &users.Error{
			Kind: users.ErrNotFound, Text: "Nobody here is called " + strings.Join(unknown[:min(len(unknown), 5)],
				", ") + ". Nobody was added; look the sign-in names up in the list of users.",
		}
	}
	return people, nil
}

func (s *Server) putIn(r *http.Request, v visitor, group string, people []users.User, lead bool) error {
	for _, u := range people {
		if lead && u.Role == users.RoleGuest && len(people) > 1 { // before anybody is in
			return &users.Error{Kind: users.ErrRoleInvalid, Text: "The account " + u.Handle + " is a guest, and guests lead " +
				"no group. Nobody was added."}
		}
	}
	for _, u := range people {
		if err := s.cfg.Users.SetMember(r.Context(), group, u.ID, lead); err != nil {
			return err
		}
		detail := "in " + group
		if lead {
			detail = "leads " + group
		}
		s.audit(r, v, "group.member", u.Handle, detail)
	}
	return nil
}

// backFrom is the page on which a form about a group and a person stood.
func backFrom(r *http.Request, group, handle string) string {
	if r.PostForm.Get("from") == "person" && users.CheckHandle(handle) == nil {
		return personPath(handle)
	}
	return groupPath(group)
}

func (s *Server) removeMember(_ http.ResponseWriter, r *http.Request, v visitor) error {
	group, err := s.group(r.Context(), v, r.PostForm.Get("group"))
	if err != nil {
		return err
	}
	u, err := s.cfg.Users.ByHandle(r.Context(), r.PostForm.Get("handle"))
	if err != nil {
		return err
	}
	if err := s.cfg.Users.RemoveMember(r.Context(), group.Name, u.ID); err != nil {
		return fmt.Errorf("take somebody out of a group: %w", err)
	}
	s.audit(r, v, "group.member-remove", u.Handle, "from "+group.Name)
	return seeOther(backFrom(r, group.Name, u.Handle))
}

func (s *Server) removeGroup(_ http.ResponseWriter, r *http.Request, v visitor) error {
	group, err := s.group(r.Context(), v, r.PathValue("group"))
	if err != nil {
		return err
	}
	if err := s.cfg.Users.RemoveGroup(r.Context(), group.Name); err != nil {
		return fmt.Errorf("remove a group: %w", err)
	}
	s.audit(r, v, "group.remove", group.Name, "")
	return seeOther("/groups")
}

func groupsLinkText(manages bool) string {
	if manages {
		return "All groups"
	}
	return "My groups"
}
