package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/units"
)

const (
	gib       = 1 << 30
	minMemory = 3 * gib // Kubernetes, the hub and one small notebook
)

// probeMemory compares the installed memory with what the head alone needs.
func probeMemory(h host, _ Options) []Finding {
	total := h.memoryTotal()
	switch {
	case total == 0:
		return nil
	case total < minMemory:
		return []Finding{{
			Probe: "memory", State: Fail,
			Seen:  fmt.Sprintf("This machine has %s of memory.", units.Bytes(total)),
			Means: fmt.Sprintf("The head of the pool needs %s before the first notebook starts.", units.Bytes(minMemory)),
			Mend:  "Use a larger machine.",
		}}
	}
	return []Finding{{Probe: "memory", State: OK, Seen: fmt.Sprintf("This machine has %s of memory.", units.Bytes(total))}}
}

// memoryTotal returns the installed memory in bytes, 0 when unknown.
func (h host) memoryTotal() uint64 {
	for line := range strings.Lines(h.read("/proc/meminfo")) {
		if value, found := strings.CutPrefix(line, "MemTotal:"); found {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err == nil {
				return kib * 1024
			}
		}
	}
	return 0
}
