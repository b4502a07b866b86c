package deviceplugin

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

	mu      sync.Mutex
	server  *grpc.Server
	devices []*api.Device // as the plugin lists them; nil before it has
	rules   rules
	changed chan struct{} // closed when there is something new to list
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

// watch takes what the plugin lists until it ends.
func (r *relay) watch() {
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

func (r *relay) follow(next rules) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = next
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

// list is what the kubelet is told, nil before plugin and lab have said anything,
// and a channel that is closed when it is no longer true.
func (r *relay) list() (*api.ListAndWatchResponse, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.devices == nil || !r.rules.known {
		return nil, r.changed
	}
	answer := &api.ListAndWatchResponse{}
	for _, d := range r.devices {
		if health := r.health(d); health != d.GetHealth() {
			d = proto.CloneOf(d)
			d.Health = health
		}
		answer.Devices = append(answer.Devices, d)
	}
	return answer, r.changed
}

// health is what the kubelet is told of a device. Of a shared GPU it is not
// known which of its parts are held, so these are left as they are.
func (r *relay) health(d *api.Device) string {
	uuid, shared := gpuOf(d.GetID())
	switch {
	case r.rules.withheld[uuid]:
		return api.Unhealthy
	case r.rules.held[uuid] && !shared:
		return api.Healthy
	}
	return d.GetHealth()
}

// sick tells whether the plugin itself calls the device unhealthy.
func (r *relay) sick(device string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.devices, func(d *api.Device) bool {
		return d.GetID() == device && d.GetHealth() != api.Healthy
	})
}

func (r *relay) sickGPUs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var uuids []string
	for _, d := range r.devices {
		if uuid, _ := gpuOf(d.GetID()); d.GetHealth() != api.Healthy && !slices.Contains(uuids, uuid) {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// gpuOf is the UUID in a device's name: the parts of a shared GPU are called
// GPU-…::0, GPU-…::1, and so on.
func gpuOf(device string) (uuid string, shared bool) {
	uuid, _, shared = strings.Cut(device, "::")
	return uuid, shared
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

// GetPreferredAllocation passes the kubelet's question on, without the devices
// that have failed where others will do.
func (r *relay) GetPreferredAllocation(ctx context.Context,
	in *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	for _, c := range in.GetContainerRequests() {
		well := slices.DeleteFunc(slices.Clone(c.GetAvailableDeviceIDs()), r.sick)
		if len(well) >= int(c.GetAllocationSize()) && !slices.ContainsFunc(c.GetMustIncludeDeviceIDs(), r.sick) {
			c.AvailableDeviceIDs = well
		}
	}
	out, err := r.plugin.GetPreferredAllocation(ctx, in)
	if err == nil || ctx.Err() != nil {
		return out, err
	}
	// The plugin looks how all of the machine's GPUs are linked, and cannot once one of
	// them has fallen off the bus (NVIDIA/k8s-device-plugin#2038). The kubelet would fail
	// every pod for it, where the order is but a preference.
	slog.Warn("NVIDIA's device plugin does not say which GPUs it would take; any will do", "err", err)
	out = &api.PreferredAllocationResponse{}
	for _, c := range in.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: r.any(c)})
	}
	return out, nil
}

// any takes as many devices as are asked for: those that have to be among them, then
// those that are well, in their order.
func (r *relay) any(c *api.ContainerPreferredAllocationRequest) []string {
	all := slices.Clone(c.GetMustIncludeDeviceIDs())
	for _, takeSick := range []bool{false, true} {
		for _, id := range c.GetAvailableDeviceIDs() {
			if len(all) < int(c.GetAllocationSize()) && !slices.Contains(all, id) && r.sick(id) == takeSick {
				all = append(all, id)
			}
		}
	}
	return all
}

// Allocate passes the kubelet's decision on, also about a GPU that is withheld
// since: refusing would fail the pod for good, where using it does little harm.
// One that has failed is of no use: it was listed as healthy until a moment ago
// because the pod before had it.
func (r *relay) Allocate(ctx context.Context, in *api.AllocateRequest) (*api.AllocateResponse, error) {
	for _, container := range in.GetContainerRequests() {
		for _, device := range container.GetDevicesIds() {
			if r.sick(device) {
				return nil, status.Errorf(codes.Unavailable, "GPU %s has failed and is given to nobody; try again", device)
			}
		}
	}
	return r.plugin.Allocate(ctx, in)
}

// PreStartContainer passes the kubelet's call on.
func (r *relay) PreStartContainer(ctx context.Context,
	in *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return r.plugin.PreStartContainer(ctx, in)
}
