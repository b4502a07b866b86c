package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// probeModules: after an upgrade of the kernel, the one that runs may have lost
// its modules. All that is loaded works; what is needed next does not.
func probeModules(h host, _ Options) []Finding {
	release := h.kernelRelease()
	folder := "/lib/modules/" + release
	entries, _ := os.ReadDir(h.path("/lib/modules"))
	var others []string
	for _, e := range entries {
		if e.Name() != release && h.exists(filepath.Join("/lib/modules", e.Name(), "modules.dep")) {
			others = append(others, e.Name())
		}
	}
	if release == "" || h.exists(folder+"/modules.dep") || len(others) == 0 {
		return []Finding{{Probe: "modules", State: OK, Seen: "The running kernel has its modules, or needs none."}}
	}
	return []Finding{{
		Probe: "modules", State: Warn,
		Seen: fmt.Sprintf("The kernel %s runs, but its modules are gone; there are those of %s.", release,
			strings.Join(others, ", ")),
		Means: "The kernel was upgraded, and what it has not loaded yet it cannot load any more: a driver, or what " +
			"containers need.",
		Mend: "Run `reboot`.",
	}}
}
