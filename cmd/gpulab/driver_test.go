package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/gpulab/gpulab/internal/config"
)

// privateRoot is this machine's file system under an overlay: with its real apt and dpkg, another /proc and /sys, and a
// package archive of its own.
type privateRoot struct {
	t       *testing.T
	dir     string // of the root, in a mount namespace of its own
	keeper  int    // a process in it
	version int    // of the driver in the archive
}

// kernel is what runs on it; the driver's packages are called as in Debian 12.
const kernel = "6.1.0-40-amd64"

func newPrivateRoot(t *testing.T) *privateRoot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a root folder of its own needs root")
	}
	if release, _ := os.ReadFile("/etc/os-release"); !bytes.Contains(release, []byte("VERSION_CODENAME=bookworm")) {
		t.Skip("the packages of this test are called as in Debian 12")
	}
	base, err := os.MkdirTemp("/var/tmp", "gpulab-root-")
	if err != nil {
		t.Fatal(err)
	}
	r := &privateRoot{t: t, dir: filepath.Join(base, "root")}
	script := `set -e
cd "$0"; mkdir upper work root
mount --make-rprivate /
mount -t overlay -o lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work overlay root
mount --rbind /dev root/dev
echo ready
exec cat >/dev/null`
	keeper := exec.Command("unshare", "-m", "sh", "-c", script, base)
	keeper.Stderr = os.Stderr
	stdin, err := keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := keeper.StdoutPipe()
	if err == nil {
		err = keeper.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = keeper.Wait() // its mounts end with it
		os.RemoveAll(base)
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("no root folder of its own: %v", err)
	}
	r.keeper = keeper.Process.Pid

	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	r.write("/usr/bin/gpulab", string(self), 0o755)
	r.mustRun("rm", "-rf", "/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/var/lib/apt/lists", "/var/lib/gpulab", "/etc/gpulab")
	r.write("/etc/apt/apt.conf.d/99unsigned", "Acquire::AllowInsecureRepositories \"true\";\nAPT::Get::AllowUnauthenticated \"true\";\nAcquire::Languages \"none\";\nAcquire::Retries \"0\";\n", 0o644)
	r.write("/proc/sys/kernel/osrelease", kernel+"\n", 0o644)
	r.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n", 0o644)
	r.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n", 0o644)
	r.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x2684\n", 0o644)
	// The kernel's part: it takes the module of the packages, and with Secure Boot only one whose key is enrolled.
	r.write("/usr/local/sbin/modprobe", `#!/bin/sh
version=$(cat /lib/modules/`+kernel+`/updates/dkms/nvidia-current.ko) || exit 1
if [ -e /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c ] && ! cmp -s /sys/firmware/efi/mok-variables/MokListRT /var/lib/dkms/mok.pub; then
  echo "modprobe: ERROR: could not insert '$1': Key was rejected by service" >&2; exit 1
fi
mkdir -p /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $version  Mon Jul 14 19:53:45 UTC 2025" >/proc/driver/nvidia/version
`, 0o755)
	r.archive(1)
	return r
}

// path is where a file of the root is seen from here.
func (r *privateRoot) path(p string) string {
	return filepath.Join("/proc", strconv.Itoa(r.keeper), "root", r.dir, p)
}

func (r *privateRoot) write(path, content string, mode os.FileMode) {
	r.t.Helper()
	err := os.MkdirAll(filepath.Dir(r.path(path)), 0o755)
	if err == nil {
		err = os.WriteFile(r.path(path), []byte(content), mode)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *privateRoot) exists(path string) bool {
	_, err := os.Stat(r.path(path))
	return err == nil
}

func (r *privateRoot) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(r.keeper), "--mount", "--", "chroot", r.dir, name}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", beGpulab + "=1"}
	cmd.Dir = "/"
	return cmd
}

