package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// accounts are the people of the lab, one by one and searched.
type accounts interface {
	Find(ctx context.Context, query users.Query) (users.Found, error)
	Person(ctx context.Context, handle string) (users.Person, error)
	Change(ctx context.Context, id int64, change users.Change) error
	Suspend(ctx context.Context, id int64) error
	Resume(ctx context.Context, id int64) error
	Remove(ctx context.Context, id int64) error
	Undelete(ctx context.Context, id int64) error
}

// A personView is the page of one person.
type personView struct {
	Handle, Name, Email, Role string
	State, Since, SignedIn    string
	UID                       int
	Tags                      []tagView
	Self, Suspended, Removed  bool
	Purge                     string // the day on which a removed account is deleted for good
	Kept                      string // until when it would be kept if it were removed now
	Manages                   bool   // the visitor may change the account
	MayLead                   bool   // a group; guests may not
	Groups                    []membershipView
	Identities                []identityView
	RoleByHand                bool // and rules could decide it
	Form                      personForm
	AddGroup                  groupChoiceForm
	Notebooks                 []launchRow
	Use                       personUse
	Quotas                    []limitView
	Home                      string // its size, "" while not known
	Link                      string // a one-time link that was just made
}

type personForm struct {
	Name, Email, Role                string
	NameError, EmailError, RoleError string
}

type membershipView struct {
	Group string
	Lead  bool
}

// A groupChoiceForm puts a person into a group.
type groupChoiceForm struct {
	Groups []roleView
	Error  string
}

// A personUse is what somebody had of the GPUs in the last 30 days.
type personUse struct {
	Totals  []useTotal
	PerDay  []useDay
	NotKept string
}

// useDays are how far back the page of a person looks.
const useDays = 30

// person finds whom a page is about. Who may not see them is not told whether
// they exist.
func (s *Server) person(r *http.Request, v visitor) (users.Person, error) {
	who, err := s.cfg.Users.Person(r.Context(), r.PathValue("handle"))
	if v.session.User.Scope(users.ActionSeePeople) != users.Everybody &&
		(errors.Is(err, users.ErrNotFound) || errors.Is(err, users.ErrPurged) || err == nil &&
			(who.Removed != nil || !v.mayOn(users.ActionSeePeople, who.ID))) {
		return users.Person{}, errNotAllowed
	}
	return who, err
}

func (s *Server) personPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.person(r, v)
	if err != nil {
		return err
	}
	return s.showPerson(w, r, v, http.StatusOK, &who, func(*personView) {})
}

// showPerson shows a person; edit adds what came of a form.
func (s *Server) showPerson(w http.ResponseWriter, r *http.Request, v visitor, status int, who *users.Person,
	edit func(*personView)) error {
	view, err := s.personView(r, v, who)
	if err != nil {
		return err
	}
	edit(&view)
	s.render(w, r, status, personPage(s.page(w, r, v, view.Name, ""), view))
	return nil
}

func (s *Server) personView(r *http.Request, v visitor, who *users.Person) (personView, error) {
	view := personView{Handle: who.Handle, Name: displayName(who.User), Email: who.Email, Role: string(who.Role),
		UID:   who.UID,
		Since: date(who.Created), SignedIn: s.ago(who.SignedIn), Tags: personTags(who), Self: who.ID == v.session.User.ID,
		Suspended: who.Suspended, Removed: who.Removed != nil, Kept: date(s.now().Add(users.RemovedKept)),
		Manages: v.mayOn(users.ActionManageUsers, who.ID),
		Form:    personForm{Name: who.Name, Email: who.Email, Role: string(who.Role)}, State: personState(who)}
	view.Identities = s.identityViews(who.Identities)
	view.RoleByHand = view.Manages && !view.Removed && !view.Self && who.RoleByHand()
	view.MayLead = who.Role != users.RoleGuest
	if who.Purge != nil {
		view.Purge = date(*who.Purge)
	}
	for _, m := range who.Groups {
		view.Groups = append(view.Groups, membershipView{m.Group, m.Lead})
	}
	if view.Manages && !view.Removed {
		choices, err := s.groupChoices(r.Context())
		if err != nil {
			return view, err
		}
		view.AddGroup.Groups = slices.DeleteFunc(choices[1:], func(c roleView) bool {
			return slices.ContainsFunc(who.Groups, func(m users.Membership) bool { return m.Group == c.Value })
		})
	}
	active, err := s.activeLaunches(r.Context())
	if err != nil {
		return view, err
	}
	machines := s.machines(s.cfg.Fleet.Snapshots(), v, false)
	for i := range active {
		if active[i].UserID == who.ID {
			view.Notebooks = append(view.Notebooks, s.launchRow(r, v, &active[i], machines))
		}
	}
	if !view.Removed {
		view.Quotas = s.limits(r.Context(), who.User, v.session.User.ID)
		if state, err := s.cfg.Storage.HomeState(r.Context(), who.User); err == nil && state.Size != nil {
			view.Home = units.Bytes(uint64(state.Size.Bytes)) + ", " + s.measured(state.Size.At)
		}
	}
	view.Use, err = s.personUse(r.Context(), who.Handle)
	return view, err
}

