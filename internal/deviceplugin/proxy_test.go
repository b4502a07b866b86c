package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// peer is a gRPC server on a socket, as kubelet and plugin are.
func peer(t *testing.T, path string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(l) }()
	var once sync.Once
	stop = func() { once.Do(server.Stop) }
	t.Cleanup(stop)
	return stop
}

// kubelet is the kubelet's side: it watches what is registered with it.
type kubelet struct {
	api.UnimplementedRegistrationServer
	dir string

	mu       sync.Mutex
	endpoint string
	watched  int               // registrations so far; only the last one's stream counts
	listed   map[string]string // health by device; nil when the stream has ended
}

func (k *kubelet) Register(_ context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endpoint = r.GetEndpoint()
	k.watched++
	go k.watch(k.endpoint, k.watched)
	return &api.Empty{}, nil
}

func (k *kubelet) client(endpoint string) (api.DevicePluginClient, func(), error) {
	conn, err := dial(filepath.Join(k.dir, endpoint))
	if err != nil {
		return nil, nil, err
	}
	return api.NewDevicePluginClient(conn), func() { _ = conn.Close() }, nil
}

func (k *kubelet) watch(endpoint string, registration int) {
	client, done, err := k.client(endpoint)
	if err != nil {
		return
	}
	defer done()
	stream, err := client.ListAndWatch(context.Background(), &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		list, err = stream.Recv()
		k.mu.Lock()
		if k.watched != registration {
			k.mu.Unlock()
			return
		}
		k.listed = nil
		if err == nil {
			k.listed = map[string]string{}
			for _, d := range list.GetDevices() {
				k.listed[d.GetID()] = d.GetHealth()
			}
		}
		k.mu.Unlock()
	}
}

// sees waits until the kubelet knows these devices, written "name health".
func (k *kubelet) sees(t *testing.T, want ...string) {
	t.Helper()
	var have []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		have = nil
		k.mu.Lock()
		for id, health := range k.listed {
			have = append(have, id+" "+health)
		}
		k.mu.Unlock()
		slices.Sort(have)
		if slices.Equal(have, want) {
			return
		}
	}
	t.Fatalf("the kubelet sees %q, want %q", have, want)
}

// plugin is NVIDIA's side.
type plugin struct {
	api.UnimplementedDevicePluginServer
	lists chan []string // "name health"
	blind atomic.Bool   // it cannot say which devices it prefers
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			answer := &api.ListAndWatchResponse{}
			for _, line := range list {
				id, health, _ := strings.Cut(line, " ")
				answer.Devices = append(answer.Devices, &api.Device{ID: id, Health: health})
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, in *api.AllocateRequest) (*api.AllocateResponse, error) {
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Envs: map[string]string{"GPUS": fmt.Sprint(in.GetContainerRequests()[0].GetDevicesIds())},
	}}}, nil
}

func (p *plugin) GetPreferredAllocation(_ context.Context, in *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	if p.blind.Load() {
		return nil, errors.New("error getting device handle: GPU is lost")
	}
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{
		DeviceIDs: in.GetContainerRequests()[0].GetAvailableDeviceIDs()[:1],
	}}}, nil
}

