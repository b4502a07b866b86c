package signin

import (
	"net/url"
	"slices"
	"strings"

	"github.com/go-ldap/ldap/v3"

	"github.com/gpulab/gpulab/internal/users"
)

// settings are a provider's configuration with everything filled in.
type settings struct {
	Config
	// realm is within what a provider's subjects are unique. It stays the same as long as they do, whatever the
	// provider is called here.
	realm string
	// groupSources are further addresses that tell groups, in plain OAuth.
	groupSources []groupSource
	proxy        func(*url.URL) (*url.URL, error) // nil = the environment's
}

// groupSource is an address that answers with a list; the fields of each of its entries, joined by "/", are a group.
type groupSource struct {
	url    string
	fields []string
}

// complete fills in what the type knows. It is only sure to make sense of what Check has passed.
func (c *Config) complete() settings {
	s := settings{Config: *c}
	s.Rules, s.Domains = slices.Clone(c.Rules), slices.Clone(c.Domains)
	switch c.Type {
	case typeLDAP, typeActiveDirectory:
		s.completeDirectory()
	case typeOAuth, typeGitHub:
		s.completeOAuth()
	default:
		s.completeOIDC()
	}
	fill(&s.Title, s.Name)
	fill(&s.Help, "an admin of the lab")
	fill(&s.Accounts, accountsCreate)
	if len(s.Rules) > 0 {
		fill(&s.NoMatch, noMatchRefuse)
	}
	for i, d := range s.Domains {
		s.Domains[i] = strings.ToLower(d)
	}
	return s
}

func fill(text *string, usual string) {
	if *text == "" {
		*text = usual
	}
}

// fillClaims names what is not named by the claims of OpenID Connect.
func (s *settings) fillClaims() {
	fill(&s.Claims.ID, "sub")
	fill(&s.Claims.Username, "preferred_username")
	fill(&s.Claims.Name, "name")
	fill(&s.Claims.Email, "email")
	fill(&s.Claims.EmailVerified, "email_verified")
	fill(&s.Claims.Groups, "groups")
}

func (s *settings) completeOIDC() {
	switch s.Type {
	case typeKeycloak:
		s.Issuer = strings.TrimSuffix(s.URL, "/") + "/realms/" + s.Realm
		fill(&s.Title, "Keycloak")
	case typeGoogle:
		s.Issuer = "https://accounts.google.com"
		fill(&s.Title, "Google")
		fill(&s.Claims.Username, "email")
	case typeMicrosoft:
		s.Issuer = "https://login.microsoftonline.com/" + s.Tenant + "/v2.0"
		fill(&s.Title, "Microsoft")
		// Microsoft says no email_verified, and people may set any address where the tenant lets them.
		fill(&s.Claims.EmailVerified, "xms_edov")
	}
	s.fillClaims()
	if len(s.Scopes) == 0 {
		s.Scopes = []string{"openid", "profile", "email"}
	}
	if !slices.Contains(s.Scopes, "openid") {
		s.Scopes = append([]string{"openid"}, s.Scopes...)
	}
	s.realm = s.Issuer
}

func (s *settings) completeOAuth() {
	if s.Type == typeGitHub {
		site, api := "https://github.com", "https://api.github.com"
		if s.URL != "" {
			site = strings.TrimSuffix(s.URL, "/")
			api = site + "/api/v3"
		}
		s.AuthorizeURL, s.TokenURL = site+"/login/oauth/authorize", site+"/login/oauth/access_token"
		s.UserinfoURL, s.EmailsURL = api+"/user", api+"/user/emails"
		fill(&s.Title, "GitHub")
		fill(&s.Claims.ID, "id") // the login can be changed, and then belong to somebody else
		fill(&s.Claims.Username, "login")
		if len(s.Scopes) == 0 {
			s.Scopes = []string{"read:user", "user:email"}
		}
		if s.asksForGroups() {
			s.groupSources = []groupSource{
				{api + "/user/orgs?per_page=100", []string{"login"}},
				{api + "/user/teams?per_page=100", []string{"organization.login", "slug"}},
			}
			if !slices.Contains(s.Scopes, "read:org") {
				s.Scopes = append(s.Scopes, "read:org")
			}
		}
	}
	s.fillClaims()
	if s.GroupsURL != "" {
		s.groupSources = append(s.groupSources, groupSource{s.GroupsURL, []string{s.Claims.Groups}})
	}
	s.realm = s.UserinfoURL
}

func (s *settings) completeDirectory() {
	if s.Type == typeActiveDirectory {
		fill(&s.Claims.ID, "objectGUID")
		fill(&s.Claims.Username, "sAMAccountName")
		fill(&s.Claims.Name, "displayName")
		fill(&s.UserFilter,
			"(&(objectCategory=person)(objectClass=user)(|(sAMAccountName={username})(userPrincipalName={username})))")
		// The number is AD's rule for groups within groups.
		fill(&s.GroupFilter, "(member:1.2.840.113556.1.4.1941:={dn})")
		fill(&s.Claims.Groups, "memberOf")
	}
	fill(&s.Claims.Username, "uid")
	fill(&s.Claims.Name, "cn")
	fill(&s.Claims.Email, "mail")
	fill(&s.Claims.Groups, "memberOf")
	fill(&s.UserFilter, "("+s.Claims.Username+"={username})")
	fill(&s.GroupFilter, "(|(member={dn})(uniqueMember={dn})(memberUid={username}))")
	// Not the server: another one may take its place with the same people.
	s.realm = NormalRealm(directoryRealm + s.UserBase)
}

// directoryRealm begins the realm of a directory; the DN below which its people are follows.
const directoryRealm = "ldap:"

// NormalRealm makes the realm of a directory independent of how its DN is written: spaces around the parts and upper or
// lower case make no difference. Realms of other providers stay as they are.
func NormalRealm(realm string) string {
	base, is := strings.CutPrefix(realm, directoryRealm)
	if !is {
		return realm
	}
	base = strings.ToLower(strings.Join(strings.Fields(base), " ")) // before bytes beyond ASCII are written as numbers
	if dn, err := ldap.ParseDN(base); err == nil {
		base = dn.String()
	}
	return directoryRealm + strings.ToLower(base)
}

func (c *Config) directory() bool { return c.Type == typeLDAP || c.Type == typeActiveDirectory }

// asksForGroups tells whether a rule looks at groups.
func (c *Config) asksForGroups() bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return len(r.Groups) > 0 })
}

// decidesRoles tells whether the rules say anything about roles.
func (s *settings) decidesRoles() bool {
	return users.Role(s.NoMatch).Valid() || slices.ContainsFunc(s.Rules, func(r Rule) bool { return r.Role != "" })
}
