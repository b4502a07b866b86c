//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// TestKueueFaults is a lab whose Kueue loses what it needs: its certificates run out, and somebody deletes its kinds.
// What runs goes on, and whoever wants a GPU then has it soon.
//
//test:about internal/queue internal/charts
func TestKueueFaults(t *testing.T) {
	t.Parallel()
	a := ready(t, queueConfig)
	q := newLine(t, a)
	a.live(t, []chapter{
		{"certificates that have run out", q.runOut, false},
		{"Kueue's kinds are deleted", q.kindsDeleted, false},
	})
}

// TestKueueKilled is a lab whose Kueue is killed while people wait for GPUs, and does not come back at once. Nobody is
// admitted meanwhile, what runs goes on, and nobody loses their place.
//
//test:about internal/queue internal/charts
func TestKueueKilled(t *testing.T) {
	t.Parallel()
	a := ready(t, queueConfig)
	q := newLine(t, a)
	a.live(t, []chapter{
		{"Kueue is killed", q.kueueKilled, false},
	})
}

// runOut: Kueue makes certificates anew that have run out, and whoever wants a GPU
// then has it soon.
func (q *line) runOut(t *testing.T, a *appliance) {
	const secret = "kueue-webhook-server-cert"
	certificate, key := expiredCertificate(t)
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate, "ca.key": key}})
	if err != nil {
		t.Fatal(err)
	}
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "patch", "secret", secret, "--type=merge", "-p", string(patch))
	began := time.Now()
	q.computers[guestHandle].start(t, "gpu", "Afterwards")
	t.Logf("a notebook ran %s after Kueue's certificates had run out", time.Since(began).Round(100*time.Millisecond))
	if got := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "secret", secret, "-o", `jsonpath={.data.tls\.crt}`); got == base64.StdEncoding.EncodeToString(certificate) {
		t.Error("the one that has run out is still there")
	}
	q.nothingLeft(t, a)
}

// expiredCertificate is one that was good until yesterday, and its key.
func expiredCertificate(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const service = "kueue-webhook-service.gpulab-system.svc"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: service}, DNSNames: []string{service}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(0, 0, -1),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: scalar})
}

// kindsDeleted: without one of its kinds, and all that was of it, what runs goes
// on and is booked again, once gpulab has put the kind back.
func (q *line) kindsDeleted(t *testing.T, a *appliance) {
	ben := a.guest.For(t).Tab()
	launch(ben, "gpu", "Throughout")
	waitJupyterLab(ben, guestHandle)
	k := newKernel(ben)
	k.run(t, "answer = 41")
	uid := func() string {
		return a.Gpulab(a.ctx, "kubectl", "get", "crd", "workloads.kueue.x-k8s.io", "-o", "jsonpath={.metadata.uid}").Stdout
	}
	before, began := uid(), time.Now()
	a.MustGpulab(a.ctx, "kubectl", "delete", "crd", "workloads.kueue.x-k8s.io", "--wait=false")
	a.eventually(t, "the kind is there again", func() bool { now := uid(); return now != "" && now != before })
	t.Logf("Kueue's Workload was a kind again after %s", time.Since(began).Round(100*time.Millisecond))
	a.eventually(t, "what runs is booked again", func() bool {
		got := a.Gpulab(a.ctx, "kubectl", "get", "workloads", "-A", "--no-headers", "-o", `custom-columns=NS:.metadata.namespace,ADMITTED:.status.conditions[?(@.type=="Admitted")].status`).Stdout
		return strings.Contains(got, "user-"+guestHandle) && strings.Contains(got, "True")
	})
	t.Logf("and what ran was booked after %s", time.Since(began).Round(100*time.Millisecond))
	if got := strings.TrimSpace(k.run(t, "print(answer + 1)")); got != "42" {
		t.Errorf("the running notebook says %q", got)
	}
	q.computers["cleo"].start(t, "gpu", "Later")
	t.Logf("and somebody else had a GPU after %s", time.Since(began).Round(100*time.Millisecond))
	q.nothingLeft(t, a)
}

// kueueKilled: nobody is let in while it is away, it is said so, and nobody
// loses their place.
func (q *line) kueueKilled(t *testing.T, a *appliance) {
	own := q.computers
	ada, cleo, more := a.browser.For(t), q.cleo.For(t), a.browser.For(t).Tab()
	atOnce(t, func() { own[adminHandle].start(t, "gpu", "First") }, func() { own[guestHandle].start(t, "gpu", "Second") })
	ada.Open(hub + "/user/" + adminHandle + "/first/lab")
	waitJupyterLab(ada, adminHandle)
	running := newKernel(ada)
	running.run(t, "answer = 41")
	launch(cleo, "gpu", "Fresh")
	cleo.WaitText("#launch-state", "It is next in line.")
	launch(more, "gpu", "More")
	more.WaitText("#launch-state", "One launch is ahead of it.")
	// Its next pod finds no machine until that has the label again.
	const label = "node-role.kubernetes.io/control-plane"
	a.MustGpulab(a.ctx, "kubectl", "label", "nodes", "--all", label+"-")
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "delete", "pod", "-l", "control-plane=controller-manager", "--force", "--grace-period=0", "--wait=false")
	cleo.WaitText("#launch-state", "Kueue, which decides who gets a GPU next, does not answer.")
	cleo.Pictures("queue-kueue-away")
	own[guestHandle].stop(t, "Second")
	// What runs goes on, and what needs no GPU starts.
	if got := strings.TrimSpace(running.run(t, "print(answer + 1)")); got != "42" {
		t.Errorf("the running notebook says %q", got)
	}
	own[guestHandle].start(t, "cpu", "Meanwhile")
	own[guestHandle].stop(t, "Meanwhile")
	cleo.WaitText("#launch-state", "does not answer.")
	a.MustGpulab(a.ctx, "kubectl", "label", "nodes", "--all", label+"=true")
	began := time.Now()
	waitJupyterLab(cleo, "cleo")
	t.Logf("from the end of that to the next one's JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))
	more.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	if got := a.running(t, "More"); got != 0 {
		t.Error("who is second was let in, too")
	}
	q.nothingLeft(t, a)
}
