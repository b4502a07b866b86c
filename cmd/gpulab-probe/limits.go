//go:build cgo

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/gpu"
)

// memoryLimits says whether the driver can keep a control group within an amount
// of a GPU's memory.
func (d *driver) memoryLimits(h nvml.Device, mig bool) string {
	var fs unix.Statfs_t
	switch {
	case !d.known["nvmlDeviceSetMemoryLimits_v1"] || !d.known["nvmlDeviceGetMemoryLimits_v1"]:
		return gpu.MemoryLimitsOldDriver
	case mig: // each instance has memory of its own
		return gpu.MemoryLimitsMIG
	case unix.Statfs(d.cgroups, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC:
		return gpu.MemoryLimitsOldCgroups
	}
	switch _, ret := h.GetMemoryLimits_v1(d.cgroups); ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND:
		return gpu.MemoryLimitsEnforced
	case nvml.ERROR_NOT_SUPPORTED:
		return gpu.MemoryLimitsUnsupported
	default:
		return ""
	}
}

// setMemoryLimits reads a list of limits, sets them, and writes for each of them
// why it could not be, or "".
func (d *driver) setMemoryLimits(r io.Reader, w io.Writer) error {
	var limits []gpu.MemoryLimit
	if err := json.NewDecoder(r).Decode(&limits); err != nil {
		return fmt.Errorf("reading the memory limits: %w", err)
	}
	problems := make([]string, len(limits))
	for i, l := range limits {
		problems[i] = d.setMemoryLimit(l)
	}
	return json.NewEncoder(w).Encode(problems)
}

// setMemoryLimit guarantees nothing and allows so much: a guarantee would take
// the memory away from the others on the GPU.
func (d *driver) setMemoryLimit(l gpu.MemoryLimit) string {
	if !d.known["nvmlDeviceSetMemoryLimits_v1"] {
		return "the driver knows no memory limits"
	}
	h, ret := d.nvml.DeviceGetHandleByUUID(l.UUID)
	if ret == nvml.SUCCESS {
		ret = h.SetMemoryLimits_v1(l.Cgroup, 0, l.Bytes)
	}
	if ret != nvml.SUCCESS {
		return fmt.Sprintf("%s (NVML error %d)", nvml.ErrorString(ret), int(ret))
	}
	return ""
}
