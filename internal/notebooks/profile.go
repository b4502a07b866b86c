package notebooks

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// gpuResource is the name under which NVIDIA's device plugin offers GPUs.
const gpuResource = "nvidia.com/gpu"

// What a notebook is promised when a profile does not say: enough for an idle
// JupyterLab with one kernel, little enough that many fit on a small machine.
const (
	defaultCPURequest    = 0.1
	defaultMemoryRequest = "512Mi"
)

// Profile is what a notebook gets. CPUs and Memory are limits; the request
// fields are what is set aside for it, and what admission counts.
type Profile struct {
	Slug        string // stable name, "cpu" or "gpu"; also the stem of server names
	Title       string
	Description string
	CPUs        float64 // cores, 0 = no limit
	Memory      string  // Kubernetes quantity such as "4Gi", "" = no limit
	GPUs        int

	CPURequest    float64 // cores, 0 = a small default
	MemoryRequest string  // Kubernetes quantity, "" = a small default
}

// DefaultProfiles are the two launch cards a new lab starts with.
func DefaultProfiles() []Profile {
	return []Profile{
		{Slug: "cpu", Title: "CPU notebook", Description: "JupyterLab without a GPU: reading, writing, small data.",
			CPUs: 2, Memory: "4Gi"},
		{Slug: "gpu", Title: "GPU notebook", Description: "JupyterLab with one GPU of its own.",
			CPUs: 4, Memory: "8Gi", GPUs: 1},
	}
}

// ProfileList is the chart value singleuser.profileList for these profiles, in
// the shape of Zero to JupyterHub. The chart takes it from here so that
// admission counts with the same numbers as the pods ask for.
func ProfileList(profiles []Profile) []map[string]any {
	list := make([]map[string]any, 0, len(profiles))
	for i, p := range profiles {
		override := map[string]any{
			"cpu_guarantee": p.cpuRequest(),
			"mem_guarantee": hubQuantity(p.memoryRequest()),
		}
		if p.CPUs > 0 {
			override["cpu_limit"] = p.CPUs
		}
		if p.Memory != "" {
			override["mem_limit"] = hubQuantity(p.Memory)
		}
		if p.GPUs > 0 {
			override["extra_resource_limits"] = map[string]any{gpuResource: strconv.Itoa(p.GPUs)}
		}
		entry := map[string]any{
			"slug":                 p.Slug,
			"display_name":         p.Title,
			"description":          p.Description,
			"kubespawner_override": override,
		}
		if i == 0 {
			entry["default"] = true
		}
		list = append(list, entry)
	}
	return list
}

func (p Profile) cpuRequest() float64 {
	if p.CPURequest > 0 {
		return p.CPURequest
	}
	return defaultCPURequest
}

func (p Profile) memoryRequest() string {
	if p.MemoryRequest != "" {
		return p.MemoryRequest
	}
	return defaultMemoryRequest
}

// check reports a profile whose numbers Kubernetes would refuse at launch.
func (p Profile) check() error {
	if err := CheckName(p.Slug); err != nil {
		return fmt.Errorf("profile %q: %w", p.Slug, err)
	}
	if p.GPUs < 0 || p.CPUs < 0 || p.CPURequest < 0 {
		return fmt.Errorf("profile %q: GPUs and CPUs cannot be negative", p.Slug)
	}
	for _, q := range []string{p.Memory, p.MemoryRequest} {
		if q == "" {
			continue
		}
		if _, err := resource.ParseQuantity(q); err != nil {
			return fmt.Errorf("profile %q: memory %q is not a quantity such as 4Gi: %w", p.Slug, q, err)
		}
	}
	return nil
}

// need is what admission sets aside for one notebook of this profile.
func (p Profile) need() Amount {
	q, err := resource.ParseQuantity(p.memoryRequest())
	if err != nil {
		q = resource.MustParse(defaultMemoryRequest)
	}
	return Amount{GPUs: p.GPUs, MilliCPU: int64(p.cpuRequest() * 1000), Memory: q.Value()}
}

// hubQuantity writes a Kubernetes memory quantity the way JupyterHub reads one:
// its M is 2^20 and it knows no Mi. Rounded up to a whole mebibyte.
func hubQuantity(s string) string {
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return s
	}
	const mebi = 1 << 20
	return strconv.FormatInt((q.Value()+mebi-1)/mebi, 10) + "M"
}
