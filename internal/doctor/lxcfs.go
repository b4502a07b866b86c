package doctor

import (
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/internal/lxcfs"
)

// probeLXCFS looks whether containers can see their own memory and processors.
func probeLXCFS(h host, opts Options) []Finding {
	means := "Notebooks work. `free`, `top` and libraries that look how much memory there is see that of the whole machine."
	if _, err := h.lookPath(lxcfs.Program); err != nil {
		return []Finding{{Probe: "lxcfs", State: Warn, Seen: "LXCFS is not installed.", Means: means,
			Mend: "Run `apt-get install lxcfs`; gpulab starts it."}}
	}
	log := filepath.Join(opts.DataDir, lxcfs.LogName)
	started := h.exists(log)
	mounted := strings.Contains(h.read("/proc/self/mountinfo"), " "+lxcfs.Dir+" ")
	if started && !mounted {
		return []Finding{{Probe: "lxcfs", State: Warn, Seen: "LXCFS does not run.", Means: means,
			Mend: "gpulab starts it again every 30 seconds; `cat " + log + "` shows what it said last."}}
	}
	return []Finding{{Probe: "lxcfs", State: OK, Seen: "Containers see their own memory and processors."}}
}
