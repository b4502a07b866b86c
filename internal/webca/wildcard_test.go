package webca

import (
	"crypto/tls"
	"slices"
	"testing"
)

// The certificate is for names below the configured ones, and for no others: whoever names the lab elsewhere, as the
// control server of a tailnet does, gets none with a *.
func TestWildcards(t *testing.T) {
	dir := t.TempDir()
	c, err := ensure(dir, names, at(start), "Lab.example.org")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"n21000.lab.example.org": true, "lab.example.org": true, "a.b.lab.example.org": false, "n1.example.org": false} {
		if ok := c.web.Leaf.VerifyHostname(name) == nil; ok != want {
			t.Errorf("%s: %v", name, ok)
		}
	}
	if slices.ContainsFunc(c.Names(), func(name string) bool { return name[0] == '*' }) {
		t.Errorf("the lab goes by %v", c.Names())
	}
	first := serial(c)
	if err := c.Renew(names); err != nil || serial(c) != first {
		t.Errorf("a new certificate for the same names: %v", err)
	}
	if err := c.Renew(append(slices.Clone(names), "*.evil.example")); err == nil {
		t.Error("a name with a * that is not configured is taken")
	}
	if c, err = ensure(dir, names, at(start)); err != nil || serial(c) == first || c.web.Leaf.VerifyHostname("n21000.lab.example.org") == nil {
		t.Errorf("without the wildcard name, the certificate still has it: %v", err)
	}
	for _, base := range []string{"*.lab.example.org", "", "org", "lab example.org", "a*.example.org"} {
		if _, err := ensure(t.TempDir(), names, at(start), base); err == nil {
			t.Errorf("%q is taken", base)
		}
	}
}

// A certificate from elsewhere is shown at labels where it covers them.
func TestOwnWildcard(t *testing.T) {
	c, err := Ensure(t.TempDir(), names, "lab.example.org")
	if err != nil {
		t.Fatal(err)
	}
	for _, covers := range []bool{true, false} {
		theirs := []string{"lab.example.org"}
		if covers {
			theirs = append(theirs, "*.lab.example.org")
		}
		own, err := OpenOwn(files(t, t.TempDir(), theirs...))
		if err != nil {
			t.Fatal(err)
		}
		c.Prefer(own)
		shown, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: "n21000.lab.example.org"})
		if err != nil || (shown == own.For("lab.example.org")) != covers || shown.Leaf.VerifyHostname("n21000.lab.example.org") != nil {
			t.Errorf("with a certificate for %v, labels show %v, %v", theirs, shown.Leaf.DNSNames, err)
		}
		if slices.Contains(own.Names(), "*.lab.example.org") {
			t.Errorf("its names are %v", own.Names())
		}
	}
}
