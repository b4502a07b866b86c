package podresources

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpulab/gpulab/internal/gpu"
)

// fakeKubelet answers on a pod-resources socket as the real one does.
type fakeKubelet struct {
	api.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	pods []*api.PodResources
}

func (k *fakeKubelet) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &api.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *fakeKubelet) give(pods ...*api.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// serve listens on the socket until stop is called.
func (k *fakeKubelet) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func podWith(namespace, name, container, resource string, ids ...string) *api.PodResources {
	return &api.PodResources{Namespace: namespace, Name: name, Containers: []*api.ContainerResources{{
		Name: container, Devices: []*api.ContainerDevices{{ResourceName: resource, DeviceIds: ids}},
	}}}
}

// onePod knows a single pod.
type onePod struct {
	ref     gpu.PodRef
	started time.Time
}

func (p onePod) ByUID(uid string) (gpu.PodRef, bool) { return p.ref, uid == p.ref.UID }

func (p onePod) ByName(namespace, name string) (gpu.PodRef, time.Time, bool) {
	if namespace != p.ref.Namespace || name != p.ref.Name {
		return gpu.PodRef{}, time.Time{}, false
	}
	return p.ref, p.started, true
}

var annasPod = gpu.PodRef{UID: "1b4e28ba", Namespace: "user-anna", Name: "jupyter-anna--work", User: "anna", Notebook: "work"}

func TestHolders(t *testing.T) {
	started := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	h := &Holders{pods: onePod{ref: annasPod, started: started}}
	first := started.Add(time.Hour)
	pods := []*api.PodResources{
		podWith("user-anna", annasPod.Name, "notebook", "nvidia.com/gpu", "GPU-a"),
		podWith("user-ben", "shared", "main", "nvidia.com/gpu.shared", "GPU-b::0", "GPU-b::3"),
		podWith("user-ben", "other", "main", "example.com/fpga", "GPU-a"),
		podWith("user-ben", "none", "main", "nvidia.com/gpu"),
		podWith("user-ben", "part", "main", "nvidia.com/mig-1g.5gb", "MIG-c"),
	}
	h.set(pods, first)
	anna := gpu.Holder{PodRef: annasPod, Container: "notebook", Since: started}
	ben := gpu.Holder{PodRef: gpu.PodRef{Namespace: "user-ben", Name: "shared"}, Container: "main", Since: first}
	if got := h.Of("GPU-a"); !reflect.DeepEqual(got, []gpu.Holder{anna}) {
		t.Errorf("GPU-a: %+v", got)
	}
	if got := h.Of("GPU-b"); !reflect.DeepEqual(got, []gpu.Holder{ben}) {
		t.Errorf("GPU-b: %+v", got)
	}
	if got := h.Of("MIG-c"); len(got) != 1 || got[0].Name != "part" {
		t.Errorf("MIG-c: %+v", got)
	}
	h.set(pods, first.Add(time.Minute)) // seen again
	if got := h.Of("GPU-b"); !reflect.DeepEqual(got, []gpu.Holder{ben}) {
		t.Errorf("a minute later: %+v", got)
	}
	h.set(nil, first.Add(2*time.Minute))
	if got := h.Of("GPU-b"); got != nil {
		t.Errorf("after the pod: %+v", got)
	}
}

// Pods keep their GPUs while the kubelet is away, and it is found again.
func TestHoldersOutliveTheKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h, err := New(socket, onePod{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, 20*time.Millisecond) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	k := &fakeKubelet{}
	k.give(podWith("n", "p", "c", "nvidia.com/gpu", "GPU-a"))
	stop := k.serve(t, socket)
	await(t, func() bool { return len(h.Of("GPU-a")) == 1 })
	since := h.Of("GPU-a")[0].Since
	stop()
	time.Sleep(100 * time.Millisecond)
	if got := h.Of("GPU-a"); len(got) != 1 {
		t.Fatalf("while the kubelet is away: %+v", got)
	}
	k.give(podWith("n", "p", "c", "nvidia.com/gpu", "GPU-a"), podWith("n", "q", "c", "nvidia.com/gpu", "GPU-b"))
	k.serve(t, socket)
	await(t, func() bool { return len(h.Of("GPU-b")) == 1 })
	if got := h.Of("GPU-a"); len(got) != 1 || !got[0].Since.Equal(since) {
		t.Errorf("after the kubelet came back: %+v, held since %v", got, since)
	}
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come")
		}
	}
}
