package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

const tcpListen = "0A" // state column of /proc/net/tcp

// purposes say what stops when a port is somebody else's, and where to change it.
var purposes = map[int]string{
	6443:  "The Kubernetes API of the pool listens there; it has no other port.",
	10250: "The kubelet listens there; it has no other port.",
}

// probePorts looks for programs of others that listen on our ports.
func probePorts(h host, opts Options) []Finding {
	listeners := parseListeners(h.read("/proc/self/net/tcp"), h.read("/proc/self/net/tcp6"))
	processes, err := h.processes(h.root)
	if err != nil {
		return []Finding{{Probe: "ports", State: Warn, Seen: fmt.Sprintf("The running programs cannot be read: %v.", err)}}
	}
	var findings []Finding
	var free []string
	for _, port := range opts.Ports {
		inodes := listeners[port]
		if len(inodes) == 0 {
			free = append(free, strconv.Itoa(port))
			continue
		}
		owner, known := h.owner(processes, inodes, opts.DataDir)
		if known && (owner.ours(opts.DataDir) || h.keepsOurs(owner)) {
			continue
		}
		if !known && !h.isRoot() {
			return []Finding{{Probe: "ports", State: Unseen,
				Seen: fmt.Sprintf("Port %d is in use; only root can see by whom.", port)}}
		}
		findings = append(findings, portTaken(port, owner, known, h.unitOf(owner.pid)))
	}
	if findings == nil {
		seen := "The ports are gpulab's own."
		if len(free) > 0 {
			seen = "Free ports: " + strings.Join(free, ", ") + "."
		}
		return []Finding{{Probe: "ports", State: OK, Seen: seen}}
	}
	return findings
}

// owner returns the program that holds one of the sockets, gpulab if it does, and of
// several the one that was there first: its children only have the socket from it, and
// systemd keeps it for a service. A socket may be held by a program we cannot look
// into, or by none any more.
func (h host) owner(processes []process, inodes map[string]bool, dataDir string) (owner process, known bool) {
	for _, p := range processes {
		if !p.holds(h.root, inodes) {
			continue
		}
		if p.ours(dataDir) {
			return p, true
		}
		if !known || owner.pid == 1 || p.pid != 1 && p.pid < owner.pid {
			owner, known = p, true
		}
	}
	return owner, known
}

// keepsOurs reports whether the program is systemd, which keeps gpulab's sockets
// while that is started anew.
func (h host) keepsOurs(owner process) bool {
	if owner.pid != 1 || !h.booted() {
		return false
	}
	kept, err := h.output(h.ctx, "systemctl", "show", serviceUnit, "--property=NFileDescriptorStore", "--value")
	kept = strings.TrimSpace(kept)
	return err == nil && kept != "" && kept != "0"
}

func portTaken(port int, owner process, known bool, unit string) Finding {
	finding := Finding{
		Probe: "ports", State: Fail, Passing: !known, // the kernel frees those of a program that was killed
		Seen:  fmt.Sprintf("Port %d is taken.", port),
		Means: purposes[port],
		Mend:  fmt.Sprintf("Find out by whom with `ss -ltnp 'sport = :%d'`, and stop it.", port),
	}
	if known {
		finding.Seen = fmt.Sprintf("Port %d is taken by %s (process %d).", port, owner.name, owner.pid)
		finding.Mend = fmt.Sprintf("Stop %s, for example with `kill %d`.", owner.name, owner.pid)
		if unit != "" {
			finding.Mend = fmt.Sprintf("Stop %s with `systemctl disable --now %s`.", owner.name, unit)
		}
	}
	if finding.Means == "" {
		finding.Means = "gpulab needs it, for its pages, for notebooks or for files."
		finding.Mend = strings.TrimSuffix(finding.Mend, ".") + ", or name another port in /etc/gpulab/config.yaml."
	}
	return finding
}

// parseListeners reads tables in the format of /proc/net/tcp into the inodes
// of the listening sockets by port.
func parseListeners(tables ...string) map[int]map[string]bool {
	listeners := map[int]map[string]bool{}
	for _, table := range tables {
		for line := range strings.Lines(table) {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != tcpListen {
				continue
			}
			_, hexPort, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hexPort, 16, 16)
			if err != nil {
				continue
			}
			if listeners[int(port)] == nil {
				listeners[int(port)] = map[string]bool{}
			}
			listeners[int(port)][fields[9]] = true
		}
	}
	return listeners
}
