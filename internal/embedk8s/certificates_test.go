package embedk8s

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCertificatesUntil(t *testing.T) {
	c := New(Config{DataDir: t.TempDir()})
	if until, err := c.CertificatesUntil(); err != nil || !until.IsZero() {
		t.Errorf("without any: %v, %v", until, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second).UTC()
	write := func(path string, days int, authority bool) {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: now.AddDate(0, 0, days), IsCA: authority, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(c.k3sDir(), path)
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	write("server/tls/client-admin.crt", 300, false)
	write("server/tls/server-ca.crt", 10, true)
	write("agent/client-kubelet.crt", 365, false)
	if until, err := c.CertificatesUntil(); err != nil || !until.Equal(now.AddDate(0, 0, 300)) {
		t.Errorf("%v, %v", until, err)
	}
	write("agent/serving-kubelet.crt", -400, false)
	if until, err := c.CertificatesUntil(); err != nil || !until.Equal(now.AddDate(0, 0, -400)) {
		t.Errorf("one that ran out: %v, %v", until, err)
	}
	if err := os.WriteFile(filepath.Join(c.k3sDir(), "agent", "client-k3s.crt"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CertificatesUntil(); err == nil {
		t.Error("a torn file is no error")
	}
}
