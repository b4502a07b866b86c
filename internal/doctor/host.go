package doctor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// host is the machine as the probes see it. Tests replace parts of it.
type host struct {
	root      string // where proc, sys, etc and usr are found
	euid      int
	arch      string                            // as in GOARCH
	now       func() time.Time                  // the machine's clock
	freeBytes func(path string) (uint64, error) // for a user who is not root
	statfs    func(path string) (unix.Statfs_t, error)
	addresses func() ([]netip.Prefix, error)    // of all interfaces
	lookPath  func(name string) (string, error) // as exec.LookPath
	processes func(root string) ([]process, error)
	// output runs a command that only reads, and returns what it printed.
	output func(ctx context.Context, name string, args ...string) (string, error)
	// dial opens connections, to the lab's own pages.
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	environ []string
	synced  func() (synced, known bool) // whether something keeps the clock right

	// Of one run of one probe; a host does not outlive it.
	ctx context.Context
	ask func() (Lab, error) // asks the running gpulab, once for all probes
}

func thisHost() host {
	return host{
		root:      "/",
		euid:      os.Geteuid(),
		arch:      goarch,
		now:       time.Now,
		freeBytes: freeBytes,
		statfs:    statfs,
		addresses: interfaceAddresses,
		lookPath:  exec.LookPath,
		processes: listProcesses,
		output:    output,
		dial:      (&net.Dialer{}).DialContext,
		environ:   os.Environ(),
		synced:    clockSynced,
	}
}

// isRoot: what only root can read is unseen by others, and not absent.
func (h host) isRoot() bool { return h.euid == 0 }

// path returns where the absolute path p of the machine is found.
func (h host) path(p string) string { return filepath.Join(h.root, p) }

// maxRead bounds what a probe reads of a file, in bytes.
const maxRead = 4 << 20

// read returns the file's content without surrounding space, "" when it
// cannot be read: to a probe an unreadable file and an absent one are alike.
func (h host) read(p string) string {
	f, err := os.Open(h.path(p))
	if err != nil {
		return ""
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxRead))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// exists reports whether the path is there.
func (h host) exists(p string) bool {
	_, err := os.Stat(h.path(p))
	return err == nil
}

// installed reports whether the machine is a lab, running or not.
func (h host) installed(opts Options) bool {
	return h.exists(filepath.Join(opts.DataDir, "identity.json")) || h.exists(filepath.Join(opts.DataDir, "bin/current"))
}

// booted reports whether systemd is the machine's service manager.
func (h host) booted() bool { return h.exists("/run/systemd/system") }

// restart is how gpulab, and k3s with it, is started anew; notebooks go on.
func (h host) restart(opts Options) string {
	if h.booted() {
		return "systemctl restart gpulab"
	}
	return "kill $(cat " + opts.Socket + ".pid); sleep 10; " + opts.again()
}

// restartHung is the same for one that does not even end when it is asked to.
func (h host) restartHung(opts Options) string {
	if h.booted() {
		return "systemctl restart gpulab"
	}
	return "kill -KILL $(cat " + opts.Socket + ".pid); " + opts.again()
}

// output runs a command in the plain locale.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	text, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return string(text), err
}

func statfs(path string) (stat unix.Statfs_t, err error) {
	err = unix.Statfs(path, &stat)
	return stat, err
}
