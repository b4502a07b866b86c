package signin_test

import (
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
)

// told returns the result of a sign-in whose ID token has these claims besides the usual ones; nil leaves a claim out.
func (f *forger) told(t *testing.T, s *signin.Service, more map[string]any) (users.Outside, error) {
	t.Helper()
	f.userinfo = `{"sub": "1"}`
	f.token = func(claims map[string]any) string {
		maps.Copy(claims, more)
		for name, value := range more {
			if value == nil {
				delete(claims, name)
			}
		}
		return sign(t, f.key, "k", claims)
	}
	address, err := url.Parse(begin(t, s, "uni"))
	if err != nil {
		t.Fatal(err)
	}
	f.nonce = address.Query().Get("nonce")
	_, o, err := s.Finish(t.Context(), "uni", "mine", url.Values{"state": {address.Query().Get("state")}, "code": {"c"}})
	return o, err
}

// tooMany is what Microsoft sends about people in more than 200 groups.
var tooMany = map[string]any{"hasgroups": true, "_claim_names": map[string]any{"groups": "src1"},
	"_claim_sources": map[string]any{"src1": map[string]any{"endpoint": "https://graph.example.com/u/1/getMemberObjects"}}}

// TestGroupsLeftOut: groups that a provider leaves out do not count as “no group”.
func TestGroupsLeftOut(t *testing.T) {
	f := newForger(t)
	groups := []signin.Rule{{Groups: []string{"g-1"}, Role: users.RoleMember}}
	for name, tc := range map[string]struct {
		edit    func(*signin.Config)
		claims  map[string]any
		untold  string
		none    bool
		role    users.Role
		refused string
	}{
		"told":                 {nil, map[string]any{"groups": []string{"g-1"}}, "", false, users.RoleMember, ""},
		"told none":            {nil, map[string]any{"groups": []string{}}, "", false, "", "is not in a group"},
		"told another":         {nil, map[string]any{"groups": []string{"G-1"}}, "", false, "", "is not in a group"},
		"too many":             {nil, tooMany, "_claim_names", false, "", "Configure the provider to add the claim groups to ID tokens"},
		"too many, no address": {nil, map[string]any{"hasgroups": true}, "_claim_names", false, "", "did not send all of your groups"},
		"no word of it":        {nil, nil, "did not send the claim groups", true, "", "did not send all of your groups"},
		"no word, and a role":  {func(c *signin.Config) { c.NoMatch = "guest" }, nil, "the claim groups", true, users.RoleGuest, ""},
		"too many, and a role": {func(c *signin.Config) { c.NoMatch = "lead" }, tooMany, "_claim_names", false, users.RoleMember, ""},
		"too many, another rule": {func(c *signin.Config) {
			c.Rules = append(c.Rules, signin.Rule{Claim: "name", Values: []string{"Ada"}, Role: users.RoleGuest})
		}, tooMany, "_claim_names", false, users.RoleGuest, ""},
		"nobody asks": {func(c *signin.Config) { c.Rules = nil }, tooMany, "", false, "", ""},
		"a rule's claim": {func(c *signin.Config) {
			c.Rules[0] = signin.Rule{Claim: "roles", Values: []string{"x"}, Role: users.RoleMember}
		}, map[string]any{"_claim_names": map[string]any{"roles": "s"}}, "the claim roles", false, "", "did not send"},
		"no address, but domains":  {func(c *signin.Config) { c.Rules, c.Domains = nil, []string{"example.org"} }, map[string]any{"email": nil}, "the claim email", true, "", "did not send your e-mail address"},
		"not known to be verified": {func(c *signin.Config) { c.Rules, c.Domains = nil, []string{"example.org"} }, map[string]any{"email_verified": nil}, "the claim email_verified", true, "", "has not verified"},
		"not verified":             {func(c *signin.Config) { c.Rules, c.Domains = nil, []string{"example.org"} }, map[string]any{"email_verified": false}, "", false, "", "has not verified"},
		"another domain":           {func(c *signin.Config) { c.Domains = []string{"other.example"} }, map[string]any{"email_verified": nil}, "", false, "", "another domain"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := f.config(t)
			cfg.Rules = append([]signin.Rule(nil), groups...)
			if tc.edit != nil {
				tc.edit(&cfg)
			}
			s, _ := newService(t, cfg)
			o, err := f.told(t, s, tc.claims)
			if err != nil || (tc.untold == "") != (o.Untold == "") || !strings.Contains(o.Untold, tc.untold) || o.MayBeNone != tc.none || o.Role != tc.role ||
				(tc.refused == "") != (o.Refused == "") || !strings.Contains(o.Refused, tc.refused) || o.Told && o.Untold != "" {
				t.Errorf("%+v, %v", o, err)
			}
			if name == "told another" && o.Why != "a rule names the group g-1, the provider says G-1" {
				t.Errorf("for admins: %q", o.Why)
			}
		})
	}
}

