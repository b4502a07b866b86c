// Package ctl is the control socket of a running gpulab: JSON over HTTP on a
// Unix socket that only root can open. The command line is a thin client of
// it; the daemon owns all state.
package ctl

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/users"
)

// DefaultSocket is where the daemon listens.
const DefaultSocket = "/run/gpulab/gpulab.sock"

// Stage is one step on the way from nothing to a lab that is ready.
type Stage struct {
	Name  string `json:"name"`
	State string `json:"state"` // waiting, active, done, failed
	// Detail says what is happening, or why it takes long, or what went wrong.
	Detail  string        `json:"detail,omitempty"`
	Elapsed time.Duration `json:"elapsed"` // nanoseconds
	// Changed tells a stage that did something from one that found all well.
	Changed bool `json:"changed,omitempty"`
}

// Boot is the whole way, sent again whenever a stage changes.
type Boot struct {
	Stages []Stage `json:"stages"`
	Ready  bool    `json:"ready"`
	// Try counts the tries, from 1 on.
	Try int `json:"try"`
	// Failed holds the sentence to show when this try ended early, and Next is
	// when the next one begins by itself.
	Failed string    `json:"failed,omitempty"`
	Next   time.Time `json:"next,omitzero"`
	// Before says why the try before this one ended early.
	Before string `json:"before,omitempty"`
	// Serving tells one daemon from the next.
	Serving string `json:"serving"`
	// Inputs is a digest of what the daemon was started with: its
	// configuration and the list of container images.
	Inputs string `json:"inputs"`
}

// State is how a part of the lab is, in the words that command, page and API
// all show.
type State string

// The states of a part.
const (
	OK       State = "ok"
	Starting State = "starting" // not there yet; it needs nothing but time
	Warning  State = "warning"  // the lab works, and somebody should have a look
	Failed   State = "failed"   // the lab does not work as it should
	Off      State = "off"      // not wanted on this machine
)

// Component is one part of the lab and how it is.
type Component struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
	// NextStep is a sentence or a command where State is not OK.
	NextStep string `json:"nextStep,omitempty"`
}

// Status is the lab at one moment.
type Status struct {
	Ready      bool           `json:"ready"`
	URL        string         `json:"url"`
	LocalURL   string         `json:"localUrl,omitempty"` // the same, for machines on the local network
	Version    string         `json:"version"`
	Before     string         `json:"before,omitempty"` // the version that is kept for a rollback
	Nodes      []Node         `json:"nodes"`
	GPUs       []gpu.Snapshot `json:"gpus"`
	Components []Component    `json:"components"`
	Network    Network        `json:"network"`
	// Pool is what a machine that has joined says of itself; nil on a head.
	Pool *Membership `json:"pool,omitempty"`
}

// Membership says in whose pool a machine is.
type Membership struct {
	Name      string `json:"name"` // of the machine in the pool
	Lab       string `json:"lab"`
	Head      string `json:"head"`
	Connected bool   `json:"connected"` // readings go to the head
	// Certificate is until when the head knows the machine.
	Certificate time.Time `json:"certificate"`
}

// Network is what notebooks may reach besides the internet and the hub.
type Network struct {
	Allow []Allowed `json:"allow"`
	Proxy *Proxy    `json:"proxy,omitempty"`
}

// Allowed is a private address, or network of them, that is open.
type Allowed struct {
	Name   string   `json:"name"`
	To     string   `json:"to"`
	Ports  []uint16 `json:"ports,omitempty"`  // of TCP and UDP; none means all
	Groups []string `json:"groups,omitempty"` // none means everybody
	// Problem says why it is not open as it should be.
	Problem string `json:"problem,omitempty"`
}

// Proxy is the way to the internet that notebooks are told of.
type Proxy struct {
	URL       string   `json:"url"`
	Addresses []string `json:"addresses"` // as last looked up
	Problem   string   `json:"problem,omitempty"`
}

// Problems are all that keep notebooks from what they should reach.
func (n Network) Problems() []string {
	var list []string
	for i := range n.Allow {
		if n.Allow[i].Problem != "" {
			list = append(list, n.Allow[i].Name+": "+n.Allow[i].Problem)
		}
	}
	if n.Proxy != nil && n.Proxy.Problem != "" {
		list = append(list, "proxy: "+n.Proxy.Problem)
	}
	return list
}

// Node is one machine of the pool.
type Node struct {
	Name string `json:"name"`
	// Title is what it is shown as, "" where that is its name.
	Title   string `json:"title,omitempty"`
	Address string `json:"address"`
	Role    string `json:"role"` // head, or node
	Ready   bool   `json:"ready"`
	Detail  string `json:"detail,omitempty"`
	// State is ready, starting, not ready, or lost: then nothing is heard of it.
	State   string `json:"state"`
	Version string `json:"version,omitempty"` // of its gpulab
	// OtherVersion says that it is not the head's.
	OtherVersion bool `json:"otherVersion,omitempty"`
	// GPUs is how many it has, as far as they are known.
	GPUs      int  `json:"gpus"`
	Simulated bool `json:"simulated,omitempty"`
	// LastContact is when it was last heard of, Joined since when it belongs to
	// the pool; both are zero for the head.
	LastContact time.Time `json:"lastContact,omitzero"`
	Joined      time.Time `json:"joined,omitzero"`
	// Host is how busy it is, as last heard; nil while that is not known.
	Host *Host `json:"host,omitempty"`
	// ClockOffset is by how many seconds its clock is ahead of the head's; nil
	// while that is not known, and for the head.
	ClockOffset *float64 `json:"clockOffset,omitempty"`
	// Images is how far it is with the pool's container images; nil where it has
	// all, and for the head.
	Images *NodeImages `json:"images,omitempty"`
	// Environments is how far it is with the lab's environments; nil where it has
	// all, and for the head.
	Environments *NodeEnvironments `json:"environments,omitempty"`
	// Limit says whom it is for; nil where that is everybody.
	Limit *NodeLimit `json:"limit,omitempty"`
	// Cordon says that it takes no new work; nil where it does.
	Cordon *Cordon `json:"cordon,omitempty"`
	// Notebooks are those there.
	Notebooks []NodeNotebook `json:"notebooks,omitempty"`
}