// personState says how an account is, and since when.
func personState(who *users.Person) string {
	switch who.State() {
	case users.StateRemoved:
		return "Removed on " + date(*who.Removed)
	case users.StateSuspended:
		return "Suspended since " + date(*who.SuspendedSince)
	case users.StateInvited:
		return "Has not chosen a password yet"
	}
	return "Can sign in"
}

func (s *Server) personUse(ctx context.Context, handle string) (personUse, error) {
	from := midnight(s.now()).AddDate(0, 0, 1-useDays)
	filter := history.Filter{From: from, User: handle}
	use := personUse{NotKept: s.notKept()}
	totals, err := s.cfg.History.Usage(ctx, filter, history.ByTotal)
	if err != nil {
		return use, fmt.Errorf("read the use of GPUs: %w", err)
	}
	for _, u := range totals {
		use.Totals = append(use.Totals, useTotalOf(u))
	}
	hours, err := s.cfg.History.Usage(ctx, filter, history.ByHour)
	if err != nil {
		return use, fmt.Errorf("read the use of GPUs: %w", err)
	}
	use.PerDay = perDay(hours, from, s.now(), useDays)
	return use, nil
}

// changePerson takes name, e-mail address and role.
func (s *Server) changePerson(w http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.person(r, v)
	if err != nil {
		return err
	}
	form := personForm{
		Name: strings.TrimSpace(r.PostForm.Get("name")), Email: strings.TrimSpace(r.PostForm.Get("email")),
		Role: r.PostForm.Get("role"),
	}
	change := users.Change{Name: &form.Name, Email: &form.Email}
	if role := users.Role(form.Role); r.PostForm.Has("role") && role != who.Role {
		if who.ID == v.session.User.ID {
			return notYourself("You cannot change your own role")
		}
		change.Role = &role
	}
	err = s.cfg.Users.Change(r.Context(), who.ID, change)
	switch {
	case err == nil:
	case errors.Is(err, users.ErrNameInvalid):
		form.NameError = message(err)
	case errors.Is(err, users.ErrEmailInvalid):
		form.EmailError = message(err)
	case errors.Is(err, users.ErrRoleInvalid), errors.Is(err, users.ErrLastAdmin):
		form.RoleError = message(err)
	default:
		return fmt.Errorf("change a person: %w", err)
	}
	if err != nil {
		return s.showPerson(w, r, v, http.StatusUnprocessableEntity, &who, func(view *personView) { view.Form = form })
	}
	if form.Name != who.Name || form.Email != who.Email {
		s.audit(r, v, "user.change", who.Handle, "")
	}
	if change.Role != nil {
		s.audit(r, v, "user.role", who.Handle, "from "+string(who.Role)+" to "+form.Role)
	}
	return seeOther(personPath(who.Handle))
}

func personPath(handle string) string { return "/users/" + handle }

// notYourself keeps admins from locking themselves out by accident.
func notYourself(title string) error {
	return &problem{
		status: http.StatusConflict, title: title, text: "Another admin can do it. Nothing was changed.",
		linkText: "Back to the users", link: "/users",
	}
}

func (s *Server) suspendUser(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.act(r, v, "You cannot suspend yourself", s.cfg.Users.Suspend)
	if err != nil {
		return err
	}
	s.audit(r, v, "user.suspend", who.Handle, "")
	return seeOther(personPath(who.Handle))
}

func (s *Server) resumeUser(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.act(r, v, "", s.cfg.Users.Resume)
	if err != nil {
		return err
	}
	s.audit(r, v, "user.resume", who.Handle, "")
	return seeOther(personPath(who.Handle))
}

func (s *Server) removeUser(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.act(r, v, "You cannot remove yourself", s.cfg.Users.Remove)
	if err != nil {
		return err
	}
	s.audit(r, v, "user.remove", who.Handle, "")
	return seeOther(personPath(who.Handle))
}

func (s *Server) undeleteUser(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.act(r, v, "", s.cfg.Users.Undelete)
	if err != nil {
		return err
	}
	s.audit(r, v, "user.undelete", who.Handle, "")
	return seeOther(personPath(who.Handle))
}

// act does something to a person. self is what somebody is told who does it to
// themself, or empty where that is no harm.
func (s *Server) act(r *http.Request, v visitor, self string,
	do func(context.Context, int64) error) (users.Person, error) {
	who, err := s.person(r, v)
	if err != nil {
		return who, err
	}
	if self != "" && who.ID == v.session.User.ID {
		return who, notYourself(self)
	}
	return who, do(r.Context(), who.ID)
}

// newPasswordLink shows a new link on the person's page: it must not stand in
// an address.
func (s *Server) newPasswordLink(w http.ResponseWriter, r *http.Request, v visitor) error {
	user, err := s.cfg.Users.ByHandle(r.Context(), r.PathValue("handle"))
	if err != nil {
		return err
	}
	link, err := s.passwordLink(r, v, user)
	if err != nil {
		return err
	}
	who, err := s.person(r, v)
	if err != nil {
		return err
	}
	return s.showPerson(w, r, v, http.StatusOK, &who, func(view *personView) { view.Link = link })
}