func (r *privateRoot) mustRun(name string, args ...string) string {
	r.t.Helper()
	out, err := r.command(name, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// gpulab runs a command line of gpulab there, without a terminal.
func (r *privateRoot) gpulab(args ...string) (out string, code int) {
	r.t.Helper()
	cmd := r.command("/usr/bin/gpulab", args...)
	data, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return string(data), cmd.ProcessState.ExitCode()
}

// says wants an exit code and words of a command line.
func (r *privateRoot) says(code int, words []string, args ...string) string {
	r.t.Helper()
	out, got := r.gpulab(args...)
	if got != code {
		log, _ := os.ReadFile(r.path("/var/lib/gpulab/log/driver.log"))
		r.t.Fatalf("gpulab %v: exit code %d, want %d\n%s\n%s", args, got, code, out, log)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			r.t.Errorf("gpulab %v does not say %q:\n%s", args, w, out)
		}
	}
	return out
}

func (r *privateRoot) kind() string {
	r.t.Helper()
	var s struct{ Kind string }
	if err := json.Unmarshal([]byte(r.says(0, nil, "driver", "--json")), &s); err != nil {
		r.t.Fatal(err)
	}
	return s.Kind
}

// installed is the version of a package, "" when it is not properly there.
func (r *privateRoot) installed(name string) string {
	out, _ := r.command("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name).Output()
	version, _ := strings.CutPrefix(string(out), "installed ")
	return version
}

func (r *privateRoot) driverVersion() string { return fmt.Sprintf("535.%d.01", 100+r.version) }

// archive makes the archive's packages anew, of that version of the driver.
func (r *privateRoot) archive(version int) {
	r.t.Helper()
	r.version = version
	v := r.driverVersion()
	ko := "/lib/modules/" + kernel + "/updates/dkms/nvidia-current.ko"
	lib := "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so."
	packages := map[string]map[string]string{
		"linux-headers-" + kernel: {"/lib/modules/" + kernel + "/build/Makefile": ""},
		"nvidia-driver":           {"/usr/share/doc/nvidia-driver/x": ""},
		"libcuda1":                {lib + v: "", lib + "1": "-> libnvidia-ml.so." + v},
		"nvidia-smi":              {"/usr/share/doc/nvidia-smi/x": ""},
		"nvidia-kernel-dkms": {"/usr/src/nvidia-current/x": "", "DEBIAN/postinst": `#!/bin/sh
[ "$1" = configure ] || exit 0
# Pulling the plug: the test asks for it.
if [ -e /cut ]; then rm /cut; kill -9 $PPID; sleep 1; fi
mkdir -p ` + filepath.Dir(ko) + ` /var/lib/dkms && echo ` + v + ` >` + ko + ` && printf 0123456789abcdef >/var/lib/dkms/mok.pub
`},
		// The firmware's part: it asks twice for a password, and keeps the key until the next boot.
		"mokutil": {"/usr/bin/mokutil": `#!/bin/sh
[ "$1" = --import ] && [ -t 0 ] || exit 1
stty -echo; printf 'input password: '; read -r a; printf '\ninput password again: '; read -r b; stty echo; echo
[ "$a" = "$b" ] && [ ${#a} -ge 8 ] || { echo "password mismatch" >&2; exit 1; }
{ printf aaaa; cat "$2"; } >/sys/firmware/efi/efivars/MokNew-605dab50-e046-4300-abb6-3dd810dd8b23
`},
	}
	if err := os.RemoveAll(r.path("/archive")); err != nil {
		r.t.Fatal(err)
	}
	var index strings.Builder
	for name, files := range packages {
		pv, source := v+"-1", "Source: nvidia-graphics-drivers\n"
		if !strings.Contains(name, "nvidia") && name != "libcuda1" {
			pv, source = "1", ""
		}
		control := "Package: " + name + "\n" + source + "Version: " + pv + "\nArchitecture: amd64\nMaintainer: test <test@example.org>\nDescription: test\n"
		r.write("/build/"+name+"/DEBIAN/control", control, 0o644)
		for path, content := range files {
			path = filepath.Join("/build", name, path)
			if target, link := strings.CutPrefix(content, "-> "); link {
				_ = os.MkdirAll(filepath.Dir(r.path(path)), 0o755)
				if err := os.Symlink(target, r.path(path)); err != nil {
					r.t.Fatal(err)
				}
				continue
			}
			r.write(path, content, 0o755)
		}
		deb := "/archive/pool/" + name + "_" + pv + "_amd64.deb"
		if err := os.MkdirAll(filepath.Dir(r.path(deb)), 0o755); err != nil {
			r.t.Fatal(err)
		}
		r.mustRun("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", "/build/"+name, deb)
		data, err := os.ReadFile(r.path(deb))
		if err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(&index, "%sFilename: pool/%s\nSize: %d\nSHA256: %x\n\n", control, filepath.Base(deb), len(data), sha256.Sum256(data))
	}
	r.mustRun("rm", "-rf", "/build")
	// The driver lies where Debian has it, what it is built with in main.
	release := "Suite: bookworm\nCodename: bookworm\nComponents: main contrib non-free non-free-firmware\nArchitectures: amd64\nSHA256:\n"
	for _, component := range []string{"main", "contrib", "non-free", "non-free-firmware"} {
		text := ""
		for _, stanza := range strings.SplitAfter(index.String(), "\n\n") {
			free := strings.HasPrefix(stanza, "Package: linux-headers") || strings.HasPrefix(stanza, "Package: mokutil")
			if free && component == "main" || !free && component == "non-free" {
				text += stanza
			}
		}
		r.write("/archive/dists/bookworm/"+component+"/binary-amd64/Packages", text, 0o644)
		release += fmt.Sprintf(" %x %d %s/binary-amd64/Packages\n", sha256.Sum256([]byte(text)), len(text), component)
	}
	r.write("/archive/dists/bookworm/Release", release, 0o644)
}

// from says where the machine's packages come from.
func (r *privateRoot) from(uri string) {
	r.write("/etc/apt/sources.list.d/debian.sources", "Types: deb\nURIs: "+uri+"\nSuites: bookworm\nComponents: main\n", 0o644)
}

// The driver comes by real apt and dpkg: without a network there is a sentence, after a power cut in the middle the next
// run goes on, and then an upgrade of the system leaves it alone until somebody wants it.
func TestDriverIsInstalledAndHeld(t *testing.T) {
	r := newPrivateRoot(t)
	r.from("http://127.0.0.1:9/debian")
	r.says(0, []string{"without a driver", "non-free.sources", "apt-get install --yes", "`gpulab driver install` runs these commands"}, "driver")
	before := r.mustRun("sha256sum", "/var/lib/dpkg/status")
	r.says(0, []string{"apt-get install"}, "driver", "install", "--dry-run")
	if r.exists("/etc/apt/sources.list.d/non-free.sources") || r.exists("/var/lib/gpulab") {
		t.Error("a dry run has changed something")
	}
	r.says(exitFailure, []string{"apt does not reach the servers", "what has been done stays", "/var/lib/gpulab/log/driver.log"}, "driver", "install")
	if got := r.mustRun("sha256sum", "/var/lib/dpkg/status"); got != before {
		t.Error("an installation without a network has changed dpkg's list")
	}

	r.from("file:/archive")
	r.mustRun("rm", "/etc/apt/sources.list.d/non-free.sources") // it named the server that is not there
	r.write("/cut", "", 0o644)
	r.says(exitFailure, nil, "driver", "install")
	if got := r.kind(); got != "interrupted" {
		t.Fatalf("after a power cut: %s", got)
	}
	r.says(0, []string{"finish what was interrupted", "✓ driver", "with driver " + r.driverVersion(), "of the driver held"}, "driver", "install")
	if got := r.kind(); got != "working" {
		t.Fatalf("after the installation: %s", got)
	}
	r.says(0, []string{"Its packages are held"}, "driver")
	r.says(0, []string{"with driver " + r.driverVersion()}, "driver", "install") // nothing is left to do

	// An upgrade of everything, as an unattended one does it.
	held := r.installed("nvidia-kernel-dkms")
	r.archive(2)
	r.mustRun("apt-get", "update")
	if known := r.mustRun("apt-cache", "policy", "libcuda1"); !strings.Contains(known, r.driverVersion()) {
		t.Fatalf("apt does not know that there is a newer one:\n%s", known)
	}
	r.mustRun("apt-get", "--yes", "dist-upgrade")
	for _, name := range []string{"nvidia-kernel-dkms", "nvidia-driver", "libcuda1", "nvidia-smi"} {
		if got := r.installed(name); got != held {
			t.Errorf("%s was upgraded to %q although it is held", name, got)
		}
	}
	if got := r.kind(); got != "working" {
		t.Errorf("after an upgrade of the system: %s", got)
	}
	r.says(0, []string{"upgraded with the rest of the system again"}, "driver", "unhold")
	r.says(0, []string{"nothing changed"}, "driver", "unhold")
	r.mustRun("apt-get", "--yes", "dist-upgrade")
	if got := r.installed("libcuda1"); got != r.driverVersion()+"-1" {
		t.Errorf("libcuda1 is %q after the hold has ended", got)
	}
	r.says(0, []string{"Reboot this machine"}, "driver")
	if got := r.kind(); got != "mismatch" {
		t.Errorf("after an upgrade of the driver: %s", got)
	}
	r.says(0, []string{"4 packages held"}, "driver", "hold")

	// A machine that has joined remembers it where its agent looks, in the data folder of its pool.
	r.write("/etc/gpulab/node.json", `{"head": ["10.99.0.1:8444"], "name": "two", "gpus": "real", "settings": {"dataDir": "/srv/gpulab"}}`, 0o600)
	r.says(0, []string{"upgraded with the rest of the system again"}, "driver", "unhold")
	if !r.exists("/srv/gpulab/driver.json") {
		t.Error("a joined machine has not remembered that its driver is not held")
	}
}

// With Secure Boot somebody chooses a password for the machine's key and reads what to do at the screen; after the reboot
// the lab goes over to real GPUs by itself.
func TestDriverWithSecureBoot(t *testing.T) {
	r := newPrivateRoot(t)
	r.from("file:/archive")
	r.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\x00\x00\x00\x01", 0o644)
	// Without a terminal everything but the question is done.
	r.says(0, []string{"the firmware does not know its key", "mokutil --import /var/lib/dkms/mok.pub", "Enroll MOK", "SSH will not"}, "driver", "install")
	if got := r.kind(); got != "key-unknown" {
		t.Fatalf("before the key: %s", got)
	}
	cmd := r.command("/usr/bin/gpulab", "driver", "install")
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	seen := newScreen(terminal)
	for _, prompt := range []string{"input password: ", "input password again: "} {
		seen.wait(t, prompt)
		fmt.Fprintln(terminal, "only-once-99")
	}
	seen.wait(t, "4. Choose \"Reboot\".")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, seen)
	}
	for _, words := range []string{"Somebody must sit at this machine's screen", "American", "goes on with its GPUs by itself"} {
		if !strings.Contains(seen.String(), words) {
			t.Errorf("%q is not on the screen:\n%s", words, seen)
		}
	}
	if strings.Contains(seen.String(), "only-once-99") {
		t.Error("the password is on the screen")
	}
	if got := r.kind(); got != "key-pending" {
		t.Errorf("before the reboot: %s", got)
	}

	// There are no container images here: gpulab ends after it has looked for the driver.
	boot := func(says, gpus string) {
		t.Helper()
		out, code := r.gpulab("serve")
		if code == 0 || !strings.Contains(out, says) || !strings.Contains(out, "container images") {
			t.Errorf("at boot: exit code %d, want %q\n%s", code, says, out)
		}
		if text, _ := os.ReadFile(r.path(config.DefaultPath)); strings.Contains(string(text),
			"\ngpus: real\n") != (gpus == config.GPUsReal) {
			t.Errorf("the configuration after a boot:\n%s", text)
		}
	}
	boot("does not work yet", config.GPUsNone)

	// The reboot, at which somebody enrols the key and udev loads the driver.
	r.mustRun("sh", "-c", "rm /sys/firmware/efi/efivars/MokNew-* && mkdir -p /sys/firmware/efi/mok-variables && cp /var/lib/dkms/mok.pub /sys/firmware/efi/mok-variables/MokListRT && modprobe nvidia")
	boot("offers its GPUs", config.GPUsReal)
	if out, _ := r.gpulab("serve"); strings.Contains(out, "driver") {
		t.Errorf("another boot:\n%s", out)
	}
	if !r.exists("/etc/apt/preferences.d/gpulab-nvidia-driver.pref") {
		t.Error("the driver is not held")
	}
}

// screen is what a terminal has shown.
type screen struct {
	got  chan []byte
	text strings.Builder
	seen int // how much of it was waited for before
}

func newScreen(r io.Reader) *screen {
	s := &screen{got: make(chan []byte, 1000)}
	go func() {
		defer close(s.got)
		for {
			buf := make([]byte, 4096)
			n, err := r.Read(buf)
			if n > 0 {
				s.got <- buf[:n]
			}
			if err != nil {
				return // the other side is closed
			}
		}
	}()
	return s
}

// rest takes what is still to come.
func (s *screen) rest() {
	for data := range s.got {
		s.text.Write(data)
	}
}

// wait waits until the words are on the screen, behind what was seen before.
func (s *screen) wait(t *testing.T, words string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		if strings.Contains(s.text.String()[s.seen:], words) {
			return
		}
		select {
		case data, open := <-s.got:
			if !open {
				t.Fatalf("the terminal ended without %q:\n%s", words, s)
			}
			s.text.Write(data)
		case <-deadline:
			t.Fatalf("%q did not come:\n%s", words, s)
		}
	}
}

func (s *screen) String() string {
	return strings.ReplaceAll(s.text.String(), "\r\n", "\n")
}
