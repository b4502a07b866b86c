package signin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
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
	fold     bool // groups and values do not distinguish upper and lower case
	claims   map[string]any
	// also has further IDs of this person that never belong to somebody else.
	also []string
	// groupsGap and emailGap say whether the provider left these out, and why.
	groupsGap, emailGap gap
}

// ruleSum differs whenever the same person might be judged differently.
func (s *settings) ruleSum() string {
	text, _ := json.Marshal([]any{s.Domains, s.Rules, s.NoMatch, s.Claims, s.Accounts}) // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// judge applies domains and rules. The role is the strongest of all rules that fit, and the groups are those of all of
// them. If the provider left something out, the result has only what is certain without it.
func (s *settings) judge(w who) users.Outside {
	o := users.Outside{Provider: s.Name, Title: s.Title, Realm: s.realm, Subject: w.subject, Also: w.also,
		Username: w.username, Name: w.name,
		Create: s.Accounts == accountsCreate, Rules: s.ruleSum()}
	if o.Username == "" {
		o.Username = w.email
	}
	if w.verified {
		o.Email = w.email
	}
	var certain bool
	if o.Refused, certain = s.wrongDomain(w); o.Refused != "" {
		if !certain {
			o.Untold, o.MayBeNone = w.emailGap.why, w.emailGap.none
		}
		return o
	}
	if len(s.Rules) == 0 {
		o.Told = len(s.Domains) > 0
		return o
	}
	o.Untold, o.MayBeNone = w.groupsGap.why, w.groupsGap.none
	o.Told = !w.groupsGap.is()
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
			o.Role = s.withoutMatch(w)
		}
		if o.Role == "" && s.decidesRoles() {
			o.Role = users.RoleMember // the one that a rule gave before must not stay
		}
	default:
		o.Suspend = s.NoMatch == noMatchSuspend
		o.Refused = fmt.Sprintf("Your account at %s is not in a group that may use this lab. Ask %s.", s.Title, s.Help)
		o.Why = s.nearMiss(w)
		if w.groupsGap.is() {
			o.Refused = w.groupsGap.text
		}
	}
	return o
}

// withoutMatch returns the role of a person whom no rule fits. If groups are missing, a rule for one of them might give
// a weaker role than noMatch, so the result is then the weakest of these roles.
func (s *settings) withoutMatch(w who) users.Role {
	role := users.Role(s.NoMatch)
	if w.groupsGap.is() && !w.groupsGap.none {
		for _, r := range s.Rules {
			if r.Role != "" && stronger(role, r.Role) {
				role = r.Role
			}
		}
	}
	return role
}

// nearMiss tells admins of a group whose name is nearly that of a rule: it differs in case, or in slashes around it. It
// is empty if there is none.
func (s *settings) nearMiss(w who) string {
	bare := func(group string) string { return strings.Trim(group, "/ ") }
	for _, r := range s.Rules {
		for _, wanted := range r.Groups {
			for _, has := range w.groups {
				if strings.EqualFold(bare(has), bare(wanted)) {
					return fmt.Sprintf("a rule names the group %s, the provider says %s", wanted, has)
				}
			}
		}
	}
	return ""
}

// stronger compares roles; any is stronger than none.
func stronger(a, b users.Role) bool {
	order := users.Roles() // from most to least
	i, j := slices.Index(order, a), slices.Index(order, b)
	return j < 0 || i < j
}

// wrongDomain returns the sentence for a person whose e-mail address is of a domain that may not come in, or not
// verified; empty for everybody else. certain reports whether the provider sent everything that decides this.
func (s *settings) wrongDomain(w who) (text string, certain bool) {
	if len(s.Domains) == 0 {
		return "", true
	}
	at := strings.LastIndexByte(w.email, '@')
	switch {
	case at < 0:
		return fmt.Sprintf("%s did not send your e-mail address to this lab, which needs it to decide who may sign in. "+
			"Ask %s for help.", s.Title, s.Help), !w.emailGap.is()
	case !slices.Contains(s.Domains, strings.ToLower(w.email[at+1:])):
		return fmt.Sprintf("This lab is for e-mail addresses at %[2]s, and your account at %[1]s has one of another "+
			"domain. Ask %[3]s for help.", s.Title, orList(s.Domains), s.Help), true
	case !w.verified:
		return fmt.Sprintf("%s has not verified your e-mail address. Verify it there and sign in again, or ask %s for help.",
			s.Title, s.Help), !w.emailGap.is()
	}
	return "", true
}

func (r Rule) fits(w who) bool {
	if r.Claim != "" {
		has := claimValues(w.claims, r.Claim)
		return slices.ContainsFunc(r.Values, func(v string) bool {
			return slices.ContainsFunc(has, func(h string) bool { return h == v || w.fold && strings.EqualFold(h, v) })
		})
	}
	return slices.ContainsFunc(r.Groups, func(g string) bool {
		return slices.ContainsFunc(w.groups, func(has string) bool {
			return has == g || w.fold && sameGroup(has, g) || objectID.MatchString(g) && strings.EqualFold(has, g)
		})
	})
}

// objectID matches the IDs by which Microsoft names groups. Their letters are hexadecimal digits, in either case.
var objectID = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
