package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// pemCertificate makes one that is valid for that long from an hour ago.
func pemCertificate(t *testing.T, life time.Duration, isCA bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), IsCA: isCA, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestClusterCertificates(t *testing.T) {
	const day = 24 * time.Hour
	finds(t, machine(t, nil), "clustercertificates", Options{}, OK, "no certificates of Kubernetes yet")
	hidden := machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}"})
	hidden.euid = 1000
	finds(t, hidden, "clustercertificates", Options{}, Unseen)

	const tls = "/var/lib/gpulab/k3s/server/tls/"
	files := map[string]string{
		tls + "server-ca.crt":                          pemCertificate(t, 3650*day, true),
		tls + "client-admin.crt":                       pemCertificate(t, 365*day, false),
		tls + "serving-kube-apiserver.crt":             pemCertificate(t, 365*day, false),
		tls + "dynamic-cert.json":                      "{}",
		tls + "damaged.crt":                            "k3s writes it anew",
		"/var/lib/gpulab/k3s/agent/client-kubelet.crt": pemCertificate(t, 100*day, false),
	}
	h := machine(t, files)
	finds(t, h, "clustercertificates", Options{}, OK, "good until "+time.Now().Add(100*day).Format(time.DateOnly))

	h.now = func() time.Time { return time.Now().Add(80 * day) }
	finds(t, h, "clustercertificates", Options{}, Warn, "(agent/client-kubelet.crt) runs out on", "gpulab init`: k3s renews them")
	h.now = func() time.Time { return time.Now().Add(200 * day) }
	finds(t, h, "clustercertificates", Options{}, Fail, "(agent/client-kubelet.crt) ran out on", "mend the clock first")
	h.now = func() time.Time { return time.Now().Add(-200 * day) }
	finds(t, h, "clustercertificates", Options{}, Fail, "is not valid before")
	h.now = func() time.Time { return time.Now().Add(3600 * day) }
	if found := look(t, h, "clustercertificates", Options{}); len(found) != 2 {
		t.Errorf("certificates that ran out, and an authority that is about to: %v", found)
	}

	files["/run/systemd/system/x"] = ""
	h = machine(t, files)
	h.now = func() time.Time { return time.Now().Add(80 * day) }
	finds(t, h, "clustercertificates", Options{}, Warn, "Run `systemctl restart gpulab`")
}
