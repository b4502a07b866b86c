package webca

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var names = []string{"lab.example.org", "localhost", "127.0.0.1", "::1"}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func mustEnsure(t *testing.T, dir string, names []string, now time.Time) *Certs {
	t.Helper()
	c, err := ensure(dir, names, at(now))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func serial(c *Certs) string { return c.web.Leaf.SerialNumber.String() }

// A client that trusts the CA, and nothing else, reaches the pages by each name, before and after a
// renewal.
func TestBrowserTrustsThePages(t *testing.T) {
	c, err := Ensure(t.TempDir(), names)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", c.TLSConfig())
	must(t, err)
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
	defer server.Close()
	go func() { _ = server.Serve(listener) }()
	reach := func(name string) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.CAPEM())
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: name})
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	for _, name := range []string{"lab.example.org", "localhost", "127.0.0.1", "[::1]"} {
		if err := reach(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if reach("new.example.org") == nil {
		t.Error("a name that is not ours was accepted")
	}
	if err := c.Renew(append(names, "new.example.org")); err != nil {
		t.Fatal(err)
	}
	if err := reach("new.example.org"); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
}

func TestWhatIsInTheCertificates(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	leaf := c.web.Leaf
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life > 398*24*time.Hour || leaf.NotBefore.After(start) {
		t.Errorf("from %v, for %v", leaf.NotBefore, life)
	}
	if leaf.IsCA || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || len(leaf.SubjectKeyId)+len(leaf.AuthorityKeyId) == 0 {
		t.Errorf("leaf %+v", leaf)
	}
	if !c.ca.IsCA || !c.ca.MaxPathLenZero || !regexp.MustCompile(`^gpulab web CA lab\.example\.org [0-9a-f]{6}$`).MatchString(c.ca.Subject.CommonName) {
		t.Errorf("CA %v %v", c.ca.IsCA, c.ca.Subject)
	}
	if years := c.ca.NotAfter.Sub(start).Hours() / 24 / 365; years < 9.9 || years > 10.1 {
		t.Errorf("the CA lasts %v years", years)
	}
	fp, err := Fingerprint(c.CAPEM())
	if err != nil || fp != c.Fingerprint() || !regexp.MustCompile(`^([0-9A-F]{2}:){31}[0-9A-F]{2}$`).MatchString(fp) {
		t.Errorf("fingerprint %q, %v", fp, err)
	}
	if _, err := Fingerprint([]byte("junk")); err == nil {
		t.Error("junk has a fingerprint")
	}
}

func TestReissue(t *testing.T) {
	for _, tc := range []struct {
		name  string
		names []string
		after time.Duration
		spoil func(t *testing.T, dir string)
		again bool
	}{
		{"nothing changed", names, time.Hour, nil, false},
		{"same names in another order and spelling", []string{"::0001", "LAB.example.org.", "127.0.0.1", "localhost", "localhost"}, time.Hour, nil, false},
		{"a name more", append([]string{"x"}, names...), 0, nil, true},
		{"a name less", names[1:], 0, nil, true},
		{"31 days left", names, webLife - backdate - 31*24*time.Hour, nil, false},
		{"less than 30 days left", names, webLife - backdate - 30*24*time.Hour + time.Second, nil, true},
		{"long over", names, 3 * 365 * 24 * time.Hour, nil, true},
		{"clock was set back", names, -48 * time.Hour, nil, true},
		{"file lost", names, 0, func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, webFile))) }, true},
		{"file cut", names, 0, func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, webFile), 300)) }, true},
		{"signed by another CA", names, 0, func(t *testing.T, dir string) {
			other := t.TempDir()
			mustEnsure(t, other, names, start)
			must(t, os.Rename(filepath.Join(other, webFile), filepath.Join(dir, webFile)))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			first := mustEnsure(t, dir, names, start)
			if tc.spoil != nil {
				tc.spoil(t, dir)
			}
			second := mustEnsure(t, dir, tc.names, start.Add(tc.after))
			if again := serial(first) != serial(second); again != tc.again {
				t.Errorf("issued again: %v, want %v", again, tc.again)
			}
			if first.Fingerprint() != second.Fingerprint() {
				t.Error("the CA changed")
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesAndModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	mustEnsure(t, dir, names, start)
	must(t, os.Chmod(filepath.Join(dir, caKeyFile), 0o644))
	must(t, os.Chmod(filepath.Join(dir, webFile), 0o644))
	mustEnsure(t, dir, names, start)
	want := map[string]os.FileMode{caFile: 0o644, caKeyFile: 0o600, webFile: 0o600}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != len(want) {
		t.Errorf("files %v", left)
	}
	for name, mode := range want {
		fi, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if fi.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", name, fi.Mode().Perm(), mode)
		}
	}
}

// Interrupted after the key, the next start goes on; anything else about the CA is a person's decision.
func TestCAFiles(t *testing.T) {
	dir := t.TempDir()
	mustEnsure(t, dir, names, start)
	ca := filepath.Join(dir, caFile)
	must(t, os.Remove(ca))
	must(t, os.Remove(filepath.Join(dir, webFile)))
	c := mustEnsure(t, dir, names, start)
	for name, spoil := range map[string]func(dir string){
		"key lost":          func(dir string) { must(t, os.Remove(filepath.Join(dir, caKeyFile))) },
		"key damaged":       func(dir string) { must(t, os.WriteFile(filepath.Join(dir, caKeyFile), []byte("junk"), 0o600)) },
		"CA damaged":        func(dir string) { must(t, os.WriteFile(filepath.Join(dir, caFile), []byte("junk"), 0o644)) },
		"of different pair": func(dir string) { must(t, os.WriteFile(filepath.Join(dir, caFile), c.CAPEM(), 0o644)) },
	} {
		bad := t.TempDir()
		mustEnsure(t, bad, names, start)
		spoil(bad)
		if _, err := ensure(bad, names, at(start)); err == nil || !strings.Contains(err.Error(), "backup") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ensure(dir, names, at(start.Add(caLife+time.Hour))); err == nil || !strings.Contains(err.Error(), "ran out") {
		t.Errorf("an old CA: %v", err)
	}
	last := mustEnsure(t, dir, names, start.Add(caLife-40*24*time.Hour))
	if last.web.Leaf.NotAfter.After(last.ca.NotAfter) {
		t.Error("the certificate outlives its CA")
	}
}

func TestNames(t *testing.T) {
	for _, bad := range [][]string{nil, {""}, {"a b"}, {"ä.example"}, {"*.example.org"}, {"fe80::1%eth0"}, {"x", "-x"}, {strings.Repeat("a", 64)}, {"a/../b"}} {
		if _, err := ensure(t.TempDir(), bad, at(start)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	c := mustEnsure(t, t.TempDir(), []string{"::ffff:192.0.2.1", "B.example", "a_b"}, start)
	if got := strings.Join(c.Names(), " "); got != "192.0.2.1 a_b b.example" || !c.web.Leaf.IPAddresses[0].Equal(net.IPv4(192, 0, 2, 1)) {
		t.Errorf("names %q, addresses %v", got, c.web.Leaf.IPAddresses)
	}
	// A refused renewal leaves the old certificate in use.
	before := serial(c)
	if c.Renew([]string{"a b"}) == nil || serial(c) != before || len(c.Names()) != 3 {
		t.Error("a refused renewal changed something")
	}
}

func TestRenewWhileServing(t *testing.T) {
	c := mustEnsure(t, t.TempDir(), names, start)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if cert, err := c.GetCertificate(&tls.ClientHelloInfo{}); err != nil || cert == nil {
					t.Error("no certificate")
				}
			}
		})
	}
	for _, more := range []string{"a.example", "b.example"} {
		must(t, c.Renew(append(names, more)))
	}
	wg.Wait()
}

