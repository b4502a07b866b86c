package gpu

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultPodResourcesSocket is where the kubelet answers which pod has which
// device, whatever its data directory is.
const DefaultPodResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// holders keeps track of which pods the kubelet has given which GPU to. While
// the kubelet does not answer, the last answer stands: its pods keep running.
type holders struct {
	socket string
	pods   Pods

	mu    sync.Mutex
	byGPU map[string][]Holder // by GPU UUID
}

// run asks the kubelet every interval until ctx ends.
func (h *holders) run(ctx context.Context, interval time.Duration) error {
	conn, err := grpc.NewClient("unix://"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("the kubelet's pod resources at %s: %w", h.socket, err)
	}
	defer func() { _ = conn.Close() }()
	client := podresources.NewPodResourcesListerClient(conn)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failing := false
	for {
		err := h.refresh(ctx, client, time.Now())
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			failing = failed
			slog.Debug("asking the kubelet which pod has which GPU", "socket", h.socket, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// refresh replaces the table by the kubelet's present answer.
func (h *holders) refresh(ctx context.Context, client podresources.PodResourcesListerClient, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answer, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	h.set(answer.GetPodResources(), now)
	return nil
}

func (h *holders) set(pods []*podresources.PodResources, now time.Time) {
	next := make(map[string][]Holder)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pod := range pods {
		for _, container := range pod.GetContainers() {
			for _, uuid := range gpusOf(container) {
				next[uuid] = append(next[uuid], h.holder(uuid, pod, container.GetName(), now))
			}
		}
	}
	h.byGPU = next
}

// holder describes a pod with a GPU, and keeps the time it was first seen.
func (h *holders) holder(uuid string, pod *podresources.PodResources, container string, now time.Time) Holder {
	ref, started, ok := h.pods.ByName(pod.GetNamespace(), pod.GetName())
	if !ok {
		ref = PodRef{Namespace: pod.GetNamespace(), Name: pod.GetName()}
	}
	next := Holder{PodRef: ref, Container: container, Since: started}
	if !started.IsZero() {
		return next
	}
	next.Since = now
	for _, old := range h.byGPU[uuid] {
		samePod := old.Namespace == ref.Namespace && old.Name == ref.Name
		if samePod && old.Container == container && (old.UID == ref.UID || old.UID == "" || ref.UID == "") {
			next.Since = old.Since
		}
	}
	return next
}

// of returns who holds the GPU.
func (h *holders) of(uuid string) []Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.byGPU[uuid])
}

// gpusOf returns the UUIDs of the GPUs a container has, each once. A shared
// GPU's devices are called GPU-…::0, GPU-…::1, and so on.
func gpusOf(container *podresources.ContainerResources) []string {
	var uuids []string
	for _, device := range container.GetDevices() {
		if !strings.HasPrefix(device.GetResourceName(), "nvidia.com/") {
			continue
		}
		for _, id := range device.GetDeviceIds() {
			uuid, _, _ := strings.Cut(id, "::")
			if !slices.Contains(uuids, uuid) {
				uuids = append(uuids, uuid)
			}
		}
	}
	return uuids
}
