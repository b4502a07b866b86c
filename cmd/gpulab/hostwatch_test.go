package main

import (
	"testing"

	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

func TestSummary(t *testing.T) {
	r := hoststat.Reading{
		CPUs: make([]hoststat.CPU, 8), Load: &hoststat.Load{Over1: 2.5},
		Memory: map[string]float64{"MemTotal": 64 << 30, "MemAvailable": 48 << 30},
		Filesystems: []hoststat.Filesystem{
			{MountPoint: "/", Size: 100, Available: 10},
			{MountPoint: "/var/lib", Size: 200, Available: 20},
			{MountPoint: "/var/lib/gpu", Size: 300, Available: 30}, // no parent of it, though its name begins alike
			{MountPoint: "/var/lib/gpulab", Failed: true},
		},
	}
	if got, want := *summary(r, "/var/lib/gpulab"), (nodeapi.Host{CPUs: 8, Load: 2.5, MemoryTotal: 64 << 30, MemoryUsed: 16 << 30, DiskTotal: 200, DiskFree: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := *summary(hoststat.Reading{}, "/srv"); got != (nodeapi.Host{}) {
		t.Errorf("of nothing: %+v", got)
	}
}
