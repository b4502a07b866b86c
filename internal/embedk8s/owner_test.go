package embedk8s

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// anEmptyMachine has folders of a machine in a temporary folder, and data folders in it.
func anEmptyMachine(t *testing.T) (m ground, lab func(name string) string) {
	t.Helper()
	m = ground{t.TempDir()}
	return m, func(name string) string {
		dir := filepath.Join(m.root, "srv", name)
		put(t, filepath.Join(dir, "gpulab.db"))
		return dir
	}
}

func put(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// ran leaves in a data folder what a start of k3s leaves there.
func ran(t *testing.T, dir string) {
	t.Helper()
	put(t, filepath.Join(dir, "k3s/agent/containerd/x"), filepath.Join(Current(dir), "k3s"))
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func wantMade(t *testing.T, m ground, dir string, want bool, says string) {
	t.Helper()
	made, err := m.made(dir)
	switch {
	case says == "" && (err != nil || made != want):
		t.Errorf("%s: made %v, %v; want %v", filepath.Base(dir), made, err, want)
	case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
		t.Errorf("%s: made %v, %v; want an error with %q", filepath.Base(dir), made, err, says)
	}
}

func TestWhoseKubernetesTheMachineHas(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a, b := lab("a"), lab("b")
	wantMade(t, m, a, false, "") // no k3s ever ran
	if err := m.claim(a); err != nil {
		t.Fatal(err)
	}
	ran(t, a)
	wantMade(t, m, a, true, "")
	wantMade(t, m, b, false, "") // the restored lab of another data folder
	if err := m.claim(b); err == nil || !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), "gpulab reset") {
		t.Errorf("the machine of another lab may be taken: %v", err)
	}
	// An older gpulab ran from that folder, or it is a copy of the other.
	ran(t, b)
	wantMade(t, m, b, false, a)
	c := filepath.Join(m.root, "srv/c")
	if err := os.CopyFS(c, os.DirFS(a)); err != nil {
		t.Fatal(err)
	}
	wantMade(t, m, c, false, a)
	wantMade(t, m, a, true, "")
	// Moved, it is still the same lab, and the machine's record follows with the next start.
	moved := filepath.Join(m.root, "srv/moved")
	if err := os.RemoveAll(c); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a, moved); err != nil {
		t.Fatal(err)
	}
	wantMade(t, m, moved, true, "")
	if err := m.claim(moved); err != nil {
		t.Fatal(err)
	}
	wantMade(t, m, b, false, moved)
	// Taken off, the machine is free; what is kept of the lab claims nothing.
	if err := m.released(moved, false); err != nil {
		t.Fatal(err)
	}
	wantMade(t, m, moved, false, "")
	if err := m.claim(b); err != nil {
		t.Fatal(err)
	}
	// Deleted by hand, a lab keeps nobody away.
	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}
	if err := m.claim(moved); err != nil {
		t.Fatal(err)
	}
	wantMade(t, m, moved, true, "")
}

// A lab of a gpulab before these records has none, and is taken off all the same, until a reset has taken its runtime.
func TestALabWithoutRecords(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a := lab("a")
	ran(t, a)
	wantMade(t, m, a, true, "")
	if err := os.RemoveAll(filepath.Join(a, "bin")); err != nil { // reset --keep-data
		t.Fatal(err)
	}
	wantMade(t, m, a, false, "")
	ran(t, a)
	put(t, filepath.Join(m.root, "var/lib/kubelet/pods/x"), filepath.Join(m.root, "etc/rancher/node/password"))
	if err := m.claim(a); err != nil {
		t.Fatal(err)
	}
	if list, err := before(a); err != nil || len(list) > 0 {
		t.Errorf("its own is taken for somebody else's: %v, %v", list, err)
	}
}

// An older gpulab that has reset the machine knows no records: the one it leaves claims nothing.
func TestResetByAnOlderVersion(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a := lab("a")
	ran(t, a)
	if err := m.claim(a); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(m.root, "var/lib/kubelet"), filepath.Join(a, "bin")} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	wantMade(t, m, a, false, "")
}

func TestADamagedRecord(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a := lab("a")
	put(t, filepath.Join(m.root, ownerFile))
	wantMade(t, m, a, false, "is damaged")
}

