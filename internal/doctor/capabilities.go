package doctor

import (
	"strconv"
	"strings"
)

// Bits of a capability set, from linux/capability.h.
const (
	capNetAdmin    = 12
	capSysAdmin    = 21
	capSysResource = 24
	capMknod       = 27
)

// probeCapabilities: root inside a container often is only half of root.
func probeCapabilities(h host, _ Options) []Finding {
	set, known := h.effectiveCapabilities()
	if !known {
		return nil
	}
	has := func(bit uint) bool { return set&(1<<bit) != 0 }
	for _, need := range []struct {
		bit  uint
		name string
	}{{capSysAdmin, "CAP_SYS_ADMIN"}, {capNetAdmin, "CAP_NET_ADMIN"}, {capMknod, "CAP_MKNOD"}} {
		if h.euid == 0 && !has(need.bit) {
			return []Finding{{
				Probe: "capabilities", State: Fail,
				Seen:  "This root lacks the right " + need.name + ", as in a container.",
				Means: "gpulab starts containers itself and cannot do so from inside a restricted one.",
				Mend:  "Run gpulab on the machine itself, or give the container all capabilities.",
			}}
		}
	}
	if !has(capSysResource) && h.euid == 0 {
		return []Finding{{
			Probe: "capabilities", State: Warn,
			Seen:  "This root lacks the right CAP_SYS_RESOURCE, as in some virtual machines.",
			Means: "Containers keep the out-of-memory priority they are started with; gpulab adapts to it by itself.",
		}}
	}
	return []Finding{{Probe: "capabilities", State: OK, Seen: "Root has every right gpulab needs."}}
}

func (h host) effectiveCapabilities() (set uint64, known bool) {
	for line := range strings.Lines(h.read("/proc/self/status")) {
		if value, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return set, err == nil
		}
	}
	return 0, false
}
