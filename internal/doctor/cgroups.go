package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// controllers without which the kubelet does not start.
var controllers = []string{"cpu", "cpuset", "memory", "pids"}

// probeCgroups tells the two kinds of control groups apart and looks for the
// controllers the kubelet needs.
func probeCgroups(h host, _ Options) []Finding {
	version, present := "2", strings.Fields(h.read("/sys/fs/cgroup/cgroup.controllers"))
	if !h.exists("/sys/fs/cgroup/cgroup.controllers") {
		version, present = "1", mountedControllers(h.read("/proc/mounts"))
	}
	var missing []string
	for _, name := range controllers {
		if !slices.Contains(present, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return []Finding{{
			Probe: "cgroups", State: Fail,
			Seen:  fmt.Sprintf("Control groups (version %s) lack: %s.", version, strings.Join(missing, ", ")),
			Means: "Kubernetes cannot limit what a notebook uses without them.",
			Mend:  cgroupMend(missing),
		}}
	}
	return []Finding{{Probe: "cgroups", State: OK,
		Seen: fmt.Sprintf("Control groups version %s with all controllers.", version)}}
}

// cgroupMend: Raspberry Pi and some cloud kernels switch only memory off.
func cgroupMend(missing []string) string {
	if slices.Equal(missing, []string{"memory"}) {
		return "Add cgroup_enable=memory to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub), then run " +
			"`update-grub && reboot`."
	}
	return "Boot a kernel of the distribution, which has them: `apt-get install linux-image-amd64 && reboot`."
}

// mountedControllers reads the version 1 controllers out of /proc/mounts.
func mountedControllers(mounts string) []string {
	var names []string
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[2] == "cgroup" {
			names = append(names, strings.Split(fields[3], ",")...)
		}
	}
	return names
}
