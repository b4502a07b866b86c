package users

import "slices"

// Role is what an account may do in the lab.
type Role string

// The roles, from most to least.
const (
	RoleAdmin  Role = "admin"  // runs the lab: people, machines, settings
	RoleLead   Role = "lead"   // looks after the groups they lead
	RoleMember Role = "member" // works here
	RoleGuest  Role = "guest"  // works here for a while; quotas are smaller
)

// Action is something a page or command asks permission for.
type Action string

// The actions.
const (
	ActionSee                Action = "see"
	ActionOwnAccount         Action = "own-account"
	ActionLaunch             Action = "launch"
	ActionFiles              Action = "files"
	ActionManageNotebooks    Action = "manage-notebooks"
	ActionSeeUse             Action = "see-use"
	ActionSeePeople          Action = "see-people"
	ActionInvite             Action = "invite"
	ActionManageUsers        Action = "manage-users"
	ActionManageQuotas       Action = "manage-quotas"
	ActionSeeFolders         Action = "see-folders"
	ActionManageFolders      Action = "manage-folders"
	ActionManageDatasets     Action = "manage-datasets"
	ActionSeeAudit           Action = "see-audit"
	ActionManageEnvironments Action = "manage-environments"
	ActionManageLab          Action = "manage-lab"
)

// Scope is on whom a role may act.
type Scope int

// The scopes, from least to most; each includes those before it.
const (
	Nobody    Scope = iota // the action is not allowed
	Own                    // on oneself and what one owns
	OwnGroups              // and on the members of the groups one leads
	Everybody              // and on everybody, and the lab itself
)

func (s Scope) String() string {
	return [...]string{"–", "own", "own groups", "everybody"}[s]
}

// Rule says what one action is and on whom each role may do it.
type Rule struct {
	Action Action
	What   string // for the table in the docs
	Roles  map[Role]Scope
}

//go:generate go test -run Test(Roles|Audit)Documentation -update .

// rules are the whole of it: pages, commands and the API ask nothing else.
var rules = []Rule{
	{ActionSee, "see machines, GPUs and who holds them", toAll(Everybody)},
	{ActionOwnAccount, "password, sessions, access tokens, SSH keys", toAll(Own)},
	{ActionLaunch, "launch notebooks", toAll(Own)},
	{ActionFiles, "bring files in and out (SFTP)", toAll(Own)},
	{ActionManageNotebooks, "open, stop or cancel notebooks (opening: own ones only)",
		byRole(Everybody, OwnGroups, Own, Own)},
	{ActionSeeUse, "see who used how much over time", byRole(Everybody, OwnGroups, Own, Own)},
	{ActionSeePeople, "see people's pages and groups: e-mail, state, last sign-in",
		byRole(Everybody, OwnGroups, Nobody, Nobody)},
	{ActionInvite, "invite new people", byRole(Everybody, OwnGroups, Nobody, Nobody)},
	{ActionManageUsers, "add, change, suspend and remove people and groups", byRole(Everybody, Nobody, Nobody, Nobody)},
	{ActionManageQuotas, "set quotas, and grant more for a while", byRole(Everybody, Nobody, Nobody, Nobody)},
	{ActionSeeFolders, "see the shared folders that are for them, and the room in the own home", toAll(Own)},
	{ActionManageFolders, "make, change and delete group folders and hand-ins",
		byRole(Everybody, OwnGroups, Nobody, Nobody)},
	{ActionManageDatasets, "make and delete datasets, and show folders of the machine",
		byRole(Everybody, Nobody, Nobody, Nobody)},
	{ActionManageEnvironments, "build, bring in, export and remove environments",
		byRole(Everybody, Nobody, Nobody, Nobody)},
	{ActionSeeAudit, "read and export the audit log", byRole(Everybody, Nobody, Nobody, Nobody)},
	{ActionManageLab, "state of the lab, its settings, which GPUs are lent out",
		byRole(Everybody, Nobody, Nobody, Nobody)},
}

func byRole(admin, lead, member, guest Scope) map[Role]Scope {
	return map[Role]Scope{RoleAdmin: admin, RoleLead: lead, RoleMember: member, RoleGuest: guest}
}

func toAll(s Scope) map[Role]Scope { return byRole(s, s, s, s) }

// scopes are the rules by action, for the question that every request asks.
var scopes = func() map[Action]map[Role]Scope {
	byAction := map[Action]map[Role]Scope{}
	for _, r := range rules {
		byAction[r.Action] = r.Roles
	}
	return byAction
}()

// Policy is which role may do what, in the order of the docs.
func Policy() []Rule { return slices.Clone(rules) }

// Roles lists every role, from most to least.
func Roles() []Role { return []Role{RoleAdmin, RoleLead, RoleMember, RoleGuest} }

// Scope is on whom the role may do the action. An unknown role or action: nobody.
func (r Role) Scope(a Action) Scope { return scopes[a][r] }

// Valid reports whether r is one of Roles.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// Scope is on whom u may do the action; a suspended account on nobody.
func (u User) Scope(a Action) Scope {
	if u.ID == 0 || u.Suspended {
		return Nobody
	}
	return min(u.Role.Scope(a), u.limit.scope(a))
}

// May reports whether u may do the action to the account with the given ID, or to what that account owns.
func (u User) May(a Action, on int64) bool {
	return u.may(a, on == u.ID, func() bool { return u.led.ids[on] })
}

// MayTo is May for an account known by its handle.
func (u User) MayTo(a Action, handle string) bool {
	return u.may(a, handle == u.Handle, func() bool { return u.led.handles[handle] })
}

func (u User) may(a Action, self bool, leads func() bool) bool {
	switch u.Scope(a) {
	case Everybody:
		return true
	case OwnGroups:
		return self || u.led != nil && leads()
	case Own:
		return self
	}
	return false
}

// circle is whom somebody leads. It is never changed once it is made.
type circle struct {
	ids     map[int64]bool
	handles map[string]bool
}

func checkRole(r Role) error {
	if !r.Valid() {
		return sentence(ErrRoleInvalid, "There is no role %s. Choose admin, lead, member or guest.", quote(string(r)))
	}
	return nil
}
