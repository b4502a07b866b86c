package deviceplugin

import (
	"context"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// relay is one plugin towards the kubelet, and the kubelet towards the plugin.
// It ends with the plugin.
type relay struct {
	api.UnimplementedDevicePluginServer
	resource, endpoint string
	options            *api.DevicePluginOptions
	conn               *grpc.ClientConn
	plugin             api.DevicePluginClient
	ctx                context.Context
	stop               context.CancelFunc

	// known is the kubelet's socket that this relay is registered at.
	known os.FileInfo

	mu       sync.Mutex
	server   *grpc.Server
	devices  []*api.Device // as the plugin lists them; nil before it has
	withheld map[string]bool
	changed  chan struct{} // closed when there is something new to list
}

func newRelay(request *api.RegisterRequest, conn *grpc.ClientConn) *relay {
	r := &relay{
		resource: request.GetResourceName(), endpoint: request.GetEndpoint(), options: request.GetOptions(),
		conn: conn, plugin: api.NewDevicePluginClient(conn), changed: make(chan struct{}),
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// listen serves the kubelet on the socket.
func (r *relay) listen(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended() {
		return r.ctx.Err()
	}
	if r.server != nil {
		r.server.Stop()
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, r)
	if _, err := serve(server, path); err != nil {
		return err
	}
	r.server = server
	return nil
}

// follow takes what the plugin lists until it ends.
func (r *relay) follow() {
	defer r.end()
	stream, err := r.plugin.ListAndWatch(r.ctx, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.devices = append([]*api.Device{}, list.GetDevices()...)
		r.announce()
		r.mu.Unlock()
	}
}

func (r *relay) withhold(uuids map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withheld = uuids
	r.announce()
}

// announce wakes every listing. r.mu is held.
func (r *relay) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// end makes the kubelet see that the plugin is gone.
func (r *relay) end() {
	r.stop()
	_ = r.conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server != nil {
		// Not from within a call of this very server.
		go r.server.Stop()
		r.server = nil
	}
}

func (r *relay) ended() bool { return r.ctx.Err() != nil }

// list is what the kubelet is told, nil before the plugin has said anything,
// and a channel that is closed when it is no longer true.
func (r *relay) list() (*api.ListAndWatchResponse, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.devices == nil {
		return nil, r.changed
	}
	answer := &api.ListAndWatchResponse{}
	for _, d := range r.devices {
		if r.withheld[gpuOf(d.GetID())] && d.GetHealth() == api.Healthy {
			d = proto.CloneOf(d)
			d.Health = api.Unhealthy
		}
		answer.Devices = append(answer.Devices, d)
	}
	return answer, r.changed
}

// gpuOf is the UUID in a device's name: the parts of a shared GPU are called
// GPU-…::0, GPU-…::1, and so on.
func gpuOf(device string) string {
	uuid, _, _ := strings.Cut(device, "::")
	return uuid
}

// ListAndWatch tells the kubelet about the devices until either side ends.
func (r *relay) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		answer, changed := r.list()
		if answer != nil {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-r.ctx.Done():
			return nil
		}
	}
}

// GetDevicePluginOptions passes the kubelet's question on.
func (r *relay) GetDevicePluginOptions(ctx context.Context, in *api.Empty) (*api.DevicePluginOptions, error) {
	return r.plugin.GetDevicePluginOptions(ctx, in)
}

// GetPreferredAllocation passes the kubelet's question on.
func (r *relay) GetPreferredAllocation(ctx context.Context, in *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return r.plugin.GetPreferredAllocation(ctx, in)
}

// Allocate passes the kubelet's decision on, also about a GPU that is withheld
// since: refusing would fail the pod for good, where using it does little harm.
func (r *relay) Allocate(ctx context.Context, in *api.AllocateRequest) (*api.AllocateResponse, error) {
	return r.plugin.Allocate(ctx, in)
}

// PreStartContainer passes the kubelet's call on.
func (r *relay) PreStartContainer(ctx context.Context, in *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return r.plugin.PreStartContainer(ctx, in)
}
