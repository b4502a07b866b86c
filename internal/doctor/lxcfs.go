package doctor

import (
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/internal/lxcfs"
)

// probeLXCFS looks whether containers can see their own memory and processors.
func probeLXCFS(h host, opts Options) []Finding {
	means := "Notebooks work, but `free`, `top` and libraries that ask for the memory get the whole machine's."
	if _, err := h.lookPath(lxcfs.Program); err != nil {
		return []Finding{{Probe: "lxcfs", State: Warn, Seen: "LXCFS is not installed.", Means: means,
			Mend: "Run `apt-get install lxcfs`; gpulab starts it."}}
	}
	log := filepath.Join(opts.DataDir, lxcfs.LogName)
	started := h.exists(log)
	mounted := strings.Contains(h.read("/proc/self/mountinfo"), " "+lxcfs.Dir+" ")
	if started && !mounted {
		return []Finding{{Probe: "lxcfs", State: Warn, Seen: "LXCFS is not running.", Means: means,
			Mend: "While containers run, gpulab tries to start it every 30 seconds; `cat " + log + "` shows why that fails."}}
	}
	if !mounted {
		return []Finding{{Probe: "lxcfs", State: OK, Seen: "LXCFS is installed; containers will see their own memory and " +
			"processors."}}
	}
	return []Finding{{Probe: "lxcfs", State: OK, Seen: "Containers see their own memory and processors."}}
}
