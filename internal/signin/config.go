package signin

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/users"
)

// The types of providers. All but the three plain ones fill in what is the same for everybody.
const (
	typeOIDC            = "oidc"
	typeOAuth           = "oauth2"
	typeLDAP            = "ldap"
	typeKeycloak        = "keycloak"
	typeGoogle          = "google"
	typeMicrosoft       = "microsoft"
	typeGitHub          = "github"
	typeActiveDirectory = "activedirectory"
)

// Config is one provider as the configuration describes it. Which keys a type takes, Check says.
type Config struct {
	// Name is part of addresses and stays: /signin/NAME/callback.
	Name string `json:"name"`
	Type string `json:"type"`
	// Title is what people read: "Sign in with TITLE".
	Title string `json:"title,omitempty"`
	// Help says whom people ask who may not come in; empty means an admin of the lab.
	Help string `json:"help,omitempty"`

	// Issuer, or what it is made of for the types that know the rest.
	Issuer string `json:"issuer,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Realm  string `json:"realm,omitempty"`
	// URL is the server: of Keycloak, of GitHub Enterprise, of a directory.
	URL string `json:"url,omitempty"`

	// Names are names of the lab, besides its first one, at which the provider may send browsers back.
	Names []string `json:"names,omitempty"`

	ClientID         string   `json:"clientID,omitempty"`
	ClientSecretFile string   `json:"clientSecretFile,omitempty"`
	Scopes           []string `json:"scopes,omitempty"`

	// The addresses of plain OAuth 2.
	AuthorizeURL string `json:"authorizeURL,omitempty"`
	TokenURL     string `json:"tokenURL,omitempty"`
	UserinfoURL  string `json:"userinfoURL,omitempty"`
	EmailsURL    string `json:"emailsURL,omitempty"`
	GroupsURL    string `json:"groupsURL,omitempty"`

	// A directory.
	StartTLS         bool   `json:"startTLS,omitempty"`
	BindDN           string `json:"bindDN,omitempty"`
	BindPasswordFile string `json:"bindPasswordFile,omitempty"`
	UserBase         string `json:"userBase,omitempty"`
	UserFilter       string `json:"userFilter,omitempty"`
	GroupBase        string `json:"groupBase,omitempty"`
	GroupFilter      string `json:"groupFilter,omitempty"`

	// CAFile holds the certificates to trust instead of the system's.
	CAFile string `json:"caFile,omitempty"`
	// Claims are the names of what the provider says, where they are not the usual ones.
	Claims ClaimNames `json:"claims,omitzero"`

	// Domains are the e-mail domains of those who may come in; none means any.
	Domains []string `json:"domains,omitempty"`
	// Accounts is "create" (the usual) or "existing": only who has linked the provider comes in.
	Accounts string `json:"accounts,omitempty"`
	Rules    []Rule `json:"rules,omitempty"`
	// NoMatch is what becomes of somebody whom no rule fits: "refuse" (the usual), "suspend", or a role.
	NoMatch string `json:"noMatch,omitempty"`
}

// ClaimNames are names of claims or of attributes. A dot leads into what is inside: realm_access.roles.
type ClaimNames struct {
	ID            string `json:"id,omitempty"`
	Username      string `json:"username,omitempty"`
	Name          string `json:"name,omitempty"`
	Email         string `json:"email,omitempty"`
	EmailVerified string `json:"emailVerified,omitempty"`
	Groups        string `json:"groups,omitempty"`
}

// Rule gives a role, a group of the lab, or both, to members of any of the provider's groups, or to those of whom the
// provider says one of some values.
type Rule struct {
	Groups []string   `json:"groups,omitempty"`
	Claim  string     `json:"claim,omitempty"`
	Values []string   `json:"values,omitempty"`
	Role   users.Role `json:"role,omitempty"`
	Group  string     `json:"group,omitempty"`
}

// What Accounts and NoMatch may be, besides roles.
const (
	accountsCreate   = "create"
	accountsExisting = "existing"
	noMatchRefuse    = "refuse"
	noMatchSuspend   = "suspend"
)

// ConfigError says what is wrong with a provider's configuration.
type ConfigError struct {
	Index int    // in the list
	Key   string // the key it is about; empty for the whole provider
	Text  string // the end of a sentence
}

func (e *ConfigError) Error() string { return e.Text }

// keys are what each type takes besides what all take.
var keys = map[string][]string{
	typeOIDC:      {"issuer", "clientID", "clientSecretFile", "scopes", "names"},
	typeKeycloak:  {"url", "realm", "clientID", "clientSecretFile", "scopes", "names"},
	typeGoogle:    {"clientID", "clientSecretFile", "scopes", "names"},
	typeMicrosoft: {"tenant", "clientID", "clientSecretFile", "scopes", "names"},
	typeOAuth: {"authorizeURL", "tokenURL", "userinfoURL", "emailsURL", "groupsURL", "clientID",
		"clientSecretFile", "scopes", "names"},
	typeGitHub:          {"url", "clientID", "clientSecretFile", "scopes", "names"},
	typeLDAP:            directoryKeys,
	typeActiveDirectory: directoryKeys,
}

var (
	commonKeys = []string{
		"name", "type", "title", "help", "caFile", "claims", "domains", "accounts", "rules", "noMatch",
	}
	directoryKeys = []string{
		"url", "startTLS", "bindDN", "bindPasswordFile", "userBase", "userFilter", "groupBase", "groupFilter",
	}
)

// needed are the keys that cannot be left out.
var needed = map[string][]string{
	typeOIDC:            {"issuer", "clientID"},
	typeKeycloak:        {"url", "realm", "clientID"},
	typeGoogle:          {"clientID", "clientSecretFile"},
	typeMicrosoft:       {"tenant", "clientID", "clientSecretFile"},
	typeOAuth:           {"authorizeURL", "tokenURL", "userinfoURL", "clientID", "clientSecretFile"},
	typeGitHub:          {"clientID", "clientSecretFile"},
	typeLDAP:            {"url", "userBase"},
	typeActiveDirectory: {"url", "bindDN", "bindPasswordFile", "userBase"},
}

func types() []string {
	return []string{
		typeOIDC, typeKeycloak, typeGoogle, typeMicrosoft, typeOAuth, typeGitHub, typeLDAP, typeActiveDirectory,
	}
}

var namePattern = regexp.MustCompile(`^[a-z]([a-z0-9]|-[a-z0-9]){0,29}$`)

var hostPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?` +
	`(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

var tenantPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Check looks for mistakes; they are *ConfigError.
func Check(list []Config) error {
	realms := map[string]string{}
	for i := range list {
		c := &list[i]
		key, text := c.check()
		if text == "" && slices.ContainsFunc(list[:i], func(other Config) bool { return other.Name == c.Name }) {
			key, text = "name", fmt.Sprintf("two providers are called %s; give one another name", c.Name)
		}
		if text == "" {
			realm := c.complete().realm
			if other := realms[realm]; other != "" {
				text = fmt.Sprintf("%s and %s are the same provider; list it once", other, c.Name)
			}
			realms[realm] = c.Name
		}
		if text != "" {
			return &ConfigError{Index: i, Key: key, Text: text}
		}
	}
	return nil
}

// check returns the key that is wrong and why, or two empty texts.
func (c *Config) check() (key, text string) {
	if !namePattern.MatchString(c.Name) {
		return "name", fmt.Sprintf("%q cannot be the name of a provider; it takes small letters, figures and hyphens, a "+
			"letter first, such as university", c.Name)
	}
	if keys[c.Type] == nil {
		return "type", fmt.Sprintf("the type of %s is %q; it may be %s%s", c.Name, c.Type, orList(types()),
			meant(c.Type, types()))
	}
	for _, field := range c.set() {
		if !slices.Contains(commonKeys, field) && !slices.Contains(keys[c.Type], field) {
			return field, fmt.Sprintf("%s stands at %s, but the type %s has no such key; it takes %s", field, c.Name, c.Type,
				orList(keys[c.Type]))
		}
	}
	for _, field := range needed[c.Type] {
		if !slices.Contains(c.set(), field) {
			return "", fmt.Sprintf("%s lacks %s, which the type %s needs", c.Name, field, c.Type)
		}
	}
	for _, test := range []func() (string, string){
		c.checkTexts, c.checkAddresses, c.checkFiles, c.checkDirectory, c.checkAdmission,
	} {
		if key, text := test(); text != "" {
			return key, text
		}
	}
	for i := range c.Rules {
		if text := c.Rules[i].check(); text != "" {
			return "rules", fmt.Sprintf("rule %d of %s %s", i+1, c.Name, text)
		}
	}
	return "", ""
}

// set lists the keys that have a value.
func (c *Config) set() (list []string) {
	v := reflect.ValueOf(*c)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			list = append(list, name)
		}
	}
	return list
}

func (c *Config) checkTexts() (string, string) {
	for key, text := range map[string]string{"title": c.Title, "help": c.Help} {
		if utf8.RuneCountInString(text) > 60 || strings.ContainsAny(text, "\r\n\t") {
			return key, fmt.Sprintf("the %s of %s must be one line of at most 60 characters", key, c.Name)
		}
	}
	if strings.ContainsAny(c.Tenant, "/?#") || strings.ContainsAny(c.Realm, "/?#") {
		return "realm", fmt.Sprintf("tenant and realm of %s are names, not addresses", c.Name)
	}
	if slices.Contains([]string{"common", "organizations", "consumers"}, strings.ToLower(c.Tenant)) {
		return "tenant", fmt.Sprintf("the tenant of %s is %q, which is everybody at Microsoft; write the ID of your "+
			"organisation's own, such as 01234567-89ab-cdef-0123-456789abcdef", c.Name, c.Tenant)
	}
	if c.Tenant != "" && !tenantPattern.MatchString(c.Tenant) {
		return "tenant", fmt.Sprintf("the tenant of %s is %q, but Microsoft calls itself by the tenant's ID, such as "+
			"01234567-89ab-cdef-0123-456789abcdef; its page Overview shows it", c.Name, c.Tenant)
	}
	return "", ""
}

func (c *Config) checkAddresses() (string, string) {
	for key, address := range map[string]string{"issuer": c.Issuer, "authorizeURL": c.AuthorizeURL, "tokenURL": c.TokenURL,
		"userinfoURL": c.UserinfoURL,
		"emailsURL":   c.EmailsURL, "groupsURL": c.GroupsURL, "url": c.URL} {
		if address == "" || key == "url" && c.directory() {
			continue
		}
		u, err := url.Parse(address)
		switch {
		case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
			return key, fmt.Sprintf("%s of %s is %q, which is no address; write it like https://id.example.org", key, c.Name,
				address)
		case u.Scheme != "https":
			return key, fmt.Sprintf("%s of %s begins with http://, so whoever listens on the way could sign in as anybody; "+
				"it must begin with https://", key, c.Name)
		case u.User != nil:
			return key, fmt.Sprintf("%s of %s holds a name or password; secrets stand in files of their own", key, c.Name)
		case u.Fragment != "" || (key == "issuer" || key == "url") && u.RawQuery != "":
			return key, fmt.Sprintf("%s of %s has something behind a ? or #, which does not belong there", key, c.Name)
		}
	}
	for i, name := range c.Names {
		if _, err := netip.ParseAddr(name); err != nil && !hostPattern.MatchString(name) {
			return "names", fmt.Sprintf("names of %s holds %q; a name of the lab is written like gpulab.example.org, without "+
				"https:// and what follows", c.Name, name)
		}
		if slices.ContainsFunc(c.Names[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return "names", fmt.Sprintf("names of %s holds %s twice", c.Name, name)
		}
	}
	return "", ""
}

func (c *Config) checkFiles() (string, string) {
	for key, file := range map[string]string{
		"clientSecretFile": c.ClientSecretFile, "bindPasswordFile": c.BindPasswordFile, "caFile": c.CAFile,
	} {
		if file != "" && !filepath.IsAbs(file) {
			return key, fmt.Sprintf("%s of %s is %q, but must be the full path of a file, such as /etc/gpulab/%s.secret", key,
				c.Name, file, c.Name)
		}
	}
	return "", ""
}

// public providers let anybody make an account with them.
func (c *Config) public() bool { return c.Type == typeGoogle || c.Type == typeGitHub }

func (c *Config) checkAdmission() (string, string) {
	switch c.Accounts {
	case "", accountsCreate, accountsExisting:
	default:
		return "accounts", fmt.Sprintf("accounts of %s is %q; it may be %s (whoever is new gets an account) or %s%s", c.Name,
			c.Accounts,
			accountsCreate, accountsExisting, meant(c.Accounts, []string{accountsCreate, accountsExisting}))
	}
	if words := append([]string{noMatchRefuse, noMatchSuspend}, roleWords()...); c.NoMatch != "" &&
		!slices.Contains(words, c.NoMatch) {
		return "noMatch", fmt.Sprintf("noMatch of %s is %q; it may be %s%s", c.Name, c.NoMatch, orList(words),
			meant(c.NoMatch, words))
	}
	if c.NoMatch != "" && len(c.Rules) == 0 {
		return "noMatch", fmt.Sprintf("%s says what becomes of somebody whom no rule fits, but has no rules", c.Name)
	}
	for _, d := range c.Domains {
		if d == "" || strings.ContainsAny(d, "@ /*") || !strings.Contains(d, ".") {
			return "domains", fmt.Sprintf("domains of %s holds %q; a domain is written like example.org, without @ and *",
				c.Name, d)
		}
	}
	admitsAll := len(c.Domains) == 0 && (len(c.Rules) == 0 || c.NoMatch != "" && c.NoMatch != noMatchRefuse &&
		c.NoMatch != noMatchSuspend)
	if c.public() && c.Accounts != accountsExisting && admitsAll {
		return "accounts", fmt.Sprintf("with %s, everybody in the world who has an account at %s would get one here; say "+
			"who may with domains or rules, or write accounts: existing", c.Name, c.complete().Title)
	}
	return "", ""
}

func (r Rule) check() string {
	switch {
	case len(r.Groups) == 0 && r.Claim == "":
		return "says nothing about whom it is for; give it groups, or claim and values"
	case len(r.Groups) > 0 && r.Claim != "":
		return "has groups and claim; make two rules of it"
	case r.Claim != "" && len(r.Values) == 0:
		return "has a claim but no values to compare it with"
	case r.Claim == "" && len(r.Values) > 0:
		return "has values but no claim that they are of"
	case slices.Contains(r.Groups, "") || slices.Contains(r.Values, ""):
		return "has an empty group or value"
	case r.Role == "" && r.Group == "":
		return "gives nothing; add role or group"
	case r.Role != "" && !r.Role.Valid():
		return fmt.Sprintf("gives the role %q; there are %s%s", r.Role, orList(roleWords()),
			meant(string(r.Role), roleWords()))
	case r.Group != "" && users.CheckGroup(r.Group) != nil:
		return fmt.Sprintf("puts people into the group %q, but no group of the lab can be called that", r.Group)
	}
	return ""
}

func roleWords() (list []string) {
	for _, r := range users.Roles() {
		list = append(list, string(r))
	}
	return list
}

// orList writes "a, b or c".
func orList(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}

// meant asks whether a word that is nearly the same was meant.
func meant(word string, known []string) string {
	for _, k := range known {
		if word != "" && distance(strings.ToLower(word), k) <= 2 {
			return "; did you mean " + k + "?"
		}
	}
	return ""
}

// distance is how many letters have to be changed, added or left out.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			before, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, before+cost)
		}
	}
	return row[len(b)]
}
