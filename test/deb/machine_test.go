//go:build deb

package deb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machine is a Debian that has been booted with systemd.
type machine struct {
	root
	name string
}

// boot starts a fresh machine, which is switched off with the test.
func boot(t *testing.T) machine {
	t.Helper()
	m := machine{newRoot(t, "systemd-sysv", "dbus", "procps"), fmt.Sprintf("gpulab-deb-%d", os.Getpid())}
	// Control groups are read-only in a container of systemd's, unless somebody changes that.
	m.write("/etc/systemd/system/groups.service", `[Unit]
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'mount --make-rshared /; mount -o remount,rw /sys/fs/cgroup; for c in /sys/fs/cgroup/*/; do mount -o remount,rw,bind $c; done'
`)
	wants := filepath.Join(m.dir, "etc/systemd/system/sysinit.target.wants")
	must(t, exec.Command("mkdir", "-p", wants))
	must(t, exec.Command("ln", "-s", "../groups.service", wants+"/groups.service"))
	m.write("/etc/machine-id", "")
	m.write("/etc/hostname", "labhead\n")
	keeper := exec.Command("./machine.sh", "boot", m.name, m.dir)
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()
	t.Cleanup(func() {
		_, _ = m.try("systemctl poweroff")
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = syscall.Kill(-keeper.Process.Pid, syscall.SIGKILL)
			t.Error("the machine does not go down")
		}
		_ = exec.Command("ip", "netns", "delete", m.name).Run()
		_ = exec.Command("sh", "-c", "rmdir /sys/fs/cgroup/*/"+m.name).Run()
	})
	m.wait(time.Minute, "systemctl is-system-running")
	return m
}

// try runs a shell script on the machine.
func (m machine) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "./machine.sh", "enter", m.name, m.dir, "sh", "-ec", script).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (m machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

func (m machine) wait(limit time.Duration, script string) {
	m.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(500 * time.Millisecond) {
		out, err := m.try(script)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("%s: after %s still %v\n%s\n%s", script, limit, err, out, m.journal())
		}
	}
}

func (m machine) journal() string {
	out, _ := m.try("journalctl --no-pager -u gpulab -u gpulab-pods | tail -n 40")
	return out
}

// pod writes down every tenth of a second that it runs, and saves when it is
// asked to end; its second container does not listen.
const pod = `apiVersion: v1
kind: Pod
metadata: {name: counter, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: listens
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, -c]
    args:
    - |
      import signal, sys, time
      def end(*_):
          time.sleep(1)
          open("/out/saved", "a").write("saved\n")
          sys.exit(0)
      signal.signal(signal.SIGTERM, end)
      last = time.time()
      while True:
          time.sleep(0.1)
          now = time.time()
          open("/out/gaps", "a").write("%.3f\n" % (now - last))
          last = now
    volumeMounts: [{name: out, mountPath: /out}]
  - name: deaf
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, -c, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1e6)"]
  volumes: [{name: out, hostPath: {path: /out}}]
`

// longestGap is how long the pod stood still at most since it was asked last.
func (m machine) longestGap() string {
	m.t.Helper()
	m.wait(time.Minute, "test $(wc -l </out/gaps) -gt 20")
	return m.run("sort -n /out/gaps | tail -n 1; rm /out/gaps")
}