// register does what a plugin does when it starts: serve, then register.
func (p *plugin) register(t *testing.T, dir string) (stop func()) {
	t.Helper()
	stop = peer(t, filepath.Join(dir, "nvidia-gpu.sock"), func(s *grpc.Server) { api.RegisterDevicePluginServer(s, p) })
	conn, err := dial(filepath.Join(dir, Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = api.NewRegistrationClient(conn).Register(t.Context(), &api.RegisterRequest{
		Version: api.Version, Endpoint: "nvidia-gpu.sock", ResourceName: "nvidia.com/gpu",
		Options: &api.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// start runs a proxy between a kubelet and a plugin that lists two GPUs.
func start(t *testing.T) (string, *Proxy, *kubelet, *plugin) {
	t.Helper()
	dir := t.TempDir()
	k := &kubelet{dir: dir}
	peer(t, filepath.Join(dir, "kubelet.sock"), func(s *grpc.Server) { api.RegisterRegistrationServer(s, k) })
	p := New(Config{Dir: dir})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	nvidia := &plugin{lists: make(chan []string, 8)}
	nvidia.register(t, dir)
	nvidia.lists <- []string{"GPU-a Healthy", "GPU-b Healthy"}
	time.Sleep(50 * time.Millisecond)
	k.sees(t) // nobody has decided anything
	p.Lend(nil, nil)
	k.sees(t, "GPU-a Healthy", "GPU-b Healthy")
	return dir, p, k, nvidia
}

func TestWithheldGPUIsListedAsUnhealthy(t *testing.T) {
	_, p, k, nvidia := start(t)
	p.Lend([]string{"GPU-b"}, nil)
	k.sees(t, "GPU-a Healthy", "GPU-b Unhealthy")
	nvidia.lists <- []string{"GPU-a Unhealthy", "GPU-b Healthy"}
	k.sees(t, "GPU-a Unhealthy", "GPU-b Unhealthy")
	p.Lend(nil, nil)
	k.sees(t, "GPU-a Unhealthy", "GPU-b Healthy") // the plugin's own verdict stands
	nvidia.lists <- []string{"GPU-a::0 Healthy", "GPU-a::1 Healthy", "GPU-b::0 Healthy"}
	p.Lend([]string{"GPU-a"}, nil)
	k.sees(t, "GPU-a::0 Unhealthy", "GPU-a::1 Unhealthy", "GPU-b::0 Healthy")
}

// A pod on a GPU that has failed must not cost others a healthy one.
func TestSickGPUThatAPodHas(t *testing.T) {
	_, p, k, nvidia := start(t)
	p.Lend(nil, []string{"GPU-a"})
	nvidia.lists <- []string{"GPU-a Unhealthy", "GPU-b Healthy"}
	k.sees(t, "GPU-a Healthy", "GPU-b Healthy")
	var sick []string
	for end := time.Now().Add(time.Minute); len(sick) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		sick = p.Sick()
	}
	if len(sick) != 1 || sick[0] != "GPU-a" {
		t.Errorf("sick: %v", sick)
	}
	k.sees(t, "GPU-a Healthy", "GPU-b Healthy")
	client, done, err := k.client(k.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	preferred, err := client.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: []string{"GPU-a", "GPU-b"}, AllocationSize: 1}},
	})
	if err != nil || preferred.GetContainerResponses()[0].GetDeviceIDs()[0] != "GPU-b" {
		t.Errorf("preferred: %v, %v", preferred, err)
	}
	// With one off the bus the plugin cannot say which it would take; the others go on.
	nvidia.blind.Store(true)
	for _, c := range []struct {
		request *api.ContainerPreferredAllocationRequest
		want    string
	}{
		{&api.ContainerPreferredAllocationRequest{AvailableDeviceIDs: []string{"GPU-a", "GPU-b"}, AllocationSize: 1}, "[GPU-b]"},
		{&api.ContainerPreferredAllocationRequest{AvailableDeviceIDs: []string{"GPU-a", "GPU-b"}, AllocationSize: 2}, "[GPU-b GPU-a]"},
		{&api.ContainerPreferredAllocationRequest{AvailableDeviceIDs: []string{"GPU-c", "GPU-b"}, MustIncludeDeviceIDs: []string{"GPU-b"}, AllocationSize: 2}, "[GPU-b GPU-c]"},
	} {
		answer, err := client.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{c.request}})
		if err != nil || fmt.Sprint(answer.GetContainerResponses()[0].GetDeviceIDs()) != c.want {
			t.Errorf("of %v it takes %v, %v; want %s", c.request, answer, err, c.want)
		}
	}
	nvidia.blind.Store(false)
	for device, well := range map[string]bool{"GPU-a": false, "GPU-b": true} {
		_, err := client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{device}}}})
		if (err == nil) != well {
			t.Errorf("allocate %s: %v", device, err)
		}
	}
	p.Lend(nil, nil) // the pod has ended
	k.sees(t, "GPU-a Unhealthy", "GPU-b Healthy")
	p.Lend([]string{"GPU-a"}, []string{"GPU-a"})
	k.sees(t, "GPU-a Unhealthy", "GPU-b Healthy") // who withholds it knows best
	p.Lend(nil, []string{"GPU-a"})
	nvidia.lists <- []string{"GPU-a::0 Unhealthy", "GPU-a::1 Unhealthy"}
	k.sees(t, "GPU-a::0 Unhealthy", "GPU-a::1 Unhealthy")
}

func TestCallsArePassedOn(t *testing.T) {
	_, _, k, _ := start(t)
	client, done, err := k.client(k.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	answer, err := client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"GPU-a"}}}})
	if err != nil || answer.GetContainerResponses()[0].GetEnvs()["GPUS"] != "[GPU-a]" {
		t.Errorf("%v, %v", answer, err)
	}
	preferred, err := client.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: []string{"GPU-b", "GPU-a"}}},
	})
	if err != nil || preferred.GetContainerResponses()[0].GetDeviceIDs()[0] != "GPU-b" {
		t.Errorf("%v, %v", preferred, err)
	}
}

func TestPluginThatEndsAndComesBack(t *testing.T) {
	dir, p, k, _ := start(t)
	p.Lend([]string{"GPU-a"}, nil)
	// It registers anew while its earlier self is still known.
	again := &plugin{lists: make(chan []string, 8)}
	stop := again.register(t, dir)
	again.lists <- []string{"GPU-a Healthy"}
	k.sees(t, "GPU-a Unhealthy")
	stop()
	k.sees(t) // the kubelet is told that there are none
	third := &plugin{lists: make(chan []string, 8)}
	third.register(t, dir)
	third.lists <- []string{"GPU-a Healthy", "GPU-c Healthy"}
	k.sees(t, "GPU-a Unhealthy", "GPU-c Healthy")
}

// A kubelet that starts removes every socket in its folder.
func TestKubeletThatStartsAnew(t *testing.T) {
	dir, p, _, _ := start(t)
	sockets, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	next := &kubelet{dir: dir}
	peer(t, filepath.Join(dir, "kubelet.sock"), func(s *grpc.Server) { api.RegisterRegistrationServer(s, next) })
	// The plugin sees that its socket has gone with the others, and starts anew.
	nvidia := &plugin{lists: make(chan []string, 8)}
	for range 200 {
		if _, err := os.Stat(filepath.Join(dir, Socket)); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	nvidia.register(t, dir)
	nvidia.lists <- []string{"GPU-a Healthy"}
	next.sees(t, "GPU-a Healthy")
	p.Lend([]string{"GPU-a"}, nil)
	next.sees(t, "GPU-a Unhealthy")
}

func TestBadRegistrations(t *testing.T) {
	p := New(Config{Dir: t.TempDir()})
	for _, r := range []*api.RegisterRequest{
		{Version: "v1alpha1", Endpoint: "x.sock", ResourceName: "nvidia.com/gpu"},
		{Version: api.Version, Endpoint: "../x.sock", ResourceName: "nvidia.com/gpu"},
		{Version: api.Version, ResourceName: "nvidia.com/gpu"},
		{Version: api.Version, Endpoint: "x.sock"},
	} {
		if _, err := p.Register(t.Context(), r); err == nil {
			t.Errorf("%v was taken", r)
		}
	}
}
