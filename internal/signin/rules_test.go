package signin

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-ldap/ldap/v3"

	"github.com/gpulab/gpulab/internal/users"
)

func TestRules(t *testing.T) {
	rules := keycloak + `, rules: [
		{groups: [members, staff], role: member, group: class}, {groups: [leads], role: lead, group: vision},
		{groups: [admins], role: admin}, {claim: department, values: [physics], group: physics}]`
	for _, tc := range []struct {
		config string
		who    who
		role   users.Role
		groups string
		says   string // why not
	}{
		{keycloak, who{}, "", "", ""},
		{rules, who{groups: []string{"staff"}}, users.RoleMember, "class", ""},
		{rules, who{groups: []string{"members", "admins", "leads"}}, users.RoleAdmin, "class,vision*", ""},
		{rules, who{groups: []string{"leads"}, claims: map[string]any{"department": []any{"maths", "physics"}}}, users.RoleLead, "vision*,physics", ""},
		{rules, who{claims: map[string]any{"department": "physics"}}, users.RoleMember, "physics", ""},
		{rules, who{groups: []string{"Staff", "staff ", "st"}}, "", "", "is not in a group that may use this lab. Ask an admin of the lab."},
		{rules + ", help: the service desk", who{}, "", "", "Ask the service desk."},
		{rules + ", noMatch: guest", who{}, users.RoleGuest, "", ""},
		{keycloak + ", domains: [Example.ORG]", who{email: "a@example.org", verified: true}, "", "", ""},
		{keycloak + ", domains: [example.org]", who{email: "a@EXAMPLE.org", verified: true}, "", "", ""},
		{keycloak + ", domains: [example.org]", who{email: "a@example.org"}, "", "", "has not verified your e-mail address"},
		{keycloak + ", domains: [example.org]", who{email: "a@example.org@evil.example", verified: true}, "", "", "for e-mail addresses at example.org"},
		{keycloak + ", domains: [example.org]", who{email: "a@sub.example.org", verified: true}, "", "", "of another domain"},
		{keycloak + ", domains: [example.org]", who{verified: true}, "", "", "did not send your e-mail address"},
	} {
		s := parse(t, tc.config+"}")[0].complete()
		o := s.judge(tc.who)
		var groups []string
		for _, g := range o.Groups {
			if g.Lead {
				g.Name += "*"
			}
			groups = append(groups, g.Name)
		}
		if o.Role != tc.role || strings.Join(groups, ",") != tc.groups || (tc.says == "") != (o.Refused == "") || !strings.Contains(o.Refused, tc.says) {
			t.Errorf("%s\n%+v: %+v", tc.config, tc.who, o)
		}
		if o.Email != "" && !tc.who.verified {
			t.Errorf("an address that nobody has verified: %+v", o)
		}
	}
	if o := parse(t, rules+", noMatch: suspend}"); !func() bool { s := o[0].complete(); return s.judge(who{}).Suspend }() {
		t.Error("noMatch: suspend suspends nobody")
	}
	if o := parse(t, keycloak+", accounts: existing}"); func() bool { s := o[0].complete(); return s.judge(who{}).Create }() {
		t.Error("accounts: existing makes accounts")
	}
}

func TestGroupsOfADirectory(t *testing.T) {
	for _, tc := range []struct {
		has, wanted string
		same        bool
	}{
		{"cn=GPU-Users,ou=groups,dc=example,dc=org", "CN=gpu-users, OU=Groups, DC=example, DC=org", true},
		{"cn=gpu-users,ou=others,dc=example,dc=org", "cn=gpu-users,ou=groups,dc=example,dc=org", false},
		{"gpu-users", "GPU-Users", true}, {"gpu-users", "gpu", false}, {"not=a,dn=", "cn=a", false}, {"cn=a", "cn=", false},
	} {
		if got := sameGroup(tc.has, tc.wanted); got != tc.same {
			t.Errorf("%q and %q: %v", tc.has, tc.wanted, got)
		}
	}
	if got := groupNames(`cn=a\,b,ou=groups`); !slices.Contains(got, "a,b") {
		t.Error(got)
	}
}

