package webca

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeRoot is a machine in a temporary folder, worked on by the real update-ca-certificates and certutil.
func fakeRoot(t *testing.T, installed ...string) host {
	t.Helper()
	for _, tool := range []string{"update-ca-certificates", "certutil"} {
		if _, err := findCommand(tool); err != nil {
			t.Fatalf("%s is missing: run “apt install ca-certificates libnss3-tools”", tool)
		}
	}
	root := t.TempDir()
	for _, dir := range []string{localCertsDir, etcCertsDir, "/etc/ca-certificates/update.d", "/home/ada"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(root, "/etc/ca-certificates.conf"), []byte("# none\n"), 0o644))
	return host{root: root, home: filepath.Join(root, "/home/ada"), uid: -1, gid: -1, installed: func(commands ...string) bool {
		for _, c := range commands {
			for _, i := range installed {
				if c == i {
					return true
				}
			}
		}
		return false
	}}
}

func (h host) trust(caPEM []byte) string {
	return strings.Join(h.each(caPEM, host.trustSystem, host.trustChromium, host.trustFirefox), "\n")
}

func (h host) untrust(caPEM []byte) string {
	return strings.Join(h.each(caPEM, host.untrustFirefox, host.untrustChromium, host.untrustSystem), "\n")
}

// listing is every file and link below the root with its content, but for the bytes of Chromium's
// database, which never repeat.
func listing(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(path, ".db") {
			b.WriteString(strings.TrimPrefix(path, root) + "\n")
			return nil
		}
		b.WriteString(strings.TrimPrefix(path, root))
		if d.Type()&os.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			b.WriteString(" -> " + target + "\n")
			return err
		}
		data, err := os.ReadFile(path)
		b.WriteString(":\n" + string(data) + "\n")
		return err
	}))
	return b.String()
}

func nssList(t *testing.T, h host) string {
	t.Helper()
	out, err := exec.Command("certutil", "-L", "-d", "sql:"+filepath.Join(h.home, ".pki/nssdb")).CombinedOutput()
	if err != nil {
		t.Fatalf("certutil: %v: %s", err, out)
	}
	return string(out)
}

func TestTrustAndBack(t *testing.T) {
	ours := mustEnsure(t, t.TempDir(), names, start)
	theirs := mustEnsure(t, t.TempDir(), names, start)
	h := fakeRoot(t, "chromium", "firefox-esr", "certutil")
	// Somebody else's lab and policy are there first and must survive.
	must(t, os.MkdirAll(h.path("/etc/firefox/policies"), 0o755))
	must(t, os.WriteFile(h.path(firefoxPolicies), []byte(`{"policies":{"DisableTelemetry":true,"Certificates":{"ImportEnterpriseRoots":true,"Install":["/x.crt"]}},"other":1.50}`), 0o644))
	h.trust(theirs.CAPEM())
	before := listing(t, h.root)

	said := h.trust(ours.CAPEM())
	for _, want := range []string{"System: trusted, by /usr/local/share/ca-certificates/gpulab-", "Chromium: trusted", "Firefox: trusted, by /etc/firefox"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in:\n%s", want, said)
		}
	}
	bundle, err := os.ReadFile(h.path(etcCertsDir + "/ca-certificates.crt"))
	must(t, err)
	for _, c := range []*Certs{ours, theirs} {
		if !strings.Contains(string(bundle), strings.TrimSpace(string(c.CAPEM()))) {
			t.Error("a CA is missing in the system's bundle")
		}
	}
	if list := nssList(t, h); strings.Count(list, "gpulab web CA") != 2 || strings.Count(list, "C,,") != 2 {
		t.Errorf("Chromium's list:\n%s", list)
	}
	var policies struct {
		Policies struct {
			DisableTelemetry bool
			Certificates     struct {
				ImportEnterpriseRoots bool
				Install               []string
			}
		} `json:"policies"`
		Other json.Number `json:"other"`
	}
	data, err := os.ReadFile(h.path(firefoxPolicies))
	must(t, err)
	must(t, json.Unmarshal(data, &policies))
	if p := policies.Policies; !p.DisableTelemetry || !p.Certificates.ImportEnterpriseRoots || len(p.Certificates.Install) != 3 ||
		p.Certificates.Install[0] != "/x.crt" || policies.Other != "1.50" {
		t.Errorf("policies %s", data)
	}

	trusted := listing(t, h.root)
	if again := h.trust(ours.CAPEM()); !strings.Contains(again, "System: trusted already") || !strings.Contains(again, "Firefox: trusted already") {
		t.Errorf("again:\n%s", again)
	}
	if listing(t, h.root) != trusted {
		t.Error("the second time changed something")
	}

	if back := h.untrust(ours.CAPEM()); strings.Count(back, "forgotten") != 3 {
		t.Errorf("back:\n%s", back)
	}
	if after := listing(t, h.root); after != before {
		t.Errorf("not as before:\n%s\nwas:\n%s", after, before)
	}
	if list := nssList(t, h); strings.Count(list, "gpulab web CA") != 1 {
		t.Errorf("Chromium's list afterwards:\n%s", list)
	}
	if never := h.untrust(ours.CAPEM()); strings.Count(never, "was not trusted") != 3 {
		t.Errorf("never trusted:\n%s", never)
	}
}

