package signin

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func parse(t testing.TB, text string) []Config {
	t.Helper()
	var list []Config
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return list
}

const (
	keycloak = "- {name: uni, type: keycloak, url: https://id.example.org, realm: staff, clientID: gpulab"
	google   = "- {name: google, type: google, clientID: x, clientSecretFile: /etc/x"
	openldap = "- {name: ldap, type: ldap, url: 'ldaps://ldap.example.org', userBase: 'ou=people,dc=example,dc=org'"
)

func TestMistakesInProviders(t *testing.T) {
	for text, want := range map[string]string{
		"- {name: Uni, type: oidc}":                                                                            `"Uni" cannot be the name of a provider`,
		"- {name: x/../y, type: oidc}":                                                                         "cannot be the name",
		"- {name: uni, type: okta}":                                                                            `the type of uni is "okta"; it may be oidc, keycloak`,
		"- {name: uni, type: gihub}":                                                                           "did you mean github?",
		"- {name: uni}":                                                                                        "the type of uni is",
		"- {name: uni, type: oidc, clientID: x}":                                                               "uni lacks issuer, which the type oidc needs",
		keycloak + ", tenant: x}":                                                                              "tenant stands at uni, but the type keycloak has no such key; it takes url, realm",
		keycloak + ", bindDN: x}":                                                                              "has no such key",
		keycloak + ", clientSecretFile: secret}":                                                               "must be the full path of a file",
		keycloak + ", title: " + strings.Repeat("x", 61) + "}":                                                 "at most 60 characters",
		keycloak + ", accounts: creat}":                                                                        "did you mean create?",
		keycloak + ", noMatch: guest}":                                                                         "but has no rules",
		keycloak + ", noMatch: nobody, rules: [{groups: [a], role: admin}]}":                                   "noMatch of uni is \"nobody\"; it may be refuse, suspend, admin",
		keycloak + ", domains: ['@example.org']}":                                                              "a domain is written like example.org",
		keycloak + ", domains: ['*.example.org']}":                                                             "without @ and *",
		keycloak + ", names: ['https://lab.example.org']}":                                                     "a name of the lab is written like gpulab.example.org",
		keycloak + ", names: ['lab.example.org:8443']}":                                                        "without https:// and what follows",
		keycloak + ", names: [lab.example.org/x]}":                                                             "a name of the lab is written like",
		keycloak + ", names: ['']}":                                                                            "a name of the lab is written like",
		keycloak + ", names: [lab.example.org, LAB.example.org]}":                                              "holds LAB.example.org twice",
		openldap + ", names: [lab.example.org]}":                                                               "names stands at ldap, but the type ldap has no such key",
		keycloak + ", rules: [{role: admin}]}":                                                                 "rule 1 of uni says nothing about whom it is for",
		keycloak + ", rules: [{groups: [a]}]}":                                                                 "gives nothing; add role or group",
		keycloak + ", rules: [{groups: [a], role: admn}]}":                                                     "did you mean admin?",
		keycloak + ", rules: [{groups: [a], group: 'Not One'}]}":                                               "no group of the lab can be called that",
		keycloak + ", rules: [{claim: hd, role: admin}]}":                                                      "no values to compare it with",
		keycloak + ", rules: [{values: [a], role: admin}]}":                                                    "says nothing about whom",
		keycloak + ", rules: [{groups: [a], claim: b, values: [c], role: admin}]}":                             "make two rules of it",
		keycloak + ", rules: [{groups: [''], role: admin}]}":                                                   "an empty group",
		"- {name: uni, type: keycloak, url: 'http://id.example.org', realm: a, clientID: x}":                   "it must begin with https://",
		"- {name: uni, type: keycloak, url: 'https://a:b@id.example.org', realm: a, clientID: x}":              "secrets stand in files",
		"- {name: uni, type: keycloak, url: id.example.org, realm: a, clientID: x}":                            "which is no address",
		"- {name: uni, type: keycloak, url: 'https://id.example.org', realm: a/b, clientID: x}":                "are names, not addresses",
		"- {name: uni, type: oidc, issuer: 'https://id.example.org/?a=b', clientID: x}":                        "something behind a ?",
		"- {name: m, type: microsoft, tenant: common, clientID: x, clientSecretFile: /etc/x}":                  "which is everybody at Microsoft",
		"- {name: m, type: microsoft, tenant: example.onmicrosoft.com, clientID: x, clientSecretFile: /etc/x}": "calls itself by the tenant's ID",
		google + "}": "everybody in the world who has an account at Google would get one here",
		google + ", rules: [{groups: [a], role: admin}], noMatch: member}":                           "everybody in the world",
		"- {name: gh, type: github, clientID: x, clientSecretFile: /etc/x}":                          "everybody in the world",
		"- {name: gh, type: github, clientID: x, accounts: existing}":                                "gh lacks clientSecretFile",
		openldap + ", startTLS: true}":                                                               "ldaps:// is encrypted already",
		openldap + ", bindDN: 'cn=x,dc=example'}":                                                    "needs bindDN and bindPasswordFile together",
		openldap + ", userFilter: '(uid=x)'}":                                                        "does not say {username}",
		openldap + ", userFilter: '(uid={username}'}":                                                "which is no filter",
		openldap + ", groupFilter: '(member={dn})'}":                                                 "no groupBase to search below",
		openldap + ", groupBase: people}":                                                            "which is no name in a directory",
		openldap + ", issuer: 'https://x.example'}":                                                  "the type ldap has no such key",
		"- {name: ldap, type: ldap, url: 'ldap://ldap.example.org', userBase: 'dc=example'}":         "passwords would cross the network for everybody to read",
		"- {name: ldap, type: ldap, url: ldap.example.org, userBase: 'dc=example'}":                  "which is no address of a directory",
		"- {name: ad, type: activedirectory, url: 'ldaps://dc.example.org', userBase: 'dc=example'}": "ad lacks bindDN",
		keycloak + "}\n" + keycloak + "}":                                                            "two providers are called uni",
		keycloak + "}\n" + strings.Replace(keycloak, "uni", "other", 1) + "}":                        "uni and other are the same provider",
		openldap + "}\n" + strings.NewReplacer("name: ldap", "name: other", "userBase: '", "userBase: ' OU = x , ").Replace(openldap) + "}\n" +
			strings.NewReplacer("name: ldap", "name: third", "userBase: '", "userBase: 'ou=X,").Replace(openldap) + "}": "other and third are the same provider",
	} {
		err := Check(parse(t, text))
		var wrong *ConfigError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %q in it", text, err, want)
		}
	}
	for _, text := range []string{
		keycloak + "}", keycloak + ", names: [gpulab, lab.example.org, 10.1.2.3, 'fd7a::1']}", keycloak + ", rules: [{groups: [/staff], group: vision}], noMatch: guest, domains: [Example.org]}",
		google + ", domains: [example.org]}", google + ", accounts: existing}", google + ", rules: [{claim: hd, values: [example.org], role: member}]}",
		"- {name: gh, type: github, clientID: x, clientSecretFile: /etc/x, url: 'https://git.example.org', rules: [{groups: [lab/gpu], role: member}]}",
		"- {name: m, type: microsoft, tenant: 01234567-89ab-cdef-0123-456789abcdef, clientID: x, clientSecretFile: /etc/x}",
		openldap + "}", openldap + ", bindDN: 'cn=x,dc=example', bindPasswordFile: /etc/x, caFile: /etc/ca}",
		"- {name: ldap, type: ldap, url: 'ldap://ldap.example.org', startTLS: true, userBase: 'dc=example'}",
		"- {name: ad, type: activedirectory, url: 'ldaps://dc.example.org', userBase: 'dc=example', bindDN: gpulab@example.org, bindPasswordFile: /etc/x}",
		"- {name: o, type: oauth2, authorizeURL: 'https://a.example/a', tokenURL: 'https://a.example/t', userinfoURL: 'https://a.example/u', clientID: x, clientSecretFile: /etc/x}",
	} {
		if err := Check(parse(t, text)); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
}

