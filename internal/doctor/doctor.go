// Package doctor looks at a machine and says what it saw, what that means for
// gpulab, and what mends it. It changes nothing, and imports of gpulab only what
// knows file systems and how amounts are written.
//
// Each probe is a file of its own, and a function from a host to findings, so
// that the listing of this folder is the list of what is looked at.
package doctor

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The states of a Finding.
const (
	OK   = "ok"   // nothing to do
	Warn = "warn" // gpulab works, with something less
	Fail = "fail" // gpulab cannot work before this is mended
)

// Finding is what one probe has to say.
type Finding struct {
	Probe string `json:"probe"`           // short name, such as "ports"
	State string `json:"state"`           // OK, Warn or Fail
	Seen  string `json:"seen"`            // what is there, as a sentence
	Means string `json:"means,omitempty"` // why it matters; empty when OK
	Mend  string `json:"mend,omitempty"`  // the next step; empty when there is none
}

// String returns the finding as one line for a person.
func (f Finding) String() string {
	parts := []string{f.Seen}
	for _, part := range []string{f.Means, f.Mend} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}

// Options says what gpulab is about to do with the machine.
type Options struct {
	DataDir string // where gpulab keeps its state; need not exist yet
	Address string // the address people will use; empty when gpulab picks it
	Ports   []int  // TCP ports gpulab listens on, k3s's included; DefaultPorts when nil
	GPUMode string // "real", "simulated", or "" for whatever is there
}

// DefaultPorts are the pages, the notebooks, the Kubernetes API and the kubelet.
var DefaultPorts = []int{443, 8443, 6443, 10250}

// Preflight runs every probe that init needs, in the order a person would
// want to read them. It does not stop at the first failure: one run shows all
// there is to mend. When ctx ends, the findings so far are returned.
func Preflight(ctx context.Context, opts Options) []Finding {
	return preflight(ctx, thisHost(), opts)
}

// Failures returns the findings that stop gpulab from working.
func Failures(findings []Finding) []Finding {
	var failures []Finding
	for _, f := range findings {
		if f.State == Fail {
			failures = append(failures, f)
		}
	}
	return failures
}

// probes are run in this order.
var probes = []func(host, Options) []Finding{
	probeRoot,
	probeSystem,
	probeClock,
	probeCgroups,
	probeKernel,
	probeCapabilities,
	probeCommands,
	probeMemory,
	probeInotify,
	probeDisk,
	probeDataFolder,
	probeAddress,
	probePorts,
	probeNeighbours,
	probeNetworks,
	probeNVIDIA,
}

func preflight(ctx context.Context, h host, opts Options) []Finding {
	if opts.Ports == nil {
		opts.Ports = DefaultPorts
	}
	var findings []Finding
	for _, probe := range probes {
		if ctx.Err() != nil {
			break
		}
		findings = append(findings, probe(h, opts)...)
	}
	return findings
}

// host is the machine as the probes see it. Tests replace parts of it.
type host struct {
	root      string // where proc, sys, etc and usr are found
	euid      int
	arch      string                            // as in GOARCH
	freeBytes func(path string) (uint64, error) // for a user who is not root
	addresses func() ([]netip.Prefix, error)    // of all interfaces
	lookPath  func(name string) (string, error) // as exec.LookPath
	processes func(root string) ([]process, error)
}

func thisHost() host {
	return host{
		root:      "/",
		euid:      os.Geteuid(),
		arch:      goarch,
		freeBytes: freeBytes,
		addresses: interfaceAddresses,
		lookPath:  exec.LookPath,
		processes: listProcesses,
	}
}

// path returns where the absolute path p of the machine is found.
func (h host) path(p string) string { return filepath.Join(h.root, p) }

// read returns the file's content without surrounding space, "" when it
// cannot be read: to a probe an unreadable file and an absent one are alike.
func (h host) read(p string) string {
	content, err := os.ReadFile(h.path(p))
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