// TestMachine: two packages and no network make a machine a lab; restarts and an
// upgrade end no pod, a reboot ends all of them in order, and a removal keeps
// what a purge deletes.
func TestMachine(t *testing.T) {
	packages, newer := t.TempDir(), t.TempDir()
	build(t, packages, "0.0.1")
	build(t, newer, "0.0.2")
	m := boot(t)
	for folder, from := range map[string]string{"old": packages, "new": newer} {
		must(t, exec.Command("cp", "-r", from, filepath.Join(m.dir, folder)))
	}
	before := m.run("find /etc /var/lib /usr -xdev -not -path '/var/lib/dpkg*' -not -path '/var/lib/apt*' | sort")
	must(t, exec.Command("mkdir", "-m", "777", filepath.Join(m.dir, "out")))

	began := time.Now()
	m.run("apt-get -q -y install /old/*.deb")
	t.Logf("installed after %s", time.Since(began).Round(time.Second))
	if out, _ := m.try("systemctl is-enabled gpulab || systemctl is-active gpulab"); out != "disabled\ninactive" {
		t.Errorf("an installation alone: %s", out)
	}
	m.run("gpulab init --yes --gpus simulated")
	t.Logf("a lab after %s", time.Since(began).Round(time.Second))
	if out := m.run("systemctl is-enabled gpulab; systemctl is-active gpulab gpulab-pods"); out != "enabled\nactive\nactive" {
		t.Errorf("after init: %s", out)
	}
	m.run("gpulab user add ada --name Ada")
	image := m.run(`sed -n 's/.*"ref": "\(.*notebook:.*\)",/\1/p' /usr/share/gpulab/images/images.json`)
	m.write("/pod.yaml", strings.ReplaceAll(pod, "IMAGE", image))
	m.run("gpulab kubectl apply -f /pod.yaml")
	m.wait(time.Minute, "test -s /out/gaps")
	lives := func() string { return m.run("pgrep -f '[s]ignal.signal'") }
	processes := lives()

	m.run("systemctl restart gpulab")
	m.wait(time.Minute, "gpulab status")
	t.Logf("longest gap over a restart: %s s", m.longestGap())
	m.run("apt-get -q -y install /new/*.deb")
	m.wait(time.Minute, "gpulab status")
	t.Logf("longest gap over an upgrade: %s s", m.longestGap())
	if now := lives(); now != processes {
		t.Errorf("a restart or an upgrade ended a pod: processes %q, before %q", now, processes)
	}
	if starts := m.run("journalctl -o cat -u gpulab | grep -c 'Started gpulab'"); starts != "3" {
		t.Errorf("gpulab was started %s times by init, a restart and an upgrade", starts)
	}

	id := m.run("cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22")
	began = time.Now()
	m.run("systemctl reboot")
	m.wait(2*time.Minute, "systemctl is-system-running && test \"$(cut -d' ' -f22 /proc/1/stat)\" != "+strings.Fields(id)[1])
	t.Logf("down and up again after %s", time.Since(began).Round(time.Second))
	if saved, err := os.ReadFile(filepath.Join(m.dir, "out/saved")); err != nil || string(saved) != "saved\n" {
		t.Errorf("a pod had no time to save: %q, %v", saved, err)
	}
	if out := m.run("journalctl -b -1 -o cat -u gpulab-pods"); !strings.Contains(out, "processes were killed after 10s") {
		t.Errorf("nobody ended pods in order:\n%s", out)
	}
	m.wait(2*time.Minute, "gpulab status")
	t.Logf("a lab again after %s", time.Since(began).Round(time.Second))

	m.run("apt-get -q -y remove gpulab gpulab-images")
	if out, _ := m.try("ps -eo comm= | grep -E '^(gpulab|k3s|containerd|python3)' || iptables-save | grep KUBE || nft list tables | grep gpulab || ipset list -name"); out != "" {
		t.Errorf("a removal leaves:\n%s", out)
	}
	m.run("apt-get -q -y install /new/*.deb && gpulab init --yes")
	if out := m.run("gpulab user list"); !strings.Contains(out, "ada") {
		t.Errorf("a removal did not keep accounts:\n%s", out)
	}
	m.run("mkdir -p /var/lib/gpulab/homes && echo work >/var/lib/gpulab/homes/mine")
	m.run("apt-get -q -y purge gpulab gpulab-images")
	after := m.run("find /etc /var/lib /usr -xdev -not -path '/var/lib/dpkg*' -not -path '/var/lib/apt*' -not -path '/var/lib/gpulab/homes/*' | sort")
	want := strings.Fields(before + "\n/var/lib/gpulab\n/var/lib/gpulab/homes")
	for _, line := range changes(set(want), set(strings.Fields(after))) {
		t.Error("the purge: " + line)
	}
	if out := m.run("cat /var/lib/gpulab/homes/mine"); out != "work" {
		t.Errorf("a home holds %q", out)
	}
}

func set(lines []string) map[string]string {
	out := map[string]string{}
	for _, line := range lines {
		out[line] = ""
	}
	return out
}
