// Package nodeapi is how the machines of a pool speak with its head: joining,
// and then one long stream each way, readings to the head and orders back.
//
// It is HTTP/2 over TLS with the machines' own authority (package nodes). Only
// who joins needs no certificate, but a code; everybody else is the machine
// that its certificate names, and speaks for that machine only.
//
// Handler is the head's side, Client a machine's. cmd/gpulab wires both.
package nodeapi

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Hello is what anybody may know who reaches the head.
type Hello struct {
	Lab     string    `json:"lab"`
	Version string    `json:"version"` // of the head's gpulab
	Time    time.Time `json:"time"`    // by the head's clock
}

// Application is what a machine sends that wants to join.
type Application struct {
	Code    []byte `json:"code"`    // its ID
	Secret  []byte `json:"secret"`  // of the code
	Request []byte `json:"request"` // for a certificate, DER; the key stays on the machine
	Name    string `json:"name"`
	Machine string `json:"machine"` // SHA-256 of its machine-id
	Version string `json:"version"`
	GPUs    string `json:"gpus"` // real, simulated or none
	Replace bool   `json:"replace,omitempty"`
	// Try asks what would be said, and uses nothing up.
	Try bool `json:"try,omitempty"`
}

// Admission is the answer to an application; without a certificate to a try.
type Admission struct {
	Certificate []byte   `json:"certificate,omitempty"` // PEM
	Settings    Settings `json:"settings"`
}

