package tailnet_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tailscale.com/tailcfg"

	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
)

// issued is a certificate as the library hands it out; without one, there is none.
type issued struct{ der, cert, key []byte }

func issue(t *testing.T, name string, from, until time.Duration) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{der, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// certified is a lab that is in its tailnet, which has no certificate for it yet: from then on it has what is stored in
// theirs.
func certified(t *testing.T, before ...func(*tailnet.Service)) (l *lab, theirs *atomic.Pointer[issued]) {
	t.Helper()
	control := tailnettest.Start(t, "127.0.0.1", "0")
	control.DNSConfig = &tailcfg.DNSConfig{Proxied: true}
	l, theirs = newLab(t, filepath.Join(t.TempDir(), "tailnet"), before...), &atomic.Pointer[issued]{}
	if err := l.Up(t.Context(), tailnet.UpRequest{LoginServer: control.URL}); err != nil {
		t.Fatal(err)
	}
	if err := l.CertificatesFrom(func(string) (cert, key []byte, err error) {
		c := theirs.Load()
		if c == nil {
			return nil, nil, errors.New("the authority is away")
		}
		return c.cert, c.key, nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that there is none is told", func() bool { return l.Status().CertificateError != nil })
	return l, theirs
}

// shows fails a test where the lab shows another certificate for its name in the tailnet; nil is the lab's own.
func (l *lab) shows(t *testing.T, what string, want *issued) {
	t.Helper()
	for _, name := range []string{certName, strings.ToUpper(certName)} {
		got, err := l.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		own, err := l.own.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		der := own.Certificate[0]
		if want != nil {
			der = want.der
		}
		if !bytes.Equal(got.Certificate[0], der) {
			t.Errorf("%s: %s gets the certificate of %v until %s", what, name, got.Leaf.DNSNames, got.Leaf.NotAfter)
		}
	}
	if there := l.Status().Certificate; there != (want != nil) {
		t.Errorf("%s: that there is a certificate of the tailnet is said to be %v", what, there)
	}
}

const (
	certName = "gpulab." + tailnettest.Domain
	day      = 24 * time.Hour
)

// TestCertificateRenewed: the new one is shown by itself, and the old one until there is a new one.
func TestCertificateRenewed(t *testing.T) {
	l, theirs := certified(t, (*tailnet.Service).Hurry)
	old, fresh := issue(t, certName, -89*day, day), issue(t, certName, -time.Hour, 90*day)
	for _, step := range []struct {
		what         string
		theirs, want *issued
		fails        bool
	}{
		{"one that ends soon", old, old, false},
		{"while there is no new one", nil, old, true},
		{"the new one", fresh, fresh, false},
	} {
		theirs.Store(step.theirs)
		eventually(t, step.what+", as status says", func() bool {
			s := l.Status()
			return s.Certificate && (s.CertificateError != nil) == step.fails
		})
		eventually(t, step.what+", as visitors see", func() bool {
			got, err := l.GetCertificate(&tls.ClientHelloInfo{ServerName: certName})
			return err == nil && bytes.Equal(got.Certificate[0], step.want.der)
		})
		l.shows(t, step.what, step.want)
	}
}

// TestUselessCertificates: browsers would refuse them, so the lab shows its own, or the one that it has; and status says why.
func TestUselessCertificates(t *testing.T) {
	l, theirs := certified(t)
	good := issue(t, certName, -time.Hour, 90*day)
	foreign := *issue(t, certName, -time.Hour, 90*day)
	foreign.key = good.key
	for _, before := range []*issued{nil, good} {
		if before != nil {
			theirs.Store(before)
			if err := l.AskForCertificate(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]struct {
			*issued
			says string
		}{
			"one that ran out":         {issue(t, certName, -90*day, -time.Minute), "ran out"},
			"one of tomorrow":          {issue(t, certName, day, 90*day), "valid from"},
			"one for another name":     {issue(t, "other."+tailnettest.Domain, -time.Hour, 90*day), "valid for other."},
			"one with a strange key":   {&foreign, "private key does not match"},
			"none, but something else": {&issued{cert: []byte("<html>"), key: []byte("<html>")}, ""},
		} {
			theirs.Store(c.issued)
			if err := l.AskForCertificate(t.Context()); err == nil {
				t.Errorf("%s is taken", what)
			}
			if err := l.Status().CertificateError; err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: status says %v", what, err)
			}
			l.shows(t, what, before)
		}
	}
}

// TestCertificateRunsOut: one that the lab has shown is not shown any more once it has run out, and status says so.
func TestCertificateRunsOut(t *testing.T) {
	l, theirs := certified(t)
	short := issue(t, certName, -day, 3*time.Second)
	theirs.Store(short)
	if err := l.AskForCertificate(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.shows(t, "as long as it is good", short)
	eventually(t, "it has run out", func() bool { return !l.Status().Certificate })
	l.shows(t, "once it has run out", nil)
	if err := l.Status().CertificateError; err == nil || !strings.Contains(err.Error(), "ran out") {
		t.Errorf("status says %v", err)
	}
}
