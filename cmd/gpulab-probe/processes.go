//go:build cgo

package main

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// notKnown is how NVML says that it does not know a process's memory.
const notKnown = ^uint64(0)

// processes returns who uses the GPU, by PID. A process may be in more than
// one of the driver's lists; they report the same memory, so the largest
// counts, not the sum.
func (r *reader) processes() []gpu.Process {
	byPID := make(map[int]*gpu.Process)
	for _, list := range []struct {
		symbol string
		call   func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", r.handle.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", r.handle.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", r.handle.GetMPSComputeRunningProcesses},
	} {
		if !r.has(list.symbol) {
			continue
		}
		infos, ret := list.call()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, info := range infos {
			merge(byPID, info)
		}
	}
	r.addShares(byPID)
	var out []gpu.Process
	for _, p := range byPID {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b gpu.Process) int { return a.PID - b.PID })
	return out
}

func merge(byPID map[int]*gpu.Process, info nvml.ProcessInfo) {
	pid := int(info.Pid)
	p := byPID[pid]
	if p == nil {
		p = &gpu.Process{PID: pid}
		byPID[pid] = p
	}
	if used := info.UsedGpuMemory; used != notKnown && (p.MemoryUsed == nil || *p.MemoryUsed < used) {
		p.MemoryUsed = &used
	}
}

// addShares adds each process's share of the GPU's time. The driver reports
// only processes that have worked since the last call, and "not found" when
// none has: the others had no share.
func (r *reader) addShares(byPID map[int]*gpu.Process) {
	if len(byPID) == 0 || !r.has("nvmlDeviceGetProcessUtilization") {
		return
	}
	samples, ret := r.handle.GetProcessUtilization(r.utilSince)
	idle := ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE && len(samples) == 0
	if ret != nvml.SUCCESS && !idle {
		return
	}
	for _, p := range byPID {
		p.SMUtilization = new(float64)
	}
	if idle {
		return
	}
	newest := make(map[int]uint64)
	for _, s := range samples {
		r.utilSince = max(r.utilSince, s.TimeStamp)
		pid := int(s.Pid)
		// Some drivers report nonsense for a process that has just ended.
		if p := byPID[pid]; p != nil && s.SmUtil <= 100 && s.TimeStamp >= newest[pid] {
			newest[pid] = s.TimeStamp
			*p.SMUtilization = float64(s.SmUtil)
		}
	}
}

// has says whether the driver's library knows a function or any newer version
// of it: calling one that is missing would end this program.
func (r *reader) has(symbol string) bool {
	missing, asked := r.missing[symbol]
	if !asked {
		missing = r.driver.nvml.Extensions().LookupSymbol(symbol) != nil
		r.missing[symbol] = missing
	}
	return !missing
}
