//go:build e2e

package e2e

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// k3sTLS is where Kubernetes' certificates lie on the host.
const k3sTLS = "/var/lib/gpulab/k3s/server/tls"

// testCertificates: certificates of Kubernetes that ran out, as by a clock that
// is a year ahead or a lab that nobody restarted for one, are renewed without
// anybody's help, under running notebooks and at a start.
func testCertificates(t *testing.T, a *appliance) {
	pods, kubernetes := a.notebookPods(t), a.Processes(a.ctx, "k3s")
	if state, detail, _ := a.component(t, "certificates"); state != "ok" {
		t.Errorf("the certificates are %s: %s", state, detail)
	}
	// While the lab runs: gpulab sees it, and starts Kubernetes anew.
	a.age(t, "serving-kube-apiserver", "server-ca", 40*24*time.Hour)
	a.eventually(t, "Kubernetes is another process", func() bool {
		now := a.Processes(a.ctx, "k3s")
		return len(now) == 1 && fmt.Sprint(now) != fmt.Sprint(kubernetes)
	})
	a.within(t, 2*time.Minute, "the lab is ready with new certificates", func() bool {
		return a.Gpulab(a.ctx, "status").Code == 0 && time.Until(a.validUntil(t, "serving-kube-apiserver")) > 300*24*time.Hour
	})
	a.checkKept(t, pods)
	// At a start: all of the server's are over.
	for _, name := range []string{"gpulab", "k3s", "containerd"} {
		a.Kill(a.ctx, "KILL", name)
	}
	a.eventually(t, "all have ended", func() bool { return len(a.Processes(a.ctx, "k3s")) == 0 && len(a.Processes(a.ctx, "gpulab")) == 0 })
	authorities := map[string]string{
		"client-admin": "client-ca", "client-controller": "client-ca", "client-kube-apiserver": "client-ca", "client-scheduler": "client-ca",
		"client-supervisor": "client-ca", "serving-kube-apiserver": "server-ca",
	}
	for name, authority := range authorities {
		a.age(t, name, authority, -24*time.Hour)
	}
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init after all certificates ran out: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("with certificates that ran out, ready after %s", result.Took.Round(100*time.Millisecond))
	for name := range authorities {
		if until := a.validUntil(t, name); time.Until(until) < 300*24*time.Hour {
			t.Errorf("%s is good until %s only", name, until)
		}
	}
	a.waitReady(t)
	a.checkKept(t, pods)
}

func (a *appliance) readPEM(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(a.Path(filepath.Join(k3sTLS, name)))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatalf("%s holds nothing", name)
	}
	return block.Bytes
}

func (a *appliance) certificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	cert, err := x509.ParseCertificate(a.readPEM(t, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *appliance) validUntil(t *testing.T, name string) time.Time {
	t.Helper()
	return a.certificate(t, name).NotAfter
}

// age replaces a certificate with the same one that is good for left only.
func (a *appliance) age(t *testing.T, name, authority string, left time.Duration) {
	t.Helper()
	old, by := a.certificate(t, name), a.certificate(t, authority)
	der := a.readPEM(t, authority+".key")
	var key any
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		if key, err = x509.ParsePKCS8PrivateKey(der); err != nil {
			t.Fatal(err)
		}
	}
	template := *old
	template.NotBefore, template.NotAfter = time.Now().AddDate(-1, 0, 0), time.Now().Add(left)
	aged, err := x509.CreateCertificate(rand.Reader, &template, by, old.PublicKey, key.(crypto.Signer))
	if err != nil {
		t.Fatal(err)
	}
	a.WriteFile(filepath.Join(k3sTLS, name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: aged}))+
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: by.Raw})))
}
