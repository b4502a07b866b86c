package doctor

import (
	"context"
	"net/netip"
	"time"
)

// Joined is what a machine that has joined another's pool knows of it.
type Joined struct {
	Name string // of this machine in the pool
	Lab  string
	Head string // its name
	// Doors are where the head is spoken to, Kubernetes where its API is.
	Doors, Kubernetes []netip.AddrPort
	// NameServer is the cluster's, which pods ask; not valid where it is not known.
	NameServer netip.Addr
	// Shared is the folder with everybody's homes that every machine mounts, ""
	// where they lie on the head's own disk; Mark is in its file markFile.
	Shared, Mark string
	// Exported are folders of the head's that are mounted here over NFS, with the
	// same mark in each; where there are some, Shared is "".
	Exported []string
	// Unseen says that all of this is kept from who asks. Without Doors it could
	// not be read, and the probe configuration says why.
	Unseen bool
	// Greet asks the head who it is, by what this machine knows it.
	Greet func(context.Context) (Greeting, error)
}

// Greeting is what a head says of itself.
type Greeting struct {
	Version string
	Time    time.Time // by its clock
}

// markFile is by what a lab's storage is known.
const markFile = ".gpulab-lab"

// again is the command that starts what is not there, and mends it.
func (o Options) again() string {
	if o.Joined != nil {
		return "gpulab join"
	}
	return "gpulab init"
}

// nothing says whether nothing is known of the pool, and what is to be said then.
func (j *Joined) nothing(probe string) ([]Finding, bool) {
	if j.Unseen {
		return onlyRoot(probe), true
	}
	return nil, len(j.Doors) == 0
}

// onlyRoot is what the probes of a pool say to somebody who may not look.
func onlyRoot(probe string) []Finding {
	return []Finding{{Probe: probe, State: Unseen, Seen: "Only root can see by what this machine belongs to its pool."}}
}