func TestClaims(t *testing.T) {
	var claims map[string]any
	if err := json.Unmarshal([]byte(`{"a": "x", "list": ["x", 2, true, null, {"y": 1}, ["z"]], "realm_access": {"roles": ["r1", "r2"]},
		"https://example.org/roles": ["own"], "deep.name": {"in": "n"}, "big": 9007199254740993000, "half": 1.5}`), &claims); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"a": "x", "list": "x,2,true,z", "realm_access.roles": "r1,r2", "https://example.org/roles": "own",
		"deep.name.in": "n", "none": "", "a.b": "", "": "", "realm_access": "", "big": "", "half": ""} {
		if got := strings.Join(claimValues(claims, path), ","); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
	// Written out, a large number is told exactly.
	answer, err := parseAnswer([]byte(`{"id": 9007199254740993}`))
	if err != nil || claimText(answer.(map[string]any), "id") != "9007199254740993" {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestEmailsOfGitHub(t *testing.T) {
	for _, tc := range []struct {
		list, email string
		verified    bool
	}{
		{`[{"email":"a@home.example","primary":true,"verified":true},{"email":"a@example.org","verified":true}]`, "a@example.org", true},
		{`[{"email":"a@home.example","primary":true,"verified":true},{"email":"a@example.org","verified":false}]`, "a@home.example", true},
		{`[{"email":"b@home.example","verified":true},{"email":"a@home.example","primary":true,"verified":false}]`, "a@home.example", false},
		{`[]`, "", false}, {`{}`, "", false}, {`["a@example.org"]`, "", false},
	} {
		answer, err := parseAnswer([]byte(tc.list))
		if err != nil {
			t.Fatal(err)
		}
		if email, verified := bestEmail(answer, []string{"example.org"}); email != tc.email || verified != tc.verified {
			t.Errorf("%s: %s, %v", tc.list, email, verified)
		}
	}
}

// The next page of a list must be on the same server: another server would get the token.
func TestNextPage(t *testing.T) {
	at, err := url.Parse("https://api.github.com/user/teams?per_page=100")
	if err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		`<https://api.github.com/user/teams?per_page=100&page=2>; rel="next", <https://api.github.com/user/teams?page=9>; rel="last"`: "https://api.github.com/user/teams?per_page=100&page=2",
		`</user/teams?page=3>; rel=next`:                         "https://api.github.com/user/teams?page=3",
		`<https://api.github.com/user/teams?page=1>; rel="prev"`: "", `<https://evil.example/user/teams>; rel="next"`: "",
		`<http://api.github.com/user/teams?page=2>; rel="next"`: "", `<https://x@api.github.com/>; rel="next"`: "", "": "", "<>": "",
	} {
		if got := nextPage(at, []string{link}); got != want {
			t.Errorf("%s: %q", link, got)
		}
	}
}

func TestVault(t *testing.T) {
	v := NewVault[string](time.Minute, 3, 2)
	now := time.Now()
	v.now = func() time.Time { return now }
	key := v.Put("a", "mine", "192.0.2.1")
	for _, tc := range [][2]string{{key, "other"}, {key, ""}, {"guess", "mine"}, {"", "mine"}} {
		if _, ok := v.Take(tc[0], tc[1]); ok {
			t.Errorf("taken with %q", tc)
		}
	}
	if got, ok := v.Look(key, "mine"); !ok || got != "a" {
		t.Error("gone after a look")
	}
	if got, ok := v.Take(key, "mine"); !ok || got != "a" {
		t.Error("not there")
	}
	if _, ok := v.Take(key, "mine"); ok {
		t.Error("taken twice")
	}
	late := v.Put("b", "mine", "192.0.2.1")
	now = now.Add(time.Minute)
	if _, ok := v.Take(late, "mine"); ok {
		t.Error("taken too late")
	}
	// Whoever floods pushes out their own.
	others := v.Put("c", "theirs", "198.51.100.1")
	for range 10 {
		now = now.Add(time.Millisecond)
		v.Put("flood", "x", "192.0.2.1")
	}
	if _, ok := v.Take(others, "theirs"); !ok || len(v.kept) > 3 {
		t.Errorf("pushed out; %d are kept", len(v.kept))
	}
	if v.Put("d", "", "x"); len(v.kept) > 3 {
		t.Errorf("%d are kept", len(v.kept))
	}
}

func FuzzClaims(f *testing.F) {
	f.Add([]byte(`{"a":{"b":["c",1]}}`), "a.b")
	f.Add([]byte(`[[[[]]]]`), "....")
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		answer, err := parseAnswer(data)
		if err != nil {
			return
		}
		claims, _ := answer.(map[string]any)
		if values := claimValues(claims, path); len(values) > maxValues {
			t.Errorf("%d values", len(values))
		}
		_ = claimTrue(claims, path)
		email, verified := bestEmail(answer, []string{"example.org"})
		if verified && !strings.Contains(email, "@") {
			t.Errorf("verified %q", email)
		}
		for _, g := range (groupSource{fields: []string{"a", path}}).groups(answer) {
			if _, ok := answer.([]any); ok && strings.Count(g, "/") > 1+len(data) {
				t.Error(g)
			}
		}
	})
}

