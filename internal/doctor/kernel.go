package doctor

import (
	"fmt"
	"strings"
)

// module is a part of the kernel that containers or their network need.
type module struct {
	name  string // as modprobe knows it
	sign  string // a path that exists when it is loaded or built in; "" when there is none
	needs string // what does not work without it
	vital bool   // no notebook starts without it
}

var modules = []module{
	{"overlay", "", "Containers cannot share the layers of an image", true},
	{"vxlan", "", "Machines of the pool cannot reach one another's notebooks", false},
	{"br_netfilter", "/proc/sys/net/bridge", "Rules that keep students' notebooks apart do not see their traffic", false},
	{"nf_tables", "", "Notebooks are not started, since they could not be kept apart in their first moment,", true},
	// Where the older iptables is in use it is not asked for, so its lack is no failure.
	{"nft_chain_nat", "", "The cluster's own addresses, such as its name server's, may lead nowhere, and the start " +
		"ends with \"chart coredns: not ready\",", false},
}

// probeKernel looks for parts of the kernel that are neither loaded, nor
// built in, nor there as a module.
func probeKernel(h host, _ Options) []Finding {
	release := h.kernelRelease()
	var findings []Finding
	for _, m := range modules {
		if h.hasModule(m, release) {
			continue
		}
		state := Warn
		if m.vital {
			state = Fail
		}
		findings = append(findings, Finding{
			Probe: "kernel", State: state,
			Seen:  fmt.Sprintf("The kernel %s has no %s.", release, m.name),
			Means: m.needs + " without it.",
			Mend: "On Ubuntu run `apt-get install linux-modules-extra-" + release +
				"`; elsewhere boot a kernel of the distribution: `apt-get install linux-image-amd64 && reboot`.",
		})
	}
	if findings == nil {
		return []Finding{{Probe: "kernel", State: OK, Seen: fmt.Sprintf("The kernel %s has what containers need.", release)}}
	}
	return findings
}

// kernelRelease is the running kernel's, such as 6.1.0-25-amd64.
func (h host) kernelRelease() string {
	release, _, _ := strings.Cut(h.read("/proc/sys/kernel/osrelease"), "\n")
	return strings.ReplaceAll(release, "/", "")
}

func (h host) hasModule(m module, release string) bool {
	if h.exists("/sys/module/"+m.name) || m.sign != "" && h.exists(m.sign) {
		return true
	}
	if m.name == "overlay" && strings.Contains(h.read("/proc/filesystems"), "\toverlay") {
		return true
	}
	folder := "/lib/modules/" + release
	if !h.exists(folder) {
		// A kernel without a module folder has everything built in, and most
		// built-in parts leave no sign: only overlay can be missed for sure.
		return m.name != "overlay"
	}
	for _, list := range []string{"/modules.builtin", "/modules.dep"} {
		if strings.Contains(h.read(folder+list), "/"+m.name+".ko") {
			return true
		}
	}
	return false
}
