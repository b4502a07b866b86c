// Package deviceplugin stands between NVIDIA's device plugin and the kubelet,
// so that gpulab decides which GPUs new pods may get.
//
// The kubelet chooses among the healthy devices that a plugin lists, and
// nothing in Kubernetes can except a single one. So the plugin registers here
// instead of with the kubelet, and Proxy registers in its place: it passes every
// call on, and lists a withheld GPU as unhealthy. Pods that have it keep it.
//
// It also mends what one sick GPU does to its neighbours. Kubernetes counts what
// is healthy less what pods have asked for, so a pod on a GPU that has failed
// would take a healthy one away from everybody else. Such a GPU is listed as
// healthy for as long as that pod has it: nobody else can get it anyway.
//
// The protocol is the kubelet's device plugin API, v1beta1:
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// Socket is where plugins register with the proxy, below the kubelet's
	// folder: the plugin's image names it.
	Socket = "gpulab.sock"
	// prefix of the sockets on which the proxy serves the kubelet.
	prefix = "gpulab-"
	// look is how often the sockets are looked at: a kubelet that starts
	// removes them all.
	look = 500 * time.Millisecond
	// patience bounds a call to the kubelet or a plugin.
	patience = 5 * time.Second
)

// Config describes a Proxy; the zero value works.
type Config struct {
	// Dir is the kubelet's folder of device plugins; default
	// /var/lib/kubelet/device-plugins.
	Dir string
	// Log receives what goes wrong; nil discards it.
	Log *slog.Logger
}

// Proxy relays device plugins. It is safe for concurrent use.
type Proxy struct {
	api.UnimplementedRegistrationServer
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	relays map[string]*relay // by resource
	rules  rules
}

// rules are what is known of GPUs, by UUID.
type rules struct {
	known    bool            // something was decided; before, nothing is listed
	withheld map[string]bool // no new pod gets them
	held     map[string]bool // a pod has them
}

// New returns a proxy that does nothing until Run.
func New(cfg Config) *Proxy {
	if cfg.Dir == "" {
		cfg.Dir = api.DevicePluginPath
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Proxy{cfg: cfg, wake: make(chan struct{}, 1), relays: map[string]*relay{}}
}

// Lend names the GPUs, by UUID, that no new pod gets, and those that a pod has,
// in place of those named before. The kubelet hears of no GPU before the first
// call.
func (p *Proxy) Lend(withheld, held []string) {
	next := rules{true, setOf(withheld), setOf(held)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rules.known && maps.Equal(next.withheld, p.rules.withheld) && maps.Equal(next.held, p.rules.held) {
		return
	}
	p.rules = next
	for _, r := range p.relays {
		r.follow(next)
	}
}

// Sick returns the GPUs, by UUID, that NVIDIA's plugin has found unhealthy. It
// never changes its mind: a new plugin does.
func (p *Proxy) Sick() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var uuids []string
	for _, r := range p.relays {
		uuids = append(uuids, r.sickGPUs()...)
	}
	return uuids
}

func setOf(uuids []string) map[string]bool {
	set := make(map[string]bool, len(uuids))
	for _, uuid := range uuids {
		set[uuid] = true
	}
	return set
}

// Run relays until ctx ends; the kubelet then gives these devices to no new pod
// until somebody registers them again. The error is nil after an orderly end.
func (p *Proxy) Run(ctx context.Context) error {
	door := &door{path: filepath.Join(p.cfg.Dir, Socket)}
	defer door.close()
	defer p.end()
	tick := time.NewTicker(look)
	defer tick.Stop()
	failing := false
	for {
		err := p.settle(ctx, door)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			failing = failed
			if failed {
				p.cfg.Log.Warn("GPUs cannot be given to pods at the moment", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.wake:
		}
	}
}

// settle opens the door for plugins where it is not, and registers what the
// present kubelet does not know yet.
func (p *Proxy) settle(ctx context.Context, door *door) error {
	if err := door.open(p); err != nil {
		return err
	}
	kubelet, err := os.Stat(filepath.Join(p.cfg.Dir, filepath.Base(api.KubeletSocket)))
	if err != nil {
		return fmt.Errorf("the kubelet is not there: %w", err)
	}
	p.mu.Lock()
	var due []*relay
	for resource, r := range p.relays {
		switch {
		case r.ended():
			delete(p.relays, resource)
		case r.known == nil || !os.SameFile(r.known, kubelet):
			due = append(due, r)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, r := range due {
		if err := p.introduce(ctx, r); err != nil {
			errs = append(errs, err)
			continue
		}
		r.known = kubelet // only Run's goroutine looks at it
	}
	return errors.Join(errs...)
}

// introduce registers a relay with the kubelet.
func (p *Proxy) introduce(ctx context.Context, r *relay) error {
	// A kubelet that started anew has removed the socket.
	if err := r.listen(filepath.Join(p.cfg.Dir, prefix+r.endpoint)); err != nil {
		return err
	}
	conn, err := dial(filepath.Join(p.cfg.Dir, filepath.Base(api.KubeletSocket)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: prefix + r.endpoint, ResourceName: r.resource, Options: r.options,
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", r.resource, err)
	}
	return nil
}

// Register is called by a plugin that has started, or started anew.
func (p *Proxy) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	if request.GetVersion() != api.Version {
		return nil, status.Errorf(codes.InvalidArgument, "version %q of the device plugin API is not known here, only %s",
			request.GetVersion(), api.Version)
	}
	endpoint := request.GetEndpoint()
	if endpoint == "" || filepath.Base(endpoint) != endpoint || request.GetResourceName() == "" {
		return nil, status.Error(codes.InvalidArgument, "a plugin registers a resource with the name of a socket beside "+
			"this one")
	}
	conn, err := dial(filepath.Join(p.cfg.Dir, endpoint))
	if err != nil {
		return nil, err
	}
	r := newRelay(request, conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.relays[r.resource]; old != nil {
		old.end()
	}
	r.rules = p.rules
	p.relays[r.resource] = r
	go r.watch()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return &api.Empty{}, nil
}

func (p *Proxy) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.relays {
		r.end()
	}
	clear(p.relays)
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// door is the socket on which plugins register.
type door struct {
	path   string
	server *grpc.Server
	socket os.FileInfo
}

// open listens, unless it does.
func (d *door) open(registration api.RegistrationServer) error {
	if d.server != nil {
		if present, err := os.Stat(d.path); err == nil && os.SameFile(present, d.socket) {
			return nil
		}
		d.close()
	}
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, registration)
	socket, err := serve(server, d.path)
	if err != nil {
		return err
	}
	d.server, d.socket = server, socket
	return nil
}

func (d *door) close() {
	if d.server != nil {
		d.server.Stop()
		d.server = nil
	}
}

// serve starts a server on a socket, in place of one that was left there.
func serve(server *grpc.Server, path string) (os.FileInfo, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for device plugins: %w", err)
	}
	socket, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// Whoever listens there by then has made a socket of their own.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	go func() { _ = server.Serve(l) }()
	return socket, nil
}