func TestWebFileHoldsAPair(t *testing.T) {
	dir := t.TempDir()
	mustEnsure(t, dir, names, start)
	data, err := os.ReadFile(filepath.Join(dir, webFile))
	must(t, err)
	var types []string
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		types = append(types, block.Type)
	}
	if strings.Join(types, ",") != "PRIVATE KEY,CERTIFICATE" {
		t.Errorf("%v", types)
	}
}

// A clock that is set to the next year and back leaves the pages with a certificate that is good.
func TestClockJumps(t *testing.T) {
	now := start
	c, err := ensure(t.TempDir(), names, func() time.Time { return now })
	must(t, err)
	ca := c.Fingerprint()
	for _, jump := range []time.Duration{2 * 365 * 24 * time.Hour, -2 * 365 * 24 * time.Hour} {
		before := serial(c)
		now = now.Add(jump)
		must(t, c.Renew(c.Names()))
		if leaf := c.web.Leaf; serial(c) == before || now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
			t.Errorf("at %s it is good from %s to %s", now, leaf.NotBefore, leaf.NotAfter)
		}
		if c.Trouble() != "" || c.Fingerprint() != ca || !c.Until().After(now) {
			t.Errorf("at %s: %s", now, c.Trouble())
		}
	}
	now = start.AddDate(-1, 0, 0)
	if got := c.Trouble(); !strings.Contains(got, "is of 2026-") || !strings.Contains(got, "the clock says 2025-03-01") {
		t.Errorf("before the authority was made: %q", got)
	}
	now = start.AddDate(20, 0, 0)
	if got := c.Trouble(); !strings.Contains(got, "ran out on 203") {
		t.Errorf("after its end: %q", got)
	}
}
