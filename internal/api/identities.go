package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Provider is an outside identity provider that the lab knows.
type Provider struct {
	Name      string `json:"name"`
	Title     string `json:"title" doc:"Its name for people"`
	Directory bool   `json:"directory" doc:"Name and password are typed at the lab (LDAP); otherwise at the provider"`
}

// Identity is an outside account that somebody signs in with.
type Identity struct {
	ID         int64      `json:"id"`
	Provider   string     `json:"provider"`
	Title      string     `json:"title" doc:"The provider's name for people"`
	Username   string     `json:"username" doc:"What they are called there"`
	Linked     time.Time  `json:"linked"`
	Used       *time.Time `json:"used,omitempty" doc:"The last sign-in with it; left out for never"`
	Configured bool       `json:"configured" doc:"The lab still knows the provider"`
	KeptUntil  *time.Time `json:"keptUntil,omitempty" doc:"Until when the person keeps role and groups although the provider does not send the groups; left out if none are being kept"`
}

// MyIdentities is the outside accounts of whoever asks.
type MyIdentities struct {
	Identities  []Identity     `json:"identities"`
	HasPassword bool           `json:"hasPassword" doc:"The account has a password of the lab's own, too"`
	Linkable    []LinkProvider `json:"linkable" doc:"Providers of which nothing is linked yet"`
}

// LinkProvider is a provider whose account can be linked, in the browser.
type LinkProvider struct {
	Provider
	Page string `json:"page" doc:"Where the browser links it"`
}

// PersonIdentities is the outside accounts of a person.
type PersonIdentities struct {
	Identities []Identity `json:"identities"`
	RoleByHand bool       `json:"roleByHand" doc:"The role was given by hand: the providers' rules do not decide it"`
}

type unlinkInput struct {
	IDInput
	Body struct {
		Password string `json:"password" minLength:"1" maxLength:"1000" doc:"Of the lab's own account, to confirm"`
	}
}

// IdentityInput names an outside account of a person.
type IdentityInput struct {
	HandleInput
	IDInput
}

func (s *Server) addIdentities() {
	add(s, Operation{Method: "GET", Path: "/me/identities", ID: "listMyIdentities", Need: users.ActionOwnAccount,
		tag: "sign-in", summary: "The outside accounts that you sign in with",
		description: "Linking one takes the browser: the provider has to see who asks."}, s.myIdentities)
	add(s, Operation{Method: "POST", Path: "/me/identities/{id}/unlink", ID: "unlinkMyIdentity",
		Need: users.ActionOwnAccount, tag: "sign-in", summary: "Unlink one of your outside accounts",
		description: "It takes your password, and is for accounts that have one: who signs in elsewhere only does it on " +
			"the page of their account.",
		status: http.StatusNoContent, also: []int{conflict}}, s.unlinkMyIdentity)
	add(s, Operation{Method: "GET", Path: "/users/{handle}/identities", ID: "listUserIdentities",
		Need: users.ActionSeePeople, tag: "people", summary: "The outside accounts that a person signs in with",
		also: []int{gone}}, s.personIdentities)
	add(s, Operation{Method: "DELETE", Path: "/users/{handle}/identities/{id}", ID: "unlinkUserIdentity",
		Need: users.ActionManageUsers, tag: "people", summary: "Unlink an outside account of a person",
		description: "Even the last way in: make a password link then.", also: []int{gone}}, s.unlinkUserIdentity)
	add(s, Operation{Method: "POST", Path: "/users/{handle}/role-by-rules", ID: "roleByRules",
		Need: users.ActionManageUsers, tag: "people", summary: "Let the providers' rules decide a person's role again",
		description: "From their next sign-in on. It undoes that a role was given by hand.", also: []int{conflict, gone}},
		s.roleByRules)
}

func (s *Server) identitiesOf(list []users.Identity) []Identity {
	out := []Identity{}
	for i := range list {
		id := &list[i]
		one := Identity{
			ID: id.ID, Provider: id.Provider, Title: id.Provider, Username: id.Username, Linked: id.Linked, Used: id.Used,
			KeptUntil: id.KeptUntil,
		}
		for _, p := range s.cfg.Providers {
			if p.Name == id.Provider {
				one.Title, one.Configured = p.Title, true
			}
		}
		out = append(out, one)
	}
	return out
}

func (s *Server) myIdentities(ctx context.Context, c *call, _ *noInput) (*body[MyIdentities], error) {
	list, err := s.cfg.Users.Identities(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	out := MyIdentities{Identities: s.identitiesOf(list), HasPassword: c.user.HasPassword, Linkable: []LinkProvider{}}
	for _, p := range s.cfg.Providers {
		if !slices.ContainsFunc(list, func(id users.Identity) bool { return id.Provider == p.Name }) {
			out.Linkable = append(out.Linkable, LinkProvider{p, c.page("/account/identities/" + p.Name)})
		}
	}
	return answerWith(out)
}

func (s *Server) unlinkMyIdentity(ctx context.Context, c *call, in *unlinkInput) (*nothing, error) {
	if !c.user.HasPassword {
		return nil, problem(conflict, "This account has no password to confirm with",
			"Sign in in the browser, and unlink it on the page of your account within 15 minutes. Nothing was changed.")
	}
	if err := s.cfg.Users.ConfirmPassword(ctx, c.user.ID, in.Body.Password, c.remote); err != nil {
		return nil, err
	}
	gone, err := s.cfg.Users.Unlink(ctx, c.user.ID, in.ID, false)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "identity.unlink", c.user.Handle, gone.Username+" at "+gone.Provider)
	return done(nil)
}

func (s *Server) personIdentities(ctx context.Context, c *call, in *HandleInput) (*body[PersonIdentities], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	return answerWith(PersonIdentities{Identities: s.identitiesOf(who.Identities), RoleByHand: who.RoleByHand()})
}

func (s *Server) unlinkUserIdentity(ctx context.Context, c *call, in *IdentityInput) (*nothing, error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	gone, err := s.cfg.Users.Unlink(ctx, who.ID, in.ID, true)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "identity.unlink", who.Handle, gone.Username+" at "+gone.Provider)
	return done(nil)
}

func (s *Server) roleByRules(ctx context.Context, c *call, in *HandleInput) (*body[Person], error) {
	out, err := s.act(ctx, c, in.Handle, true, s.cfg.Users.RoleByRules)
	if err == nil {
		s.audit(ctx, c, "user.role-by-rules", out.Body.Handle, "")
	}
	return out, err
}
