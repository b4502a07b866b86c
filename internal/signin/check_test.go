package signin_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

func findings(t *testing.T, cfg signin.Config, person string) (signin.Report, string) {
	t.Helper()
	s, _ := newService(t, cfg)
	reports, err := s.Test(t.Context(), cfg.Name, person)
	if err != nil || len(reports) != 1 {
		t.Fatalf("%+v, %v", reports, err)
	}
	var lines []string
	for _, f := range reports[0].Findings {
		lines = append(lines, f.State+" "+f.What+": "+f.Text)
	}
	return reports[0], strings.Join(lines, "\n")
}

func TestCheckOpenIDConnect(t *testing.T) {
	p := university(t)
	cfg := uniConfig(t, p)
	r, text := findings(t, cfg, "")
	if !r.OK || !slices.Equal(r.Callbacks, []string{home + "/signin/uni/callback"}) || !strings.Contains(text, "ok discovery") || !strings.Contains(text, "warning client: the provider does not tell") {
		t.Errorf("%+v\n%s", r, text)
	}
	named := cfg
	named.Names = []string{"gpulab.tail1234.ts.net"}
	if r, _ := findings(t, named, ""); !slices.Equal(r.Callbacks, []string{home + "/signin/uni/callback", "https://gpulab.tail1234.ts.net/signin/uni/callback"}) {
		t.Errorf("with two names: %v", r.Callbacks)
	}
	wrong := cfg
	wrong.ClientSecretFile = "/nonexistent"
	if r, text := findings(t, wrong, ""); r.OK || !strings.Contains(text, "failed client secret") {
		t.Errorf("no secret: %+v\n%s", r, text)
	}
	if err := os.Chmod(cfg.ClientSecretFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if r, text := findings(t, cfg, ""); !r.OK || !strings.Contains(text, "warning client secret: others on this machine may read") {
		t.Errorf("a secret for all to read: %+v\n%s", r, text)
	}
	wrong = cfg
	wrong.Issuer += "/"
	if r, text := findings(t, wrong, ""); r.OK || !strings.Contains(text, "calls itself") {
		t.Errorf("a slash too many: %+v\n%s", r, text)
	}
	wrong = cfg
	wrong.CAFile = ""
	if r, text := findings(t, wrong, ""); r.OK || !strings.Contains(text, "certificate") {
		t.Errorf("no authority: %+v\n%s", r, text)
	}
	s, _ := newService(t, cfg)
	if _, err := s.Test(t.Context(), "other", ""); err == nil {
		t.Error("a provider that is not there was tested")
	}
}

// A provider that looks at the client first tells whether its secret is right.
func TestCheckClientSecret(t *testing.T) {
	f := newForger(t)
	f.refuse = true
	cfg := f.config(t)
	if r, text := findings(t, cfg, ""); !r.OK || !strings.Contains(text, "ok client: the provider knows client ID and secret") {
		t.Errorf("%+v\n%s", r, text)
	}
	cfg.ClientSecretFile = signintest.SecretFile(t, "not it")
	if r, text := findings(t, cfg, ""); r.OK || !strings.Contains(text, "failed client: the provider does not take client ID and secret") {
		t.Errorf("a wrong secret: %+v\n%s", r, text)
	}
	f.refuse = false // it takes any code
	if r, text := findings(t, cfg, ""); r.OK || !strings.Contains(text, "took a code that it never gave out") && !strings.Contains(text, "nonce") {
		t.Errorf("any code: %+v\n%s", r, text)
	}
}

func TestCheckGitHub(t *testing.T) {
	g := newGitHub(t)
	if r, text := findings(t, g.config(t), ""); !r.OK || !strings.Contains(text, "ok client") {
		t.Errorf("%+v\n%s", r, text)
	}
	cfg := g.config(t)
	cfg.ClientSecretFile = signintest.SecretFile(t, "not it")
	if r, text := findings(t, cfg, ""); r.OK || !strings.Contains(text, "does not take client ID and secret") {
		t.Errorf("%+v\n%s", r, text)
	}
}

func TestCheckDirectory(t *testing.T) {
	d := signintest.StartDirectory(t, "")
	r, text := findings(t, ldapConfig(d), "ada")
	if !r.OK || r.Person == nil || r.Person.Role != users.RoleAdmin || len(r.Person.Joins) != 2 || !strings.Contains(text, "ok person: uid=ada,ou=people,dc=example,dc=org") {
		t.Errorf("%+v\n%s", r, text)
	}
	if r, text := findings(t, ldapConfig(d), "nobody"); r.OK || !strings.Contains(text, "failed person: (uid=nobody) fits nobody") {
		t.Errorf("%+v\n%s", r, text)
	}
	for what, edit := range map[string]func(*signin.Config){
		"failed bind":       func(c *signin.Config) { c.BindPasswordFile = signintest.SecretFile(t, "wrong") },
		"failed search":     func(c *signin.Config) { c.UserBase = "ou=nothing,dc=example,dc=org" },
		"failed connection": func(c *signin.Config) { c.CAFile = "" },
	} {
		cfg := ldapConfig(d)
		edit(&cfg)
		if r, text := findings(t, cfg, ""); r.OK || !strings.Contains(text, what) {
			t.Errorf("want %s: %+v\n%s", what, r, text)
		}
	}
}
