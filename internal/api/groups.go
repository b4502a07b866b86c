package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Group is people who work together.
type Group struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Created time.Time `json:"created"`
	Members int       `json:"members" doc:"How many"`
	Leads   []string  `json:"leads" doc:"Sign-in names"`
}

// GroupList is the groups that somebody may see.
type GroupList struct {
	Groups []Group `json:"groups"`
}

// GroupWithMembers is one group.
type GroupWithMembers struct {
	Group Group    `json:"group"`
	List  []Member `json:"list" doc:"Its members, leads first"`
}

// Member is somebody in a group.
type Member struct {
	Handle string `json:"handle"`
	Name   string `json:"name"`
	Role   string `json:"role" enum:"admin,lead,member,guest"`
	Lead   bool   `json:"lead" doc:"Leads this group"`
}

// GroupInput names a group.
type GroupInput struct {
	Group string `path:"group" maxLength:"64" example:"vision"`
}

type newGroupInput struct {
	Body struct {
		Name  string `json:"name" minLength:"2" maxLength:"30" doc:"2 to 30 of a–z, 0–9 and single hyphens, a letter first"`
		Title string `json:"title,omitempty" maxLength:"80"`
	}
}

// MemberInput names a person in a group.
type MemberInput struct {
	GroupInput
	HandleInput
}

type setMemberInput struct {
	MemberInput
	Body struct {
		Lead bool `json:"lead,omitempty" doc:"Leads the group; a member gets the role lead by it"`
	}
}

func (s *Server) addGroups() {
	add(s, Operation{Method: "GET", Path: "/groups", ID: "listGroups", Need: users.ActionSeePeople, tag: "people",
		summary: "The groups that you may see"}, s.listGroups)
	add(s, Operation{Method: "POST", Path: "/groups", ID: "createGroup", Need: users.ActionManageUsers, tag: "people",
		summary: "Make a group", status: http.StatusCreated, also: []int{conflict}}, s.createGroup)
	add(s, Operation{Method: "GET", Path: "/groups/{group}", ID: "getGroup", Need: users.ActionSeePeople, tag: "people",
		summary: "One group with its members"}, s.getGroup)
	add(s, Operation{Method: "DELETE", Path: "/groups/{group}", ID: "removeGroup", Need: users.ActionManageUsers,
		tag: "people", summary: "Remove a group; its members stay in the lab"}, s.removeGroup)
	add(s, Operation{Method: "PUT", Path: "/groups/{group}/members/{handle}", ID: "setMember",
		Need: users.ActionManageUsers, tag: "people", summary: "Put somebody into a group, or change whether they lead it"},
		s.setMember)
	add(s, Operation{Method: "DELETE", Path: "/groups/{group}/members/{handle}", ID: "removeMember",
		Need: users.ActionManageUsers, tag: "people", summary: "Take somebody out of a group"}, s.removeMember)
}

func groupOf(g users.Group) Group {
	return Group{Name: g.Name, Title: g.Title, Created: g.Created, Members: g.Members, Leads: g.Leads}
}

func (s *Server) listGroups(ctx context.Context, c *call, _ *noInput) (*body[GroupList], error) {
	groups, err := s.cfg.Users.Groups(ctx)
	if err != nil {
		return nil, err
	}
	list := GroupList{Groups: []Group{}}
	for _, g := range groups {
		if c.everybody(users.ActionSeePeople) || slices.Contains(g.Leads, c.user.Handle) {
			list.Groups = append(list.Groups, groupOf(g))
		}
	}
	return answerWith(list)
}

// group finds the group a call is about. Who does not lead it is not told whether it exists.
func (s *Server) group(ctx context.Context, c *call, name string) (users.Group, error) {
	g, err := s.cfg.Users.Group(ctx, name)
	if !c.everybody(users.ActionSeePeople) &&
		(errors.Is(err, users.ErrGroupNotFound) || err == nil && !slices.Contains(g.Leads, c.user.Handle)) {
		return users.Group{}, errMayNot
	}
	return g, err
}

func (s *Server) getGroup(ctx context.Context, c *call, in *GroupInput) (*body[GroupWithMembers], error) {
	g, err := s.group(ctx, c, in.Group)
	if err != nil {
		return nil, err
	}
	members, err := s.cfg.Users.Members(ctx, g.Name)
	if err != nil {
		return nil, err
	}
	out := GroupWithMembers{Group: groupOf(g), List: []Member{}}
	for _, m := range members {
		out.List = append(out.List, Member{m.Handle, m.Name, string(m.Role), m.Lead})
	}
	return answerWith(out)
}

func (s *Server) createGroup(ctx context.Context, c *call, in *newGroupInput) (*body[Group], error) {
	g, err := s.cfg.Users.CreateGroup(ctx, in.Body.Name, in.Body.Title)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "group.add", g.Name, "")
	return answerWith(groupOf(g))
}

func (s *Server) removeGroup(ctx context.Context, c *call, in *GroupInput) (*nothing, error) {
	g, err := s.group(ctx, c, in.Group)
	if err == nil {
		err = s.cfg.Users.RemoveGroup(ctx, g.Name)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "group.remove", g.Name, "")
	return done(nil)
}

func (s *Server) setMember(ctx context.Context, c *call, in *setMemberInput) (*body[Member], error) {
	g, u, err := s.groupAndMember(ctx, c, in.MemberInput)
	if err == nil {
		err = s.cfg.Users.SetMember(ctx, g.Name, u.ID, in.Body.Lead)
	}
	if err != nil {
		return nil, err
	}
	detail := "in " + g.Name
	if in.Body.Lead {
		detail = "leads " + g.Name
	}
	s.audit(ctx, c, "group.member", u.Handle, detail)
	if u, err = s.cfg.Users.ByHandle(ctx, u.Handle); err != nil {
		return nil, err
	}
	return answerWith(Member{u.Handle, u.Name, string(u.Role), in.Body.Lead})
}

func (s *Server) removeMember(ctx context.Context, c *call, in *MemberInput) (*nothing, error) {
	g, u, err := s.groupAndMember(ctx, c, *in)
	if err == nil {
		err = s.cfg.Users.RemoveMember(ctx, g.Name, u.ID)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "group.member-remove", u.Handle, "from "+g.Name)
	return done(nil)
}

func (s *Server) groupAndMember(ctx context.Context, c *call, in MemberInput) (users.Group, users.User, error) {
	g, err := s.group(ctx, c, in.Group)
	if err != nil {
		return g, users.User{}, err
	}
	u, err := s.cfg.Users.ByHandle(ctx, in.Handle)
	return g, u, err
}
