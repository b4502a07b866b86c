package metrics

import (
	"maps"
	"slices"

	"github.com/gpulab/gpulab/internal/gpu"
)

// labFamilies are what only gpulab can tell of the lab and its GPUs.
func labFamilies() []family {
	return []family{
		{
			name: "gpulab_build_info", kind: gauge, unit: "1", help: "The version of gpulab that answers.",
			labels: []string{"version"}, source: "this program",
			series: func(v *view, emit emit) { emit(labels("version", v.Version), 1) },
		},
		{
			name: "gpulab_probe_up", kind: gauge, unit: "0 or 1", help: "1 while the GPUs of the machine are being read.",
			labels: []string{"Hostname"}, source: "the GPU probe",
			series: func(v *view, emit emit) {
				for _, s := range v.Snapshots {
					emit(labels("Hostname", s.Node), truth(s.Error == ""))
				}
			},
		},
		{
			name: "gpulab_sample_age_seconds", kind: gauge, unit: "s",
			help:   "How old the latest readings of the machine's GPUs are.",
			labels: []string{"Hostname"}, source: "the GPU probe",
			series: func(v *view, emit emit) {
				for _, s := range v.Snapshots {
					if !s.Time.IsZero() {
						emit(labels("Hostname", s.Node), max(0, v.Now.Sub(s.Time).Seconds()))
					}
				}
			},
		},
		{
			name: "gpulab_gpu_up", kind: gauge, unit: "0 or 1", help: "1 while the GPU can be read, 0 while it cannot.",
			labels: slices.Concat(nameLabels, ownerLabels), source: "the GPU probe",
			series: func(v *view, emit emit) {
				for _, d := range v.gpus {
					emit(d.owned, truth(d.fresh))
				}
			},
		},
		{
			name: "gpulab_gpu_info", kind: gauge, unit: "1", help: "What the GPU and its driver are.",
			labels: slices.Concat(nameLabels, []string{"driver_version", "cuda_version", "compute_capability"}),
			source: "NVIDIA's library",
			series: func(v *view, emit emit) {
				for _, d := range v.gpus {
					if d.fresh {
						emit(and(d.names, "driver_version", d.node.DriverVersion, "cuda_version", d.node.CUDAVersion,
							"compute_capability", d.ComputeCapability), 1)
					}
				}
			},
		},
		reading("gpulab_gpu_asleep", gauge, "0 or 1", "1 while the card has powered itself down and is not asked for more.",
			"the kernel", func(g *gpu.GPU) *float64 { return yes(&g.Asleep) }),
		reading("gpulab_gpu_retired_pages_total", counter, "pages", "Pages of memory that are not used any more.",
			"NVIDIA's library", func(g *gpu.GPU) *float64 { return whole(g.Health.RetiredPages) }),
		{
			name: "gpulab_gpu_throttled", kind: gauge, unit: "0 or 1",
			help:   "1 for each reason that keeps the GPU's clocks down.",
			labels: append(slices.Clone(nameLabels), "reason"), source: "NVIDIA's library",
			series: func(v *view, emit emit) {
				for _, d := range v.gpus {
					for _, t := range throttled {
						if d.fresh && d.Throttle != nil {
							emit(and(d.names, "reason", t.reason), truth(slices.Contains(d.Throttle, t.reason)))
						}
					}
				}
			},
		},
		{
			name: "gpulab_gpu_holders", kind: gauge, unit: "pods", help: "How many pods hold the GPU, used or not; 0 is a " +
				"free one.",
			labels: nameLabels, source: "the kubelet",
			series: func(v *view, emit emit) {
				for _, d := range v.gpus {
					if d.fresh {
						emit(d.names, float64(len(d.Holders)))
					}
				}
			},
		},
		reading("gpulab_gpu_withheld", gauge, "0 or 1", "1 while no new pod gets the GPU.", "gpulab",
			func(g *gpu.GPU) *float64 {
				withheld := g.Withheld != ""
				return yes(&withheld)
			}),
		{
			name: "gpulab_disk_level", kind: gauge, unit: "0 to 4", help: "How short of room a disk of the lab is: 0 fine, 1 " +
				"notice, 2 nothing new starts, 3 full, 4 read-only.",
			labels: []string{"path"}, source: "statfs",
			series: func(v *view, emit emit) {
				for i := range v.Disks {
					emit(labels("path", v.Disks[i].Path), float64(v.Disks[i].Level))
				}
			},
		},
		{
			name: "gpulab_launches", kind: gauge, unit: "launches", help: "Notebooks that were asked for and have not ended, " +
				"by state.",
			labels: []string{"state"}, source: "gpulab's queue",
			series: func(v *view, emit emit) {
				for _, state := range slices.Sorted(maps.Keys(v.Launches)) {
					emit(labels("state", state), float64(v.Launches[state]))
				}
			},
		},
	}
}
