// Package embedk8s runs the embedded Kubernetes (k3s) of one machine: it
// stages the runtime, writes its configuration, keeps it running, says when it
// is ready, imports container images, and takes all of it off the machine.
//
// Lifecycle: Stage unpacks the runtime; LoadIdentity fixes what may never
// change; New, then Prepare writes the configuration and says whether it
// changed; Run keeps k3s running until its context ends, through every Move to
// another address; WaitAPI and WaitNode
// block until it is usable. Stopping k3s leaves pods running and the next Run
// adopts them; Reset removes everything.
package embedk8s

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/room"
	"github.com/gpulab/gpulab/internal/supervise"
	"github.com/gpulab/gpulab/internal/wireguard"
)

// Config says how to run k3s on this machine.
type Config struct {
	// DataDir is gpulab's data directory; k3s keeps its state in DataDir/k3s.
	DataDir string
	// Runtime is the staged runtime.
	Runtime Runtime
	// Identity is what was chosen once for this machine.
	Identity Identity
	// Address is the machine's address as pods and other nodes reach it, on
	// Interface.
	Address   netip.Addr
	Interface string
	// PauseImage is the sandbox image's reference.
	PauseImage string
	// PodMaxPIDs is how many processes and threads a pod may have.
	PodMaxPIDs int
	// KubeletArgs are added to ours, for example "cgroup-root=/lab".
	KubeletArgs []string
	// Proxy is the way to registries of images, "" for a direct one; NoProxy are names and networks reached without it.
	Proxy   string
	NoProxy []string
	// Encrypt has what pods of different machines say to each other encrypted. The
	// head decides: a machine that joins has to be told the same.
	Encrypt bool
	// Reserved is kept free for the machine itself; pods cannot have it.
	Reserved Reserved
	// Join makes this machine a node of another one's cluster; nil makes it the
	// head of its own.
	Join *Join
}

// Join is how a machine becomes a node of a head's cluster.
type Join struct {
	// Server is the head's Kubernetes, "https://10.0.0.1:6443".
	Server string
	// TokenFile holds what lets the machine in for the first time; afterwards
	// it has credentials of its own, and the file need not be there.
	TokenFile string
}

// Cluster is the embedded Kubernetes of this machine.
type Cluster struct {
	mu    sync.Mutex // guards the address in cfg, and the files made of it
	cfg   Config
	child atomic.Pointer[supervise.Child] // nil before Run
	moved chan struct{}

	seenSince time.Time       // when the k3s started that seen is about; mu guards both
	seen      map[string]bool // files that containers need and that have been there since then
}

// New returns a cluster that is not running yet.
func New(cfg Config) *Cluster { return &Cluster{cfg: cfg, moved: make(chan struct{}, 1)} }

// Kubeconfig is the path of the administrator's credentials.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.cfg.DataDir, "kubeconfig") }

func (c *Cluster) k3sDir() string { return filepath.Join(c.cfg.DataDir, "k3s") }

// containerdSocket is fixed by k3s.
const containerdSocket = "/run/k3s/containerd/containerd.sock"

