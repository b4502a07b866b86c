//go:build cgo

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// slowly is what is read every few seconds only: it hardly changes, or takes
// the driver long to answer.
type slowly struct {
	due           time.Time
	health        gpu.Health
	instances     []instance
	throughputDue time.Time
	received      *float64 // bytes per second
	sent          *float64
}

// instance is a MIG instance and the way to ask it.
type instance struct {
	gpu.Instance
	handle  nvml.Device
	compute int // the number of its compute instance; known where ID is
}

// readSlowly asks for it, if it is time.
func (r *reader) readSlowly(d *gpu.Device, now time.Time) {
	if now.Before(r.slow.due) {
		return
	}
	r.slow.due = now.Add(r.pace.slow)
	r.driver.describe(r.handle, d)
	r.slow.health = r.driver.health(r.handle)
	r.slow.instances = nil
	if d.MIG {
		r.slow.instances = r.driver.instances(r.handle)
	}
}

// describe reads what may be set on a card while it runs, and its maxima.
func (d *driver) describe(h nvml.Device, to *gpu.Device) {
	if d.known["nvmlDeviceGetEnforcedPowerLimit"] {
		to.PowerLimit = scaled(optional(h.GetEnforcedPowerLimit()), 1000) // mW
	}
	if d.known["nvmlDeviceGetMaxClockInfo"] {
		to.SMClockMax = optional(h.GetMaxClockInfo(nvml.CLOCK_SM))
		to.MemoryClockMax = optional(h.GetMaxClockInfo(nvml.CLOCK_MEM))
	}
	if d.known["nvmlDeviceGetMaxPcieLinkGeneration"] {
		to.PCIeGenerationMax = optional(h.GetMaxPcieLinkGeneration())
	}
	if d.known["nvmlDeviceGetMaxPcieLinkWidth"] {
		to.PCIeWidthMax = optional(h.GetMaxPcieLinkWidth())
	}
	if d.known["nvmlDeviceGetEccMode"] {
		mode, _, ret := h.GetEccMode()
		to.ECC = enabled(mode, ret)
	}
	if d.known["nvmlDeviceGetPersistenceMode"] {
		to.Persistence = enabled(h.GetPersistenceMode())
	}
	if d.known["nvmlDeviceGetMigMode"] {
		mode, _, ret := h.GetMigMode()
		to.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	}
	to.MemoryLimits = d.memoryLimits(h, to.MIG)
}

func enabled(state nvml.EnableState, ret nvml.Return) *bool {
	if ret != nvml.SUCCESS {
		return nil
	}
	on := state == nvml.FEATURE_ENABLED
	return &on
}

func (d *driver) health(h nvml.Device) gpu.Health {
	var to gpu.Health
	if d.known["nvmlDeviceGetTotalEccErrors"] {
		to.ECCCorrected = count(h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC))
		to.ECCUncorrected = count(h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))
	}
	if d.known["nvmlDeviceGetRemappedRows"] {
		corrected, uncorrected, pending, failed, ret := h.GetRemappedRows()
		if ret == nvml.SUCCESS {
			to.RemappedCorrectable, to.RemappedUncorrectable = count(uint64(corrected), ret), count(uint64(uncorrected), ret)
			to.RemapPending, to.RemapFailed = pending, failed
		}
	}
	if d.known["nvmlDeviceGetRetiredPages"] {
		to.RetiredPages = retiredPages(h)
	}
	if d.known["nvmlDeviceGetRetiredPagesPendingStatus"] {
		pending, ret := h.GetRetiredPagesPendingStatus()
		to.RetirePending = ret == nvml.SUCCESS && pending == nvml.FEATURE_ENABLED
	}
	if action, ret := d.field(h, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION); ret == nvml.SUCCESS {
		to.Recovery = recoveryWord(action)
	}
	return to
}

func count(n uint64, ret nvml.Return) *uint64 {
	if ret != nvml.SUCCESS {
		return nil
	}
	return &n
}

