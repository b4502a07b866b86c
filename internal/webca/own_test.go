package webca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// files writes a certificate for some names that signs itself, and its key.
func files(t *testing.T, dir string, names ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 3, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestOwn(t *testing.T) {
	dir := t.TempDir()
	cert, key := files(t, dir, "lab.example.org", "*.gpu.example.org")
	own, err := OpenOwn(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"lab.example.org": true, "LAB.example.org": true, "a.gpu.example.org": true, "gpulab.local": false, "": false} {
		if got := own.For(name) != nil; got != want {
			t.Errorf("for %q: %t, want %t", name, got, want)
		}
	}
	if names := own.Names(); len(names) != 1 || names[0] != "lab.example.org" {
		t.Errorf("names %v", names)
	}
	if trouble := own.Trouble(time.Now()); trouble != "" {
		t.Error(trouble)
	}
	for when, words := range map[time.Time]string{time.Now().AddDate(3, 0, 0): "ran out on", time.Now().AddDate(-1, 0, 0): "good from"} {
		if trouble := own.Trouble(when); !strings.Contains(trouble, words) {
			t.Errorf("at %s: %q", when, trouble)
		}
	}
	t.Run("the lab serves it for its names alone", func(t *testing.T) {
		certs, err := Ensure(t.TempDir(), []string{"lab.example.org", "10.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		certs.Prefer(own)
		for name, want := range map[string]bool{"lab.example.org": true, "10.0.0.1": false, "": false} {
			got, err := certs.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
			if err != nil || (got == own.pair) != want {
				t.Errorf("%q: %t, %v", name, got == own.pair, err)
			}
		}
	})
	t.Run("renewed", func(t *testing.T) {
		before := own.For("lab.example.org")
		if err := os.WriteFile(cert, []byte("half a cert"), 0o600); err != nil {
			t.Fatal(err)
		}
		own.Look()
		if own.For("lab.example.org") != before || !strings.Contains(own.Trouble(time.Now()), "own.crt") {
			t.Errorf("half a file: %q", own.Trouble(time.Now()))
		}
		files(t, dir, "lab.example.org", "new.example.org")
		own.Look()
		if own.For("new.example.org") == nil || own.Trouble(time.Now()) != "" {
			t.Errorf("a renewed certificate is not taken over: %q", own.Trouble(time.Now()))
		}
	})
	t.Run("wrong files", func(t *testing.T) {
		otherCert, _ := files(t, t.TempDir(), "x.example.org")
		for what, pair := range map[string][2]string{"none": {cert + "-not", key}, "another's key": {otherCert, key}} {
			own, err := OpenOwn(pair[0], pair[1])
			if err == nil || !strings.Contains(err.Error(), "the lab's own certificate") || own.Trouble(time.Now()) != err.Error() {
				t.Errorf("%s: %v", what, err)
			}
			if own.For("lab.example.org") != nil || own.Names() != nil || !own.Until().IsZero() {
				t.Errorf("%s: it is good for something", what)
			}
		}
	})
	var none *Own
	if none.For("lab.example.org") != nil || none.Names() != nil {
		t.Error("none is good for something")
	}
}
