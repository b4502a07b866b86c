// Package lab makes test hosts: machines of a lab in namespaces of this one,
// each with its own network, processes, mounts, control groups and a file
// system whose every change is gone with it. Tests and benchmarks import it.
//
// A host is at Address; a visitor's computer is on the same wire. Nothing of a
// host outlives the test program, however that ends.
package lab

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The addresses of the host and of the visitor's computer; at the last of them
// the visitor's computer stands for a server in the internet.
const (
	Address         = "10.99.0.1"
	VisitorAddress  = "10.99.0.254"
	InternetAddress = "203.0.113.7"
)

//go:embed host.sh
var hostScript string

// Lab is one test host. Its methods may be called from several goroutines.
type Lab struct {
	t       testing.TB
	name    string
	dir     string
	repo    string    // the root of this repository
	bin     string    // where gpulab lies, here and on the host
	stop    io.Closer // closing it ends the host
	script  *exec.Cmd
	stderr  *bytes.Buffer
	head    int // process 1 of the host, as seen from here
	visitor int // a process in the visitor's network
	shared  string
	ended   bool
}

var count atomic.Int32

// NewBeside makes a further host on the wire of another one, at the given
// address in its network. It is a machine of its own: it has another name and
// another machine-id.
func NewBeside(t testing.TB, other *Lab, name, address string) *Lab {
	t.Helper()
	return newLab(t, other.beside(Host{name, address})...)
}

// Host is a further host on the wire of another one.
type Host struct{ Name, Address string }

// beside tells host.sh of a further host on this one's wire.
func (l *Lab) beside(h Host) []string {
	return []string{"WIRE=" + strconv.Itoa(l.visitor), "HOSTNAME_HERE=" + h.Name, "ADDRESS=" + h.Address}
}

// New makes a host with an empty /var/lib/gpulab, and gpulab in the folder
// named by GPULAB_BIN, or else in this repository's bin. It ends with the test, which fails when something of
// the host is left.
func New(t testing.TB) *Lab {
	t.Helper()
	return newLab(t)
}

func newLab(t testing.TB, env ...string) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a test host needs root: run the test with sudo")
	}
	l := &Lab{
		t: t,
		// Whoever cleans up by hand finds everything by this name.
		name:   fmt.Sprintf("gl-%d-%d", os.Getpid(), count.Add(1)),
		repo:   Repository(t),
		bin:    programs(t),
		stderr: new(bytes.Buffer),
	}
	l.dir = filepath.Join("/var/tmp", l.name)
	if err := l.start(env); err != nil {
		t.Fatalf("test host: %v\n%s", err, l.stderr)
	}
	t.Cleanup(l.endNow)
	return l
}

// programs is the folder with the gpulab under test.
func programs(t testing.TB) string {
	if bin := os.Getenv("GPULAB_BIN"); bin != "" {
		return bin
	}
	return filepath.Join(Repository(t), "bin")
}

func (l *Lab) start(env []string) error {
	for _, folder := range []string{l.dir, l.bin} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	path := filepath.Join(l.dir, "host.sh")
	if err := os.WriteFile(path, []byte(hostScript), 0o755); err != nil {
		return err
	}
	l.script = exec.Command("bash", path, l.name, l.dir, l.bin)
	// A session of its own: Ctrl-C ends the test, and the script then tidies up.
	l.script.Env = append(os.Environ(), env...)
	l.script.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	l.script.Stderr = l.stderr
	stdin, err := l.script.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := l.script.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.script.Start(); err != nil {
		return err
	}
	l.stop = stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		l.stop.Close()
		return errors.Join(errors.New("it did not start"), l.script.Wait())
	}
	if _, err = fmt.Sscan(line, &l.visitor, &l.head); err != nil {
		return err
	}
	// What another Kubernetes has left on this machine would hide that ours does.
	return os.RemoveAll(l.Path("/usr/libexec/kubernetes"))
}

// end stops the host and everything on it, and looks for leftovers.
func (l *Lab) end() {
	TellWaits(l.t)
	l.stop.Close()
	done := make(chan error, 1)
	go func() { done <- l.script.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			l.t.Errorf("test host: %v\n%s", err, l.stderr)
		}
	case <-time.After(time.Minute):
		l.t.Errorf("test host %s did not end within a minute", l.name)
	}
	left, _ := filepath.Glob("/sys/fs/cgroup/*/" + l.name)
	for _, path := range append(left, l.dir, "/sys/fs/cgroup/"+l.name) {
		if _, err := os.Stat(path); err == nil {
			l.t.Errorf("left behind by the test host: %s", path)
		}
	}
}

// Repository returns the root of this repository.
func (l *Lab) Repository() string { return l.repo }

