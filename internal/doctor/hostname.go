package doctor

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// hostName is what a machine may be called, in one label or several.
var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// probeHostname compares the machine's name with the one that Kubernetes knows
// the machine by, which was chosen once.
func probeHostname(h host, opts Options) []Finding {
	name := strings.ToLower(h.read("/proc/sys/kernel/hostname"))
	if name == "" {
		return nil
	}
	switch first, _, _ := strings.Cut(name, "."); {
	case !hostName.MatchString(name) || len(name) > 253:
		return []Finding{{
			Probe: "hostname", State: Warn,
			Seen: fmt.Sprintf("This machine is called %q, which is no name for a computer in a network.", name),
			Means: "Other computers cannot find it by that name, and no certificate can be made for it; its address works " +
				"all the same.",
			Mend: "Run `hostnamectl set-hostname gpu1`, with letters, digits and hyphens.",
		}}
	case first == "localhost":
		return []Finding{{
			Probe: "hostname", State: Warn,
			Seen:  "This machine has no name of its own: it is called localhost.",
			Means: "Lists of machines cannot tell it from others.",
			Mend:  "Run `hostnamectl set-hostname gpu1`, with a name of yours.",
		}}
	default:
		if node := h.nodeName(opts); node != "" && node != nodeLike(first) {
			return []Finding{{
				Probe: "hostname", State: Warn,
				Seen: fmt.Sprintf("This machine is called %s now; when it became a lab it was %s.", first, node),
				Means: "Nothing breaks: the pool goes on calling it " + node +
					", and the web certificate is made for the new name at gpulab's next start.",
				Mend: fmt.Sprintf("To have one name again, run `hostnamectl set-hostname %s`.", node),
			}}
		}
	}
	return []Finding{{Probe: "hostname", State: OK, Seen: fmt.Sprintf("This machine is called %s.", name)}}
}

// nodeName is what Kubernetes knows the machine by, "" before there is a lab.
func (h host) nodeName(opts Options) string {
	var identity struct{ NodeName string }
	if json.Unmarshal([]byte(h.read(filepath.Join(opts.DataDir, "identity.json"))), &identity) != nil {
		return ""
	}
	return identity.NodeName
}

// nodeLike is the name that the machine would get now.
func nodeLike(name string) string {
	if len(name) > 50 {
		name = strings.TrimRight(name[:50], "-")
	}
	return name
}
