package doctor

import (
	"fmt"
	"strings"
)

// kubelets are programs with a kubelet inside: two on one machine take each
// other's pods for orphans and end them.
var kubelets = []string{"k3s", "k3s-server", "k3s-agent", "kubelet", "rke2", "k0s", "microk8s", "kubelite", "minikube"}

// probeNeighbours looks for another Kubernetes, and for Docker, whose firewall
// rules are known to get in the way.
func probeNeighbours(h host, opts Options) []Finding {
	processes, err := h.processes(h.root)
	if err != nil {
		return nil
	}
	var findings []Finding
	for _, p := range processes {
		if p.ours(opts.DataDir) || p.exe == "" && h.isRoot() { // without a program, to root: it is ending
			continue
		}
		name := p.kubelet()
		if name != "" && p.exe == "" && !h.isRoot() {
			return []Finding{{Probe: "neighbours", State: Unseen, Seen: fmt.Sprintf("A Kubernetes runs here, %s (process %d); only root can see whose.", name, p.pid)}}
		}
		if name != "" {
			findings = append(findings, Finding{
				Probe: "neighbours", State: Fail,
				Seen:  fmt.Sprintf("Another Kubernetes runs here: %s (process %d).", name, p.pid),
				Means: "Two on one machine end each other's containers.",
				Mend:  stopKubernetes(name, h.unitOf(p.pid)) + " Or give gpulab a machine of its own.",
			})
		}
		if p.name == "dockerd" {
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
