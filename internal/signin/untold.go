package signin

import (
	"fmt"
	"slices"
)

// gap describes what a provider left out about a person although domains or rules need it. The zero gap is none.
type gap struct {
	// why is for admins: the end of a sentence.
	why string
	// text is for the person: a sentence.
	text string
	// none says that there may be nothing to send: some providers leave out what is empty.
	none bool
}

func (g gap) is() bool { return g.why != "" }

// groupsGap returns the gap of a person whose groups the provider left out, all or some of them.
func (s *settings) groupsGap(none bool, format string, args ...any) gap {
	why := fmt.Sprintf(format, args...)
	return gap{why: why, none: none, text: fmt.Sprintf(
		"%s did not send all of your groups to this lab, which needs them to decide who may sign in: %s. Ask %s for help, "+
			"and show them this message: %s",
		s.Title, why, s.Help, s.groupsNext())}
}

// groupsNext says how to make the provider send the groups.
func (s *settings) groupsNext() string {
	switch {
	case s.Type == typeMicrosoft:
		return "In Entra, open this lab's app registration, go to Token configuration, edit the groups claim and choose " +
			"“Groups assigned to the application”. " +
			"Then assign the groups that the rules name to the application. If all groups are sent, Entra leaves out those " +
			"of people who are in more than 200."
	case s.directory() && s.GroupBase == "":
		return fmt.Sprintf("Set groupBase for %s in the lab's configuration, so that the lab searches for groups, and let "+
			"%s read there.",
			s.Name, orText(s.BindDN, "everybody"))
	case s.directory():
		return fmt.Sprintf("Let %s read all groups below %s: raise the directory's limit for that account, narrow "+
			"groupBase or groupFilter, or set url to a server that has all groups.",
			orText(s.BindDN, "everybody"), s.GroupBase)
	}
	return fmt.Sprintf("Configure the provider to add the claim %s to ID tokens for this lab's client, if possible "+
		"with only the groups that the lab's rules name.", s.Claims.Groups)
}

// looksAtGroups reports whether a rule needs the groups, or the claim that they are in.
func (s *settings) looksAtGroups() bool {
	return s.asksForGroups() || slices.ContainsFunc(s.Rules, func(r Rule) bool { return r.Claim == s.Claims.Groups })
}

// gaps finds what domains and rules need but the claims of OpenID Connect lack.
func (o *openID) gaps(claims map[string]any) (groups, email gap) {
	for _, r := range o.Rules {
		name := r.Claim
		if name == "" {
			name = o.Claims.Groups
		}
		if elsewhere(claims, name) {
			groups = o.groupsGap(false, "the ID token does not contain the claim %s, only a reference to it (_claim_names), "+
				"because the person is in too many groups", name)
		}
	}
	switch {
	case groups.is() || !o.looksAtGroups():
	case !hasClaim(claims, o.Claims.Groups):
		groups = o.groupsGap(true, "the provider did not send the claim %s", o.Claims.Groups)
	case len(claimValues(claims, o.Claims.Groups)) >= maxValues:
		groups = o.groupsGap(false, "the claim %s has more than %d values", o.Claims.Groups, maxValues)
	}
	if len(o.Domains) > 0 {
		for _, name := range []string{o.Claims.Email, o.Claims.EmailVerified} {
			if !email.is() && !hasClaim(claims, name) {
				email = gap{why: fmt.Sprintf("the provider did not send the claim %s", name), none: true}
			}
		}
	}
	return groups, email
}

// elsewhere reports whether a provider left out a claim and says where to ask for it (OpenID Connect Core, 5.6.2).
// Microsoft's hasgroups says so without an address.
func elsewhere(claims map[string]any, name string) bool {
	if hasClaim(claims, name) {
		return false
	}
	if sources, ok := claims["_claim_names"].(map[string]any); ok && sources[name] != nil {
		return true
	}
	return name == "groups" && claimTrue(claims, "hasgroups")
}
