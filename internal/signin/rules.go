package signin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// who is somebody as a provider told, checked and not yet judged.
type who struct {
	subject  string
	username string
	name     string
	email    string
	verified bool // the e-mail address is theirs, says the provider
	groups   []string
	fold     bool // groups are the same in capitals and small letters
	claims   map[string]any
}

// judge applies domains and rules. The role is the strongest of all rules that fit, and the groups are those of all of
// them.
func (s *settings) judge(w who) users.Outside {
	o := users.Outside{Provider: s.Name, Title: s.Title, Realm: s.realm, Subject: w.subject, Username: w.username, Name: w.name,
		Create: s.Accounts == accountsCreate}
	if o.Username == "" {
		o.Username = w.email
	}
	if w.verified {
		o.Email = w.email
	}
	if o.Refused = s.wrongDomain(w); o.Refused != "" {
		return o
	}
	if len(s.Rules) == 0 {
		return o
	}
	fits := false
	for _, r := range s.Rules {
		if !r.fits(w) {
			continue
		}
		fits = true
		if r.Role != "" && stronger(r.Role, o.Role) {
			o.Role = r.Role
		}
		if r.Group != "" {
			o.Groups = append(o.Groups, users.OutsideGroup{Name: r.Group, Lead: r.Role == users.RoleLead})
		}
	}
	switch {
	case fits || users.Role(s.NoMatch).Valid():
		if !fits {
			o.Role = users.Role(s.NoMatch)
		}
		if o.Role == "" && s.decidesRoles() {
			o.Role = users.RoleMember // the one that a rule gave before must not stay
		}
	default:
		o.Suspend = s.NoMatch == noMatchSuspend
		o.Refused = fmt.Sprintf("Your account at %s is not in a group that may use this lab. Ask %s.", s.Title, s.Help)
	}
	return o
}

// stronger compares roles; any is stronger than none.
func stronger(a, b users.Role) bool {
	order := users.Roles() // from most to least
	i, j := slices.Index(order, a), slices.Index(order, b)
	return j < 0 || i < j
}

// wrongDomain is the sentence for somebody whose e-mail address is not of a domain that may come in, or not verified.
func (s *settings) wrongDomain(w who) string {
	if len(s.Domains) == 0 {
		return ""
	}
	at := strings.LastIndexByte(w.email, '@')
	switch {
	case at < 0:
		return fmt.Sprintf("%s does not tell this lab your e-mail address, which decides who may come in. Ask %s.", s.Title, s.Help)
	case !slices.Contains(s.Domains, strings.ToLower(w.email[at+1:])):
		return fmt.Sprintf("Your account at %s has an e-mail address of another domain than %s, which this lab is for. Ask %s.", s.Title, orList(s.Domains), s.Help)
	case !w.verified:
		return fmt.Sprintf("%s has not made sure that your e-mail address is yours. Confirm it there, then sign in again; or ask %s.", s.Title, s.Help)
	}
	return ""
}

func (r Rule) fits(w who) bool {
	if r.Claim != "" {
		has := claimValues(w.claims, r.Claim)
		return slices.ContainsFunc(r.Values, func(v string) bool { return slices.Contains(has, v) })
	}
	return slices.ContainsFunc(r.Groups, func(g string) bool {
		return slices.ContainsFunc(w.groups, func(has string) bool { return has == g || w.fold && sameGroup(has, g) })
	})
}
