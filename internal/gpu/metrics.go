package gpu

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// metric is one family in NVIDIA's dcgm-exporter's names and units, so that
// existing dashboards work.
type metric struct {
	name, kind, help string
	value            func(*GPU) *float64
}

var metrics = []metric{
	{"DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", func(g *GPU) *float64 { return g.SMClock }},
	{"DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", func(g *GPU) *float64 { return g.MemoryClock }},
	{"DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", func(g *GPU) *float64 { return g.Temperature }},
	{"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", func(g *GPU) *float64 { return g.Power }},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", energyMillijoules},
	{"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", func(g *GPU) *float64 { return g.Utilization }},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", func(g *GPU) *float64 { return g.MemoryUtilization }},
	{"DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", func(g *GPU) *float64 { return g.Encoder }},
	{"DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", func(g *GPU) *float64 { return g.Decoder }},
	{"DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lastXID},
	{"DCGM_FI_DEV_FB_FREE", "gauge", "Frame buffer memory free (in MiB).", memoryFree},
	{"DCGM_FI_DEV_FB_USED", "gauge", "Frame buffer memory used (in MiB).", memoryUsed},
	{"gpulab_gpu_up", "gauge", "1 while the GPU can be read, 0 while it cannot.", up},
}

const mebibyte = 1 << 20

func energyMillijoules(g *GPU) *float64 {
	if g.Energy == nil {
		return nil
	}
	v := *g.Energy * 1000
	return &v
}

// lastXID is 0 while there has been none, as dcgm-exporter has it.
func lastXID(g *GPU) *float64 {
	v := 0.0
	if g.XID != nil {
		v = float64(*g.XID)
	} else if g.Error != "" {
		return nil
	}
	return &v
}

func memoryUsed(g *GPU) *float64 {
	if g.MemoryUsed == nil {
		return nil
	}
	v := float64(*g.MemoryUsed) / mebibyte
	return &v
}

func memoryFree(g *GPU) *float64 {
	if g.MemoryUsed == nil || g.MemoryTotal == nil || *g.MemoryUsed > *g.MemoryTotal {
		return nil
	}
	v := float64(*g.MemoryTotal-*g.MemoryUsed) / mebibyte
	return &v
}

func up(g *GPU) *float64 {
	v := 1.0
	if g.Error != "" {
		v = 0
	}
	return &v
}

// WriteMetrics renders snapshots in Prometheus' text format. Readings that are
// unknown are left out. So are all readings of a snapshot with an Error: they
// are old, and only gpulab_gpu_up is there, as 0. Simulated GPUs bear the label
// simulated="true".
func WriteMetrics(w io.Writer, snapshots []Snapshot) error {
	b := bufio.NewWriter(w)
	for _, m := range metrics {
		written := false
		for i := range snapshots {
			s := &snapshots[i]
			for k := range s.GPUs {
				g := s.GPUs[k]
				if s.Error != "" {
					g.Reading = Reading{Error: s.Error}
				}
				v := m.value(&g)
				if v == nil {
					continue
				}
				if !written {
					written = true
					fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
				}
				fmt.Fprintf(b, "%s{%s} %s\n", m.name, labels(s, &g), strconv.FormatFloat(*v, 'f', -1, 64))
			}
		}
	}
	return b.Flush()
}

// labels names a GPU as dcgm-exporter does. A pod is named only if the GPU is
// one pod's alone: naming one of several would be wrong, and a series for each
// would count the GPU more than once.
func labels(s *Snapshot, g *GPU) string {
	pairs := []string{
		"gpu", strconv.Itoa(g.Index), "UUID", g.UUID, "pci_bus_id", g.PCIBusID, "device", "nvidia" + strconv.Itoa(g.Index),
		"modelName", g.Name, "Hostname", s.Node,
	}
	if g.Simulated {
		pairs = append(pairs, "simulated", "true")
	}
	if len(g.Holders) == 1 {
		h := g.Holders[0]
		pairs = append(pairs, "container", h.Container, "namespace", h.Namespace, "pod", h.Name)
	}
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%s="%s"`, pairs[i], labelEscaper.Replace(pairs[i+1]))
	}
	return b.String()
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