// Run keeps k3s running until ctx ends, then stops it; pods stay. A k3s that
// a killed gpulab left behind is adopted when its configuration is the same,
// and ended in order otherwise.
func (c *Cluster) Run(ctx context.Context) error {
	if err := shareNetns(); err != nil {
		return err
	}
	if err := room.Raise("/"); err != nil {
		// Within a container, for example. Notebooks run; the doctor says what is scarce.
		slog.Warn("the kernel's settings leave no room for all notebooks", "err", err)
	}
	for {
		child, err := c.newChild()
		if err != nil {
			return err
		}
		c.child.Store(child)
		run, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			select {
			case <-c.moved:
			case <-run.Done():
			}
		}()
		err = child.Run(run)
		stop()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// Move gives the machine another address, which is on iface. k3s alone is
// restarted for that; pods stay and keep their own addresses.
func (c *Cluster) Move(address netip.Addr, iface string) error {
	c.mu.Lock()
	c.cfg.Address, c.cfg.Interface = address, iface
	c.mu.Unlock()
	if _, err := c.Prepare(); err != nil {
		return err
	}
	c.Restart() // one under way is still to read the configuration
	return nil
}

// Follow gives a machine of another one's cluster its own address, and the
// address of the head's Kubernetes, as Move does. It does nothing where both are
// the same as before.
func (c *Cluster) Follow(address netip.Addr, iface, server string) error {
	c.mu.Lock()
	if c.cfg.Address == address && c.cfg.Interface == iface && c.cfg.Join.Server == server {
		c.mu.Unlock()
		return nil
	}
	join := *c.cfg.Join
	join.Server = server
	c.cfg.Join = &join
	c.mu.Unlock()
	return c.Move(address, iface)
}

// Encrypt begins or ends encrypting, as Move does; it does nothing where that is
// the same as before.
func (c *Cluster) Encrypt(on bool) error {
	c.mu.Lock()
	same := c.cfg.Encrypt == on
	c.cfg.Encrypt = on
	c.mu.Unlock()
	if same {
		return nil
	}
	if _, err := c.Prepare(); err != nil {
		c.mu.Lock()
		c.cfg.Encrypt = !on // it is still to be done
		c.mu.Unlock()
		return err
	}
	c.Restart()
	return nil
}

// closeOther takes away the interface to the other machines that is not used any
// more: its routes would come before those of the one that is.
func (c *Cluster) closeOther() error {
	c.mu.Lock()
	other := wireguard.Link
	if c.cfg.Encrypt {
		other = wireguard.OpenLink
	}
	c.mu.Unlock()
	if _, err := net.InterfaceByName(other); err != nil {
		return nil
	}
	if out, err := exec.Command("ip", "link", "delete", other).CombinedOutput(); err != nil {
		if _, gone := net.InterfaceByName(other); gone != nil {
			return nil
		}
		return fmt.Errorf("the interface %s: %w: %s", other, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *Cluster) address() netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Address
}

// newChild is k3s with the configuration that Prepare has written.
func (c *Cluster) newChild() (*supervise.Child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	configFile := c.configFile()
	digest, err := fileDigest(configFile, c.templateFile(), c.extraFile(), c.containerSpecFile(), c.kubeletFile())
	if err != nil {
		return nil, fmt.Errorf("k3s has no configuration yet: %w", err)
	}
	bin, role := Current(c.cfg.DataDir), "server"
	if c.cfg.Join != nil {
		role = "agent"
	}
	return supervise.New(supervise.Spec{
		Name:        "k3s",
		Path:        filepath.Join(bin, "k3s"),
		Args:        []string{role, "--config", configFile},
		Env:         c.environment(bin, digest),
		Dir:         c.cfg.DataDir,
		LogFile:     filepath.Join(c.cfg.DataDir, "log", "k3s.log"),
		PIDFile:     filepath.Join(c.cfg.DataDir, "k3s.pid"),
		Before:      c.closeOther,
		StopTimeout: 30 * time.Second,
		Adopt:       true,
		MinBackoff:  time.Second,
	}), nil
}

// environment is ours without K3S_* (k3s takes options from there), with the
// runtime first on PATH. The runtime's hash and the configuration's digest are
// part of it, so that a k3s started with others is not adopted.
func (c *Cluster) environment(bin, digest string) []string {
	env := []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"GPULAB_RUNTIME=" + c.cfg.Runtime.Hash,
		"GPULAB_K3S_CONFIG=" + digest,
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "K3S_"), strings.HasPrefix(name, "GPULAB_"), strings.HasPrefix(name, "CONTAINERD_"):
		case name == "PATH", name == "NOTIFY_SOCKET", name == "WATCHDOG_USEC", name == "WATCHDOG_PID", name == "LISTEN_FDS":
		case name == "INVOCATION_ID" && c.cfg.Identity.CgroupDriver != "systemd":
		case name == "HOME", name == "LANG", name == "INVOCATION_ID", strings.HasPrefix(name, "SSL_CERT_"):
			env = append(env, kv)
		}
	}
	return append(env, c.imageProxy()...)
}

// imageProxy leads containerd, and nothing else of k3s's, to registries over the proxy: k3s hands it what begins with
// CONTAINERD_, without that.
func (c *Cluster) imageProxy() []string {
	if c.cfg.Proxy == "" {
		return nil
	}
	direct := append([]string{
		"localhost", "127.0.0.1", "::1", ".svc", ".cluster.local", c.cfg.Address.String(),
		c.cfg.Identity.ClusterCIDR.String(), c.cfg.Identity.ServiceCIDR.String(),
	}, c.cfg.NoProxy...)
	return []string{
		"CONTAINERD_HTTP_PROXY=" + c.cfg.Proxy, "CONTAINERD_HTTPS_PROXY=" + c.cfg.Proxy,
		"CONTAINERD_NO_PROXY=" + strings.Join(direct, ","),
	}
}

// Process tells what the k3s process is doing.
func (c *Cluster) Process() supervise.State {
	child := c.child.Load()
	if child == nil {
		return supervise.State{}
	}
	return child.State()
}

// LastLines returns the last n lines of k3s's log.
func (c *Cluster) LastLines(n int) []string {
	child := c.child.Load()
	if child == nil {
		return nil
	}
	return child.LastLines(n)
}

func fileDigest(paths ...string) (string, error) {
	h := sha256.New()
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return "", err
		}
		_, _ = h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
