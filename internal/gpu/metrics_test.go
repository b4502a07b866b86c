package gpu

import (
	"strings"
	"testing"
	"time"
)

func ptr[T any](v T) *T { return &v }

func TestWriteMetrics(t *testing.T) {
	busy := GPU{
		Device:  Device{UUID: "GPU-a", Index: 1, Name: "Simulated GPU 24GB", PCIBusID: "00000000:22:00.0", MemoryTotal: ptr(uint64(24 << 30)), Simulated: true},
		Reading: Reading{Utilization: ptr(37.0), MemoryUsed: ptr(uint64(1536 << 20)), Power: ptr(121.5), Energy: ptr(2.5), XID: ptr(uint64(79))},
		Holders: []Holder{{PodRef: annasPod, Container: "notebook"}},
	}
	real := GPU{Device: Device{UUID: "GPU-b", Name: `NVIDIA "odd"\name`}, Reading: Reading{Temperature: ptr(41.0)}, Holders: make([]Holder, 2)}
	lost := GPU{Device: Device{UUID: "GPU-c", Index: 2}, Reading: Reading{Error: "GPU 2 has fallen off the bus."}}
	stale := Snapshot{Node: "old", Time: time.Unix(1, 0), Error: "The GPU probe has stopped.", GPUs: []GPU{busy}}
	var b strings.Builder
	if err := WriteMetrics(&b, []Snapshot{{Node: "head", GPUs: []GPU{busy, real, lost}}, stale}); err != nil {
		t.Fatal(err)
	}
	const a = `gpu="1",UUID="GPU-a",pci_bus_id="00000000:22:00.0",device="nvidia1",modelName="Simulated GPU 24GB",Hostname="head",simulated="true",container="notebook",namespace="user-anna",pod="jupyter-anna--work"`
	const r = `gpu="0",UUID="GPU-b",pci_bus_id="",device="nvidia0",modelName="NVIDIA \"odd\"\\name",Hostname="head"`
	want := strings.Join([]string{
		`# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).`,
		`# TYPE DCGM_FI_DEV_GPU_TEMP gauge`,
		`DCGM_FI_DEV_GPU_TEMP{` + r + `} 41`,
		`# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).`,
		`# TYPE DCGM_FI_DEV_POWER_USAGE gauge`,
		`DCGM_FI_DEV_POWER_USAGE{` + a + `} 121.5`,
		`# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).`,
		`# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter`,
		`DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{` + a + `} 2500`,
		`# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).`,
		`# TYPE DCGM_FI_DEV_GPU_UTIL gauge`,
		`DCGM_FI_DEV_GPU_UTIL{` + a + `} 37`,
		`# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.`,
		`# TYPE DCGM_FI_DEV_XID_ERRORS gauge`,
		`DCGM_FI_DEV_XID_ERRORS{` + a + `} 79`,
		`DCGM_FI_DEV_XID_ERRORS{` + r + `} 0`,
		`# HELP DCGM_FI_DEV_FB_FREE Frame buffer memory free (in MiB).`,
		`# TYPE DCGM_FI_DEV_FB_FREE gauge`,
		`DCGM_FI_DEV_FB_FREE{` + a + `} 23040`,
		`# HELP DCGM_FI_DEV_FB_USED Frame buffer memory used (in MiB).`,
		`# TYPE DCGM_FI_DEV_FB_USED gauge`,
		`DCGM_FI_DEV_FB_USED{` + a + `} 1536`,
		`# HELP gpulab_gpu_up 1 while the GPU can be read, 0 while it cannot.`,
		`# TYPE gpulab_gpu_up gauge`,
		`gpulab_gpu_up{` + a + `} 1`,
		`gpulab_gpu_up{` + r + `} 1`,
		`gpulab_gpu_up{gpu="2",UUID="GPU-c",pci_bus_id="",device="nvidia2",modelName="",Hostname="head"} 0`,
		`gpulab_gpu_up{` + strings.Replace(a, `"head"`, `"old"`, 1) + `} 0`,
		``,
	}, "\n")
	if got := b.String(); got != want {
		gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
		for i := range min(len(gotLines), len(wantLines)) {
			if gotLines[i] != wantLines[i] {
				t.Fatalf("line %d is\n%s, want\n%s", i+1, gotLines[i], wantLines[i])
			}
		}
		t.Fatalf("%d lines, want %d", len(gotLines), len(wantLines))
	}
}
