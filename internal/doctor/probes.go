package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// What a failure of a probe means for init.
const (
	Stops = "stops" // init ends with it
	Warns = "warns" // init says it and goes on
	Later = ""      // init does not look: it is about a lab that is there
)

// Probe looks at one thing.
type Probe struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	Looks string `json:"looks"`          // what it looks at
	Init  string `json:"init,omitempty"` // Stops, Warns or Later
	// initOnly: elsewhere it would say nothing new.
	initOnly bool
	// where is headOnly or joinedOnly for a probe that looks at such machines alone.
	where string
	look  func(host, Options) []Finding
}

// The groups, in the order of their probes.
const (
	machineGroup  = "machine"
	networkGroup  = "network"
	softwareGroup = "other software"
	gpuGroup      = "GPUs"
	storageGroup  = "storage"
	certGroup     = "certificates"
	poolGroup     = "pool"
	labGroup      = "lab"
)

// The machines that a probe is for, where not for all.
const (
	headOnly   = "head"   // of a lab, or one that may become it
	joinedOnly = "joined" // a machine of another's pool
)

// all returns every probe, in the order in which they are shown.
func all() []Probe {
	return []Probe{
		{Name: "root", Group: machineGroup, Init: Stops, initOnly: true, look: probeRoot,
			Looks: "whether init runs as root"},
		{Name: "system", Group: machineGroup, Init: Stops, look: probeSystem,
			Looks: "processor and distribution"},
		{Name: "clock", Group: machineGroup, Init: Stops, look: probeClock,
			Looks: "whether the clock was reset, or jumped ahead"},
		{Name: "timesync", Group: machineGroup, Init: Warns, look: probeTimesync,
			Looks: "whether something keeps the clock right"},
		{Name: "hostname", Group: machineGroup, Init: Warns, look: probeHostname,
			Looks: "the machine's name, and whether it was changed"},
		{Name: "machineid", Group: machineGroup, Init: Warns, look: probeMachineID,
			Looks: "whether `/etc/machine-id` is the machine's own"},
		{Name: "numbers", Group: machineGroup, look: probeNumbers,
			Looks: "whether users or groups of the machine have numbers of the lab's people or folders"},
		{Name: "cgroups", Group: machineGroup, Init: Stops, look: probeCgroups,
			Looks: "control groups and their controllers"},
		{Name: "kernel", Group: machineGroup, Init: Stops, look: probeKernel,
			Looks: "parts of the kernel that containers need"},
		{Name: "modules", Group: machineGroup, Init: Warns, look: probeModules,
			Looks: "whether the running kernel can still load its modules"},
		{Name: "namespaces", Group: machineGroup, Init: Stops, look: probeNamespaces,
			Looks: "whether namespaces and system call filters are on, and the kernel is new enough for notebooks with user " +
				"IDs of their own"},
		{Name: "capabilities", Group: machineGroup, Init: Stops, look: probeCapabilities,
			Looks: "whether root has its rights, as in some containers it has not"},
		{Name: "commands", Group: machineGroup, Init: Stops, look: probeCommands,
			Looks: "commands of the system that Kubernetes calls"},
		{Name: "memory", Group: machineGroup, Init: Stops, look: probeMemory,
			Looks: "how much memory the machine has"},
		{Name: "inotify", Group: machineGroup, Init: Stops, look: probeInotify,
			Looks: "whether root may watch enough files"},
		{Name: "room", Group: machineGroup, look: probeRoom,
			Looks: "whether the kernel's settings have room for all notebooks at once, and for the machine"},
		{Name: "lxcfs", Group: machineGroup, Init: Warns, look: probeLXCFS,
			Looks: "whether `free` and `top` in notebooks show the notebook's memory rather than the machine's"},

		{Name: "address", Group: networkGroup, Init: Stops, look: probeAddress, where: headOnly,
			Looks: "the address people use"},
		{Name: "ports", Group: networkGroup, Init: Stops, look: probePorts,
			Looks: "whether other programs have taken the lab's ports"},
		{Name: "networks", Group: networkGroup, Init: Stops, look: probeNetworks,
			Looks: "whether the networks of pods and services are free"},
		{Name: "encryption", Group: networkGroup, Init: Stops, look: probeEncryption,
			Looks: "whether traffic between machines can be encrypted, where that is wanted"},
		{Name: "firewall", Group: networkGroup, Init: Warns, look: probeFirewall,
			Looks: "whether ufw, firewalld or other rules drop what people or notebooks send"},
		{Name: "resolver", Group: networkGroup, Init: Warns, look: probeResolver,
			Looks: "whether the name servers and search domains that notebooks get work"},
		{Name: "proxy", Group: networkGroup, Init: Warns, look: probeProxy,
			Looks: "the proxy of the environment and the configuration"},

		{Name: "neighbours", Group: softwareGroup, Init: Stops, look: probeNeighbours,
			Looks: "another Kubernetes, or Docker"},
		{Name: "networkmanager", Group: softwareGroup, Init: Warns, look: probeNetworkManager,
			Looks: "whether NetworkManager leaves the pods' network alone"},
		{Name: "deviceplugins", Group: softwareGroup, look: probeDevicePlugins,
			Looks: "whether something else gives away GPUs too"},

		{Name: "nvidia", Group: gpuGroup, Init: Stops, look: probeNVIDIA,
			Looks: "NVIDIA cards and their driver"},
		{Name: "gpus", Group: gpuGroup, look: probeGPUs,
			Looks: "GPUs that are ill, or kept from notebooks"},

		{Name: "disk", Group: storageGroup, Init: Stops, look: probeDisk,
			Looks: "free space for images and homes"},
		{Name: "filesystem", Group: storageGroup, Init: Stops, look: probeFilesystem,
			Looks: "whether databases and containers can live on the data folder's file system"},
		{Name: "inodes", Group: storageGroup, Init: Stops, look: probeInodes,
			Looks: "whether the file system has room for more files"},
		{Name: "scratch", Group: storageGroup, look: probeScratch,
			Looks: "whether temporary files and logs of notebooks are on the data folder's disk"},
		{Name: "images", Group: storageGroup, Init: Stops, look: probeImages,
			Looks: "whether the container images are complete"},
		{Name: "nfs", Group: storageGroup, Init: Stops, look: probeNFS,
			Looks: "whether homes can be exported or mounted, where they go over NFS"},

		{Name: "webcertificates", Group: certGroup, look: probeWebCertificates, where: headOnly,
			Looks: "the authority and the certificate of the pages"},
		{Name: "clustercertificates", Group: certGroup, look: probeClusterCertificates,
			Looks: "the certificates inside Kubernetes"},

		{Name: "head", Group: poolGroup, look: probeHead, where: joinedOnly,
			Looks: "whether the head of the pool answers, and is the right one"},
		{Name: "membership", Group: poolGroup, look: probeMembership, where: joinedOnly,
			Looks: "the certificate by which the head knows this machine"},
		{Name: "headclock", Group: poolGroup, look: probeHeadClock, where: joinedOnly,
			Looks: "whether the clock agrees with the head's"},
		{Name: "stream", Group: poolGroup, look: probeStream, where: joinedOnly,
			Looks: "whether readings go to the head"},
		{Name: "sharedstorage", Group: poolGroup, look: probeSharedStorage, where: joinedOnly,
			Looks: "whether the lab's homes are mounted here"},

		{Name: "configuration", Group: labGroup, look: probeConfiguration,
			Looks: "whether the configuration can be read"},
		{Name: "units", Group: labGroup, look: probeUnits,
			Looks: "gpulab's systemd units"},
		{Name: "daemon", Group: labGroup, look: probeDaemon,
			Looks: "whether gpulab runs, answers, and is of this version"},
		{Name: "components", Group: labGroup, look: probeComponents,
			Looks: "every part of the running lab"},
		{Name: "pages", Group: labGroup, look: probePages, where: headOnly,
			Looks: "whether the pages answer, with a certificate that fits"},
	}
}

