package notebooks

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// gpuResource is the name under which NVIDIA's device plugin offers GPUs.
const gpuResource = "nvidia.com/gpu"

// Labels that NVIDIA's feature discovery gives a node. The model of GPUs that
// are shared has a suffix.
const (
	labelGPUModel  = "nvidia.com/gpu.product"
	labelGPUMemory = "nvidia.com/gpu.memory" // MiB of each
	// labelGPUPresent is "true" on nodes with GPUs.
	labelGPUPresent = "nvidia.com/gpu.present"
	sharedSuffix    = "-SHARED"
)

// singleuser is what JupyterHub starts in an image, looked for on its PATH.
const singleuser = "jupyterhub-singleuser"

// What a notebook is promised when a profile does not say: enough for an idle
// JupyterLab with one kernel, little enough that many fit on a small machine.
const (
	defaultCPURequest    = 0.1
	defaultMemoryRequest = "512Mi"
)

// Profile is what a notebook gets. CPUs and Memory are limits; the request
// fields are what is set aside for it, and what admission counts.
type Profile struct {
	Slug        string  `json:"slug"` // stable name, "cpu" or "gpu"; also the stem of server names
	Title       string  `json:"title"`
	Description string  `json:"description,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`   // cores, 0 = half of the machine's
	Memory      string  `json:"memory,omitempty"` // Kubernetes quantity such as "4Gi", "" = half of the machine's
	GPUs        int     `json:"gpus,omitempty"`
	GPUModel    string  `json:"gpuModel,omitempty"`  // such as "NVIDIA-GeForce-RTX-4090", "" = any
	GPUMemory   string  `json:"gpuMemory,omitempty"` // of each GPU at least, as its maker counts: "24Gi", "" = any
	Image       string  `json:"image,omitempty"`     // container image, "" = gpulab's own

	CPURequest    float64 `json:"cpuRequest,omitempty"`    // cores, 0 = a small default
	MemoryRequest string  `json:"memoryRequest,omitempty"` // Kubernetes quantity, "" = a small default
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
		if p.Image != "" {
			override["image"] = p.Image
			override["cmd"] = []any{singleuser} // others have it elsewhere than gpulab's own image
		}
		if p.GPUs > 0 {
			override["extra_resource_limits"] = map[string]any{gpuResource: strconv.Itoa(p.GPUs)}
			if term := p.GPUKind().nodeTerm(); term != nil {
				override["node_affinity_required"] = []any{term}
			}
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

// CheckProfiles reports the first profile that cannot be launched, or whose
// name another one has.
func CheckProfiles(profiles []Profile) error {
	seen := map[string]bool{}
	for _, p := range profiles {
		if err := p.check(); err != nil {
			return err
		}
		if seen[p.Slug] {
			return fmt.Errorf("two profiles are called %q", p.Slug)
		}
		seen[p.Slug] = true
	}
	return nil
}

func (p Profile) cpuRequest() float64 {
	if p.CPURequest > 0 {
		return p.CPURequest
	}
	if p.CPUs > 0 {
		return min(defaultCPURequest, p.CPUs)
	}
	return defaultCPURequest
}

func (p Profile) memoryRequest() string {
	if p.MemoryRequest != "" {
		return p.MemoryRequest
	}
	if q, err := resource.ParseQuantity(p.Memory); err == nil && q.Cmp(resource.MustParse(defaultMemoryRequest)) < 0 {
		return p.Memory // Kubernetes refuses a request beyond the limit
	}
	return defaultMemoryRequest
}

// check reports a profile whose numbers Kubernetes would refuse at launch.
func (p Profile) check() error {
	if err := CheckName(p.Slug); err != nil {
		return fmt.Errorf("profile %q: %w", p.Slug, err)
	}
	if p.Title == "" {
		return fmt.Errorf("profile %q: it needs a title, which is what its card says", p.Slug)
	}
	if p.GPUs == 0 && (p.GPUModel != "" || p.GPUMemory != "") {
		return fmt.Errorf("profile %q: it says which GPU it wants, but asks for none; set gpus", p.Slug)
	}
	if p.Image != "" {
		if _, err := ImageName(p.Image); err != nil {
			return fmt.Errorf("profile %q: image %w", p.Slug, err)
		}
	}
	if wrong := validation.IsValidLabelValue(p.GPUKind().Model); len(wrong) > 0 {
		return fmt.Errorf("profile %q: gpuModel %q is no model as `gpulab gpus` shows it", p.Slug, p.GPUModel)
	}
	if p.GPUs < 0 || p.CPUs < 0 || p.CPURequest < 0 {
		return fmt.Errorf("profile %q: GPUs and CPUs cannot be negative", p.Slug)
	}
	for _, q := range []string{p.Memory, p.MemoryRequest, p.GPUMemory} {
		if q == "" {
			continue
		}
		if _, err := resource.ParseQuantity(q); err != nil {
			return fmt.Errorf("profile %q: memory %q is not a quantity such as 4Gi: %w", p.Slug, q, err)
		}
	}
	if p.CPUs > 0 && p.CPURequest > p.CPUs {
		return fmt.Errorf("profile %q: cpuRequest %v is more than cpus, which is %v", p.Slug, p.CPURequest, p.CPUs)
	}
	if p.Memory != "" && p.MemoryRequest != "" {
		if limit := resource.MustParse(p.Memory); limit.Cmp(resource.MustParse(p.MemoryRequest)) < 0 {
			return fmt.Errorf("profile %q: memoryRequest %s is more than memory, which is %s", p.Slug, p.MemoryRequest, p.Memory)
		}
	}
	return nil
}

// need is what admission sets aside for one notebook of this profile.
func (p Profile) need() Need {
	q, err := resource.ParseQuantity(p.memoryRequest())
	if err != nil {
		q = resource.MustParse(defaultMemoryRequest)
	}
	return Need{
		Amount: Amount{GPUs: p.GPUs, MilliCPU: int64(p.cpuRequest() * 1000), Memory: q.Value()}, GPUKind: p.GPUKind(),
	}
}

// GPUKind is which GPUs the profile takes. A model may be written as its maker
// writes it, or as the label has it, whether GPUs are shared or not.
func (p Profile) GPUKind() GPUKind {
	model := strings.ReplaceAll(strings.TrimSpace(p.GPUModel), " ", "-")
	k := GPUKind{Model: strings.TrimSuffix(model, sharedSuffix)}
	if q, err := resource.ParseQuantity(p.GPUMemory); err == nil {
		k.MinMemory = q.Value()
	}
	return k
}

// nodeTerm is Kubernetes' form of it, nil for any GPU.
func (k GPUKind) nodeTerm() map[string]any {
	var wanted []any
	if k.Model != "" {
		wanted = append(wanted, map[string]any{
			"key": labelGPUModel, "operator": "In", "values": []any{k.Model, k.Model + sharedSuffix},
		})
	}
	if k.MinMemory > 0 {
		wanted = append(wanted, map[string]any{
			"key": labelGPUMemory, "operator": "Gt", "values": []any{strconv.FormatInt(k.leastMemory()>>20-1, 10)},
		})
	}
	if wanted == nil {
		return nil
	}
	return map[string]any{"matchExpressions": wanted}
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
