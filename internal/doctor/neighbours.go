package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kubelets are programs with a kubelet inside: two on one machine take each
// other's pods for orphans and end them.
var kubelets = []string{"k3s", "k3s-server", "k3s-agent", "kubelet", "rke2", "k0s", "microk8s", "kubelite", "minikube"}

// OtherKubernetes finds a Kubernetes that runs on this machine, or has left pods running, and does not belong to the
// data folder; nil without one. Both use the same folders, interfaces and firewall rules.
func OtherKubernetes(dataDir string) *Finding { return thisHost().otherKubernetes(dataDir) }

func (h host) otherKubernetes(dataDir string) *Finding {
	processes, err := h.processes(h.root)
	if err != nil {
		return nil
	}
	for _, p := range processes {
		if f := h.anotherKubernetes(p, dataDir); f != nil && f.State == Fail {
			return f
		}
	}
	return nil
}

// anotherKubernetes tells of a program that is another Kubernetes, or one of its pods; nil for any other.
func (h host) anotherKubernetes(p process, dataDir string) *Finding {
	if p.ours(dataDir) || p.exe == "" && h.isRoot() { // without a program, to root: it is ending
		return nil
	}
	const means = "Two on one machine end each other's containers."
	name := p.kubelet()
	switch {
	case name != "" && p.exe == "" && !h.isRoot():
		return &Finding{Probe: "neighbours", State: Unseen, Seen: fmt.Sprintf("A Kubernetes runs here, %s (process %d); "+
			"only root can see whose.", name, p.pid)}
	case name != "":
		return &Finding{
			Probe: "neighbours", State: Fail, Means: means,
			Seen: fmt.Sprintf("Another Kubernetes runs here: %s (process %d).", name, p.pid),
			Mend: stopKubernetes(name, h.unitOf(p.pid)) + " Or give gpulab a machine of its own.",
		}
	case h.podOf(p):
		return &Finding{
			Probe: "neighbours", State: Fail, Means: means,
			Seen: fmt.Sprintf("Pods of another Kubernetes run here: %s (process %d).", p.exe, p.pid),
			Mend: "End them with the uninstaller of that Kubernetes, such as `k3s-killall.sh`. Or give gpulab a machine of " +
				"its own.",
		}
	}
	return nil
}

// podOf tells whether a program is containerd's shim of a pod, which outlives its Kubernetes.
func (h host) podOf(p process) bool {
	if !strings.HasPrefix(p.name, "containerd-shim") {
		return false
	}
	args := strings.Split(h.read("/proc/"+strconv.Itoa(p.pid)+"/cmdline"), "\x00")
	at := slices.Index(args, "-namespace")
	return at >= 0 && at+1 < len(args) && args[at+1] == "k8s.io"
}

// probeNeighbours looks for another Kubernetes, and for Docker, whose firewall
// rules are known to get in the way.
func probeNeighbours(h host, opts Options) []Finding {
	processes, err := h.processes(h.root)
	if err != nil {
		return nil
	}
	var findings []Finding
	pods := false
	for _, p := range processes {
		switch f := h.anotherKubernetes(p, opts.DataDir); {
		case f == nil:
		case f.State == Unseen:
			return []Finding{*f}
		case p.kubelet() == "" && pods: // one of many says enough
		default:
			pods = pods || p.kubelet() == ""
			findings = append(findings, *f)
		}
		if p.name == "dockerd" && !p.ours(opts.DataDir) {
			findings = append(findings, Finding{
				Probe: "neighbours", State: Warn,
				Seen:  fmt.Sprintf("Docker runs here (process %d).", p.pid),
				Means: "The two get along, but GPUs that Docker gives away are not counted by the pool.",
				Mend:  "When nobody needs it: run `systemctl disable --now docker.socket docker`.",
			})
		}
	}
	if findings == nil {
		return []Finding{{Probe: "neighbours", State: OK, Seen: "No other Kubernetes runs here."}}
	}
	return findings
}

// stopKubernetes is how each kind is stopped for good.
func stopKubernetes(name, unit string) string {
	switch {
	case name == "kubelite" || name == "microk8s":
		return "Run `snap disable microk8s`."
	case name == "minikube":
		return "Run `minikube delete`."
	case unit != "":
		return "Run `systemctl disable --now " + unit + "`, and end what it leaves with its own uninstaller."
	}
	return "Stop it with its own uninstaller, such as `k3s-uninstall.sh`."
}

func (p process) kubelet() string {
	for _, name := range kubelets {
		// The kernel cuts names at 15 bytes and k3s adds its mode to its own.
		if p.name == name || strings.HasSuffix(p.exe, "/"+name) {
			return name
		}
	}
	return ""
}
