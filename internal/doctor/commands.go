package doctor

import "strings"

// commands of the host that Kubernetes' network calls, and the packages that
// bring them.
var commands = []struct{ name, pkg string }{
	{"iptables", "iptables"},
	{"iptables-save", "iptables"},
	{"iptables-restore", "iptables"},
	{"ipset", "ipset"},
	{"mount", "mount"},
	{"umount", "mount"},
	{"nsenter", "util-linux"}, // our CNI plugin's, see userlimits.go there
}

// probeCommands matters most for ipset: without it the rules between students'
// notebooks are silently not set.
func probeCommands(h host, _ Options) []Finding {
	var missing, packages []string
	for _, c := range commands {
		if _, err := h.lookPath(c.name); err == nil {
			continue
		}
		missing = append(missing, c.name)
		if len(packages) == 0 || packages[len(packages)-1] != c.pkg {
			packages = append(packages, c.pkg)
		}
	}
	if len(missing) == 0 {
		return []Finding{{Probe: "commands", State: OK, Seen: "iptables and ipset are installed."}}
	}
	return []Finding{{
		Probe: "commands", State: Fail,
		Seen:  "Not found on this machine: " + strings.Join(missing, ", ") + ".",
		Means: "They set the rules that keep students' notebooks apart.",
		Mend:  "Run `apt-get install " + strings.Join(packages, " ") + "`.",
	}}
}
