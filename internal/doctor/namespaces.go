package doctor

import (
	"fmt"
	"strings"
)

const sharedUsers = "Notebooks share the machine's user IDs: who breaks out of one is the user of that number " +
	"there, rather than nobody."

// olderKernel tells whether a kernel's release is before a version; one that says
// nothing of it is not.
func olderKernel(release string, major, minor int) bool {
	var has, hasMinor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &has, &hasMinor); n != 2 {
		return false
	}
	return has < major || has == major && hasMinor < minor
}

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
			Mend: "Boot the distribution's own kernel: `apt-get install linux-image-amd64 && reboot` on Debian, `apt-get " +
				"install linux-generic && reboot` on Ubuntu.",
		}}
	}
	var findings []Finding
	switch release := h.kernelRelease(); {
	case h.read("/proc/sys/user/max_user_namespaces") == "0":
		findings = append(findings, Finding{
			Probe: "namespaces", State: Warn,
			Seen:  "User namespaces are switched off (user.max_user_namespaces is 0).",
			Means: sharedUsers + " Browsers and build tools that want one inside a notebook do not work.",
			Mend:  "Run `echo user.max_user_namespaces=10000 > /etc/sysctl.d/60-namespaces.conf && sysctl --system`.",
		})
	case olderKernel(release, 6, 3):
		findings = append(findings, Finding{
			Probe: "namespaces", State: Warn,
			Seen:  "The kernel " + release + " is older than 6.3, which gives notebooks user IDs of their own.",
			Means: sharedUsers,
			Mend: "On Debian 12 add bookworm-backports to apt's sources and run `apt-get install -t bookworm-backports " +
				"linux-image-amd64 linux-headers-amd64 && reboot`; on Ubuntu 22.04 `apt-get install linux-generic-hwe-22.04 && " +
				"reboot`; `gpulab driver` then says whether the GPUs' driver has a module for it.",
		})
	}
	if status := h.read("/proc/self/status"); strings.Contains(status, "CapEff:") &&
		!strings.Contains(status, "Seccomp:") {
		findings = append(findings, Finding{
			Probe: "namespaces", State: Fail,
			Seen:  "The kernel has no filter of system calls (seccomp).",
			Means: "No notebook starts without that protection.",
			Mend: "Boot the distribution's own kernel: `apt-get install linux-image-amd64 && reboot` on Debian, `apt-get " +
				"install linux-generic && reboot` on Ubuntu.",
		})
	}
	if findings == nil {
		return []Finding{{Probe: "namespaces", State: OK,
			Seen: "The kernel has every namespace and the filter of system calls."}}
	}
	return findings
}
