package tenancy

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
)

// Limits are what a user's pods may take together, and each container of them
// alone. What is nil is not limited.
type Limits struct {
	Pods *int64
	GPUs *int64 // shares of GPUs where several pods share one
	Amounts
	Container ContainerLimits
}

// Amounts of what containers share.
type Amounts struct {
	MilliCPU         *int64 // thousandths of a core
	Memory           *int64 // bytes
	EphemeralStorage *int64 // bytes beside the home
}

// ContainerLimits bound one container.
type ContainerLimits struct {
	// Default is for containers that set no limit of their own.
	Default Amounts
	// Max is more than any container may ask for.
	Max Amounts
}

// What is set aside for a container that does not say: as for a notebook.
const (
	defaultMilliCPURequest = 100
	defaultMemoryRequest   = 512 << 20
)

// Objects of a kind that a namespace may hold beside pods. Nobody but gpulab
// makes any; these numbers bound what a hole could be used for.
const (
	maxClaims     = 256 // the home, and shared folders
	maxSmallFiles = 16  // secrets, and config maps
)

// quotaName is of the quota and of the bounds of containers.
const quotaName = "gpulab"

func (a Amounts) list() corev1.ResourceList {
	list := corev1.ResourceList{}
	if a.MilliCPU != nil {
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity(*a.MilliCPU, resource.DecimalSI)
	}
	if a.Memory != nil {
		list[corev1.ResourceMemory] = *resource.NewQuantity(*a.Memory, resource.BinarySI)
	}
	if a.EphemeralStorage != nil {
		list[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(*a.EphemeralStorage, resource.BinarySI)
	}
	return list
}

// quota bounds a namespace as a whole.
func quota(handle string, l Limits) *corev1ac.ResourceQuotaApplyConfiguration {
	none := *resource.NewQuantity(0, resource.DecimalSI)
	hard := corev1.ResourceList{
		// A service of a node's port would be a way around the policies' intent.
		corev1.ResourceServices:               none,
		corev1.ResourceServicesNodePorts:      none,
		corev1.ResourceServicesLoadBalancers:  none,
		corev1.ResourcePersistentVolumeClaims: *resource.NewQuantity(maxClaims, resource.DecimalSI),
		corev1.ResourceConfigMaps:             *resource.NewQuantity(maxSmallFiles, resource.DecimalSI),
		corev1.ResourceSecrets:                *resource.NewQuantity(maxSmallFiles, resource.DecimalSI),
	}
	if l.Pods != nil {
		hard[corev1.ResourcePods] = *resource.NewQuantity(*l.Pods, resource.DecimalSI)
	}
	if l.GPUs != nil {
		hard["requests.nvidia.com/gpu"] = *resource.NewQuantity(*l.GPUs, resource.DecimalSI)
	}
	for name, amount := range l.list() {
		// Both, since a container may be promised less than it is let take.
		hard["requests."+name], hard["limits."+name] = amount, amount
	}
	return corev1ac.ResourceQuota(quotaName, Namespace(handle)).WithLabels(placeLabels(handle)).
		WithSpec(corev1ac.ResourceQuotaSpec().WithHard(hard))
}

// bounds are of each container.
func bounds(handle string, l ContainerLimits) *corev1ac.LimitRangeApplyConfiguration {
	requests := Amounts{
		MilliCPU:         atMost(defaultMilliCPURequest, l.Default.MilliCPU, l.Max.MilliCPU),
		Memory:           atMost(defaultMemoryRequest, l.Default.Memory, l.Max.Memory),
		EphemeralStorage: atMost(0),
	}
	item := corev1ac.LimitRangeItem().WithType(corev1.LimitTypeContainer).WithDefaultRequest(requests.list())
	if list := l.Default.list(); len(list) > 0 {
		item.WithDefault(list)
	}
	if list := l.Max.list(); len(list) > 0 {
		item.WithMax(list)
	}
	return corev1ac.LimitRange(quotaName, Namespace(handle)).WithLabels(placeLabels(handle)).
		WithSpec(corev1ac.LimitRangeSpec().WithLimits(item))
}

// atMost is n, or the smallest of the bounds that are known.
func atMost(n int64, bounds ...*int64) *int64 {
	for _, b := range bounds {
		if b != nil {
			n = min(n, *b)
		}
	}
	return &n
}

// counted tells whether Kubernetes knows how much of the user's quota is used.
func (t *Tenancy) counted(ctx context.Context, handle string) (bool, error) {
	q, err := t.client.CoreV1().ResourceQuotas(Namespace(handle)).Get(ctx, quotaName, metav1.GetOptions{})
	return err == nil && equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard), err
}
