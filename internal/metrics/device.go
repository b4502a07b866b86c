package metrics

import (
	"fmt"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpulab/gpulab/internal/gpu"
)

var (
	// nameLabels name a GPU as dcgm-exporter does; simulated is there and "true"
	// for a GPU that is no hardware.
	nameLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "simulated"}
	// ownerLabels name the pod that holds the GPU, and its person and notebook.
	ownerLabels = []string{"container", "namespace", "pod", "user", "notebook"}
	// partLabels name a part of a GPU in MIG mode.
	partLabels = []string{"GPU_I_PROFILE", "GPU_I_ID"}
)

func deviceLabels(s *gpu.Snapshot, g *gpu.GPU) []*dto.LabelPair {
	list := labels(
		"gpu", strconv.Itoa(g.Index), "UUID", g.UUID, "pci_bus_id", g.PCIBusID, "device", "nvidia"+strconv.Itoa(g.Index),
		"modelName", g.Name, "Hostname", s.Node,
	)
	if g.Simulated {
		list = append(list, label("simulated", "true"))
	}
	return list
}

// withOwner adds the pod. It is named only if the GPU, or the MIG instance, is one
// pod's alone: naming one of several would be wrong, and a series for each would
// count the GPU more than once.
func withOwner(list []*dto.LabelPair, g *gpu.GPU, instance string) []*dto.LabelPair {
	holders := g.Holders
	if instance != "" {
		holders = slices.DeleteFunc(slices.Clone(holders), func(h gpu.Holder) bool { return h.Instance != instance })
	}
	if len(holders) != 1 || holders[0].Instance != instance {
		return list
	}
	h := holders[0]
	list = and(list, "container", h.Container, "namespace", h.Namespace, "pod", h.Name)
	if h.User != "" {
		list = and(list, "user", h.User, "notebook", h.Notebook)
	}
	return list
}

