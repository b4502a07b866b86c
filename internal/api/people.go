package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/users"
)

// Person is one account.
type Person struct {
	Handle         string     `json:"handle" doc:"The name to sign in with; it never changes"`
	Name           string     `json:"name"`
	Email          string     `json:"email,omitempty"`
	Role           string     `json:"role" enum:"admin,lead,member,guest"`
	UID            int        `json:"uid" doc:"UID and GID of files and notebooks"`
	State          string     `json:"state" enum:"active,invited,suspended,removed" doc:"invited has never chosen a password"`
	Groups         []InGroup  `json:"groups"`
	Created        time.Time  `json:"created"`
	SignedIn       *time.Time `json:"signedIn,omitempty" doc:"The last time; left out for never"`
	SuspendedSince *time.Time `json:"suspendedSince,omitempty"`
	Removed        *time.Time `json:"removed,omitempty"`
	Purge          *time.Time `json:"purge,omitempty" doc:"When a removed account is deleted for good"`
}

// PersonList is one page of people, by sign-in name.
type PersonList struct {
	Users []Person `json:"users"`
	Total int      `json:"total" doc:"On all pages"`
}

// PasswordLink is a one-time link with which somebody chooses a password.
type PasswordLink struct {
	Link    string    `json:"link" doc:"Shown only now"`
	Expires time.Time `json:"expires"`
}

// NewPerson is an account that was just made.
type NewPerson struct {
	User Person        `json:"user"`
	Link *PasswordLink `json:"link,omitempty" doc:"With which they choose a password; left out if none was asked for"`
}

// HandleInput names a person.
type HandleInput struct {
	Handle string `path:"handle" maxLength:"64" example:"ada"`
}

type findInput struct {
	Pages
	Q     string `query:"q" maxLength:"100" doc:"Words in sign-in name, name, e-mail address or group"`
	Role  string `query:"role" enum:"admin,lead,member,guest"`
	Group string `query:"group" maxLength:"64"`
	State string `query:"state" enum:"active,invited,suspended,removed" doc:"Everybody who is not removed, if left out"`
}

type foundPeople struct {
	Link string `header:"Link"`
	Body PersonList
}

type createInput struct {
	Body struct {
		Handle string `json:"handle" minLength:"2" maxLength:"30" doc:"2 to 30 of a–z, 0–9 and single hyphens, a letter first"`
		Name   string `json:"name,omitempty" maxLength:"100"`
		Email  string `json:"email,omitempty" maxLength:"254"`
		Role   string `json:"role,omitempty" enum:"admin,lead,member,guest" default:"member"`
		NoLink bool   `json:"noLink,omitempty" doc:"Make no link for a password"`
	}
}

type changeInput struct {
	HandleInput
	Body struct {
		Name  *string `json:"name,omitempty" maxLength:"100"`
		Email *string `json:"email,omitempty" maxLength:"254"`
		Role  *string `json:"role,omitempty" enum:"admin,lead,member,guest" doc:"Another role signs the person out"`
	}
}

type useOfInput struct {
	HandleInput
	UseInput
}