// Path returns where the host's file p is seen from here.
func (l *Lab) Path(p string) string {
	return filepath.Join("/proc", strconv.Itoa(l.head), "root", p)
}

// SharedFolder makes a folder that this machine and every host see at the same path. It goes with the test.
func SharedFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp(programs(t), "shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// MountShared mounts a SharedFolder at a path of the host, in place of a network file system.
func (l *Lab) MountShared(ctx context.Context, folder, path string) {
	l.t.Helper()
	l.MustRun(ctx, "mkdir", "-p", path)
	l.MustRun(ctx, "mount", "--bind", folder, path)
}

// Shared is the SharedFolder of a template's hosts, "" where it has none.
func (l *Lab) Shared() string { return l.shared }

// WriteFile writes a file of the host, and the folders above it.
func (l *Lab) WriteFile(path, content string) {
	l.t.Helper()
	path = l.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// Command returns a command that runs on the host as root, in a plain
// environment. When ctx ends, it is killed with what it started.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// nsenter does not change control groups, so a shell joins the host's
	// first; it does so by the host's first process, whose groups they are.
	const join = `
while IFS=: read -r _ controllers path; do
  for base in "/sys/fs/cgroup/${controllers#name=}" /sys/fs/cgroup/unified /sys/fs/cgroup; do
    if [ -w "$base$path/cgroup.procs" ] && { [ -n "$controllers" ] || [ -e "$base$path/cgroup.controllers" ]; }; then
      echo $$ >"$base$path/cgroup.procs" && break
    fi
  done
done </proc/$0/cgroup
exec nsenter --target "$0" --mount --net --pid --cgroup --uts -- "$@"`
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", join, strconv.Itoa(l.head), name}, args...)...)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "TERM=dumb",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Result is what a command left.
type Result struct {
	Stdout, Stderr string
	Code           int
	Took           time.Duration
}

// Run runs a command on the host to its end. Its standard input is empty. It
// fails the test only when the command cannot be started.
func (l *Lab) Run(ctx context.Context, name string, args ...string) Result {
	l.t.Helper()
	cmd := l.Command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	result := Result{Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		result.Code = exit.ExitCode()
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		l.t.Fatalf("%s: %v", name, err)
	}
	return result
}

// MustRun runs a command on the host and returns its output; the test ends
// when it exits with anything but 0.
func (l *Lab) MustRun(ctx context.Context, name string, args ...string) string {
	l.t.Helper()
	result := l.Run(ctx, name, args...)
	if result.Code != 0 {
		l.t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// VisitorCommand returns a command that runs as root in the network of the
// visitor's computer. Signals reach the command itself.
func (l *Lab) VisitorCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter",
		append([]string{"--target", strconv.Itoa(l.visitor), "--net", "--", name}, args...)...)
}

// MustRunVisitor runs a command as root in the network of the visitor's
// computer; the test ends when it exits with anything but 0.
func (l *Lab) MustRunVisitor(ctx context.Context, name string, args ...string) {
	l.t.Helper()
	if out, err := l.VisitorCommand(ctx, name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("visitor: %s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Binary is the path of the gpulab program under test, here and on the host.
func (l *Lab) Binary() string { return filepath.Join(l.bin, "gpulab") }

// Gpulab runs gpulab on the host, as Run does.
func (l *Lab) Gpulab(ctx context.Context, args ...string) Result {
	l.t.Helper()
	return l.Run(ctx, l.Binary(), args...)
}

// MustGpulab runs gpulab on the host, as MustRun does.
func (l *Lab) MustGpulab(ctx context.Context, args ...string) string {
	l.t.Helper()
	return l.MustRun(ctx, l.Binary(), args...)
}

// Repository finds the folder with go.mod above the test's.
func Repository(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test's folder")
	return ""
}

// Processes returns the numbers, on the host, of the programs with the name.
func (l *Lab) Processes(ctx context.Context, name string) []int {
	l.t.Helper()
	var pids []int
	for _, field := range strings.Fields(l.Run(ctx, "pgrep", "-x", name).Stdout) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill sends a signal, such as "KILL", to the host's programs with the name.
// It returns how many there were; those that got KILL are gone by then, or it
// waited for five seconds.
func (l *Lab) Kill(ctx context.Context, signal, name string) int {
	l.t.Helper()
	pids := l.Processes(ctx, name)
	for _, pid := range pids {
		l.Run(ctx, "kill", "-s", signal, strconv.Itoa(pid))
	}
	still := func(pid int) bool { return slices.Contains(pids, pid) }
	for end := time.Now().Add(5 * time.Second); signal == "KILL" && time.Now().Before(end) &&
		slices.ContainsFunc(l.Processes(ctx, name), still); {
		time.Sleep(20 * time.Millisecond)
	}
	return len(pids)
}