// Settings are what a machine needs to know of its lab.
type Settings struct {
	Lab  string `json:"lab"`
	URL  string `json:"url"`  // of the pages
	Head string `json:"head"` // the head's name as a machine
	// DataDir is where every machine of the pool keeps gpulab's data.
	DataDir     string `json:"dataDir"`
	ClusterCIDR string `json:"clusterCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	APIPort     int    `json:"apiPort"` // of Kubernetes, on the head
	// Images are those of the head's gpulab, by short name.
	Images map[string]string `json:"images"`
	// GPUs is what the pool's GPUs are, real or simulated; none before any is there.
	GPUs          string `json:"gpus"`
	SimulatedGPUs int    `json:"simulatedGPUs"`
	GPUSharing    int    `json:"gpuSharing"`
	PodMaxPIDs    int    `json:"podMaxPIDs"`
	// Shared is the folder that every machine has at the same path, with
	// everybody's homes in it; "" where homes lie on the head's own disk.
	Shared string `json:"shared,omitempty"`
	// Export is nfs where the head exports homes and shared folders, which every
	// machine mounts at the head's own places.
	Export string `json:"export,omitempty"`
	// Mark is in a file of such a folder, by which it is known.
	Mark    string   `json:"mark,omitempty"`
	Proxy   string   `json:"proxy,omitempty"`
	NoProxy []string `json:"noProxy,omitempty"`
	// Encrypt says that what pods of different machines say to each other is encrypted.
	Encrypt bool `json:"encrypt,omitempty"`
}

// Report is what a machine tells, about once a second.
type Report struct {
	// Kind is "": messages of a kind that only newer versions know are ignored.
	Kind     string       `json:"kind,omitempty"`
	Snapshot gpu.Snapshot `json:"snapshot"`
	// Features are labels about the GPUs, as NVIDIA's feature discovery made them.
	Features map[string]string `json:"features,omitempty"`
	// Host is how busy the machine is; nil from one that does not tell.
	Host *Host `json:"host,omitempty"`
	// Images is how far the machine is with the pool's; nil from one that does not tell.
	Images *ImageState `json:"images,omitempty"`
	// Environments is how far it is with the lab's; nil from one that does not tell.
	Environments *EnvironmentState `json:"environments,omitempty"`
	// Encrypts is what Orders.Encrypt said last; CannotEncrypt says that its kernel
	// cannot.
	Encrypts      bool `json:"encrypts,omitempty"`
	CannotEncrypt bool `json:"cannotEncrypt,omitempty"`
	// MapsIDs says whether pods can have user IDs of their own there; nil until it is known.
	MapsIDs *bool `json:"mapsIDs,omitempty"`
	// MemoryKills counts, by pod UID, the processes that were ended because the pod's memory
	// ran out.
	MemoryKills map[string]int `json:"memoryKills,omitempty"`
	// ClockOff is how far the machine's clock is ahead of the head's, which has
	// put the snapshot on its own; 0 where that does not matter.
	ClockOff time.Duration `json:"-"`
}

// Host is how busy a machine is. Sizes are in bytes; what is not known is 0.
type Host struct {
	CPUs        int     `json:"cpus"`
	Load        float64 `json:"load"` // processes that wanted to run, over the last minute
	MemoryTotal int64   `json:"memoryTotal"`
	MemoryUsed  int64   `json:"memoryUsed"`
	DiskTotal   int64   `json:"diskTotal"` // of the file system with gpulab's data
	DiskFree    int64   `json:"diskFree"`
}

// Orders are what the head wants of a machine. They are sent every few seconds,
// so that each side knows that the other is there.
type Orders struct {
	// Kind is "": messages of a kind that only newer versions know are ignored.
	Kind string `json:"kind,omitempty"`
	// Version is of the head's gpulab.
	Version string `json:"version,omitempty"`
	// Places are where the head is found now.
	Places Places `json:"places,omitzero"`
	// Images is the version of the list of images that the machine is to have.
	Images string `json:"images,omitempty"`
	// Environments is the version of the list of environments that it is to have.
	Environments string `json:"environments,omitempty"`
	// Encrypt is Settings.Encrypt as it is now. Starting says that the head's
	// Kubernetes does not go by it yet, nor should the machine.
	Encrypt  bool `json:"encrypt,omitempty"`
	Starting bool `json:"starting,omitempty"`
	// LentAnyway are the UUIDs of GPUs that are lent out although somebody
	// outside gpulab uses them.
	LentAnyway []string `json:"lentAnyway,omitempty"`
	// Leave says that the machine was removed from the pool.
	Leave bool `json:"leave,omitempty"`
}

// Places are where a head's door for machines is.
type Places struct {
	Addresses []netip.AddrPort `json:"addresses,omitempty"` // the best one first
	// Names lead to the head where none of the addresses does any more.
	Names []string `json:"names,omitempty"`
	URL   string   `json:"url,omitempty"` // of the pages
}

// mostPlaces bounds what a machine remembers of its head.
const mostPlaces = 8

// After is what is known of a head that was at other places before: those are
// tried last.
func (p Places) After(before Places) Places {
	out := Places{Addresses: slices.Clone(p.Addresses), Names: slices.Clone(p.Names), URL: cmp.Or(p.URL, before.URL)}
	for _, a := range before.Addresses {
		if a.IsValid() && !slices.Contains(out.Addresses, a) {
			out.Addresses = append(out.Addresses, a)
		}
	}
	if len(out.Names) == 0 {
		out.Names = slices.Clone(before.Names)
	}
	out.Addresses = out.Addresses[:min(len(out.Addresses), mostPlaces)]
	out.Names = out.Names[:min(len(out.Names), mostPlaces)]
	return out
}

// Equal tells whether two are the same.
func (p Places) Equal(q Places) bool {
	return slices.Equal(p.Addresses, q.Addresses) && slices.Equal(p.Names, q.Names) && p.URL == q.URL
}

// Progress is how far a machine's way into the pool is, as the head sees it.
type Progress struct {
	Node    bool `json:"node"`    // Kubernetes calls it ready
	Reading bool `json:"reading"` // its first reading has come
	Pods    bool `json:"pods"`    // a pod there has answered one on the head
	// Detail says what is missing, or what was seen.
	Detail string `json:"detail,omitempty"`
	// Failed is a sentence about what does not work, with the next step.
	Failed string `json:"failed,omitempty"`
}

// Problem is an error on the wire: a sentence for the person at the terminal.
type Problem struct {
	Message string `json:"error"`
	// Removed says that the machine was removed from the pool, which its
	// certificate outlives.
	Removed bool `json:"removed,omitempty"`
	// Skewed says that the machine's version and the head's do not work together.
	Skewed bool `json:"skewed,omitempty"`
	Status int  `json:"-"`
}

func (p *Problem) Error() string { return p.Message }

// beat is how often orders are sent at least.
const beat = 2 * time.Second

// unheard is how long the head may acknowledge nothing that was sent.
const unheard = 5 * time.Second

// silence is how long the head may say nothing before a machine connects anew.
const silence = 6 * time.Second
