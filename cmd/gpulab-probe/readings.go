//go:build cgo

package main

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// optional turns the answer of a call into a reading: nil unless it succeeded.
func optional[T uint32 | uint64](v T, ret nvml.Return) *float64 {
	if ret != nvml.SUCCESS {
		return nil
	}
	f := float64(v)
	return &f
}

// scaled divides a reading, if there is one.
func scaled(v *float64, by float64) *float64 {
	if v == nil {
		return nil
	}
	f := *v / by
	return &f
}

func readLoad(h nvml.Device, r *gpu.Reading) {
	if u, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS {
		r.Utilization, r.MemoryUtilization = optional(u.Gpu, ret), optional(u.Memory, ret)
	}
	if v, _, ret := h.GetEncoderUtilization(); ret == nvml.SUCCESS {
		r.Encoder = optional(v, ret)
	}
	if v, _, ret := h.GetDecoderUtilization(); ret == nvml.SUCCESS {
		r.Decoder = optional(v, ret)
	}
	r.SMClock = optional(h.GetClockInfo(nvml.CLOCK_SM))
	r.MemoryClock = optional(h.GetClockInfo(nvml.CLOCK_MEM))
	r.Temperature = optional(h.GetTemperature(nvml.TEMPERATURE_GPU))
}

func readPower(h nvml.Device, g *gpu.GPU) {
	g.Power = scaled(optional(h.GetPowerUsage()), 1000)              // mW
	g.Energy = scaled(optional(h.GetTotalEnergyConsumption()), 1000) // mJ
	g.PowerLimit = scaled(optional(h.GetEnforcedPowerLimit()), 1000) // mW
}

// readMemory prefers the newer call, which does not count what the driver
// keeps for itself as used.
func readMemory(d *driver, h nvml.Device, g *gpu.GPU) {
	if d.nvml.Extensions().LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil {
		if m, ret := h.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			g.MemoryTotal, g.MemoryUsed = &m.Total, &m.Used
			return
		}
	}
	if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryTotal, g.MemoryUsed = &m.Total, &m.Used
	}
}
