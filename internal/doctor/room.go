package doctor

import (
	"fmt"
	"strings"

	"github.com/gpulab/gpulab/internal/room"
)

// probeRoom: gpulab raises these settings when it starts; a file of the machine
// may lower them afterwards, and within a container it cannot raise them.
func probeRoom(h host, opts Options) []Finding {
	if !h.installed(opts) {
		return []Finding{{Probe: "room", State: OK, Seen: "gpulab raises the kernel's settings when it starts."}}
	}
	small := room.Small(h.root)
	if len(small) == 0 {
		return []Finding{{Probe: "room", State: OK, Seen: "The kernel's settings have room for all notebooks and for the " +
			"machine."}}
	}
	var seen, lines []string
	for _, s := range small {
		now, err := s.Now(h.root)
		if err != nil {
			continue
		}
		seen = append(seen, fmt.Sprintf("%d %s (%s)", now, s.What, s.Name))
		lines = append(lines, fmt.Sprintf("%s=%d", s.Name, s.Least))
	}
	return []Finding{{
		Probe: "room", State: Warn,
		Seen:  "The kernel allows " + strings.Join(seen, ", ") + ".",
		Means: "Notebooks at their limits can together take all of it, from one another and from the machine.",
		Mend: "Run `printf '%s\\n' " + strings.Join(lines, " ") + " > /etc/sysctl.d/99-gpulab.conf && sysctl --system`; " +
			"within a container or a restricted virtual machine, on the machine outside.",
	}}
}