// A provider is the same as long as its subjects are, and another one when they are not.
func TestRealms(t *testing.T) {
	realm := func(text string) string {
		list := parse(t, text)
		return list[0].complete().realm
	}
	if a, b := realm(openldap+"}"), realm(strings.Replace(openldap, "ldap.example.org", "ldap2.example.org", 1)+"}"); a != b {
		t.Errorf("two servers of one directory: %q, %q", a, b)
	}
	if a, b := realm(keycloak+"}"), realm(strings.Replace(keycloak, "staff", "students", 1)+"}"); a == b {
		t.Errorf("two realms are one: %q", a)
	}
}

func FuzzConfig(f *testing.F) {
	for _, seed := range []string{keycloak + "}", google + "}", openldap + "}", "- {name: x, type: ldap, userFilter: '(((', groupBase: '=,'}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var list []Config
		if yaml.UnmarshalStrict([]byte(text), &list) != nil {
			return
		}
		if Check(list) != nil {
			return
		}
		service, err := New(ServiceConfig{Providers: list, URL: func() string { return "https://lab.example" }})
		if err != nil {
			t.Fatalf("what was found right is refused: %v", err)
		}
		for i, p := range service.Providers() {
			if p.Title == "" || service.providers[i].realm == "" {
				t.Errorf("%+v", p)
			}
		}
	})
}