// deviceFamilies are what dcgm-exporter would tell, as far as it is measured.
func deviceFamilies() []family {
	const (
		asks   = "NVIDIA's library"
		memory = asks + "; in MIG mode one series for each part"
	)
	return []family{
		reading("DCGM_FI_DEV_SM_CLOCK", gauge, "MHz", "SM clock frequency (in MHz).", asks, func(g *gpu.GPU) *float64 {
			return g.SMClock
		}),
		reading("DCGM_FI_DEV_MEM_CLOCK", gauge, "MHz", "Memory clock frequency (in MHz).", asks, func(g *gpu.GPU) *float64 {
			return g.MemoryClock
		}),
		reading("DCGM_FI_DEV_MAX_SM_CLOCK", gauge, "MHz", "Highest SM clock frequency (in MHz).", asks,
			func(g *gpu.GPU) *float64 { return g.SMClockMax }),
		reading("DCGM_FI_DEV_MAX_MEM_CLOCK", gauge, "MHz", "Highest memory clock frequency (in MHz).", asks,
			func(g *gpu.GPU) *float64 { return g.MemoryClockMax }),
		reading("DCGM_FI_DEV_MEMORY_TEMP", gauge, "°C", "Memory temperature (in C).", asks, func(g *gpu.GPU) *float64 {
			return g.MemoryTemperature
		}),
		reading("DCGM_FI_DEV_GPU_TEMP", gauge, "°C", "GPU temperature (in C).", asks, func(g *gpu.GPU) *float64 {
			return g.Temperature
		}),
		reading("DCGM_FI_DEV_FAN_SPEED", gauge, "%", "Fan speed (in % of its full speed).", asks, func(g *gpu.GPU) *float64 {
			return g.Fan
		}),
		reading("DCGM_FI_DEV_POWER_USAGE", gauge, "W", "Power draw (in W).", asks, func(g *gpu.GPU) *float64 {
			return g.Power
		}),
		reading("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", gauge, "W", "Power limit in force (in W).", asks,
			func(g *gpu.GPU) *float64 { return g.PowerLimit }),
		reading("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", counter, "mJ", "Total energy consumption since boot (in mJ).", asks,
			millijoules),
		reading("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", gauge, "kB/s", "What the GPU sends over PCIe (in KB per second).", asks,
			func(g *gpu.GPU) *float64 { return per(g.PCIeSent, 1000) }),
		reading("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", gauge, "kB/s", "What the GPU receives over PCIe (in KB per second).", asks,
			func(g *gpu.GPU) *float64 { return per(g.PCIeReceived, 1000) }),
		reading("DCGM_FI_DEV_PCIE_LINK_GEN", gauge, "generation", "PCIe generation of the link at this moment.", asks,
			func(g *gpu.GPU) *float64 { return g.PCIeGeneration }),
		reading("DCGM_FI_DEV_PCIE_LINK_WIDTH", gauge, "lanes", "PCIe lanes of the link at this moment.", asks,
			func(g *gpu.GPU) *float64 { return g.PCIeWidth }),
		reading("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", gauge, "generation", "PCIe generation that card and slot allow.", asks,
			func(g *gpu.GPU) *float64 { return g.PCIeGenerationMax }),
		reading("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", gauge, "lanes", "PCIe lanes that card and slot allow.", asks,
			func(g *gpu.GPU) *float64 { return g.PCIeWidthMax }),
		reading("DCGM_FI_DEV_GPU_UTIL", gauge, "%", "GPU utilization (in %).", asks, func(g *gpu.GPU) *float64 {
			return g.Utilization
		}),
		reading("DCGM_FI_DEV_MEM_COPY_UTIL", gauge, "%", "Memory utilization (in %).", asks, func(g *gpu.GPU) *float64 {
			return g.MemoryUtilization
		}),
		reading("DCGM_FI_DEV_ENC_UTIL", gauge, "%", "Encoder utilization (in %).", asks, func(g *gpu.GPU) *float64 {
			return g.Encoder
		}),
		reading("DCGM_FI_DEV_DEC_UTIL", gauge, "%", "Decoder utilization (in %).", asks, func(g *gpu.GPU) *float64 {
			return g.Decoder
		}),
		reading("DCGM_FI_DEV_XID_ERRORS", gauge, "XID", "Value of the last XID error encountered.",
			asks+"; 0 as long as there was none since the probe started", lastXID),
		parted("DCGM_FI_DEV_FB_TOTAL", "Frame buffer memory (in MiB).", memory,
			func(g *gpu.GPU) *float64 {
				return mebibytes(g.MemoryTotal)
			}, func(i gpu.Instance) *float64 { return mebibytes(i.MemoryTotal) }),
		parted("DCGM_FI_DEV_FB_FREE", "Frame buffer memory free (in MiB).", memory,
			func(g *gpu.GPU) *float64 {
				return free(g.MemoryUsed, g.MemoryTotal)
			}, func(i gpu.Instance) *float64 { return free(i.MemoryUsed, i.MemoryTotal) }),
		parted("DCGM_FI_DEV_FB_USED", "Frame buffer memory used (in MiB).", memory,
			func(g *gpu.GPU) *float64 {
				return mebibytes(g.MemoryUsed)
			}, func(i gpu.Instance) *float64 { return mebibytes(i.MemoryUsed) }),
		reading("DCGM_FI_DEV_ECC_CURRENT", gauge, "0 or 1", "Whether memory errors are found and mended.", asks,
			func(g *gpu.GPU) *float64 { return yes(g.ECC) }),
		reading("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", counter, "errors", "Total number of single-bit volatile ECC errors.", asks,
			func(g *gpu.GPU) *float64 { return whole(g.Health.ECCCorrected) }),
		reading("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", counter, "errors", "Total number of double-bit volatile ECC errors.", asks,
			func(g *gpu.GPU) *float64 { return whole(g.Health.ECCUncorrected) }),
		reading("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", counter, "rows",
			"Number of remapped rows for uncorrectable errors.", asks, func(g *gpu.GPU) *float64 {
				return whole(g.Health.RemappedUncorrectable)
			}),
		reading("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", counter, "rows", "Number of remapped rows for correctable errors.",
			asks, func(g *gpu.GPU) *float64 { return whole(g.Health.RemappedCorrectable) }),
		reading("DCGM_FI_DEV_ROW_REMAP_FAILURE", gauge, "0 or 1", "Whether remapping of rows has failed.", asks,
			func(g *gpu.GPU) *float64 {
				return ifKnown(g.Health.RemappedUncorrectable, g.Health.RemapFailed)
			}),
		reading("DCGM_FI_DEV_ROW_REMAP_PENDING", gauge, "0 or 1", "Whether rows are remapped at the next reset.", asks,
			func(g *gpu.GPU) *float64 {
				return ifKnown(g.Health.RemappedUncorrectable, g.Health.RemapPending)
			}),
		reading("DCGM_FI_DEV_RETIRED_PENDING", gauge, "0 or 1", "Whether pages are retired at the next reset.", asks,
			func(g *gpu.GPU) *float64 {
				return ifKnown(g.Health.RetiredPages, g.Health.RetirePending)
			}),
		reading("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", gauge, "bits",
			"What keeps the clocks down, in the bits of NVIDIA's library.", asks+"; see gpulab_gpu_throttled", throttleBits),
		reading("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", gauge, "action",
			"What the driver asks for: 1 reset, 2 reboot, 3 drain, 4 drain and reset, 6 bus reset.",
			asks+"; absent where it asks for nothing", recovery),
		reading("DCGM_FI_DEV_PERSISTENCE_MODE", gauge, "0 or 1", "Whether the driver keeps an unused card ready.", asks,
			func(g *gpu.GPU) *float64 { return yes(g.Persistence) }),
		reading("DCGM_FI_DEV_MIG_MODE", gauge, "0 or 1", "Whether the GPU is split into parts.", asks,
			func(g *gpu.GPU) *float64 { return yes(&g.MIG) }),
	}
}

