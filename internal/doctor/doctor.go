// Package doctor looks at a machine and says what it saw, what that means for
// gpulab, and what mends it. It changes nothing.
//
// Each probe is a file of its own, and a function from a host to findings, so
// that the listing of this folder is the list of what is looked at; probes.go
// has them in their order.
package doctor

import (
	"context"
	"strings"
	"time"
)

// The states of a Finding.
const (
	OK     = "ok"     // nothing to do
	Warn   = "warn"   // gpulab works, with something less
	Fail   = "fail"   // gpulab cannot work before this is mended
	Unseen = "unseen" // it could not be looked at, for want of rights for example
)

// Finding is what one probe has to say.
type Finding struct {
	Probe string `json:"probe"`           // short name, such as "ports"
	State string `json:"state"`           // OK, Warn, Fail or Unseen
	Seen  string `json:"seen"`            // what is there, as a sentence
	Means string `json:"means,omitempty"` // why it matters; empty when OK
	Mend  string `json:"mend,omitempty"`  // the next step, commands in `backquotes`; empty when there is none
	// Passing says that it may mend itself within seconds.
	Passing bool `json:"-"`
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

// Options says what gpulab is about to do with the machine, or does already.
type Options struct {
	DataDir   string   // where gpulab keeps its state; need not exist yet
	ImagesDir string   // where the container images lie; "" when they were not found
	Address   string   // the address people will use; empty when gpulab picks it
	Names     []string // names the configuration gives the lab
	Wildcards []string // of these, those below which notebooks have names: lab.example.org
	Ports     []int    // TCP ports gpulab listens on, k3s's included; DefaultPorts when nil
	NodesPort int      // where machines join; 0 means 8444
	GPUMode   string   // "real", "simulated", or "" for whatever is there
	Proxies   []string // URLs of proxies that the configuration names
	Outside   string   // a name outside the lab that pods look up; pypi.org when empty
	Version   string   // of this gpulab
	Socket    string   // the control socket
	// ServicePorts are the head's for services of notebooks, in order; none without
	// services.
	ServicePorts []int
	// NotebookPorts are the head's for people's notebooks, in order.
	NotebookPorts []int
	// ImagesError is why there is no ImagesDir; nil where none is needed.
	ImagesError error
	// ConfigError is why the configuration cannot be read, nil when it can.
	ConfigError error
	// Ask asks the running gpulab how it is. nil: there is nobody to ask.
	Ask func(context.Context) (Lab, error)
	// Numbers asks the running gpulab which UIDs and GIDs it has given out, and to whom:
	// "ada", or "the folder vision". nil: there is nobody to ask.
	Numbers func(context.Context) (map[int]string, error)
	// Strays lists folders of pods that are not on the data folder's disk; nil: nobody knows.
	Strays func() ([]Stray, error)
	// ServeNFS and MountNFS say that homes lie on the head, and that this machine
	// is to export or to mount them.
	ServeNFS, MountNFS bool
	// Encrypt says that traffic of notebooks between machines is encrypted.
	Encrypt bool
	// Joined says that this machine belongs to another's pool; nil for a head, or
	// a machine that is neither.
	Joined *Joined
	// Limit is how long one probe may take; 0 means 15 seconds.
	Limit time.Duration
}

// DefaultPorts are the pages, the notebooks, the Kubernetes API and the kubelet.
var DefaultPorts = []int{443, 8443, 6443, 10250}

// Preflight runs every probe that init needs, in the order a person would
// want to read them. It does not stop at the first failure: one run shows all
// there is to mend. When ctx ends, the findings so far are returned.
func Preflight(ctx context.Context, opts Options) []Finding {
	return preflight(ctx, thisHost(), opts)
}

func preflight(ctx context.Context, h host, opts Options) []Finding {
	var findings []Finding
	h.run(ctx, forInit(), opts, Watcher{Done: func(p Probe, found []Finding) {
		for _, f := range found {
			if f.State == Fail && p.Init == Warns {
				f.State = Warn
			}
			findings = append(findings, f)
		}
	}})
	return findings
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
