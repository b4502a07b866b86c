package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// Invitation is a link with which people make accounts of their own.
type Invitation struct {
	ID      int64     `json:"id"`
	Role    string    `json:"role" enum:"admin,lead,member,guest" doc:"What they become"`
	Group   string    `json:"group,omitempty" doc:"Which they join"`
	Note    string    `json:"note,omitempty"`
	Uses    int       `json:"uses" doc:"Accounts made with it so far"`
	MaxUses int       `json:"maxUses"`
	By      string    `json:"by"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Revoked bool      `json:"revoked"`
}

// InvitationList is the invitations that somebody could have made, the newest first.
type InvitationList struct {
	Invitations []Invitation `json:"invitations"`
}

// NewInvitation is an invitation that was just made.
type NewInvitation struct {
	Invitation Invitation `json:"invitation"`
	Link       string     `json:"link" doc:"Shown only now"`
}

// SignUp is somebody who asks for an account.
type SignUp struct {
	ID        int64     `json:"id"`
	Handle    string    `json:"handle" doc:"What the account would have"`
	Wanted    string    `json:"wanted" doc:"What they asked for"`
	Name      string    `json:"name"`
	Email     string    `json:"email,omitempty"`
	Note      string    `json:"note,omitempty" doc:"Why they ask"`
	Remote    string    `json:"remote"`
	Requested time.Time `json:"requested"`
}

// SignUpList is the requests that wait for an admin, the oldest first.
type SignUpList struct {
	SignUps []SignUp `json:"signUps"`
}

// ImportReport is what a list of people does, or would do.
type ImportReport struct {
	Done    bool         `json:"done" doc:"It was imported; otherwise nothing has changed"`
	Digest  string       `json:"digest" doc:"Tells this plan from another: send it as expect to import just this"`
	New     int          `json:"new"`
	Exists  int          `json:"exists"`
	Wrong   int          `json:"wrong"`
	Groups  []string     `json:"newGroups"`
	Ignored []string     `json:"ignoredColumns"`
	Rows    []ImportRow  `json:"rows"`
	Links   []ImportLink `json:"links" doc:"Personal one-time links, shown only now"`
}

// ImportRow is what becomes of one row.
type ImportRow struct {
	Line   int    `json:"line"`
	Status string `json:"status"`
	Handle string `json:"handle"`
	Name   string `json:"name"`
	Email  string `json:"email,omitempty"`
	Role   string `json:"role"`
	Group  string `json:"group,omitempty"`
	Text   string `json:"text,omitempty" doc:"What is wrong, or to know"`
}

// ImportLink is somebody's way in.
type ImportLink struct {
	Handle  string    `json:"handle"`
	Name    string    `json:"name"`
	Link    string    `json:"link"`
	Expires time.Time `json:"expires"`
}

type inviteInput struct {
	Body struct {
		Role   string   `json:"role,omitempty" enum:"admin,lead,member,guest" default:"member"`
		Group  string   `json:"group,omitempty" maxLength:"64"`
		Note   string   `json:"note,omitempty" maxLength:"200"`
		Uses   int      `json:"uses,omitempty" default:"1" minimum:"1" maximum:"500" doc:"For how many people"`
		Days   int      `json:"days,omitempty" default:"14" minimum:"1" maximum:"90"`
		Emails []string `json:"emails,omitempty" maxItems:"50" doc:"The lab sends it to these addresses, no more than uses; it needs a mail server"`
	}
}

type approveInput struct {
	IDInput
	Body struct {
		Role  string `json:"role,omitempty" enum:"admin,lead,member,guest" default:"member"`
		Group string `json:"group,omitempty" maxLength:"64"`
	}
}

type importInput struct {
	Body struct {
		List       string `json:"list" minLength:"1" maxLength:"1048576" doc:"CSV with a header, such as name,email,group; columns of campus systems are understood, see gpulab user import --help"`
		Role       string `json:"role,omitempty" enum:"admin,lead,member,guest" default:"member" doc:"Where the list names none"`
		Group      string `json:"group,omitempty" maxLength:"64" doc:"Where the list names none"`
		MakeGroups bool   `json:"makeGroups,omitempty" doc:"Make groups that are not there yet"`
		DropWrong  bool   `json:"dropWrong,omitempty" doc:"Import the good rows although others have errors"`
		Days       int    `json:"days,omitempty" minimum:"1" maximum:"30" default:"7" doc:"How long the links work"`
		DryRun     bool   `json:"dryRun,omitempty" doc:"Only say what would happen"`
		Expect     string `json:"expect,omitempty" maxLength:"100" doc:"Import only if the plan is still the one with this digest"`
	}
}

func (s *Server) addWaysIn() {
	add(s, Operation{Method: "GET", Path: "/invitations", ID: "listInvitations", Need: users.ActionInvite, tag: "ways in",
		summary: "The invitations that you could have made"}, s.listInvitations)
	add(s, Operation{Method: "POST", Path: "/invitations", ID: "invite", Need: users.ActionInvite, tag: "ways in",
		summary:     "Make an invitation",
		description: "A lead invites members and guests into groups that they lead.", status: http.StatusCreated,
		also: []int{http.StatusNotFound, conflict}}, s.invite)
	add(s, Operation{Method: "DELETE", Path: "/invitations/{id}", ID: "revokeInvitation", Need: users.ActionInvite,
		tag: "ways in", summary: "Take an invitation back; accounts made with it stay"}, s.revokeInvitation)
	add(s, Operation{Method: "GET", Path: "/sign-ups", ID: "listSignUps", Need: users.ActionManageUsers, tag: "ways in",
		summary: "Who asks for an account"}, s.listSignUps)
	add(s, Operation{Method: "POST", Path: "/sign-ups/{id}/approve", ID: "approveSignUp", Need: users.ActionManageUsers,
		tag: "ways in", summary: "Make the account that somebody asked for", status: http.StatusCreated,
		also: []int{conflict}}, s.approve)
	add(s, Operation{Method: "POST", Path: "/sign-ups/{id}/decline", ID: "declineSignUp", Need: users.ActionManageUsers,
		tag: "ways in", summary: "Forget a request with everything in it"}, s.decline)
	add(s, Operation{Method: "POST", Path: "/imports", ID: "importUsers", Need: users.ActionManageUsers, tag: "ways in",
		summary:     "Add the people of a list, or say what would happen",
		description: "All of them or nobody, unless dropWrong is set.", maxBody: users.MaxImportBytes + maxBody,
		also: []int{conflict, http.StatusNotFound}}, s.importPeople)
}

func invitationOf(i users.Invitation) Invitation {
	return Invitation{
		ID: i.ID, Role: string(i.Role), Group: i.Group, Note: i.Note, Uses: i.Uses, MaxUses: i.MaxUses, By: i.By,
		Created: i.Created, Expires: i.Expires, Revoked: i.Revoked,
	}
}

func (s *Server) listInvitations(ctx context.Context, c *call, _ *noInput) (*body[InvitationList], error) {
	invitations, err := s.cfg.Users.Invitations(ctx, c.user)
	if err != nil {
		return nil, err
	}
	list := InvitationList{Invitations: []Invitation{}}
	for _, i := range invitations {
		list.Invitations = append(list.Invitations, invitationOf(i))
	}
	return answerWith(list)
}

func (s *Server) invite(ctx context.Context, c *call, in *inviteInput) (*body[NewInvitation], error) {
	made, token, err := s.cfg.Users.Invite(ctx, c.user,
		users.NewInvitation{Role: users.Role(in.Body.Role), Group: in.Body.Group, Note: in.Body.Note,
			Uses: in.Body.Uses, TTL: time.Duration(in.Body.Days) * 24 * time.Hour, Emails: in.Body.Emails})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "invitation.add", strconv.FormatInt(made.ID, 10), made.Detail())
	return answerWith(NewInvitation{invitationOf(made), c.page("/join?token=" + url.QueryEscape(token))})
}

func (s *Server) revokeInvitation(ctx context.Context, c *call, in *IDInput) (*body[Invitation], error) {
	revoked, err := s.cfg.Users.RevokeInvitation(ctx, c.user, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "invitation.revoke", strconv.FormatInt(in.ID, 10), users.RoleDetail(revoked.Role, revoked.Group))
	return answerWith(invitationOf(revoked))
}

func (s *Server) listSignUps(ctx context.Context, _ *call, _ *noInput) (*body[SignUpList], error) {
	requests, err := s.cfg.Users.SignUps(ctx)
	if err != nil {
		return nil, err
	}
	list := SignUpList{SignUps: []SignUp{}}
	for _, r := range requests {
		list.SignUps = append(list.SignUps, SignUp(r))
	}
	return answerWith(list)
}

func (s *Server) approve(ctx context.Context, c *call, in *approveInput) (*body[Person], error) {
	u, err := s.cfg.Users.Approve(ctx, in.ID, users.Role(in.Body.Role), in.Body.Group)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "sign-up.approve", u.Handle, users.RoleDetail(users.Role(in.Body.Role), in.Body.Group))
	who, err := s.cfg.Users.Person(ctx, u.Handle)
	if err != nil {
		return nil, err
	}
	return answerWith(personOf(&who))
}

func (s *Server) decline(ctx context.Context, c *call, in *IDInput) (*nothing, error) {
	request, err := s.cfg.Users.Decline(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "sign-up.decline", request.Handle, "")
	return done(nil)
}

func (s *Server) importPeople(ctx context.Context, c *call, in *importInput) (*body[ImportReport], error) {
	options := users.ImportOptions{Role: users.Role(in.Body.Role), Group: in.Body.Group, MakeGroups: in.Body.MakeGroups,
		DropWrong: in.Body.DropWrong,
		LinkTTL:   time.Duration(in.Body.Days) * 24 * time.Hour, Expect: in.Body.Expect}
	var plan users.ImportPlan
	var links []users.PersonalLink
	var err error
	if in.Body.DryRun {
		plan, err = s.cfg.Users.PlanImport(ctx, []byte(in.Body.List), options)
	} else {
		plan, links, err = s.cfg.Users.Import(ctx, audit.Entry{Actor: c.user.Handle, Remote: c.remote}, []byte(in.Body.List),
			options)
	}
	if err != nil {
		return nil, err
	}
	report := ImportReport{Done: !in.Body.DryRun, Digest: plan.Digest(), New: plan.New, Exists: plan.Exists,
		Wrong:  plan.Wrong,
		Groups: plan.Groups, Ignored: plan.Ignored, Rows: []ImportRow{}, Links: []ImportLink{}}
	for i := range plan.Rows {
		r := &plan.Rows[i]
		report.Rows = append(report.Rows, ImportRow{
			r.Line, string(r.Status), r.Handle, r.Name, r.Email, string(r.Role), r.Group, r.Text,
		})
	}
	for i := range links {
		l := &links[i]
		report.Links = append(report.Links, ImportLink{
			l.Handle, l.Name, c.page("/welcome?token=" + url.QueryEscape(l.Token)), l.Expires,
		})
	}
	return answerWith(report)
}
