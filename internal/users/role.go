package users

import "slices"

// Role is what an account may do in the lab.
type Role string

// The roles, from most to least.
const (
	RoleAdmin  Role = "admin"  // runs the lab: people, machines, settings
	RoleLead   Role = "lead"   // looks after a group: may stop anybody's notebooks
	RoleMember Role = "member" // works here
	RoleGuest  Role = "guest"  // works here for a while; quotas are smaller
)

// Action is something a page or command asks permission for.
type Action string

// The actions.
const (
	ActionSee             Action = "see"              // machines, GPUs and who holds them
	ActionLaunch          Action = "launch"           // notebooks of one's own
	ActionManageNotebooks Action = "manage-notebooks" // stop and cancel anybody's
	ActionManageUsers     Action = "manage-users"     // add, invite, change, remove people
	ActionManageLab       Action = "manage-lab"       // settings, components, audit log
)

// allowed is the whole policy.
var allowed = map[Role][]Action{
	RoleAdmin:  {ActionSee, ActionLaunch, ActionManageNotebooks, ActionManageUsers, ActionManageLab},
	RoleLead:   {ActionSee, ActionLaunch, ActionManageNotebooks},
	RoleMember: {ActionSee, ActionLaunch},
	RoleGuest:  {ActionSee, ActionLaunch},
}

// Roles lists every role, from most to least.
func Roles() []Role { return []Role{RoleAdmin, RoleLead, RoleMember, RoleGuest} }

// Can reports whether the role allows the action. An unknown role allows nothing.
func (r Role) Can(a Action) bool { return slices.Contains(allowed[r], a) }

// Valid reports whether r is one of Roles.
func (r Role) Valid() bool { _, ok := allowed[r]; return ok }

func checkRole(r Role) error {
	if !r.Valid() {
		return sentence(ErrRoleInvalid, "There is no role %s. Choose admin, lead, member or guest.", quote(string(r)))
	}
	return nil
}
