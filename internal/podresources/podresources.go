// Package podresources asks the kubelet which pods it has given which GPU to,
// whether they use it or not.
//
// It is apart from package gpu, whose types gpulab-probe uses too: the kubelet's
// protocol would make that small program several times as large.
package podresources

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
	kubelet "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpulab/gpulab/internal/gpu"
)

// DefaultSocket is where the kubelet answers, whatever its data directory is.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// Holders keeps track of who holds which GPU. While the kubelet does not
// answer, the last answer stands: its pods keep running.
type Holders struct {
	socket string
	pods   gpu.Pods
	conn   *grpc.ClientConn

	mu    sync.Mutex
	byGPU map[string][]gpu.Holder // by GPU UUID
}

// New returns Holders that know nobody until Run.
func New(socket string, pods gpu.Pods) (*Holders, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("the kubelet's pod resources at %s: %w", socket, err)
	}
	return &Holders{socket: socket, pods: pods, conn: conn}, nil
}

// Run asks the kubelet every interval until ctx ends. The error is nil.
func (h *Holders) Run(ctx context.Context, interval time.Duration) error {
	defer func() { _ = h.conn.Close() }()
	client := kubelet.NewPodResourcesListerClient(h.conn)
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
func (h *Holders) refresh(ctx context.Context, client kubelet.PodResourcesListerClient, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answer, err := client.List(ctx, &kubelet.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	h.set(answer.GetPodResources(), now)
	return nil
}

func (h *Holders) set(pods []*kubelet.PodResources, now time.Time) {
	next := make(map[string][]gpu.Holder)
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
func (h *Holders) holder(uuid string, pod *kubelet.PodResources, container string, now time.Time) gpu.Holder {
	ref, started, ok := h.pods.ByName(pod.GetNamespace(), pod.GetName())
	if !ok {
		ref = gpu.PodRef{Namespace: pod.GetNamespace(), Name: pod.GetName()}
	}
	next := gpu.Holder{PodRef: ref, Container: container, Since: started}
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

// Of returns who holds the GPU.
func (h *Holders) Of(uuid string) []gpu.Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.byGPU[uuid])
}

// gpusOf returns the UUIDs of the GPUs a container has, each once. A shared
// GPU's devices are called GPU-…::0, GPU-…::1, and so on.
func gpusOf(container *kubelet.ContainerResources) []string {
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
