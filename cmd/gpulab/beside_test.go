package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// inHost tells a test that it runs on a test host.
const inHost = "GPULAB_TEST_IN_HOST"

// anotherKubernetes gives a test host what a Kubernetes makes on a machine: files, mounts, interfaces, rules, a network
// namespace, and a pod that runs.
const anotherKubernetes = `
mkdir -p /run/k3s/containerd/rootfs /run/flannel /var/lib/cni/networks/cbr0 /var/lib/kubelet/pods/1/volume /etc/rancher/node /etc/rancher/k3s /var/log/pods/1 /var/log/containers /run/containerd/runc/k8s.io/1
for file in /run/flannel/subnet.env /var/lib/cni/networks/cbr0/10.42.0.2 /var/lib/kubelet/pods/1/x /etc/rancher/node/password /etc/rancher/k3s/k3s.yaml /var/log/pods/1/0.log /var/log/containers/1.log; do
  echo theirs >$file
done
mount -t tmpfs theirs /run/k3s/containerd/rootfs
mount -t tmpfs theirs /var/lib/kubelet/pods/1/volume
ip link add cni0 type bridge
ip link set cni0 up
ip netns add cni-1
for save in iptables ip6tables; do
  $save -t nat -N KUBE-SERVICES
  $save -t nat -A PREROUTING -j KUBE-SERVICES
  $save -N FLANNEL-FWD
  $save -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
done
nft add table ip gpulab
nft add chain ip gpulab notebooks
mkdir /run/other && cp /bin/sleep /run/other/k3s
for groups in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ -e $groups/cgroup.procs ] && mkdir -p $groups/kubepods/pod1 && pods=$groups/kubepods/pod1 || true
done
sh -c "echo \$\$ >$pods/cgroup.procs && exec setsid /run/other/k3s 3600" >/dev/null 2>&1 </dev/null &
for i in $(seq 100); do pgrep -x k3s >/dev/null && exit; sleep 0.05; done
exit 1`

// A machine that has another Kubernetes keeps all of it whatever is done to a data folder whose k3s never ran there. The
// commands run on a test host, and so do all the other tests here that restore, go back, or end something.
func TestBesideAnotherKubernetes(t *testing.T) {
	needRoot(t)
	if os.Getenv(inHost) != "" {
		l, _ := backedUp(t)
		if code, out, errOut := l.run(t, "end-pods"); code != exitOK || !strings.Contains(out, "No lab runs") {
			t.Errorf("end-pods: exit code %d\n%s%s", code, out, errOut)
		}
		if code, out, errOut := l.run(t, "reset", "--yes"); code != exitOK {
			t.Errorf("reset: exit code %d\n%s%s", code, out, errOut)
		}
		if _, err := os.Lstat(l.data); err == nil {
			t.Error("the data folder is still there")
		}
		l.checkRefused(t)
		return
	}
	bin := t.TempDir()
	program, err := os.ReadFile(os.Args[0])
	mustDo(t, err)
	mustDo(t, os.WriteFile(filepath.Join(bin, "gpulab"), program, 0o755))
	t.Setenv("GPULAB_BIN", bin)
	host := lab.New(t)
	host.MustRun(t.Context(), "bash", "-euc", anotherKubernetes)
	before := host.Snapshot(t.Context())
	tests := host.Command(t.Context(), host.Binary(), "-test.run", "^(TestRestore|TestBackup|TestRollback|TestBesideAnotherKubernetes$)")
	tests.Env = append(tests.Env, inHost+"=yes")
	out, err := tests.CombinedOutput()
	if err != nil {
		t.Errorf("the tests on the host: %v\n%s", err, out)
	}
	after := host.Snapshot(t.Context())
	if gone := after.Added(before); len(gone) > 0 {
		t.Errorf("taken away:\n%s", strings.Join(gone, "\n"))
	}
	if left := before.Added(after); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}

// checkRefused lets the k3s of the data folder have run here, as with a gpulab that left no records: it is taken off only
// when no other Kubernetes runs.
func (l resting) checkRefused(t *testing.T) {
	t.Helper()
	mustDo(t, os.MkdirAll(filepath.Join(l.data, "bin", "current"), 0o755))
	mustDo(t, os.MkdirAll(filepath.Join(l.data, "k3s"), 0o755))
	mustDo(t, os.MkdirAll(filepath.Dir(l.config), 0o755))
	mustDo(t, os.WriteFile(l.config, []byte("dataDir: "+l.data+"\n"), 0o644))
	for _, args := range [][]string{{"reset", "--yes"}, {"end-pods"}} {
		code, out, errOut := l.run(t, args...)
		if code != exitPreflight || !strings.Contains(errOut, "Another Kubernetes runs here: k3s") || !strings.Contains(errOut, "Then run this again") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit code %d\n%s%s", args[0], code, out, errOut)
		}
	}
	if _, err := os.Lstat(filepath.Join(l.data, "k3s")); err != nil {
		t.Errorf("what was refused has deleted something: %v", err)
	}
}
