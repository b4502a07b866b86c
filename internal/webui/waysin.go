package webui

import (
	"context"
	"net/http"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// waysIn are the ways to an account: invitations, requests and lists.
type waysIn interface {
	// HandleFree reports whether an account could be made under a handle now.
	HandleFree(ctx context.Context, handle string) error

	Invite(ctx context.Context, by users.User, invitation users.NewInvitation) (users.Invitation, string, error)
	Invitations(ctx context.Context, by users.User) ([]users.Invitation, error)
	RevokeInvitation(ctx context.Context, by users.User, id int64) (users.Invitation, error)
	InvitationInfo(ctx context.Context, token string) (users.Invitation, error)
	Join(ctx context.Context, token string, user users.NewUser, password, remote string) (users.User, error)

	AskToJoin(ctx context.Context, user users.NewUser, note, password, remote string) error
	CountSignUps(ctx context.Context) (int, error)
	SignUps(ctx context.Context) ([]users.SignUp, error)
	Approve(ctx context.Context, id int64, role users.Role, group string) (users.User, error)
	Decline(ctx context.Context, id int64) (users.SignUp, error)

	PlanImport(ctx context.Context, text []byte, options users.ImportOptions) (users.ImportPlan, error)
	Import(ctx context.Context, who audit.Entry, text []byte,
		options users.ImportOptions) (users.ImportPlan, []users.PersonalLink, error)
}

// noGroup is the choice of those who put nobody into a group.
const noGroup = "No group"

// waiting counts the requests for an account where the page tells of them. A
// page is shown without the number rather than not at all.
func (s *Server) waiting(r *http.Request, v visitor) int {
	if r.URL.Path != "/users" || !v.may(users.ActionManageUsers) {
		return 0
	}
	n, err := s.cfg.Users.CountSignUps(r.Context())
	if err != nil && r.Context().Err() == nil {
		s.cfg.Log.Error("requests for an account not counted", "error", err)
	}
	return n
}

// belowUsers is a page that the list of people leads to, for those who see it.
func (s *Server) belowUsers(w http.ResponseWriter, r *http.Request, v visitor, title string) page {
	p := s.page(w, r, v, title, "")
	if v.may(users.ActionManageUsers) {
		p.Path = "/users"
	}
	return p
}

// groupChoices are all groups, after the choice of none.
func (s *Server) groupChoices(ctx context.Context) ([]roleView, error) {
	groups, err := s.cfg.Users.Groups(ctx)
	if err != nil {
		return nil, err
	}
	choices := []roleView{{"", noGroup}}
	for _, g := range groups {
		choices = append(choices, groupChoice(g.Name, g.Title))
	}
	return choices, nil
}

func groupChoice(name, title string) roleView {
	if title == "" || title == name {
		return roleView{name, name}
	}
	return roleView{name, title + " (" + name + ")"}
}

// A choice is a labelled list to choose one of.
type choice struct {
	ID, Name, Label, Value string
	Hint, Error            string
	Options                []roleView
}

func (c choice) note() string { return c.ID + "-note" }

// passwordHint is what stands below a field for a new password.
const passwordHint = "At least 10 characters; a few words are good."

func newPasswordField(wrong string) field {
	return field{ID: "password", Name: "password", Label: "Password", Type: "password", Error: wrong, Hint: passwordHint,
		Autocomplete: "new-password", MinLength: 10}
}

func againField() field {
	return field{ID: "again", Name: "again", Label: "Password once more", Type: "password", Autocomplete: "new-password"}
}