func TestTrustOnAFreshMachineLeavesNothing(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	h := fakeRoot(t, "chromium", "firefox", "certutil")
	other := mustEnsure(t, t.TempDir(), names, start) // a machine trusts somebody
	must(t, os.WriteFile(h.path(localCertsDir+"/other.crt"), other.CAPEM(), 0o644))
	must(t, h.updateSystem())
	before := listing(t, h.root)
	h.trust(c.CAPEM())
	if listing(t, h.root) == before {
		t.Fatal("this test shows nothing")
	}
	h.untrust(c.CAPEM())
	if exists(h.path("/etc/firefox")) {
		t.Error("/etc/firefox is still there")
	}
	if after := listing(t, h.root); after != before {
		t.Errorf("left:\n%s\nwas:\n%s", after, before)
	}
	if exists(h.path("/home/ada/.pki")) {
		t.Error("an empty store of Chromium's is left")
	}
}

func TestTrustWithoutBrowsers(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	h := fakeRoot(t)
	if said := h.trust(c.CAPEM()); !strings.Contains(said, "Chromium: not installed") || !strings.Contains(said, "Firefox: not installed") {
		t.Errorf("said:\n%s", said)
	}
	if exists(h.path("/etc/firefox")) || exists(h.path("/home/ada/.pki")) {
		t.Error("something was written for browsers that are not there")
	}
	h = fakeRoot(t, "chromium")
	if said := h.trust(c.CAPEM()); !strings.Contains(said, "apt install libnss3-tools") {
		t.Errorf("said:\n%s", said)
	}
}

// A policy file that cannot be understood is somebody's; it stays as it is.
func TestForeignPoliciesStay(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	for name, content := range map[string]string{
		"broken":     `{"policies":`,
		"a list":     `[1]`,
		"other type": `{"policies":{"Certificates":"none"}}`,
	} {
		h := fakeRoot(t, "firefox")
		must(t, os.MkdirAll(h.path("/etc/firefox/policies"), 0o755))
		must(t, os.WriteFile(h.path(firefoxPolicies), []byte(content), 0o644))
		if said := h.trust(c.CAPEM()); !strings.Contains(said, "Firefox: not trusted") {
			t.Errorf("%s: said:\n%s", name, said)
		}
		if data, err := os.ReadFile(h.path(firefoxPolicies)); err != nil || string(data) != content {
			t.Errorf("%s: now %q, %v", name, data, err)
		}
	}
	for _, content := range []string{`null`, `{"policies":null}`, `{"policies":{"Certificates":null}}`, ``} {
		h := fakeRoot(t, "firefox")
		must(t, os.MkdirAll(h.path("/etc/firefox/policies"), 0o755))
		must(t, os.WriteFile(h.path(firefoxPolicies), []byte(content), 0o644))
		if said := h.trust(c.CAPEM()); !strings.Contains(said, "Firefox: trusted") {
			t.Errorf("%q: said:\n%s", content, said)
		}
	}
}

// Interrupted after the file was written, the next run finishes the work.
func TestTrustAfterAnInterruption(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	h := fakeRoot(t)
	h.trust(c.CAPEM())
	must(t, os.Remove(h.path(etcCertsDir+"/ca-certificates.crt")))
	if said := h.trust(c.CAPEM()); !strings.Contains(said, "System: trusted, by") {
		t.Errorf("said:\n%s", said)
	}
	if said := h.trust([]byte("junk")); !strings.Contains(said, "Nothing was changed") {
		t.Errorf("said:\n%s", said)
	}
}

// Whoever takes gpulab off the machine may be somebody else than who trusted the CA in their Chromium.
func TestUntrustForEverybody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c := mustEnsure(t, t.TempDir(), names, start)
	h := fakeRoot(t, "chromium", "certutil")
	for dir := h.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755)) // the person goes through it
	}
	must(t, os.MkdirAll(h.path("/etc"), 0o755))
	must(t, os.WriteFile(h.path("/etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nben:x:65534:65534::/home/ben:/bin/sh\nodd line\n"), 0o644))
	must(t, os.MkdirAll(h.path("/home/ben"), 0o755))
	must(t, os.Chown(h.path("/home/ben"), 65534, 65534))
	ben := host{root: h.root, home: h.path("/home/ben"), uid: 65534, gid: 65534, installed: h.installed}
	if said := ben.trust(c.CAPEM()); !strings.Contains(said, "Chromium: trusted") {
		t.Fatalf("said:\n%s", said)
	}
	if said := h.untrust(c.CAPEM()); !strings.Contains(said, "Chromium: forgotten") {
		t.Errorf("said:\n%s", said)
	}
	if exists(h.path("/home/ben/.pki")) {
		t.Errorf("ben's store is left:\n%s", nssList(t, ben))
	}
}
