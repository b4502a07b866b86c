package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/users"
)

// TestWhoFitsWhichEntry: each entry is for whom it names. People of other tailnets and machines with tags fit only their own
// kind of entry, whatever they are called.
func TestWhoFitsWhichEntry(t *testing.T) {
	entries := map[string]TailnetEntry{
		"ada": {Login: "Ada@Example.org"}, "domain": {Login: "*@example.org"}, "everybody": {Login: "*"}, "group": {Group: "group:staff"},
		"tag": {Tag: "tag:kiosk"}, "shared": {Shared: "Ada@example.org"},
	}
	visitors := map[string]struct {
		tailnet.Visitor
		fits []string
	}{
		"ada":                         {tailnet.Visitor{Login: "ada@example.org"}, []string{"ada", "domain", "everybody"}},
		"ada with groups":             {tailnet.Visitor{Login: "ada@example.org", Groups: []string{"group:x", "group:staff"}}, []string{"ada", "domain", "everybody", "group"}},
		"somebody of the domain":      {tailnet.Visitor{Login: "ben@example.org"}, []string{"domain", "everybody"}},
		"a domain that ends so":       {tailnet.Visitor{Login: "ben@evil-example.org"}, []string{"everybody"}},
		"a name with two signs":       {tailnet.Visitor{Login: "ada@example.org@evil.example"}, []string{"everybody"}},
		"a login that is an entry":    {tailnet.Visitor{Login: "*"}, []string{"everybody"}},
		"a login without domain":      {tailnet.Visitor{Login: "ada"}, []string{"everybody"}},
		"ada of another tailnet":      {tailnet.Visitor{Login: "ada@example.org", Shared: true, Groups: []string{"group:staff"}}, []string{"shared"}},
		"ben of another tailnet":      {tailnet.Visitor{Login: "ben@example.org", Shared: true, Groups: []string{"group:staff"}}, nil},
		"a kiosk":                     {tailnet.Visitor{Tags: []string{"tag:x", "tag:kiosk"}}, []string{"tag"}},
		"a machine with another tag":  {tailnet.Visitor{Tags: []string{"tag:x"}}, nil},
		"a machine with neither":      {tailnet.Visitor{}, nil},
		"a group called like a login": {tailnet.Visitor{Login: "ben@other.org", Groups: []string{"login ada@example.org"}}, []string{"everybody"}},
	}
	for who, v := range visitors {
		for name, entry := range entries {
			entry.Role = users.RoleGuest
			way, err := Tailnet{Allow: []TailnetEntry{entry}}.Way()
			if err != nil {
				t.Fatal(err)
			}
			got := way.Judge(signin.Vouched{Realm: "r", Subject: "s", Username: v.Login, Groups: KeysOf(v.Visitor)})
			if fits := slices.Contains(v.fits, name); (got.Refused == "") != fits || (got.Role == users.RoleGuest) != fits {
				t.Errorf("%s at the entry for %s: role %q, refused %q", who, name, got.Role, got.Refused)
			}
		}
	}
}

// TestTailnetConfig: what cannot be meant is said, with the next step.
func TestTailnetConfig(t *testing.T) {
	for config, want := range map[string]string{
		"signIn: always": "may be off, offer or require",
		"signIn: offer":  "nobody could come in",
		"signIn: offer\n  allow: [{login: a@b.c, tag: \"tag:x\", role: guest}]": "exactly one way",
		"signIn: offer\n  allow: [{role: guest}]":                               "exactly one way",
		"signIn: offer\n  allow: [{login: a@b.c}]":                              "add role or group",
		"signIn: offer\n  allow: [{login: a@b.c, role: king}]":                  "king",
		"signIn: offer\n  allow: [{login: \"a*@b.c\", role: guest}]":            "stands alone",
		"signIn: offer\n  allow: [{shared: \"*@b.c\", role: guest}]":            "each of them is named",
		"signIn: offer\n  allow: [{tag: kiosk, role: guest}]":                   "like tag:kiosk",
		"signIn: offer\n  allow: [{tag: \"tag:kiosk\", role: admin}]":           "name people",
		"accounts: none": "accounts",
	} {
		_, err := Load(write(t, "tailnet:\n  "+config+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
	cfg, err := Load(write(t, "tailnet:\n  signIn: off\n"))
	if err != nil || cfg.Tailnet.SignIn != Off {
		t.Errorf("off: %q, %v", cfg.Tailnet.SignIn, err)
	}
}