// Shown is what it is shown as.
func (n Node) Shown() string { return cmp.Or(n.Title, n.Name) }

// NodeEnvironments is a machine's way to the lab's environments.
type NodeEnvironments struct {
	// Loading is the one that the head hands over now, by NAME/VERSION, "" for none;
	// Done bytes of it, packed, have come.
	Loading string `json:"loading,omitempty"`
	Done    int64  `json:"done,omitempty"`
	// Failed is why environments are missing; it is tried again.
	Failed string `json:"failed,omitempty"`
}

// NodeImages is a machine's way to the container images of its pool.
type NodeImages struct {
	// Loading is what the head hands over now, "" for nothing; Done of Total bytes
	// are there.
	Loading   string `json:"loading,omitempty"`
	Done      int64  `json:"done,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Unpacking bool   `json:"unpacking,omitempty"`
	// Failed is why images are missing; it is tried again.
	Failed string `json:"failed,omitempty"`
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

// Cordon says of a machine that it takes no new work.
type Cordon struct {
	Since  time.Time `json:"since"`
	By     string    `json:"by"` // a handle, or root
	Reason string    `json:"reason,omitempty"`
	// EmptyAt is when notebooks end that are still there; zero where they may stay.
	EmptyAt time.Time `json:"emptyAt,omitzero"`
}

// Detail is the reason and the end, for the audit log.
func (c Cordon) Detail() string {
	if c.EmptyAt.IsZero() {
		return c.Reason
	}
	text := "until " + c.EmptyAt.UTC().Format(time.RFC3339)
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// NodeNotebook is a notebook on a machine.
type NodeNotebook struct {
	User   string    `json:"user"`
	Name   string    `json:"name"`             // as the hub calls it
	Launch int64     `json:"launch,omitempty"` // 0 where it is not known
	GPUs   int       `json:"gpus"`
	Since  time.Time `json:"since,omitzero"`
}

// The states of a Node.
const (
	NodeReady    = "ready"
	NodeStarting = "starting"
	NodeNotReady = "not ready"
	NodeLost     = "lost"
)

// Chart is one release in the cluster.
type Chart struct {
	Name       string    `json:"name"`
	Namespace  string    `json:"namespace"`
	Chart      string    `json:"chart"`
	Version    string    `json:"version"`
	AppVersion string    `json:"appVersion,omitempty"`
	State      string    `json:"state"`
	Revision   int       `json:"revision"`
	Updated    time.Time `json:"updated"`
	Detail     string    `json:"detail,omitempty"`
}

// Link is a one-time link.
type Link struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

// NewUser is what `gpulab user add` sends.
type NewUser struct {
	Handle string     `json:"handle"`
	Name   string     `json:"name,omitempty"`
	Email  string     `json:"email,omitempty"`
	Role   users.Role `json:"role,omitempty"`
}

// UserWithLink is a user and the link with which they choose a password.
type UserWithLink struct {
	User users.User `json:"user"`
	Link Link       `json:"link"`
}

// Daemon is what the socket offers; the running gpulab implements it.
type Daemon interface {
	AuditLog
	AccessTokens
	Status(ctx context.Context) (Status, error)
	// Metrics writes what Prometheus reads.
	Metrics(ctx context.Context, w io.Writer) error
	// WatchBoot calls fn with the current state and every later one until ctx
	// ends, fn fails, the lab is ready, or a try has failed.
	WatchBoot(ctx context.Context, fn func(Boot) error) error
	AdminLink(ctx context.Context) (Link, error)
	Charts(ctx context.Context) ([]Chart, error)
	AddUser(ctx context.Context, u NewUser) (UserWithLink, error)
	PasswordLink(ctx context.Context, handle string) (UserWithLink, error)
	// Usage reads the ledger of use.
	Usage(ctx context.Context, f history.Filter, by history.By) ([]history.Usage, error)
	// Report says what the lab had of its GPUs in so many weeks.
	Report(ctx context.Context, weeks int) (report.Report, error)
	// LendGPU makes a GPU, by number or UUID, be lent out even while somebody
	// outside gpulab uses it, or no longer.
	LendGPU(ctx context.Context, which string, anyway bool) (gpu.GPU, error)
	// CheckGPU lets a test pod compute on a free GPU and returns what it saw,
	// as the end of a sentence that begins with "a test pod saw".
	CheckGPU(ctx context.Context) (string, error)
	People
	Images
	Imports
	Quotas
	WaysIn
	Folders
	Environments
	SSHKeys
	Disks
	Tailnets
	Mail
	Pool
}
