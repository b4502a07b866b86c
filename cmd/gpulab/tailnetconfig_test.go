package main

import (
	"slices"
	"testing"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/users"
)

// TestWhoFitsWhichEntry: each entry is for whom it names. People of other tailnets and machines with tags fit only their own
// kind of entry, whatever they are called.
func TestWhoFitsWhichEntry(t *testing.T) {
	entries := map[string]TailnetAllow{
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
			way, err := TailnetConfig{Allow: []TailnetAllow{entry}}.way()
			if err != nil {
				t.Fatal(err)
			}
			got := way.Judge(signin.Vouched{Realm: "r", Subject: "s", Username: v.Login, Groups: keysOf(v.Visitor)})
			if fits := slices.Contains(v.fits, name); (got.Refused == "") != fits || (got.Role == users.RoleGuest) != fits {
				t.Errorf("%s at the entry for %s: role %q, refused %q", who, name, got.Role, got.Refused)
			}
		}
	}
}