func (s *Server) addPeople() {
	add(s, Operation{Method: "GET", Path: "/users", ID: "listUsers", Need: users.ActionManageUsers, tag: "people",
		summary: "The people of the lab, searched and paged"}, s.listPeople)
	add(s, Operation{Method: "POST", Path: "/users", ID: "createUser", Need: users.ActionManageUsers, tag: "people",
		summary: "Add a person", status: http.StatusCreated, also: []int{conflict}}, s.createPerson)
	add(s, Operation{Method: "GET", Path: "/users/{handle}", ID: "getUser", Need: users.ActionSeePeople, tag: "people",
		summary: "One person", also: []int{gone}}, s.getPerson)
	add(s, Operation{Method: "PATCH", Path: "/users/{handle}", ID: "changeUser", Need: users.ActionManageUsers,
		tag: "people", summary: "Change a person's name, e-mail address or role", also: []int{conflict, gone}},
		s.changePerson)
	add(s, Operation{Method: "DELETE", Path: "/users/{handle}", ID: "removeUser", Need: users.ActionManageUsers,
		tag: "people", summary: "Remove a person",
		description: "Sessions, tokens and notebooks end at once. The account and its home are kept for 30 days, in which " +
			"/undelete brings them back.", also: []int{conflict, gone}}, s.removePerson)
	add(s, Operation{Method: "POST", Path: "/users/{handle}/undelete", ID: "undeleteUser", Need: users.ActionManageUsers,
		tag: "people", summary: "Bring a removed person back", also: []int{conflict, gone}}, s.undeletePerson)
	add(s, Operation{Method: "POST", Path: "/users/{handle}/suspend", ID: "suspendUser", Need: users.ActionManageUsers,
		tag: "people", summary: "Keep a person out",
		description: "Sessions, tokens and notebooks end at once.", also: []int{conflict, gone}}, s.suspendPerson)
	add(s, Operation{Method: "POST", Path: "/users/{handle}/resume", ID: "resumeUser", Need: users.ActionManageUsers,
		tag: "people", summary: "Let a suspended person in again", also: []int{gone}}, s.resumePerson)
	add(s, Operation{Method: "POST", Path: "/users/{handle}/link", ID: "createPasswordLink", Need: users.ActionManageUsers,
		tag: "people", summary: "Make a one-time link for a person's password",
		description: "An earlier one that was not used works no longer.", status: http.StatusCreated,
		also: []int{conflict, gone}}, s.createPasswordLink)
	add(s, Operation{Method: "GET", Path: "/users/{handle}/quotas", ID: "listUserQuotas", Need: users.ActionSeePeople,
		tag: "people", summary: "A person's quotas, and how much is used", also: []int{gone}}, s.personQuotas)
	add(s, Operation{Method: "GET", Path: "/users/{handle}/use", ID: "listUserUse", Need: users.ActionSeePeople,
		tag: "people", summary: "How much of the GPUs a person had", also: []int{gone}}, s.personUse)
}

func personOf(p *users.Person) Person {
	return Person{Handle: p.Handle, Name: p.Name, Email: p.Email, Role: string(p.Role), UID: p.UID,
		State: string(p.State()), Groups: inGroups(p.Groups),
		Created: p.Created, SignedIn: p.SignedIn, SuspendedSince: p.SuspendedSince, Removed: p.Removed, Purge: p.Purge}
}

func (s *Server) listPeople(ctx context.Context, c *call, in *findInput) (*foundPeople, error) {
	found, err := s.cfg.Users.Find(ctx, users.Query{
		Text: in.Q, Role: users.Role(in.Role), Group: in.Group, State: users.State(in.State), Limit: in.PerPage,
		Offset: in.offset(),
	})
	if err != nil {
		return nil, fmt.Errorf("find people: %w", err)
	}
	out := foundPeople{Link: in.links(c, found.Total), Body: PersonList{Users: []Person{}, Total: found.Total}}
	for i := range found.People {
		out.Body.Users = append(out.Body.Users, personOf(&found.People[i]))
	}
	return &out, nil
}

// person finds whom a call is about. Who may not see them is not told whether they exist.
func (s *Server) person(ctx context.Context, c *call, handle string) (users.Person, error) {
	who, err := s.cfg.Users.Person(ctx, handle)
	if !c.everybody(users.ActionSeePeople) &&
		(errors.Is(err, users.ErrNotFound) || errors.Is(err, users.ErrPurged) || err == nil &&
			(who.Removed != nil || !c.may(users.ActionSeePeople, who.ID))) {
		return users.Person{}, errMayNot
	}
	return who, err
}

func (s *Server) getPerson(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	return answerWith(personOf(&who))
}

func (s *Server) createPerson(ctx context.Context, c *call, in *createInput) (*body[NewPerson], error) {
	made, err := s.cfg.Users.Create(ctx, users.NewUser{
		Handle: strings.TrimSpace(in.Body.Handle), Name: in.Body.Name, Email: in.Body.Email, Role: users.Role(in.Body.Role),
	})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "user.add", made.Handle, "role "+string(made.Role))
	who, err := s.cfg.Users.Person(ctx, made.Handle)
	if err != nil {
		return nil, err
	}
	out := NewPerson{User: personOf(&who)}
	if !in.Body.NoLink {
		if out.Link, err = s.passwordLink(ctx, c, made); err != nil {
			return nil, err
		}
	}
	return answerWith(out)
}

