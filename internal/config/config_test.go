package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A mistake in the configuration is told in words that need no knowledge of
// programming, with what was probably meant.
func TestMistakesInTheConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"gpuSharing: two":                    "gpuSharing must be a whole number, and is text; correct it",
		"gpuSharing: 1.5":                    "gpuSharing must be a whole number, and is 1.5; correct it",
		"gpuSharing: 0":                      "gpuSharing is 0; it may be 1 (each GPU is one notebook's at a time) to 48",
		"gpuSharing: -1":                     "gpuSharing is -1; it may be 1",
		"simulatedGPUs: 0":                   "simulatedGPUs is 0; it may be 1 to 16",
		"httpPort: [80]":                     "httpPort must be a whole number, and is a list",
		"names: gpu.lab.example":             "names must be a list, and is text",
		"metrics: off":                       "metrics must be keys of its own, on lines that are further in, and is true or false",
		"metrics: {enabled: never}":          "metrics.enabled must be true or false, and is text",
		"profiles:\n- {slug: a, cpus: many}": "profiles.cpus must be a number, and is text",
		"lab: {name: x}":                     "lab must be text, and is keys of its own",
		"gpuShering: 2":                      "there is no key gpuShering; did you mean gpuSharing?",
		"http-port: 80":                      "there is no key http-port; did you mean httpPort or httpsPort?",
		"k3s: {kubeletarg: []}":              "did you mean kubeletArgs?",
		"cpus: 2":                            "cpus stands at a place where there is no such key; it belongs into profiles",
		"zzz: 2":                             "there is no key zzz; correct it",
		"files: {listen: here}":              `files.listen is "here"; write it as ":2022"`,
		"files: {listen: 99999}":             `files.listen is ":99999"`,
		"files: {listen: true}":              `files.listen is "true"`,
		"files: {listen: 443}":               "both have port 443",
		"gpuSharing: 2\n\nlabb: x":           "line 3: there is no key labb; did you mean lab?",
		"stayAwake: always":                  `stayAwake is "always"; it may be notebooks`,
		"lab: x\ntimezone: CET+1":            `line 2: timezone is "CET+1", which is no time zone that this machine knows`,
		"timezone: Local":                    `timezone is "Local"`,
		"timezone: ../../etc/passwd":         `timezone is "../../etc/passwd"`,
		"signin:\n- name: uni\n  type: okta": "line 3: signin: the type of uni is \"okta\"; it may be oidc",
		"lab: x\nsignin:\n- name: uni\n  type: keycloak\n  realm: a\n  clientID: b":                                                   "line 3: signin: uni lacks url",
		"signin:\n- {name: uni, type: oidc, clientSecret: x}":                                                                         "line 2: there is no key clientSecret; did you mean clientSecretFile?",
		"signin:\n- name: uni\n  type: oidc\n  issuer: https://a.example\n  clientID: b\n  rules:\n  - groups: [a]\n    rolle: admin": "line 8: there is no key rolle; did you mean role?",
		"signin: {name: uni}":        "signin must be a list, and is keys of its own",
		"lab: a\nlab: b":             `key "lab" already set in map`,
		"lab: [":                     "line 1: ",
		"lab: x\nhttpPort: [80]":     "line 2: httpPort must be a whole number, and is a list",
		"metrics:\n  enabled: never": "line 2: metrics.enabled must be true or false, and is text",
		"profiles:\n- slug: a\n  cpus: 1\n- slug: b\n  cpus: many":  ": profiles.cpus must be a number",
		"profiles:\n- slug: a\n  title: A\n- slug: b\n  cpus: many": "line 5: profiles.cpus must be a number",
		"\nsimulatedGPUs: 99":                                         "line 2: simulatedGPUs is 99",
		"lab: x\nk3s:\n  podMaxPids: 7":                               "line 3: k3s.podMaxPids is 7",
		"lab: x\nstorage:\n  export: smb":                             `line 3: storage.export is "smb"; it may be nfs`,
		"lab: x\nstorage:\n  export: nfs\n  shared: /srv/lab":         "storage.export and storage.shared are both given",
		"lab: x\npackages:\n  cache: lots":                            "line 3: packages.cache is \"lots\"; it may be 1Gi or more",
		"lab: x\npackages:\n  cache: 10Mi":                            "line 3: packages.cache is \"10Mi\"; it may be 1Gi or more",
		"lab: x\nmodels:\n  hub: https://hub.example/?key=secret":     "line 3: models.hub: the address may have neither a ? nor a #",
		"lab: x\nmodels:\n  cache: most":                              "line 3: models.cache is \"most\"; it may be 1Gi or more, such as 50Gi, or 0 to keep nothing",
		"lab: x\nmodels:\n  hub: https://me:secret@hub.example":       "line 3: models.hub: the address of a hub of models may not hold a name or a password",
		"lab: x\npackages:\n  index: https://me:secret@pypi.org/":     "line 3: packages.index: the address of an index may not hold a name or a password",
		"lab: x\nstorage:\n  measureEvery: soon":                      "line 3: storage.measureEvery is \"soon\"; it may be 1s to 24h",
		"lab: x\nmetrics: {enabled: true, networks: [10.1.2.3/24]}":   "line 2: metrics.networks holds 10.1.2.3/24",
		"lab: x\n\nhubPort: 443":                                      "httpsPort and hubPort are both 443",
		"lab: x\nnames: [\"*.lab.example.org\"]":                      "line 2: names holds *.lab.example.org, but not lab.example.org",
		"lab: x\nnames: [lab.example.org, \"n*.lab.example.org\"]":    "a * may only be the whole first part",
		"lab: x\nnames: [lab.example.org, \"*.*.lab.example.org\"]":   "a * may only be the whole first part",
		"lab: x\nnames: [\"*\"]":                                      "a * may only be the whole first part",
		"lab: x\nnames: [10.1.2.3, \"*.10.1.2.3\"]":                   "no names below an address",
		"lab: x\nnames: [gpulab.local, \"*.gpulab.local\"]":           "no name server answers for names ending in .local",
		"lab: x\nnames: [co.uk, \"*.co.uk\"]":                         "the names below co.uk belong to many",
		"lab: x\nnames: [github.io, \"*.github.io\"]":                 "the names below github.io belong to many",
		"lab: x\nnames: [lab, \"*.lab\"]":                             "the names below lab belong to many",
		"lab: x\nnames: [lab_1.example.org, \"*.lab_1.example.org\"]": "is no name for a computer",
		"- lab": `it must consist of lines such as "lab: Physics lab"`,
		"profiles:\n- {slug: Big One, title: Big}": "Big One",
	} {
		path := write(t, text)
		_, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%q: %v\nwant %q in it", text, err, want)
			continue
		}
		for _, jargon := range []string{"json", "JSON", "unmarshal", "Go ", "struct", "Config."} {
			if strings.Contains(err.Error(), jargon) {
				t.Errorf("%q: %v speaks of %q", text, err, jargon)
			}
		}
	}
	for _, text := range []string{"", "gpuSharing:", "gpuSharing: 1", "lab: 2026", "gpuSharing: 2\nnames: []", "names: [Lab.example.org, \"*.lab.Example.org\"]", "names: [\"*.gpu.internal\", gpu.internal]", "files: {listen: off}",
		"stayAwake: off", "stayAwake: lid-open", "stayAwake: on", "timezone: Europe/Berlin", "timezone: UTC",
		"packages: {cache: 0}", "files: {listen: 2222}", "files: {listen: }", "quotas: {termBegins: 2026-10-12}",
		"servicePorts: 8500", "servicePorts: off", "localName: off",
		"queue: {minimumRun: 0, preemption: off}", "storage: {scratch: 21474836480}",
		"idle: {maxAge: 0, act: never, extensions: }", "network:\n  allow:\n", "metrics:\n  enabled:\n", "mail:\n", "tls:\n",
		"files: {listen: '[::1]:2022'}"} {
		c, err := Load(write(t, text))
		if err != nil || c.GPUSharing < 1 || c.SimulatedGPUs != 2 {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
}

// What is said of idle GPUs is understood, refused where it cannot be, and kept by init.
func TestIdleConfig(t *testing.T) {
	for text, want := range map[string]string{
		"idle: {act: sometimes}":                  "it may be when-wanted, always or never",
		"idle: {after: 30}":                       "after",
		"idle: {after: soon}":                     "after is \"soon\", which is no time",
		"idle: {countdown: 0s}":                   "countdown is how long",
		"idle: {maxAge: 5m}":                      "maxAge is not longer than countdown",
		"idle: {profiles: {nosuch: {after: 1h}}}": "there is no such profile",
		"idle: {groups: {vision: {unused: 1m}}}":  "for the group \"vision\"",
		"idle: {after: 48h}":                      "unused is shorter than after",
	} {
		if _, err := Load(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	before, err := Load(write(t, "idle:\n  after: 45m\n  extensions: 0\n  unused: 0\n  unopened: 3m\n  profiles:\n    "+
		"gpu: {maxAge: 72h}\n  groups:\n    thesis: {after: 2h}\n    staff: {act: never}\n"))
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, "")
	if _, err := Save(path, before); err != nil {
		t.Fatal(err)
	}
	after, err := Load(path)
	if err != nil || !reflect.DeepEqual(before.Idle, after.Idle) {
		t.Errorf("%+v, %v\nwant %+v", after.Idle, err, before.Idle)
	}
	p, err := after.Idle.Policies(after.UsualProfiles())
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Of("gpu", []string{"thesis"}); got.After != 2*time.Hour || got.Extensions != 0 || got.Unused != 0 || got.Unopened != 3*time.Minute || got.MaxAge != 72*time.Hour || got.Countdown != 10*time.Minute {
		t.Errorf("thesis: %+v", got)
	}
	if got := p.Of("cpu", nil); got.After != 45*time.Minute || got.MaxAge != 0 {
		t.Errorf("base: %+v", got)
	}
	usual, err := Load(write(t, ""))
	if err != nil || usual.Idle.After.String() != "30m" || usual.Idle.Unused.String() != "24h" ||
		usual.Idle.MaxAge.String() != "0s" {
		t.Errorf("usual: %+v, %v", usual.Idle, err)
	}
}

// What init writes is what it read.
func TestProvidersStayAsTheyAre(t *testing.T) {
	text := "signin:\n- name: uni\n  type: keycloak\n  title: \"Example: University\"\n  url: https://id.example.org\n  realm: staff\n  clientID: gpulab\n" +
		"  claims: {groups: realm_access.roles}\n  rules:\n  - {groups: [/a, b], role: admin}\n  - {claim: x, values: [z], group: vision}\n  noMatch: guest\n"
	before, err := Load(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, "")
	if _, err := Save(path, before); err != nil {
		t.Fatal(err)
	}
	after, err := Load(path)
	if err != nil || !reflect.DeepEqual(before.SignIn, after.SignIn) || len(after.SignIn) != 1 || len(after.SignIn[0].Rules) != 2 {
		t.Errorf("%+v, %v\nwant %+v", after.SignIn, err, before.SignIn)
	}
}

func TestMetricsKeys(t *testing.T) {
	for text, want := range map[string]string{
		"metrics: {networks: [lab.example]}":      `metrics.networks holds "lab.example"`,
		"metrics: {networks: [10.0.0.0/33]}":      `metrics.networks holds "10.0.0.0/33"`,
		"metrics: {networks: [10.1.2.3/8]}":       "write 10.0.0.0/8 or 10.1.2.3",
		"metrics: {networks: [\"fe80::1%eth0\"]}": "metrics.networks holds",
		"metrics: {networks: [\"\"]}":             "metrics.networks holds",
		"metrics: {networks: 10.0.0.0/8}":         "metrics.networks",
		"metrics: {enabled: maybe}":               "metrics.enabled",
		"metrics: off":                            "metrics",
		"metrics: {token: secret}":                "token", // a secret has no place in this file
	} {
		_, err := Load(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "true []", "metrics: {}": "true []", "metrics: {enabled: false}": "false []",
		"metrics: {networks: [10.1.2.0/24, 10.9.8.7, \"fd00::/8\"]}": "true [10.1.2.0/24 10.9.8.7/32 fd00::/8]",
	} {
		path := write(t, text)
		for range 2 { // what is written is read again as the same
			cfg, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(*cfg.Metrics.Enabled, " ", Prefixes(cfg.Metrics.Networks)); got != want {
				t.Errorf("%q is %s, want %s", text, got, want)
			}
			if _, err := Save(path, cfg); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSignUpSetting(t *testing.T) {
	for text, want := range map[string]Word{
		"": Off, "signUp: off\n": Off, "signUp: \"off\"\n": Off, "signUp: approval\n": SignUpApproval,
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // as it is, and as init writes it
			c, err := Load(path)
			if err != nil || c.SignUp != want {
				t.Fatalf("%q: %q, %v", text, c.SignUp, err)
			}
			if _, err := Save(path, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, text := range []string{"signUp: true\n", "signUp: open\n", "signUp: 1\n", "signUp: [off]\n"} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "off or approval") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
