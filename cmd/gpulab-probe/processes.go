//go:build cgo

package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// notKnown is how NVML says that it does not know a process's memory.
const notKnown = ^uint64(0)

// processes returns who uses the GPU, by PID, and whether the driver refuses to
// tell of those that compute. A process may be in more than one of its lists;
// they report the same memory, so the largest counts, not the sum.
func (r *reader) processes() (list []gpu.Process, unknown bool) {
	byPID := make(map[int]*gpu.Process)
	take := func(graphics bool) func([]nvml.ProcessInfo, nvml.Return) {
		return func(infos []nvml.ProcessInfo, ret nvml.Return) {
			for _, info := range infos {
				if ret == nvml.SUCCESS {
					p := merge(byPID, info, graphics)
					p.Instance = cmp.Or(r.instanceOf(info), p.Instance)
				}
			}
		}
	}
	computing, ret := r.handle.GetComputeRunningProcesses()
	take(false)(computing, ret)
	if r.driver.known["nvmlDeviceGetMPSComputeRunningProcesses"] {
		take(false)(r.handle.GetMPSComputeRunningProcesses())
	}
	if r.driver.known["nvmlDeviceGetGraphicsRunningProcesses"] {
		take(true)(r.handle.GetGraphicsRunningProcesses())
	}
	r.addShares(byPID)
	for _, p := range byPID {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b gpu.Process) int { return a.PID - b.PID })
	return list, ret != nvml.SUCCESS
}

// merge adds an entry of one of the driver's lists, of which that of graphics
// comes last: only who is in no other merely draws.
func merge(byPID map[int]*gpu.Process, info nvml.ProcessInfo, graphics bool) *gpu.Process {
	pid := int(info.Pid)
	p := byPID[pid]
	if p == nil {
		p = &gpu.Process{PID: pid, Graphics: graphics}
		byPID[pid] = p
	}
	if used := info.UsedGpuMemory; used != notKnown && (p.MemoryUsed == nil || *p.MemoryUsed < used) {
		p.MemoryUsed = &used
	}
	return p
}

// sharesOver is the time over which shares of several processes are averaged.
// The driver looks five times a second to see who is at work and counts all of
// that fifth for one process (H100, driver 580): in one second one of two that work
// alike may have 0 %, the other 100 %. Of one alone every second is right.
const sharesOver = 4 * time.Second

// sharesAtLeast is the time over which that of one alone is averaged: within less
// the driver may not have looked at all.
const sharesAtLeast = time.Second

// addShares adds each process's share of the GPU's time. The driver reports
// only processes that have worked since the time it is told, and "not found"
// when none has: the others had no share.
func (r *reader) addShares(byPID map[int]*gpu.Process) {
	if len(byPID) == 0 || !r.driver.known["nvmlDeviceGetProcessUtilization"] {
		return
	}
	r.utilSince = sharesSince(r.utilSince, len(byPID), time.Now())
	samples, ret := r.utilization(r.utilSince)
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

// utilization asks the driver for shares since a time, in µs. The library asks
// twice, how many there are and then for them, and panics when there are more by then.
func (r *reader) utilization(since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_UNKNOWN
		}
	}()
	return r.handle.GetProcessUtilization(since)
}

// sharesSince is the time, in µs, since which shares are wanted: of one process
// the newest sample that was seen. When the clock has been set back that is in
// the future, and nothing would come until then.
func sharesSince(newest uint64, processes int, now time.Time) uint64 {
	start := uint64(now.Add(-sharesOver).UnixMicro())
	if processes > 1 || newest > uint64(now.UnixMicro()) {
		return start
	}
	return min(max(newest, start), uint64(now.Add(-sharesAtLeast).UnixMicro()))
}