// reading is a family with one series for each GPU that has a value.
func reading(name string, kind dto.MetricType, unit, help, source string, value func(*gpu.GPU) *float64) family {
	return family{
		name: name, kind: kind, unit: unit, help: help, source: source,
		labels: slices.Concat(nameLabels, ownerLabels),
		series: func(v *view, emit emit) {
			for _, d := range v.gpus {
				if x := value(d.GPU); d.fresh && x != nil {
					emit(d.owned, *x)
				}
			}
		},
	}
}

// parted is a gauge of memory. Of a GPU in MIG mode the parts are told rather
// than the whole, so that a sum counts nothing twice.
func parted(name, help, source string, whole func(*gpu.GPU) *float64, part func(gpu.Instance) *float64) family {
	return family{
		name: name, kind: gauge, unit: "MiB", help: help, source: source,
		labels: slices.Concat(nameLabels, partLabels, ownerLabels),
		series: func(v *view, emit emit) {
			for _, d := range v.gpus {
				if !d.fresh {
					continue
				}
				told := false
				for _, i := range d.Instances {
					if x := part(i); x != nil {
						told = true
						emit(withOwner(and(d.names, "GPU_I_PROFILE", i.Profile, "GPU_I_ID", instanceID(i)), d.GPU, i.UUID), *x)
					}
				}
				if x := whole(d.GPU); !told && x != nil {
					emit(d.owned, *x)
				}
			}
		},
	}
}

// instanceID is the driver's number of the GPU instance, as dcgm-exporter has it.
func instanceID(i gpu.Instance) string {
	if i.ID != nil {
		return strconv.Itoa(*i.ID)
	}
	return strconv.Itoa(i.Index)
}

func millijoules(g *gpu.GPU) *float64 {
	if g.Energy == nil {
		return nil
	}
	v := *g.Energy * 1000
	return &v
}

// lastXID is 0 while there has been none, as dcgm-exporter has it.
func lastXID(g *gpu.GPU) *float64 {
	if g.XID == nil {
		return new(float64)
	}
	return whole(g.XID)
}

// throttled are the reasons with a bit each of NVIDIA's library. That has more
// than one bit for what is "temperature" or "hardware" here.
var throttled = []struct {
	reason string
	bit    int
}{
	{gpu.ThrottleApplications, 0x2}, {gpu.ThrottlePowerCap, 0x4}, {gpu.ThrottleHardware, 0x8}, {gpu.ThrottleSync, 0x10},
	{gpu.ThrottleThermal, 0x20}, {gpu.ThrottlePowerBrake, 0x80}, {gpu.ThrottleDisplay, 0x100},
}

func throttleBits(g *gpu.GPU) *float64 {
	if g.Throttle == nil {
		return nil
	}
	bits := 0
	for _, t := range throttled {
		if slices.Contains(g.Throttle, t.reason) {
			bits |= t.bit
		}
	}
	v := float64(bits)
	return &v
}

// recovery is NVIDIA's number of what the driver asks for.
func recovery(g *gpu.GPU) *float64 {
	number := map[string]float64{
		gpu.RecoveryReset: 1, gpu.RecoveryReboot: 2, gpu.RecoveryDrain: 3, gpu.RecoveryDrainAndReset: 4,
		gpu.RecoveryBusReset: 6,
	}[g.Health.Recovery]
	if number == 0 {
		if _, err := fmt.Sscanf(g.Health.Recovery, "action %v", &number); err != nil {
			return nil
		}
	}
	return &number
}

// per is x in a larger unit.
func per(x *float64, unit float64) *float64 {
	if x == nil {
		return nil
	}
	v := *x / unit
	return &v
}

func whole(x *uint64) *float64 {
	if x == nil {
		return nil
	}
	v := float64(*x)
	return &v
}

const mebibyte = 1 << 20

func mebibytes(x *uint64) *float64 { return per(whole(x), mebibyte) }

func free(used, total *uint64) *float64 {
	if used == nil || total == nil || *used > *total {
		return nil
	}
	left := *total - *used
	return mebibytes(&left)
}

func yes(x *bool) *float64 {
	if x == nil {
		return nil
	}
	v := truth(*x)
	return &v
}

func truth(x bool) float64 {
	if x {
		return 1
	}
	return 0
}

// ifKnown tells an answer that means something only if another reading is there.
func ifKnown(other *uint64, answer bool) *float64 {
	if other == nil {
		return nil
	}
	return yes(&answer)
}
