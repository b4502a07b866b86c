//go:build deb && vm

package deb

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// virtual is what a virtual machine is made of.
type virtual struct {
	machine
	work string // folder with its disk, and the kernel and the initial file system of its Debian
	link string // its end of the wire
	mac  string
}

var inUserMode = flag.Bool("usermode", false, "run virtual machines as User-Mode Linux: fast without KVM, but not Debian's own kernel")

// A way to run a virtual machine: how long its boot takes at most, and how many
// times the patience of a container it needs.
type emulator struct {
	name    string
	boot    time.Duration
	slow    int
	prepare func(*testing.T)         // this machine, for as long as the test runs
	wire    string                   // shell script that makes the link $1
	args    func(v virtual) []string // the command
}

var (
	kvm = emulator{"KVM", 90 * time.Second, 3, asItIs, "ip tuntap add $1 mode tap; ip link set $1 master br0", func(v virtual) []string {
		return v.qemu("-accel", "kvm", "-cpu", "host")
	}}
	// Debian's own kernel everywhere, but every instruction of it costs ten.
	emulated = emulator{"QEMU without KVM", 10 * time.Minute, 15, asItIs, kvm.wire, func(v virtual) []string {
		return v.qemu("-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,-la57")
	}}
	// A kernel of our own, whose programs run as fast as this machine's. It takes no
	// packet that is to be cut into several.
	userMode = emulator{"User-Mode Linux", 2 * time.Minute, 6, manyMappings, `
		ip link add $1 type veth peer name at-$1
		ip link set at-$1 master br0 up
		for link in $1 at-$1; do ip link set $link gso_max_size 1500 gso_max_segs 1; done`, virtual.userMode}
)

func asItIs(*testing.T) {}

func (v virtual) qemu(how ...string) []string {
	return append([]string{"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-m", "5120", "-smp", "2",
		"-netdev", "tap,id=wire,ifname=" + v.link + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=wire,mac=" + v.mac, "-device", "virtio-rng-pci",
		"-kernel", filepath.Join(v.work, "kernel"), "-initrd", filepath.Join(v.work, "initrd"),
		"-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off",
		"-drive", "file=" + v.disk() + ",if=virtio,format=raw,cache=unsafe", "-serial", "file:" + filepath.Join(v.work, "console")}, how...)
}

func (v virtual) userMode() []string {
	return []string{userModeKernel(v.t), "mem=5120M", "ncpus=2", "seccomp=on", "ubd0=" + v.disk(), "root=/dev/ubda", "rw",
		"vec0:transport=raw,ifname=" + v.link + ",depth=128,gro=0,mac=" + v.mac, "net.ifnames=0",
		"con=null", "con0=null,fd:1", "console=tty0", "umid=machine", "uml_dir=" + v.work}
}

func (v virtual) disk() string { return filepath.Join(v.work, "disk.img") }

// bootVM starts a virtual machine with a fresh Debian, and further packages of
// it, in the first of these ways that works here.
func bootVM(t *testing.T, ways []emulator, packages ...string) machine {
	t.Helper()
	r := newRoot(t, append([]string{"systemd-sysv", "dbus", "procps", "udev", "openssh-server", "linux-image-cloud-amd64", "apparmor"}, packages...)...)
	m := newMachine(t, r)
	// The wire leads on into virtual machines.
	must(t, exec.Command("ip", "netns", "exec", m.name, "sh", "-ec", `
		ip addr flush dev eth0
		ip link add br0 type bridge
		ip link set eth0 master br0
		ip link set br0 up`))
	return m.bootAs(t, ways, "labhead", address)
}

