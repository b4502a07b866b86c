package doctor

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

const goarch = runtime.GOARCH

// madeFor lists the systems gpulab is made for, as ID and VERSION_ID of os-release.
var madeFor = []string{"debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"}

// probeSystem looks at processor and distribution.
func probeSystem(h host, _ Options) []Finding {
	release := parseOSRelease(h.read("/etc/os-release"))
	name := release["PRETTY_NAME"]
	if name == "" {
		name = "an unknown Linux"
	}
	switch {
	case h.arch != "amd64":
		return []Finding{{
			Probe: "system", State: Fail,
			Seen:  fmt.Sprintf("This is %s on %s.", name, h.arch),
			Means: "gpulab's parts exist for 64-bit Intel and AMD processors only.",
			Mend:  "Use another machine as head of the pool.",
		}}
	case !slices.Contains(madeFor, release["ID"]+" "+release["VERSION_ID"]):
		return []Finding{{
			Probe: "system", State: Warn,
			Seen:  fmt.Sprintf("This is %s.", name),
			Means: "gpulab is made for Debian 12 and 13 and Ubuntu 22.04 and 24.04; it may work here too.",
		}}
	}
	return []Finding{{Probe: "system", State: OK, Seen: fmt.Sprintf("This is %s on %s.", name, h.arch)}}
}

// parseOSRelease reads KEY=value lines; values may be quoted.
func parseOSRelease(content string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(content) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if found {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	return values
}
