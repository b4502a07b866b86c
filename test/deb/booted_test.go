//go:build deb

package deb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// The machine is at address; on the same wire is a visitor's computer.
const (
	address        = "10.98.0.1"
	visitorAddress = "10.98.0.254"
	pages          = "https://" + address
	notebooksAt    = "https://" + address + ":8443"  // leads on to each person's own port
	firstNotebooks = "https://" + address + ":21000" // of the first account
)

// machine is a Debian that has been booted with systemd.
type machine struct {
	root           // its files, where they are seen from here
	name    string // of its network namespace; the visitor's has "-visitor" behind it
	command func(ctx context.Context, script string) *exec.Cmd
	put     func(from, to string) // copies a folder of this machine onto it
	slow    int                   // how many times the patience of a test it needs
}

var booted atomic.Int32

// newMachine makes the network of a machine.
func newMachine(t *testing.T, r root) machine {
	t.Helper()
	m := machine{root: r, name: fmt.Sprintf("gpulab-deb-%d-%d", os.Getpid(), booted.Add(1)), slow: 1}
	must(t, exec.Command("./machine.sh", "wire", m.name, m.dir))
	t.Cleanup(func() {
		lab.TellWaits(t)
		must(t, exec.Command("./machine.sh", "gone", m.name, m.dir))
	})
	return m
}

// boot starts a fresh machine, which is switched off with the test.
func boot(t *testing.T) machine {
	t.Helper()
	m := newMachine(t, newRoot(t, "systemd-sysv", "dbus", "procps"))
	m.command = func(ctx context.Context, script string) *exec.Cmd {
		return exec.CommandContext(ctx, "./machine.sh", "enter", m.name, m.dir, "sh", "-ec", script)
	}
	m.put = func(from, to string) {
		m.t.Helper()
		must(m.t, exec.Command("cp", "-r", from, filepath.Join(m.dir, to)))
	}
	m.write("/etc/resolv.conf", "") // as it has no network
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
	// Debian's own timers would work at times of their own.
	for _, timer := range []string{"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "systemd-tmpfiles-clean.timer"} {
		must(t, exec.Command("ln", "-sf", "/dev/null", filepath.Join(m.dir, "etc/systemd/system", timer)))
	}
	m.write("/etc/machine-id", "")
	m.write("/etc/hostname", "labhead\n")
	console, err := os.Create(filepath.Join(t.TempDir(), "console")) // says which processes a shutdown waits for
	if err != nil {
		t.Fatal(err)
	}
	keeper := exec.Command("./machine.sh", "boot", m.name, m.dir)
	keeper.Stdout, keeper.Stderr = console, console
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, err := keeper.StdinPipe(); err != nil { // held open as long as this test runs
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = keeper.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_, _ = m.try("systemctl poweroff")
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = syscall.Kill(-keeper.Process.Pid, syscall.SIGKILL)
			<-ended
			t.Error("the machine does not go down")
		}
		_ = console.Close()
		if t.Failed() {
			text, _ := os.ReadFile(console.Name())
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			t.Logf("the machine's console ends with\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	m.wait(time.Minute, isUp)
	return m
}

// isUp succeeds when everything has been started that a boot starts.
const isUp = `case $(systemctl is-system-running) in running | degraded) ;; *) exit 1 ;; esac`

// try runs a shell script on the machine.
func (m machine) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.patience(5*time.Minute))
	defer cancel()
	out, err := m.command(ctx, script).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// patience is how long a machine of this speed may take for what takes this
// long at most in a container.
func (m machine) patience(limit time.Duration) time.Duration { return time.Duration(m.slow) * limit }

func (m machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// wait runs a shell script until it succeeds.
func (m machine) wait(limit time.Duration, script string) {
	m.t.Helper()
	defer lab.NoteWait(time.Now())
	limit = m.patience(limit)
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

// again waits until the machine, which was up as bootID says, is up anew.
func (m machine) again(bootID string) {
	m.t.Helper()
	m.wait(2*time.Minute, "test \"$("+bootTime+")\" != '"+bootID+"'; "+isUp)
}

// bootTime prints when the first process was started: in a container, the
// kernel's own boot ID stays the same.
const bootTime = `cut -d' ' -f22 /proc/1/stat; cat /proc/sys/kernel/random/boot_id`

// cutPower ends everything on the machine at once, and boots it again.
func (m machine) cutPower() {
	m.t.Helper()
	was := m.run(bootTime)
	must(m.t, exec.Command("./machine.sh", "cut", m.name, m.dir))
	m.again(was)
}

// browser starts a Chromium on the visitor's computer, which trusts the lab and
// ends with the test.
func (m machine) browser(t *testing.T) *lab.Browser {
	t.Helper()
	return lab.NewBrowser(t, m.onVisitor(), []byte(m.run("gpulab ca"))).Patient(m.patience(lab.Patience))
}

// onVisitor is the beginning of a command that runs on the visitor's computer.
func (m machine) onVisitor() []string {
	return []string{"nsenter", "--net=/run/netns/" + m.name + "-visitor", "--"}
}

// traces is what a program can leave on a machine: its files, by name, mode and
// size, and what the kernel holds. What Debian's own services do meanwhile is not in it.
func (m machine) traces() lab.Snapshot {
	m.t.Helper()
	traces := lab.Look(m.run0)
	for kind, keep := range map[string]func(line string) bool{
		"run files":      named,
		"control groups": named,
		"processes": func(line string) bool {
			return !strings.HasPrefix(line, "systemd") && !strings.HasPrefix(line, "(sd") && !strings.HasPrefix(line, "kworker")
		},
		"mounts": func(line string) bool { return !strings.HasPrefix(line, "/run/") && !strings.HasPrefix(line, "/proc/") },
	} {
		var kept []string
		for _, line := range traces[kind] {
			if keep(line) {
				kept = append(kept, line)
			}
		}
		traces[kind] = kept
	}
	traces["files"] = strings.Split(m.run(`find /etc /home /opt /root /srv /usr /var -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt \
		-o -path /var/cache -o -path /var/log/journal -o -path /var/log/apt -o -path '/var/log/*.log' -o -path '/var/log/*tmp' \
		-o -path '/var/lib/systemd/[crt]*' -o -path /var/tmp \) -prune -o \
		\( -type d -printf '%p %m\n' -o -printf '%p %m %s %l\n' \)`), "\n")
	return traces
}

// run0 is run for a script that may end with anything.
func (m machine) run0(script string) string { return m.run("set +e\n" + script + "\ntrue") }

// named tells whose a file or a control group is by its name.
func named(line string) bool {
	for _, part := range []string{"gpulab", "k3s", "kube", "flannel", "containerd", "cni"} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}