// bootAs starts a virtual machine with a fresh Debian on the wire.
func (m machine) bootAs(t *testing.T, ways []emulator, host, at string) machine {
	t.Helper()
	number := at[strings.LastIndexByte(at, '.')+1:]
	v := virtual{machine: m, work: t.TempDir(), link: "tap" + number, mac: "52:54:00:00:00:0" + number}
	key := filepath.Join(v.work, "key")
	must(t, exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
	v.makeDisk(key, host, at)

	// through is a command of ssh or scp, behind one that enters the visitor's network.
	through := func(program string, args ...string) []string {
		return append(append(m.onVisitor(), program, "-q", "-i", key, "-o", "StrictHostKeyChecking=no",
			"-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=60"), args...)
	}
	v.command = func(ctx context.Context, script string) *exec.Cmd {
		quoted := "'" + strings.ReplaceAll(script, "'", `'\''`) + "'"
		args := through("ssh", "root@"+at, "LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -ec "+quoted)
		return exec.CommandContext(ctx, args[0], args[1:]...)
	}
	v.put = func(from, to string) {
		v.t.Helper()
		args := through("scp", "-r", from, "root@"+at+":"+to)
		must(v.t, exec.Command(args[0], args[1:]...))
	}
	if *inUserMode {
		ways = []emulator{userMode}
	}
	for _, way := range ways {
		way.prepare(t)
		stop, err := v.start(way)
		if err != nil {
			t.Logf("%s: %v", way.name, err)
			continue
		}
		t.Cleanup(stop)
		v.slow = way.slow
		t.Logf("%s is a virtual machine with %s", host, way.name)
		v.wait(time.Minute, isUp)
		return v.machine
	}
	t.Fatal("no virtual machine boots here")
	return m
}

// makeDisk makes the machine's disk of its root, and takes the kernel out of it.
func (v virtual) makeDisk(key, host, at string) {
	v.t.Helper()
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		v.t.Fatal(err)
	}
	v.write("/root/.ssh/authorized_keys", string(public))
	v.write("/etc/ssh/sshd_config.d/test.conf", "PermitRootLogin prohibit-password\nUseDNS no\n")
	v.write("/etc/hostname", host+"\n")
	v.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+host+"\n")
	v.write("/etc/machine-id", "")
	v.write("/etc/resolv.conf", "nameserver "+visitorAddress+"\n")
	v.write("/etc/systemd/network/10-wire.link", "[Match]\nOriginalName=vec0\n[Link]\nName=eth0\n")
	v.write("/etc/systemd/network/10-wire.network", "[Match]\nName=eth0\n[Network]\nAddress="+at+"/24\nGateway="+visitorAddress+"\n")
	v.root.run(`chmod 700 /root/.ssh; chmod 600 /root/.ssh/authorized_keys
		systemctl enable systemd-networkd ssh >/dev/null 2>&1
		systemctl mask systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer systemd-tmpfiles-clean.timer >/dev/null 2>&1`)
	boot, err := filepath.Glob(filepath.Join(v.dir, "boot/vmlinuz-*"))
	if err != nil || len(boot) != 1 {
		v.t.Fatalf("kernels: %v, %v", boot, err)
	}
	must(v.t, exec.Command("cp", boot[0], filepath.Join(v.work, "kernel")))
	must(v.t, exec.Command("cp", strings.Replace(boot[0], "vmlinuz", "initrd.img", 1), filepath.Join(v.work, "initrd")))
	must(v.t, exec.Command("truncate", "-s", "16G", v.disk()))
	must(v.t, exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", v.dir, v.disk()))
}

// start boots the machine one way, and returns how to end it.
func (v virtual) start(way emulator) (stop func(), err error) {
	v.t.Helper()
	must(v.t, exec.Command("ip", "netns", "exec", v.name, "sh", "-ec",
		"ip link del $1 2>/dev/null || true\n"+way.wire+"\nip link set $1 up", "sh", v.link))
	args := append([]string{"netns", "exec", v.name}, way.args(v)...)
	runs := exec.Command("ip", args...)
	var said bytes.Buffer
	runs.Stdout, runs.Stderr = &said, &said
	if err := runs.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = runs.Wait()
		close(ended)
	}()
	kill := func() {
		_ = runs.Process.Kill()
		<-ended
	}
	stop = func() {
		_, _ = v.try("systemctl poweroff")
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			kill()
		}
	}
	began := time.Now()
	for time.Since(began) < way.boot {
		select {
		case <-ended:
			return nil, errors.New(strings.TrimSpace(said.String()))
		case <-time.After(time.Second):
		}
		if _, err := v.try("true"); err == nil {
			v.t.Logf("booted after %s", time.Since(began).Round(time.Second))
			return stop, nil
		}
	}
	kill()
	return nil, context.DeadlineExceeded
}
