package doctor

import "strings"

// probeNamespaces looks for what keeps one container from another: each kind
// of namespace, and the filter of system calls.
func probeNamespaces(h host, _ Options) []Finding {
	if !h.exists("/proc/self/ns") {
		return nil
	}
	var missing []string
	for _, kind := range []string{"ipc", "mnt", "net", "pid", "user", "uts"} {
		if !h.exists("/proc/self/ns/" + kind) {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return []Finding{{
			Probe: "namespaces", State: Fail,
			Seen:  "The kernel lacks namespaces of the kind " + strings.Join(missing, ", ") + ".",
			Means: "Containers are made of them.",
			Mend:  "Boot the distribution's own kernel: `apt-get install linux-image-amd64 && reboot` on Debian, `apt-get install linux-generic && reboot` on Ubuntu.",
		}}
	}
	var findings []Finding
	if h.read("/proc/sys/user/max_user_namespaces") == "0" {
		findings = append(findings, Finding{
			Probe: "namespaces", State: Warn,
			Seen:  "User namespaces are switched off (user.max_user_namespaces is 0).",
			Means: "Notebooks run without them; browsers and build tools that want one inside a notebook do not.",
			Mend:  "Run `echo user.max_user_namespaces=10000 > /etc/sysctl.d/60-namespaces.conf && sysctl --system`.",
		})
	}
	if status := h.read("/proc/self/status"); strings.Contains(status, "CapEff:") && !strings.Contains(status, "Seccomp:") {
		findings = append(findings, Finding{
			Probe: "namespaces", State: Fail,
			Seen:  "The kernel has no filter of system calls (seccomp).",
			Means: "No notebook starts without that protection.",
			Mend:  "Boot the distribution's own kernel: `apt-get install linux-image-amd64 && reboot` on Debian, `apt-get install linux-generic && reboot` on Ubuntu.",
		})
	}
	if findings == nil {
		return []Finding{{Probe: "namespaces", State: OK, Seen: "The kernel has every namespace and the filter of system calls."}}
	}
	return findings
}