// Probes returns the probes that doctors run, in the order in which they are
// shown.
func Probes() []Probe {
	return slices.DeleteFunc(all(), func(p Probe) bool { return p.initOnly })
}

// ProbesFor returns those of Probes that look at a machine which has joined
// another's pool, or at one that has not.
func ProbesFor(joined bool) []Probe {
	other := joinedOnly
	if joined {
		other = headOnly
	}
	return slices.DeleteFunc(Probes(), func(p Probe) bool { return p.where == other })
}

// forInit are those that say whether a machine can become a lab.
func forInit() []Probe {
	return slices.DeleteFunc(all(), func(p Probe) bool { return p.Init == Later })
}

// Watcher is told how a run goes, by one goroutine. Each function may be nil.
type Watcher struct {
	// Waiting: this probe's findings are next, and take their time.
	Waiting func(Probe)
	// Done brings a probe's findings, in the order of the probes. A probe that
	// has nothing to say brings none.
	Done func(Probe, []Finding)
}

// patience is how long nothing is said about a probe that takes long.
const patience = 700 * time.Millisecond

// Run runs the probes, all at a time, and tells w of them in their order. It
// returns when all have answered or have run out of time, or when ctx ends.
func Run(ctx context.Context, probes []Probe, opts Options, w Watcher) {
	thisHost().run(ctx, probes, opts, w)
}

func (h host) run(ctx context.Context, probes []Probe, opts Options, w Watcher) {
	if opts.Joined == nil {
		// They would have nothing to look at.
		probes = slices.DeleteFunc(slices.Clone(probes), func(p Probe) bool { return p.where == joinedOnly })
	}
	if opts.Ports == nil {
		opts.Ports = DefaultPorts
	}
	limit := cmp.Or(opts.Limit, 15*time.Second)
	h.ask = sync.OnceValues(func() (Lab, error) { return ask(ctx, opts, limit/2) })
	answers := make([]<-chan []Finding, len(probes))
	for i := range probes {
		answers[i] = h.start(ctx, probes[i], opts, limit)
	}
	for i, p := range probes {
		patient := time.NewTimer(patience)
		select {
		case <-patient.C:
			if w.Waiting != nil {
				w.Waiting(p)
			}
		case found := <-answers[i]:
			patient.Stop()
			if w.Done != nil && ctx.Err() == nil {
				w.Done(p, found)
			}
			continue
		}
		found := <-answers[i]
		if w.Done != nil && ctx.Err() == nil {
			w.Done(p, found)
		}
	}
}

// start runs a probe aside. One that hangs, in a file system that does not
// answer for example, cannot be ended: it is left alone.
func (h host) start(ctx context.Context, p Probe, opts Options, limit time.Duration) <-chan []Finding {
	answer := make(chan []Finding, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		h.ctx = ctx
		found := make(chan []Finding, 1)
		go func() { found <- p.look(h, opts) }()
		select {
		case list := <-found:
			answer <- list
		case <-ctx.Done():
			answer <- []Finding{{
				Probe: p.Name, State: Warn,
				Seen:  fmt.Sprintf("It did not answer within %s: %s.", limit, p.Looks),
				Means: "What it reads hangs; often that is a network drive, a sick disk or a sick driver.",
				Mend:  "Look at `dmesg | tail -50`, then run `gpulab doctor " + p.Name + "`.",
			}}
		}
	}()
	return answer
}
