package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

// TestSignInCheck tries real providers from the command line, one that works and one that does not.
func TestSignInCheck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gpulab signin check needs root: run this as root to see it")
	}
	p := signintest.StartProvider(t)
	d := signintest.StartDirectory(t, "")
	p.Register("https://lab.example/signin/uni/callback")
	good := "names: [lab.example]\nsignin:\n- {name: uni, type: oidc, title: Example University, issuer: '" + p.Issuer + "', clientID: " + signintest.ClientID +
		", clientSecretFile: " + signintest.SecretFile(t, signintest.ClientSecret) + ", caFile: " + p.Authority.File + "}\n" +
		"- {name: directory, type: ldap, url: '" + d.URL + "', caFile: " + d.Authority.File + ", bindDN: '" + d.BindDN + "', bindPasswordFile: " + d.PasswordFile +
		", userBase: '" + d.UserBase + "', groupBase: '" + d.GroupBase + "', rules: [{groups: [gpu-admins], role: admin}]}\n"
	command := func(config string, args ...string) (int, string, string) {
		t.Helper()
		var out, problems bytes.Buffer
		args = append([]string{"--config", writeConfig(t, config), "--socket", filepath.Join(t.TempDir(), "none"), "signin", "check"}, args...)
		code := run(t.Context(), args, strings.NewReader(""), &out, &problems)
		for _, secret := range []string{signintest.ClientSecret, "for searching only"} {
			if strings.Contains(out.String()+problems.String(), secret) {
				t.Errorf("%v prints a secret", args)
			}
		}
		return code, out.String(), problems.String()
	}
	code, out, problems := command(good, "--person", "ada")
	for _, says := range []string{"uni (oidc), “Sign in with Example University”", "warning  client: the provider does not tell whether client ID and secret are right",
		"https://lab.example/signin/uni/callback", "Ada Lovelace, ada@example.org, in the groups", "would come in with the role admin and the groups none"} {
		if !strings.Contains(out, says) {
			t.Errorf("it does not say %q:\n%s", says, out)
		}
	}
	if code != exitOK || problems != "" {
		t.Errorf("exit code %d: %s", code, problems)
	}
	code, out, problems = command(strings.Replace(good, p.Authority.File, d.Authority.File, 1), "--json")
	var answer struct{ Providers []signin.Report }
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Providers) != 2 || answer.Providers[0].OK || !answer.Providers[1].OK {
		t.Errorf("%v\n%s", err, out)
	}
	if code != exitFailure || !strings.Contains(problems, "1 of 2 identity providers cannot be used") {
		t.Errorf("exit code %d: %s", code, problems)
	}
	if code, _, problems = command(good, "none"); code != exitUsage || !strings.Contains(problems, "no provider none") {
		t.Errorf("exit code %d: %s", code, problems)
	}
	if code, out, _ = command(""); code != exitOK || !strings.Contains(out, "docs/signin.md has examples") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// A provider that is away is told of and makes no lab unready.
// signin check reads from the audit log what providers left out, about people with an account and without.
func TestUntoldWords(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const mark, oldMark = "the provider did not send everything that the rules need: ", "what the rules look at was not told: "
	soon, late := at.AddDate(0, 0, 19), at.AddDate(0, 0, 29)
	got := untoldWords([]audit.Entry{
		{At: at, Action: "identity.untold", Detail: "uni, ada@example.org: " + mark + "there are too many"},
		{At: at.Add(-time.Hour), Action: "sign-in.failed", Detail: "uni, eve: not admitted by the rules; " + oldMark + "no claim"},
		{At: at.Add(-time.Hour), Action: "identity.untold", Detail: "uni, ada@example.org: " + mark + "there are too many"},
		{At: at, Action: "sign-in.failed", Detail: "uni, ben: not admitted by the rules"},
		{At: at, Action: "sign-in.failed", Detail: "wrong password"},
	}, []users.Person{{Identities: []users.Identity{{Provider: "uni", KeptUntil: &late}}}, {Identities: []users.Identity{{Provider: "uni", KeptUntil: &soon}, {Provider: "uni"}}}})
	if want := "about ada@example.org and 1 more; last on " + at.Local().Format("2006-01-02 15:04") + ": there are too many; role and groups are kept until 2026-03-20"; len(got) != 1 || !strings.HasSuffix(got["uni"], want) {
		t.Errorf("%q, want the end %q", got, want)
	}
}

func TestSignInComponent(t *testing.T) {
	if got := signInComponent(nil); len(got) != 0 {
		t.Errorf("a lab without providers has the part %+v", got)
	}
	list := []signin.Health{{Info: signin.Info{Title: "Example University"}, At: time.Now()}, {Info: signin.Info{Title: "Physics", Directory: true}}}
	got := signInComponent(list)
	if len(got) != 1 || got[0].State != ctl.OK || got[0].Detail != "Example University answers; Physics was not asked yet" || got[0].NextStep != "" {
		t.Errorf("%+v", got)
	}
	list[1].At, list[1].Problem = time.Now().Add(-3*time.Minute), "connection refused"
	got = signInComponent(list)
	if len(got) != 1 || got[0].State != ctl.Warning || got[0].Detail != "Physics did not answer 3 min ago (connection refused); Example University answers" || !strings.Contains(got[0].NextStep, "gpulab signin check") {
		t.Errorf("%+v", got)
	}
}