// TestClocksDiffer: a provider's clock may differ by minutes. Beyond that, the page says which clock is ahead and by how much.
func TestClocksDiffer(t *testing.T) {
	f := newForger(t)
	for name, tc := range map[string]struct {
		ahead  time.Duration // of the lab's clock
		claims map[string]any
		says   string
	}{
		"right":                     {0, nil, ""},
		"4 minutes behind":          {-4 * time.Minute, nil, ""},
		"4 minutes ahead":           {4 * time.Minute, nil, ""},
		"6 minutes ahead":           {6 * time.Minute, nil, ""}, // the token ended a minute ago
		"8 minutes behind":          {-8 * time.Minute, nil, "behind the provider's"},
		"8 minutes ahead":           {8 * time.Minute, nil, "ahead of the provider's"},
		"15 minutes ahead":          {15 * time.Minute, map[string]any{"exp": time.Now().Add(time.Hour).Unix()}, "ahead of the provider's"},
		"valid only later":          {0, map[string]any{"nbf": time.Now().Add(8 * time.Minute).Unix(), "exp": time.Now().Add(time.Hour).Unix()}, "behind the provider's"},
		"valid later, by less":      {0, map[string]any{"nbf": time.Now().Add(4 * time.Minute).Unix()}, ""},
		"ends before it was issued": {0, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}, "failed a security check"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newService(t, f.config(t))
			s.SetClock(func() time.Time { return time.Now().Add(tc.ahead) })
			_, err := f.told(t, s, tc.claims)
			var said *signin.Error
			switch {
			case tc.says == "":
				if err != nil {
					t.Error(err)
				}
			case !errors.Is(err, signin.ErrInvalid) || !errors.As(err, &said) || !strings.Contains(said.Text, tc.says):
				t.Error(err)
			case strings.Contains(tc.says, "provider") && (!strings.Contains(said.Text, "chrony") || said.Why == ""):
				t.Errorf("%+v", said)
			}
			reports, err := s.Test(t.Context(), "uni", "")
			if err != nil {
				t.Fatal(err)
			}
			state := ""
			for _, finding := range reports[0].Findings {
				if finding.What == "clock" {
					state = finding.State
				}
			}
			if want := map[bool]string{true: "failed", false: "warning"}[tc.ahead.Abs() > 5*time.Minute]; tc.ahead != 0 && state != want || tc.ahead == 0 && state != "" {
				t.Errorf("the check says %q of the clock", state)
			}
		})
	}
}

// TestCheckWarnsOfWhatWasNotTold: the check warns of what a provider left out, and names the provider's setting that fixes it.
func TestCheckWarnsOfWhatWasNotTold(t *testing.T) {
	rules := []signin.Rule{{Groups: []string{"a"}, Role: users.RoleMember}}
	s, _ := newService(t, signin.Config{Name: "entra", Type: "microsoft", Tenant: "01234567-89ab-cdef-0123-456789abcdef", ClientID: "x", ClientSecretFile: "/etc/x", Rules: rules},
		signin.Config{Name: "ldap", Type: "ldap", URL: "ldaps://ldap.example", UserBase: "ou=people,dc=example", Rules: rules})
	reports := []signin.Report{{Name: "entra", OK: true}, {Name: "ldap", OK: true}, {Name: "other", OK: true}}
	s.Untold(reports, map[string]string{"entra": "of ada", "ldap": "of ben", "other": "of eve"})
	for i, next := range []string{"Groups assigned to the application", "groupBase"} {
		if f := reports[i].Findings; len(f) != 1 || f[0].What != "groups" || f[0].State != "warning" || !strings.Contains(f[0].Next, next) || !reports[i].OK {
			t.Errorf("%+v", reports[i])
		}
	}
	if len(reports[2].Findings) != 0 {
		t.Errorf("of a provider that is not there: %+v", reports[2])
	}
}

// A provider that sends null says that there are none.
func TestToldNoGroups(t *testing.T) {
	p := university(t)
	cfg := uniConfig(t, p)
	cfg.Rules = []signin.Rule{{Groups: []string{"gpu-admins"}, Role: users.RoleAdmin}}
	s, _ := newService(t, cfg)
	p.SetGroups("1")
	back := p.SignIn(t, begin(t, s, "uni"), "ada", "ada's")
	if _, o, err := s.Finish(t.Context(), "uni", "mine", back.Query()); err != nil || o.Untold != "" || !o.Told || !strings.Contains(o.Refused, "is not in a group") {
		t.Errorf("%+v, %v", o, err)
	}
}