// What was on the machine before stays, and so does what other programs keep in the same folders.
func TestRemoveShared(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a := lab("a")
	at := func(paths ...string) (list []string) {
		for _, p := range paths {
			list = append(list, filepath.Join(m.root, p))
		}
		return list
	}
	theirs := at("etc/rancher/rke2/config.yaml", "etc/rancher/node/password", "var/lib/kubelet/config.yaml", "var/log/pods/old/0.log",
		"var/lib/cni/networks/podman/10.88.0.2", "var/lib/cni/results/podman-1-eth0")
	put(t, theirs...)
	if err := m.claim(a); err != nil {
		t.Fatal(err)
	}
	ran(t, a)
	later := at("var/lib/cni/networks/podman/10.88.0.3", "etc/rancher/rke2/rke2.yaml")
	put(t, later...)
	ours := at("run/k3s/containerd/x", "run/flannel/subnet.env", "etc/rancher/k3s/x", "var/lib/kubelet/pods/1/x", "var/log/pods/new/0.log", "var/log/containers/x.log",
		"var/lib/cni/networks/cbr0/10.42.0.2", "var/lib/cni/results/cbr0-1-eth0", "var/lib/cni/flannel/1")
	put(t, ours...)
	for range 2 { // the first one is interrupted before it is done
		list, err := before(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.removeShared(list, false); err != nil {
			t.Fatal(err)
		}
		wantMade(t, m, a, true, "")
	}
	if err := m.released(a, false); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Concat(theirs, later) {
		if !there(path) {
			t.Errorf("taken away: %s", path)
		}
	}
	for _, path := range append(ours, at(ownerFile, "run/k3s", "run/flannel", "var/log/containers")...) {
		if there(path) {
			t.Errorf("left: %s", path)
		}
	}
}

// With nothing of anybody else's, nothing is left; the node's password stays for a cluster that goes on.
func TestRemoveSharedOfALonelyLab(t *testing.T) {
	m, lab := anEmptyMachine(t)
	a := lab("a")
	for _, keep := range []bool{true, false} {
		if err := m.claim(a); err != nil {
			t.Fatal(err)
		}
		ran(t, a)
		password := filepath.Join(m.root, "etc/rancher/node/password")
		put(t, password, filepath.Join(m.root, "var/lib/kubelet/pods/1/x"), filepath.Join(m.root, "var/lib/cni/results/cbr0-1"))
		list, err := before(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.removeShared(list, keep); err != nil {
			t.Fatal(err)
		}
		if err := m.released(a, false); err != nil {
			t.Fatal(err)
		}
		if there(password) != keep {
			t.Errorf("keep %v: the password is there: %v", keep, there(password))
		}
		for _, dir := range []string{"var/lib/kubelet", "var/lib/cni"} {
			if there(filepath.Join(m.root, dir)) {
				t.Errorf("keep %v: %s is left", keep, dir)
			}
		}
	}
	if there(filepath.Join(m.root, "etc/rancher")) {
		t.Error("etc/rancher is left")
	}
}

// Rules of other programs' CNI networks stay.
func TestRulesOfPodman(t *testing.T) {
	const saved = `*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-podman1 - [0:0]
:CNI-DN-cbr01 - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A PREROUTING -j KUBE-SERVICES
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podman\" id: \"1\"" -m multiport --dports 80 -j CNI-DN-podman1
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"cbr0\" id: \"2\"" -m multiport --dports 81 -j CNI-DN-cbr01
-A CNI-DN-podman1 -p tcp -j DNAT --to-destination 10.88.0.2:80
-A CNI-DN-cbr01 -p tcp -j DNAT --to-destination 10.42.0.2:80
COMMIT
`
	got, changed := withoutOurRules(saved)
	if !changed || strings.Contains(got, "cbr0") || strings.Contains(got, "KUBE") || strings.Count(got, "podman1") != 3 || strings.Count(got, "CNI-HOSTPORT-DNAT") != 3 {
		t.Errorf("%s", got)
	}
	var alone strings.Builder
	for line := range strings.Lines(saved) {
		if !strings.Contains(line, "podman") {
			alone.WriteString(line)
		}
	}
	if got, _ := withoutOurRules(alone.String()); got != "*nat\nCOMMIT\n" {
		t.Errorf("%s", got)
	}
}

// A restore keeps the node's password and loses Kubernetes' state: the lab that starts from it still takes its own
// password off in the end, and nobody else's.
func TestNodePasswordAfterARestore(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		m := ground{t.TempDir()}
		data, password := filepath.Join(m.root, "srv/lab"), filepath.Join(m.root, "etc/rancher", nodeFolder, "password")
		write := func() {
			if err := errors.Join(os.MkdirAll(filepath.Dir(password), 0o700), os.WriteFile(password, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if foreign {
			write()
		}
		if err := errors.Join(os.MkdirAll(data, 0o700), m.claim(data)); err != nil {
			t.Fatal(err)
		}
		write()
		if err := errors.Join(m.released(data, true), m.claim(data)); err != nil {
			t.Fatal(err)
		}
		kept, err := before(data)
		if err != nil || slices.Contains(kept, "/etc/rancher/node") != foreign {
			t.Errorf("foreign %v: kept %v, %v", foreign, kept, err)
		}
	}
}
