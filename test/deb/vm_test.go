//go:build deb && vm

package deb

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVM is TestMachine's story in a virtual machine: with a kernel of Debian's
// own, control groups version 2 and AppArmor, and from the apt repository.
func TestVM(t *testing.T) {
	packages, newer, served := current(t), t.TempDir(), filepath.Join(t.TempDir(), "apt")
	buildVersion(t, newer, newerVersion)
	key := newKey(t)
	url := "http://" + visitorAddress + ":8080"
	makeRepository(t, packages, served, key, url)
	l := &life{machine: bootVM(t)}
	server := exec.Command(l.onVisitor()[0], append(l.onVisitor()[1:], "python3", "-m", "http.server", "--bind", visitorAddress, "--directory", served, "8080")...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	l.put(filepath.Join(served, filepath.Base(sources)), sources)
	l.install = "apt-get -q update && apt-get -q -y install gpulab"
	l.upgrade = "apt-get -q update && apt-get -q -y upgrade"
	l.tell(t, []chapter{
		{"control groups version 2", func(l *life) { l.run("test -e /sys/fs/cgroup/cgroup.controllers") }},
		{"install", (*life).installed},
		{"first cell", (*life).firstCell},
		{"restart", (*life).restarted},
		{"a newer version is published", func(l *life) { makeRepository(l.t, newer, served, key, url) }},
		{"upgrade", (*life).upgraded},
		{"reboot", (*life).rebooted},
		{"rollback", (*life).rolledBack},
		{"purge", func(l *life) {
			l.run("rm -f " + sources)
			l.before["files"] = without(l.before["files"], sources)
			l.purged()
		}},
	})
}

// rolledBack: back to the version before, with a kernel at work.
func (l *life) rolledBack() {
	l.startClock()
	processes := l.run(notebooks)
	l.run("gpulab rollback --yes")
	l.ready(time.Minute)
	l.longestPause("a rollback")
	l.sameNotebooks(processes)
	if out := l.run("gpulab version"); !strings.Contains(out, "since a rollback") {
		l.t.Errorf("after a rollback there is %s", out)
	}
}

func without(lines []string, part string) (kept []string) {
	for _, line := range lines {
		if !strings.Contains(line, part) {
			kept = append(kept, line)
		}
	}
	return kept
}

// A way to run a virtual machine: how long its boot takes at most, and how many
// times the patience of a container it needs.
type accelerator struct {
	args []string
	boot time.Duration
	slow int
}

var accelerators = []accelerator{
	{[]string{"-accel", "kvm", "-cpu", "host"}, 90 * time.Second, 3},
	{[]string{"-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,-la57"}, 10 * time.Minute, 15},
}

// bootVM starts a virtual machine with a fresh Debian, and further packages of it.
func bootVM(t *testing.T, packages ...string) machine {
	t.Helper()
	r := newRoot(t, append([]string{"systemd-sysv", "dbus", "procps", "udev", "openssh-server", "linux-image-cloud-amd64", "apparmor"}, packages...)...)
	m := newMachine(t, r)
	// The wire leads on into virtual machines.
	must(t, exec.Command("ip", "netns", "exec", m.name, "sh", "-ec", `
		ip addr flush dev eth0
		ip link add br0 type bridge
		ip link set eth0 master br0
		ip link set br0 up`))
	return m.bootAs(t, "labhead", address)
}

// bootAs starts a virtual machine with a fresh Debian on the wire, with KVM or,
// where that does not work, emulated.
func (m machine) bootAs(t *testing.T, host, at string) machine {
	t.Helper()
	tap := "tap" + at[strings.LastIndexByte(at, '.')+1:]
	must(t, exec.Command("ip", "netns", "exec", m.name, "sh", "-ec", "ip tuntap add "+tap+" mode tap; ip link set "+tap+" master br0; ip link set "+tap+" up"))
	work := t.TempDir()
	key := filepath.Join(work, "key")
	must(t, exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
	disk := m.makeDisk(t, work, key, host, at)

	// through is a command of ssh or scp, behind one that enters the visitor's network.
	through := func(program string, args ...string) []string {
		return append(append(m.onVisitor(), program, "-q", "-i", key, "-o", "StrictHostKeyChecking=no",
			"-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=60"), args...)
	}
	m.command = func(ctx context.Context, script string) *exec.Cmd {
		quoted := "'" + strings.ReplaceAll(script, "'", `'\''`) + "'"
		args := through("ssh", "root@"+at, "LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -ec "+quoted)
		return exec.CommandContext(ctx, args[0], args[1:]...)
	}
	m.put = func(from, to string) {
		m.t.Helper()
		args := through("scp", "-r", from, "root@"+at+":"+to)
		must(m.t, exec.Command(args[0], args[1:]...))
	}
	for _, how := range accelerators {
		stop, err := m.start(t, how, tap, disk)
		if err != nil {
			t.Logf("%s: %v", how.args[1], err)
			continue
		}
		t.Cleanup(stop)
		m.slow = how.slow
		t.Logf("%s is a virtual machine with %s", host, how.args[1])
		m.wait(time.Minute, isUp)
		return m
	}
	t.Fatal("no virtual machine boots here")
	return m
}

// makeDisk makes the machine's disk of its root, and returns QEMU's arguments for it.
func (m machine) makeDisk(t *testing.T, work, key, host, at string) []string {
	t.Helper()
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	m.write("/root/.ssh/authorized_keys", string(public))
	m.write("/etc/ssh/sshd_config.d/test.conf", "PermitRootLogin prohibit-password\nUseDNS no\n")
	m.write("/etc/fstab", "/dev/vda / ext4 defaults,noatime 0 1\n")
	m.write("/etc/hostname", host+"\n")
	m.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+host+"\n")
	m.write("/etc/machine-id", "")
	m.write("/etc/resolv.conf", "nameserver "+visitorAddress+"\n")
	m.write("/etc/systemd/network/10-wire.network", "[Match]\nType=ether\nKind=!*\n[Network]\nAddress="+at+"/24\nGateway="+visitorAddress+"\n")
	m.root.run(`chmod 700 /root/.ssh; chmod 600 /root/.ssh/authorized_keys
		systemctl enable systemd-networkd ssh >/dev/null 2>&1
		systemctl mask systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer systemd-tmpfiles-clean.timer >/dev/null 2>&1`)
	boot, err := filepath.Glob(filepath.Join(m.dir, "boot/vmlinuz-*"))
	if err != nil || len(boot) != 1 {
		t.Fatalf("kernels: %v, %v", boot, err)
	}
	kernel, initrd := filepath.Join(work, "kernel"), filepath.Join(work, "initrd")
	must(t, exec.Command("cp", boot[0], kernel))
	must(t, exec.Command("cp", strings.Replace(boot[0], "vmlinuz", "initrd.img", 1), initrd))
	image := filepath.Join(work, "disk.img")
	must(t, exec.Command("truncate", "-s", "16G", image))
	must(t, exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", m.dir, image))
	return []string{"-kernel", kernel, "-initrd", initrd,
		"-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off",
		"-drive", "file=" + image + ",if=virtio,format=raw,cache=unsafe", "-serial", "file:" + filepath.Join(work, "console")}
}

// start boots the machine one way, and returns how to end it.
func (m machine) start(t *testing.T, how accelerator, tap string, disk []string) (stop func(), err error) {
	t.Helper()
	args := []string{"netns", "exec", m.name, "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-m", "5120", "-smp", "2",
		"-netdev", "tap,id=wire,ifname=" + tap + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0" + strings.TrimPrefix(tap, "tap"), "-device", "virtio-rng-pci"}
	qemu := exec.Command("ip", append(append(args, how.args...), disk...)...)
	var said bytes.Buffer
	qemu.Stdout, qemu.Stderr = &said, &said
	if err := qemu.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = qemu.Wait()
		close(ended)
	}()
	stop = func() {
		_, _ = m.try("systemctl poweroff")
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			_ = qemu.Process.Kill()
			<-ended
		}
	}
	began := time.Now()
	for time.Since(began) < how.boot {
		select {
		case <-ended:
			return nil, errors.New(strings.TrimSpace(said.String()))
		case <-time.After(time.Second):
		}
		if _, err := m.try("true"); err == nil {
			t.Logf("booted after %s", time.Since(began).Round(time.Second))
			return stop, nil
		}
	}
	_ = qemu.Process.Kill()
	<-ended
	return nil, context.DeadlineExceeded
}
