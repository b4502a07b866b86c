//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// diagnosis is what `gpulab doctor --json` prints.
type diagnosis struct {
	OK       bool
	Unseen   int
	Findings []struct{ Probe, State, Seen, Means, Mend string }
}

// of returns what stands for a probe: its state, what was seen, and the first
// command that is to mend it.
func (d diagnosis) of(t *testing.T, probe string) (state, seen, command string) {
	t.Helper()
	for _, f := range d.Findings {
		if f.Probe == probe {
			if parts := strings.Split(f.Mend, "`"); len(parts) > 1 {
				command = parts[1]
			}
			return f.State, f.Seen, command
		}
	}
	t.Fatalf("the doctor says nothing of %s: %+v", probe, d)
	return "", "", ""
}

// doctor runs the doctor and holds its exit code against what it prints.
func (a *appliance) doctor(t *testing.T, probes ...string) diagnosis {
	t.Helper()
	result := a.Gpulab(a.ctx, append([]string{"doctor", "--json"}, probes...)...)
	return a.diagnosis(t, result)
}

func (a *appliance) diagnosis(t *testing.T, result lab.Result) (d diagnosis) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.Stdout), &d); err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", result.Code, err, result.Stdout, result.Stderr)
	}
	if d.OK != (result.Code == 0) || !d.OK && result.Code != exitPreflight {
		t.Errorf("exit code %d, but it prints\n%s", result.Code, result.Stdout)
	}
	return d
}

// mend runs what the doctor says, and waits until it says that all is well.
func (a *appliance) mend(t *testing.T, probe, command string) {
	t.Helper()
	if command == "" {
		t.Fatalf("nothing mends %s", probe)
	}
	t.Logf("%s: %s", probe, command)
	a.MustRun(a.ctx, "sh", "-ec", command)
	a.eventually(t, "the probe "+probe+" is well", func() bool {
		state, _, _ := a.doctor(t, probe).of(t, probe)
		return state == "ok"
	})
}

// asNobody runs gpulab without any right.
func (a *appliance) asNobody(args ...string) lab.Result {
	return a.Run(a.ctx, "setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", a.Binary()}, args...)...)
}

// testDoctorWithoutLab: a machine that is none yet has nothing to be mended.
func testDoctorWithoutLab(t *testing.T, a *appliance) {
	d := a.doctor(t)
	if !d.OK {
		t.Errorf("a test host is not good enough for a lab: %+v", d)
	}
	if state, seen, _ := d.of(t, "daemon"); state != "ok" || !strings.Contains(seen, "not a lab yet") {
		t.Errorf("%s: %s", state, seen)
	}
}

