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
	"unicode"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/users"
)

// An invitationsView is the invitations somebody may make, with the form for
// another.
type invitationsView struct {
	List          []invitationView
	Roles, Groups []roleView
	Form          inviteForm
	// Link is an invitation that was just made, What in words.
	Link, What string
	Uses       int
	// Mailed are the addresses that it is on its way to; CanMail says that the lab has a mail server.
	Mailed  string
	CanMail bool
}

type invitationView struct {
	ID                          int64
	What, Note, Left, Until, By string
	State                       string // why it does not work any more, or empty
}

type inviteForm struct {
	Role, Group, Uses, Days, Note, Emails                                        string
	RoleError, GroupError, UsesError, DaysError, NoteError, EmailsError, Problem string
}

// mayInviteEverybody tells an admin from a lead.
func mayInviteEverybody(v visitor) bool {
	return v.session.User.Scope(users.ActionInvite) == users.Everybody
}

func (s *Server) invitationsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showInvitations(w, r, v, http.StatusOK, invitationsView{})
}

func (s *Server) showInvitations(w http.ResponseWriter, r *http.Request, v visitor, status int,
	view invitationsView) error {
	list, err := s.cfg.Users.Invitations(r.Context(), v.session.User)
	if err != nil {
		return err
	}
	for _, i := range list {
		view.List = append(view.List, s.invitationView(i))
	}
	view.CanMail = s.cfg.Mail != nil && s.cfg.Mail.On()
	view.Roles = roles
	if !mayInviteEverybody(v) {
		view.Roles = roles[:2] // member and guest
	}
	if view.Groups, err = s.inviteGroups(r.Context(), v); err != nil {
		return err
	}
	if view.Form.Uses == "" {
		view.Form.Uses = "1"
	}
	if view.Form.Days == "" {
		view.Form.Days = strconv.Itoa(int(users.InvitationTTL / (24 * time.Hour)))
	}
	s.render(w, r, status, invitationsPage(s.belowUsers(w, r, v, "Invitations"), view))
	return nil
}

// inviteGroups are the groups into which a visitor may invite people.
func (s *Server) inviteGroups(ctx context.Context, v visitor) ([]roleView, error) {
	all, err := s.groupChoices(ctx)
	if err != nil || mayInviteEverybody(v) {
		return all, err
	}
	own, err := s.cfg.Users.Memberships(ctx, v.session.User.ID)
	if err != nil {
		return nil, err
	}
	led := []roleView{}
	for _, m := range own {
		for _, g := range all {
			if m.Lead && g.Value == m.Group {
				led = append(led, g)
			}
		}
	}
	return led, nil
}

func (s *Server) invitationView(i users.Invitation) invitationView {
	view := invitationView{ID: i.ID, What: invitedAs(i), Note: i.Note, By: i.By, Until: day(i.Expires),
		Left: fmt.Sprintf("%d of %d left", i.Left(), i.MaxUses)}
	switch state := i.State(s.now()); state {
	case "open":
	case "revoked":
		view.State = "taken back"
	default:
		view.State = state
	}
	return view
}

// invitedAs is what somebody becomes: "Member of Vision", "Lead of Vision", "Guest".
func invitedAs(i users.Invitation) string {
	role := strings.ToUpper(string(i.Role[:1])) + string(i.Role[1:])
	if i.Group == "" {
		return role
	}
	if i.Role == users.RoleAdmin || i.Role == users.RoleGuest {
		return role + ", in " + orElse(i.Title, i.Group)
	}
	return role + " of " + orElse(i.Title, i.Group)
}

func (s *Server) invite(w http.ResponseWriter, r *http.Request, v visitor) error {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := inviteForm{
		Role: get("role"), Group: get("group"), Uses: get("uses"), Days: get("days"), Note: get("note"),
		Emails: get("emails"),
	}
	invitation, token, err := s.makeInvitation(r.Context(), v, form)
	switch {
	case err == nil:
	case errors.Is(err, users.ErrRoleInvalid):
		form.RoleError = message(err)
	case errors.Is(err, users.ErrGroupNotFound):
		form.GroupError = message(err)
	case errors.Is(err, users.ErrUsesInvalid):
		form.UsesError = message(err)
	case errors.Is(err, users.ErrDaysInvalid):
		form.DaysError = message(err)
	case errors.Is(err, users.ErrInvitationInvalid):
		form.NoteError = message(err)
	case errors.Is(err, users.ErrEmailInvalid), errors.Is(err, mail.ErrAddress), errors.Is(err, mail.ErrLimit):
		form.EmailsError = message(err)
	case errors.Is(err, users.ErrMayNot), errors.Is(err, users.ErrNoMail):
		form.Problem = message(err)
	default:
		return err
	}
	if err != nil {
		return s.showInvitations(w, r, v, http.StatusUnprocessableEntity, invitationsView{Form: form})
	}
	s.audit(r, v, "invitation.add", strconv.FormatInt(invitation.ID, 10), invitation.Detail())
	return s.showInvitations(w, r, v, http.StatusOK,
		invitationsView{Link: "https://" + r.Host + "/join?token=" + url.QueryEscape(token),
			What: invitedAs(invitation), Uses: invitation.MaxUses, Mailed: strings.Join(addresses(form.Emails), ", "),
			Form: inviteForm{Role: form.Role, Group: form.Group}})
}

func (s *Server) makeInvitation(ctx context.Context, v visitor, form inviteForm) (users.Invitation, string, error) {
	n := users.NewInvitation{
		Role: users.Role(form.Role), Group: form.Group, Note: form.Note, Emails: addresses(form.Emails),
	}
	var err error
	if n.Uses, err = strconv.Atoi(form.Uses); err != nil {
		n.Uses = -1 // refused with the sentence that says what is possible
	}
	n.TTL = days(form.Days, users.InvitationTTL)
	return s.cfg.Users.Invite(ctx, v.session.User, n)
}

// addresses reads e-mail addresses that are separated by commas, spaces or lines.
func addresses(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' || unicode.IsSpace(r) })
}

// days reads a number of days; empty means usual. What is no possible number is
// negative, which whoever is asked for that many days refuses with a sentence.
func days(text string, usual time.Duration) time.Duration {
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 3650 {
		return -1
	}
	return time.Duration(n) * 24 * time.Hour
}

func (s *Server) revokeInvitation(_ http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	invitation, err := s.cfg.Users.RevokeInvitation(r.Context(), v.session.User, id)
	if errors.Is(err, users.ErrInvitationUnknown) {
		return errNoPage
	}
	if err != nil {
		return err
	}
	s.audit(r, v, "invitation.revoke", strconv.FormatInt(id, 10), users.RoleDetail(invitation.Role, invitation.Group))
	return seeOther("/invitations")
}
