package gpu

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet answers on a pod-resources socket as the real one does.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	pods []*podresources.PodResources
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *kubelet) give(pods ...*podresources.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// serve listens on the socket until stop is called.
func (k *kubelet) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func podWith(namespace, name, container, resource string, ids ...string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{{
		Name: container, Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}},
	}}}
}

func TestHolders(t *testing.T) {
	started := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	h := &holders{pods: onePod{ref: annasPod, started: started}}
	first := started.Add(time.Hour)
	pods := []*podresources.PodResources{
		podWith("user-anna", annasPod.Name, "notebook", "nvidia.com/gpu", "GPU-a"),
		podWith("user-ben", "shared", "main", "nvidia.com/gpu.shared", "GPU-b::0", "GPU-b::3"),
		podWith("user-ben", "other", "main", "example.com/fpga", "GPU-a"),
		podWith("user-ben", "none", "main", "nvidia.com/gpu"),
	}
	h.set(pods, first)
	anna := Holder{PodRef: annasPod, Container: "notebook", Since: started}
	ben := Holder{PodRef: PodRef{Namespace: "user-ben", Name: "shared"}, Container: "main", Since: first}
	if got := h.of("GPU-a"); !reflect.DeepEqual(got, []Holder{anna}) {
		t.Errorf("GPU-a: %+v", got)
	}
	if got := h.of("GPU-b"); !reflect.DeepEqual(got, []Holder{ben}) {
		t.Errorf("GPU-b: %+v", got)
	}
	h.set(pods, first.Add(time.Minute)) // seen again
	if got := h.of("GPU-b"); !reflect.DeepEqual(got, []Holder{ben}) {
		t.Errorf("a minute later: %+v", got)
	}
	h.set(nil, first.Add(2*time.Minute))
	if got := h.of("GPU-b"); got != nil {
		t.Errorf("after the pod: %+v", got)
	}
}

// Pods keep their GPUs while the kubelet is away, and it is found again.
func TestHoldersOutliveTheKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h := &holders{socket: socket, pods: noPods{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.run(ctx, 20*time.Millisecond) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	k := &kubelet{}
	k.give(podWith("n", "p", "c", "nvidia.com/gpu", "GPU-a"))
	stop := k.serve(t, socket)
	await(t, func() bool { return len(h.of("GPU-a")) == 1 })
	since := h.of("GPU-a")[0].Since
	stop()
	time.Sleep(100 * time.Millisecond)
	if got := h.of("GPU-a"); len(got) != 1 {
		t.Fatalf("while the kubelet is away: %+v", got)
	}
	k.give(podWith("n", "p", "c", "nvidia.com/gpu", "GPU-a"), podWith("n", "q", "c", "nvidia.com/gpu", "GPU-b"))
	k.serve(t, socket)
	await(t, func() bool { return len(h.of("GPU-b")) == 1 })
	if got := h.of("GPU-a"); len(got) != 1 || !got[0].Since.Equal(since) {
		t.Errorf("after the kubelet came back: %+v, held since %v", got, since)
	}
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come")
		}
	}
}