// testDoctor: on a lab that is well nothing has to be mended. What is broken
// then is named, and well again after the command that the doctor gives.
func testDoctor(t *testing.T, a *appliance) {
	t.Run("well", func(t *testing.T) {
		result := a.Gpulab(a.ctx, "doctor")
		t.Log(result.Took, "\n"+result.Stdout)
		if result.Code != 0 || strings.Contains(result.Stdout, "✗") || !strings.Contains(result.Stdout, "\nNothing has to be mended") {
			t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		for _, line := range strings.Split(strings.TrimSpace(a.MustGpulab(a.ctx, "doctor", "--list")), "\n")[1:] {
			if name := strings.Fields(line)[0]; !strings.Contains(result.Stdout, " "+name+" ") {
				t.Errorf("nothing is said of %s", name)
			}
		}
	})
	t.Run("as nobody", func(t *testing.T) {
		result := a.asNobody("doctor")
		if result.Code != 0 || !strings.Contains(result.Stdout, "? firewall") || !strings.Contains(result.Stdout, "sudo gpulab doctor") {
			t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		if d := a.diagnosis(t, a.asNobody("doctor", "--json")); !d.OK || d.Unseen < 4 {
			t.Errorf("without rights: %+v", d)
		}
	})
	t.Run("firewall", func(t *testing.T) { a.brokenFirewall(t) })
	t.Run("certificate", func(t *testing.T) { a.brokenCertificate(t) })
	t.Run("daemon killed", func(t *testing.T) {
		a.Kill(a.ctx, "KILL", "gpulab")
		d := a.doctor(t)
		state, seen, command := d.of(t, "daemon")
		if state != "fail" || !strings.Contains(seen, "gpulab does not run") {
			t.Errorf("%s: %s", state, seen)
		}
		// k3s goes on, and is no stranger on its ports.
		for _, f := range d.Findings {
			if f.State == "fail" && f.Probe != "daemon" {
				t.Errorf("%s: %s", f.Probe, f.Seen)
			}
		}
		a.mend(t, "daemon", command)
	})
	t.Run("daemon hangs", func(t *testing.T) {
		pod := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-o", "name")
		a.Kill(a.ctx, "STOP", "gpulab")
		state, seen, command := a.doctor(t, "daemon").of(t, "daemon")
		if state != "fail" || !strings.Contains(seen, "does not answer") {
			t.Errorf("%s: %s", state, seen)
		}
		a.mend(t, "daemon", command)
		if now := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-o", "name"); now != pod {
			t.Errorf("the pods were\n%s\nand are\n%s", pod, now)
		}
	})
	a.waitReady(t)
	if d := a.doctor(t); !d.OK {
		t.Errorf("in the end: %+v", d)
	}
}

// brokenFirewall: somebody has set up a firewall and not thought of the lab.
func (a *appliance) brokenFirewall(t *testing.T) {
	reaches := func() bool {
		return a.VisitorCommand(a.ctx, "curl", "-ksS", "--max-time", "3", "-o", "/dev/null", pages).Run() == nil
	}
	a.MustRun(a.ctx, "nft", "add table inet office; add chain inet office input { type filter hook input priority 10; policy accept; }; add rule inet office input iifname eth0 tcp dport != 22 drop")
	t.Cleanup(func() { a.MustRun(a.ctx, "nft", "delete table inet office") })
	if reaches() {
		t.Error("the pages are reached through a closed firewall: the test proves nothing")
	}
	d := a.doctor(t)
	state, seen, command := d.of(t, "firewall")
	if state != "fail" || !strings.Contains(seen, "ports 443, 8443 and 2022") {
		t.Errorf("%s: %s", state, seen)
	}
	a.MustRun(a.ctx, "sh", "-ec", command)
	if !reaches() {
		t.Error("after the doctor's command the pages are not reached")
	}
	state, seen, command = a.doctor(t, "firewall").of(t, "firewall")
	if state != "fail" || !strings.Contains(seen, "notebooks (ports 21000 to 21999)") {
		t.Errorf("with the pages alone open: %s: %s", state, seen)
	}
	a.MustRun(a.ctx, "sh", "-ec", command)
	state, seen, command = a.doctor(t, "firewall").of(t, "firewall")
	if state != "warn" || !strings.Contains(seen, "services of notebooks (ports 8500 to 8699)") {
		t.Errorf("with the pages and notebooks open: %s: %s", state, seen)
	}
	a.mend(t, "firewall", command)
}

// brokenCertificate: somebody has put their own authority into the lab's place.
func (a *appliance) brokenCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a.WriteFile("/var/lib/gpulab/tls/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	d := a.doctor(t)
	state, seen, command := d.of(t, "webcertificates")
	if state != "fail" || !strings.Contains(seen, "do not belong together") {
		t.Errorf("%s: %s", state, seen)
	}
	if state, _, _ := d.of(t, "pages"); state != "fail" {
		t.Errorf("the pages are %s, signed by another authority than the one on disk", state)
	}
	a.mend(t, "webcertificates", command)
	if now := a.MustGpulab(a.ctx, "ca"); !slices.Equal([]byte(now), a.ca) {
		t.Errorf("the authority is another than before:\n%s", now)
	}
}