func (s *Server) passwordLink(ctx context.Context, c *call, u users.User) (*PasswordLink, error) {
	token, err := s.cfg.Users.CreateLink(ctx, users.Link{Purpose: users.PurposePassword, UserID: &u.ID},
		users.PasswordLinkTTL)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "user.password-link", u.Handle, "")
	return &PasswordLink{Link: c.page("/welcome?token=" + url.QueryEscape(token)),
		Expires: s.now().Add(users.PasswordLinkTTL).UTC()}, nil
}

func (s *Server) createPasswordLink(ctx context.Context, c *call, in *HandleInput) (*body[PasswordLink], error) {
	u, err := s.cfg.Users.ByHandle(ctx, in.Handle)
	if err != nil {
		return nil, err
	}
	made, err := s.passwordLink(ctx, c, u)
	if err != nil {
		return nil, err
	}
	return answerWith(*made)
}

func (s *Server) changePerson(ctx context.Context, c *call, in *changeInput) (*body[Person], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	change := users.Change{Name: in.Body.Name, Email: in.Body.Email}
	if in.Body.Role != nil && users.Role(*in.Body.Role) != who.Role {
		if who.ID == c.user.ID {
			return nil, errYourself
		}
		role := users.Role(*in.Body.Role)
		change.Role = &role
	}
	if err := s.cfg.Users.Change(ctx, who.ID, change); err != nil {
		return nil, err
	}
	now, err := s.cfg.Users.Person(ctx, who.Handle)
	if err != nil {
		return nil, err
	}
	if now.Name != who.Name || now.Email != who.Email {
		s.audit(ctx, c, "user.change", who.Handle, "")
	}
	if change.Role != nil {
		s.audit(ctx, c, "user.role", who.Handle, "from "+string(who.Role)+" to "+string(*change.Role))
	}
	return answerWith(personOf(&now))
}

// act does something to a person and answers with how they are then. Some things nobody does to themself, so that no
// admin locks themself out by accident.
func (s *Server) act(ctx context.Context, c *call, handle string, notSelf bool,
	do func(context.Context, int64) error) (*body[Person], error) {
	who, err := s.person(ctx, c, handle)
	if err != nil {
		return nil, err
	}
	if notSelf && who.ID == c.user.ID {
		return nil, errYourself
	}
	if err := do(ctx, who.ID); err != nil {
		return nil, err
	}
	if who, err = s.cfg.Users.Person(ctx, who.Handle); err != nil {
		return nil, err
	}
	return answerWith(personOf(&who))
}

func (s *Server) suspendPerson(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	out, err := s.act(ctx, c, in.Handle, true, s.cfg.Users.Suspend)
	if err == nil {
		s.audit(ctx, c, "user.suspend", out.Body.Handle, "")
	}
	return out, err
}

func (s *Server) resumePerson(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	out, err := s.act(ctx, c, in.Handle, false, s.cfg.Users.Resume)
	if err == nil {
		s.audit(ctx, c, "user.resume", out.Body.Handle, "")
	}
	return out, err
}

func (s *Server) removePerson(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	out, err := s.act(ctx, c, in.Handle, true, s.cfg.Users.Remove)
	if err == nil {
		s.audit(ctx, c, "user.remove", out.Body.Handle, "")
	}
	return out, err
}

func (s *Server) undeletePerson(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	out, err := s.act(ctx, c, in.Handle, false, s.cfg.Users.Undelete)
	if err == nil {
		s.audit(ctx, c, "user.undelete", out.Body.Handle, "")
	}
	return out, err
}

func (s *Server) personQuotas(ctx context.Context, c *call, in *HandleInput) (*body[QuotaList], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	return s.quotasOf(ctx, c, who.User)
}

func (s *Server) personUse(ctx context.Context, c *call, in *useOfInput) (*body[UseList], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	return s.useSince(ctx, &in.UseInput, who.Handle, func(history.Usage) bool { return true })
}