// retiredPages is the sum over both causes, unknown unless both are known.
func retiredPages(h nvml.Device) *uint64 {
	var sum uint64
	for cause := range nvml.PAGE_RETIREMENT_CAUSE_COUNT {
		pages, ret := h.GetRetiredPages(cause)
		if ret != nvml.SUCCESS {
			return nil
		}
		sum += uint64(len(pages))
	}
	return &sum
}

// recoveryWord turns NVML's number of what is to be done into our word. Newer
// drivers may know more.
func recoveryWord(action uint64) string {
	switch action {
	case 0:
		return ""
	case 1:
		return gpu.RecoveryReset
	case 2, 7: // the node, the system
		return gpu.RecoveryReboot
	case 3:
		return gpu.RecoveryDrain
	case 4:
		return gpu.RecoveryDrainAndReset
	case 6:
		return gpu.RecoveryBusReset
	default:
		return fmt.Sprintf("action %d", action)
	}
}

// instances finds the parts of a GPU in MIG mode. Their numbers may have gaps.
func (d *driver) instances(h nvml.Device) []instance {
	if !d.known["nvmlDeviceGetMaxMigDeviceCount"] || !d.known["nvmlDeviceGetMigDeviceHandleByIndex"] {
		return nil
	}
	most, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var found []instance
	for i := range most {
		part, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := part.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		in := instance{Instance: gpu.Instance{UUID: uuid, Index: i}, handle: part}
		if name, ret := part.GetName(); ret == nvml.SUCCESS {
			_, in.Profile, _ = strings.Cut(name, " MIG ") // "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
		}
		if in.Slices = slicesOf(in.Profile); in.Slices > 0 && in.Slices <= most {
			in.SlicesOf = most
		} else {
			in.Slices = 0
		}
		d.number(part, &in)
		found = append(found, in)
	}
	return found
}

// number learns by which numbers the driver's lists of processes call the
// instance.
func (d *driver) number(part nvml.Device, in *instance) {
	if !d.known["nvmlDeviceGetGpuInstanceId"] || !d.known["nvmlDeviceGetComputeInstanceId"] {
		return
	}
	gi, ret := part.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return
	}
	if ci, ret := part.GetComputeInstanceId(); ret == nvml.SUCCESS {
		in.ID, in.compute = &gi, ci
	}
}

// slicesOf is how many slices of the multiprocessors a profile has: 3 in
// "3g.20gb", and 1 in "1c.3g.20gb", a part of such an instance. 0: not known.
func slicesOf(profile string) int {
	slices, _, _ := strings.Cut(profile, ".")
	n, err := strconv.Atoi(strings.TrimRight(slices, "cg"))
	if err != nil || len(slices) < 2 {
		return 0
	}
	return n
}

// instanceOf finds the instance by the numbers in a list of processes.
func (r *reader) instanceOf(info nvml.ProcessInfo) string {
	for _, in := range r.slow.instances {
		if in.ID != nil && uint32(*in.ID) == info.GpuInstanceId && uint32(in.compute) == info.ComputeInstanceId {
			return in.UUID
		}
	}
	return ""
}

// instancesNow are the instances with the memory that they use at this moment.
func (r *reader) instancesNow() []gpu.Instance {
	var now []gpu.Instance
	for _, in := range r.slow.instances {
		in.MemoryTotal, in.MemoryUsed = r.driver.memory(in.handle)
		now = append(now, in.Instance)
	}
	return now
}

// throughputEvery is how often the PCIe link is watched: NVIDIA's library counts
// for 20 ms in each direction and answers then.
const throughputEvery = 5 * time.Second

// readThroughput watches the link, if it is time.
func (r *reader) readThroughput(now time.Time) {
	if now.Before(r.slow.throughputDue) || !r.awake(now) || !r.driver.known["nvmlDeviceGetPcieThroughput"] {
		return
	}
	r.slow.throughputDue = now.Add(throughputEvery)
	r.slow.received = bytesPerSecond(r.handle.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES))
	r.slow.sent = bytesPerSecond(r.handle.GetPcieThroughput(nvml.PCIE_UTIL_TX_BYTES))
}

// bytesPerSecond takes a throughput in KB/s.
func bytesPerSecond(v uint32, ret nvml.Return) *float64 { return scaled(optional(v, ret), 1.0/1000) }
