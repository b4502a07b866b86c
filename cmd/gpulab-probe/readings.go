//go:build cgo

package main

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpulab/gpulab/internal/gpu"
)

// The readings of every second. What a card or its driver does not have stays
// nil.

// optional turns the answer of a call into a reading: nil unless it succeeded.
func optional[T int | uint32 | uint64](v T, ret nvml.Return) *float64 {
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

func (d *driver) readLoad(h nvml.Device, r *gpu.Reading) {
	if u, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS {
		r.Utilization, r.MemoryUtilization = optional(u.Gpu, ret), optional(u.Memory, ret)
	}
	if d.known["nvmlDeviceGetEncoderUtilization"] {
		v, _, ret := h.GetEncoderUtilization()
		r.Encoder = optional(v, ret)
	}
	if d.known["nvmlDeviceGetDecoderUtilization"] {
		v, _, ret := h.GetDecoderUtilization()
		r.Decoder = optional(v, ret)
	}
	r.SMClock = optional(h.GetClockInfo(nvml.CLOCK_SM))
	r.MemoryClock = optional(h.GetClockInfo(nvml.CLOCK_MEM))
	r.Throttle = d.throttle(h)
}

// throttles are NVML's reasons for low clocks in our words. An idle card is none.
var throttles = []struct {
	bits uint64
	word string
}{
	{nvml.ClocksEventReasonSwPowerCap, gpu.ThrottlePowerCap},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, gpu.ThrottlePowerBrake},
	{nvml.ClocksEventReasonSwThermalSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown, gpu.ThrottleThermal},
	{nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksEventReasonBoardLimit | nvml.ClocksEventReasonReliability,
		gpu.ThrottleHardware},
	{nvml.ClocksEventReasonSyncBoost, gpu.ThrottleSync},
	{nvml.ClocksEventReasonApplicationsClocksSetting, gpu.ThrottleApplications},
	{nvml.ClocksEventReasonDisplayClockSetting, gpu.ThrottleDisplay},
}

// throttle asks by the call's name of today, or by that of older drivers.
func (d *driver) throttle(h nvml.Device) []string {
	var bits uint64
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if d.known["nvmlDeviceGetCurrentClocksEventReasons"] {
		bits, ret = h.GetCurrentClocksEventReasons()
	} else if d.known["nvmlDeviceGetCurrentClocksThrottleReasons"] {
		bits, ret = h.GetCurrentClocksThrottleReasons()
	}
	if ret != nvml.SUCCESS {
		return nil
	}
	return throttleWords(bits)
}

func throttleWords(bits uint64) []string {
	// The hardware's slowdown is set along with its reasons, if it knows them.
	const known = nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown
	if bits&known != 0 {
		bits &^= nvml.ClocksThrottleReasonHwSlowdown
	}
	words := []string{} // it is known that there is nothing else
	for _, t := range throttles {
		if bits&t.bits != 0 {
			words = append(words, t.word)
		}
	}
	return words
}

func (d *driver) readBody(h nvml.Device, r *gpu.Reading) {
	r.Temperature = optional(h.GetTemperature(nvml.TEMPERATURE_GPU))
	r.MemoryTemperature = optional(d.field(h, nvml.FI_DEV_MEMORY_TEMP))
	if d.known["nvmlDeviceGetFanSpeed"] {
		r.Fan = optional(h.GetFanSpeed())
	}
	r.Power = scaled(optional(h.GetPowerUsage()), 1000) // mW
	if d.known["nvmlDeviceGetTotalEnergyConsumption"] {
		r.Energy = scaled(optional(h.GetTotalEnergyConsumption()), 1000) // mJ
	}
	if d.known["nvmlDeviceGetCurrPcieLinkGeneration"] {
		r.PCIeGeneration = optional(h.GetCurrPcieLinkGeneration())
	}
	if d.known["nvmlDeviceGetCurrPcieLinkWidth"] {
		r.PCIeWidth = optional(h.GetCurrPcieLinkWidth())
	}
}

// field asks for one of NVML's numbered values, all of which are whole numbers
// here.
func (d *driver) field(h nvml.Device, id uint32) (uint64, nvml.Return) {
	if !d.known["nvmlDeviceGetFieldValues"] {
		return 0, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	values := []nvml.FieldValue{{FieldId: id}}
	if ret := h.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, ret
	}
	v := values[0]
	if ret := nvml.Return(v.NvmlReturn); ret != nvml.SUCCESS {
		return 0, ret
	}
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.Value[:])), nvml.SUCCESS
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(v.Value[:]), nvml.SUCCESS
	default:
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
}

// memory prefers the newer call, which does not count what the driver keeps
// for itself as used.
func (d *driver) memory(h nvml.Device) (total, used *uint64) {
	if d.known["nvmlDeviceGetMemoryInfo_v2"] {
		if m, ret := h.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return &m.Total, &m.Used
		}
	}
	if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
		return &m.Total, &m.Used
	}
	return nil, nil
}
