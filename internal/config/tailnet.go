package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/users"
)

// Tailnet says who signs in over the tailnet.
type Tailnet struct {
	SignIn   Word           `json:"signIn,omitempty"`   // Off, TailnetOffer or TailnetRequire
	Accounts string         `json:"accounts,omitempty"` // as in signin.Config
	Allow    []TailnetEntry `json:"allow,omitempty"`
}

// TailnetEntry names people of the tailnet, in exactly one way, and what they get in the lab.
type TailnetEntry struct {
	Login  string `json:"login,omitempty"`  // ada@example.org, *@example.org, or * for everyone
	Group  string `json:"group,omitempty"`  // of the tailnet
	Tag    string `json:"tag,omitempty"`    // of machines without an owner
	Shared string `json:"shared,omitempty"` // a login of another tailnet
	// Role and LabGroup are what they get; at least one of them.
	Role     users.Role `json:"role,omitempty"`
	LabGroup string     `json:"labGroup,omitempty"`
}

// Values of Tailnet.SignIn.
const (
	TailnetOffer   Word = "offer"
	TailnetRequire Word = "require"
)

// TailnetWay is the name under which accounts are linked with logins of the tailnet.
const TailnetWay = "tailnet"

func (c Tailnet) checkSignIn(providers []signin.Config) error {
	if err := oneOf("tailnet.signIn", c.SignIn, Off, TailnetOffer, TailnetRequire); err != nil || c.SignIn == Off {
		return err
	}
	if len(c.Allow) == 0 {
		return fmt.Errorf("tailnet.signIn is %s, but tailnet.allow is empty, so nobody could come in; name somebody "+
			"there, or everybody of the tailnet with {login: \"*\", role: member}", c.SignIn)
	}
	if slices.ContainsFunc(providers, func(p signin.Config) bool { return p.Name == TailnetWay }) {
		return errors.New("tailnet.signIn: a provider below signin is called tailnet too; give it another name")
	}
	return nil
}

func (c Tailnet) checkAllow() error {
	for i, a := range c.Allow {
		if err := a.check(); err != nil {
			return fmt.Errorf("tailnet.allow: entry %d %w", i+1, err)
		}
	}
	if _, err := c.Way(); err != nil {
		return fmt.Errorf("tailnet.allow: %w", err)
	}
	return nil
}

func (a TailnetEntry) check() error {
	named := 0
	for _, text := range []string{a.Login, a.Group, a.Tag, a.Shared} {
		if text != "" {
			named++
		}
		if strings.ContainsAny(text, "\r\n\t") {
			return fmt.Errorf("names %q, which is more than one line", text)
		}
	}
	switch {
	case named != 1:
		return errors.New("must say whom it is for in exactly one way: login, group, tag or shared")
	case strings.Contains(a.Login, "*") && a.Login != "*" &&
		(!strings.HasPrefix(a.Login, "*@") || strings.Count(a.Login, "*") > 1):
		return fmt.Errorf("names the login %q; a * stands alone, or before the @ of a domain", a.Login)
	case strings.Contains(a.Shared, "*"):
		return fmt.Errorf("names %q of other tailnets; each of them is named: the lab does not know who belongs to "+
			"another tailnet", a.Shared)
	case a.Tag != "" && !strings.HasPrefix(a.Tag, "tag:"):
		return fmt.Errorf("names the tag %q; tags are written like tag:kiosk", a.Tag)
	case a.Tag != "" && a.Role == users.RoleAdmin:
		return fmt.Errorf("makes everyone at a machine with %s an admin; name people for that", a.Tag)
	}
	return nil
}

// The prefixes of an entry's key.
const (
	byLogin  = "login "
	byGroup  = "group "
	byTag    = "tag "
	byShared = "shared "
)

// key is whom an entry is for, as a group of signin.Way.
func (a TailnetEntry) key() string {
	switch {
	case a.Login != "":
		return byLogin + strings.ToLower(a.Login)
	case a.Group != "":
		return byGroup + a.Group
	case a.Tag != "":
		return byTag + a.Tag
	}
	return byShared + strings.ToLower(a.Shared)
}

// KeysOf returns the entries that fit a visitor, as groups of Tailnet.Way.
func KeysOf(v tailnet.Visitor) (list []string) {
	for _, t := range v.Tags {
		list = append(list, byTag+t)
	}
	switch {
	case v.Login == "":
		return list
	case v.Shared: // their tailnet's groups are not ours
		return append(list, byShared+v.Login)
	}
	list = append(list, byLogin+v.Login, byLogin+"*")
	if at := strings.LastIndexByte(v.Login, '@'); at >= 0 {
		list = append(list, byLogin+"*"+v.Login[at:])
	}
	for _, g := range v.Groups {
		list = append(list, byGroup+g)
	}
	return list
}

// Way returns the entries as the rules of a way to sign in.
func (c Tailnet) Way() (signin.Way, error) {
	w := signin.Config{Name: TailnetWay, Title: "the tailnet", Accounts: c.Accounts}
	for _, a := range c.Allow {
		w.Rules = append(w.Rules, signin.Rule{Groups: []string{a.key()}, Role: a.Role, Group: a.LabGroup})
	}
	return signin.NewWay(w)
}