// FuzzFilter types names into filters: they never become anything but a value.
func FuzzFilter(f *testing.F) {
	for _, name := range []string{"ada", "*", "*)(uid=*", "a)(|(uid=*", "\x00", `\2a`, "{dn}", "ädä"} {
		f.Add(name, "cn=a,dc=b")
	}
	f.Fuzz(func(t *testing.T, name, dn string) {
		for _, filter := range []string{"(uid={username})", "(&(a=b)(|(x={username})(y={username})))", "(|(member={dn})(memberUid={username}))"} {
			packet, err := ldap.CompileFilter(fillFilter(filter, name, dn))
			if err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			plain, err := ldap.CompileFilter(fillFilter(filter, "x", "x"))
			if err != nil {
				t.Fatal(err)
			}
			if a, b := shape(packet), shape(plain); a != b {
				t.Errorf("%q changes the filter from %s to %s", name, b, a)
			}
		}
	})
}

func FuzzGroupNames(f *testing.F) {
	f.Add("cn=a,dc=b", "cn=A, dc=B")
	f.Add(`cn=a\2cb`, "x")
	f.Fuzz(func(t *testing.T, has, wanted string) {
		if names := groupNames(has); len(names) == 0 || names[0] != has {
			t.Error(names)
		}
		_ = sameGroup(has, wanted)
	})
}

// One directory is one realm, however its base is written.
func TestNormalRealm(t *testing.T) {
	for _, realm := range []string{"ldap:ou=people,dc=example,dc=org", "ldap:OU=People, DC=Example, DC=org", "ldap: ou = people , dc=example,dc=org "} {
		if got := NormalRealm(realm); got != "ldap:ou=people,dc=example,dc=org" {
			t.Errorf("%q: %q", realm, got)
		}
	}
	// A realm that was kept in lower case is the one of the configuration, letters beyond ASCII included.
	if kept, configured := NormalRealm("ldap:ou=ärzte,dc=klinik,dc=de"), NormalRealm("ldap:OU=Ärzte, DC=klinik,DC=de"); kept != configured {
		t.Errorf("%q is not %q", kept, configured)
	}
	if NormalRealm("ldap:ou=people,dc=example") == NormalRealm("ldap:ou=people,dc=example,dc=org") {
		t.Error("two bases are one")
	}
	if got := NormalRealm("https://id.example.org/Realms/A"); got != "https://id.example.org/Realms/A" {
		t.Errorf("the realm of a provider is %q", got)
	}
}
