package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpulab/gpulab/internal/nodes"
)

// Head is what the handler asks of the lab.
type Head interface {
	// Hello and Settings describe the lab.
	Hello() Hello
	Settings(ctx context.Context) (Settings, error)
	// Joined is told of a machine that was let in, replaced that another of the
	// name had to go.
	Joined(ctx context.Context, n nodes.Node, replaced bool) error
	// Refused is told of somebody who was not let in, or was not believed.
	Refused(ctx context.Context, who, remote, why string)
	// Token is a credential of a few minutes with which Kubernetes lets the
	// machine in.
	Token(ctx context.Context, n nodes.Node) (string, error)
	// Report takes what a machine tells of itself, and Orders is what it gets back.
	Report(ctx context.Context, n nodes.Node, r Report) error
	Orders(n nodes.Node) Orders
	// Check looks how far the machine's way into the pool is; with pods, it lets
	// a pod there ask one on the head.
	Check(ctx context.Context, n nodes.Node, pods bool) (Progress, error)
	// Images are those that every machine is to have, and Blob a part of one of
	// them; of anything else it is an error.
	Images(ctx context.Context) (Images, error)
	Blob(ctx context.Context, digest string) (Blob, error)
	// Environments are those that every machine is to have; Environment writes one
	// of them as a file, and of anything else is an error before it writes.
	Environments(ctx context.Context) (Environments, error)
	Environment(ctx context.Context, id string, w io.Writer) error
	// Left is told of a machine that takes itself out of the pool.
	Left(ctx context.Context, n nodes.Node) error
}

// Config wires a handler. All fields are needed but Requests.
type Config struct {
	Head      Head
	Registry  *nodes.Registry
	Authority *nodes.Authority
	// Requests are of machines without a code; nil takes none.
	Requests *nodes.Requests
	Log      *slog.Logger
}

// Limits of what strangers and machines may send.
const (
	smallBody  = 16 << 10
	longLine   = 1 << 20
	joinsBurst = 10
)

// joinsEvery bounds how fast codes can be tried, by all strangers together.
const joinsEvery = 3 * time.Second

// How often one machine may ask for a credential of Kubernetes', each of which the cluster keeps for a while.
const (
	tokensEvery = 10 * time.Second
	tokensBurst = 10
)

type handler struct {
	Config
	joins   *rate.Limiter
	streams streams
	tokens  perMachine
	// Parts of images, and environments, that are being handed over.
	transfers, environments *transfers
}

// Handler answers machines. It is served with the authority's ServerConfig.
func Handler(cfg Config) http.Handler {
	h := &handler{Config: cfg, joins: rate.NewLimiter(rate.Every(joinsEvery), joinsBurst),
		streams:      streams{open: map[int64]*live{}},
		transfers:    newTransfers(mostTransfers, mostTransfersEach),
		environments: newTransfers(mostEnvironments, mostEnvironmentsEach)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, h.Head.Hello(), nil) })
	mux.HandleFunc("POST /v1/join", h.join)
	mux.HandleFunc("GET /v1/settings", h.machine(func(r *http.Request, _ nodes.Node) (any, error) {
		return h.Head.Settings(r.Context())
	}))
	mux.HandleFunc("POST /v1/token", h.machine(func(r *http.Request, n nodes.Node) (any, error) {
		if !h.tokens.allow(n.ID) {
			return nil, &Problem{
				Message: "this machine asks for credentials too often; it is tried again", Status: http.StatusTooManyRequests,
			}
		}
		return h.Head.Token(r.Context(), n)
	}))
	mux.HandleFunc("GET /v1/progress", h.machine(func(r *http.Request, n nodes.Node) (any, error) {
		return h.Head.Check(r.Context(), n, r.URL.Query().Get("pods") != "")
	}))
	mux.HandleFunc("POST /v1/certificate", h.machine(h.renew))
	mux.HandleFunc("POST /v1/leave", h.machine(func(r *http.Request, n nodes.Node) (any, error) {
		return struct{}{}, h.Head.Left(r.Context(), n)
	}))
	mux.HandleFunc("GET /v1/images", h.machine(func(r *http.Request, _ nodes.Node) (any, error) {
		return h.Head.Images(r.Context())
	}))
	mux.HandleFunc("GET /v1/blobs/{digest}", h.blob)
	mux.HandleFunc("GET /v1/environments", h.machine(func(r *http.Request, _ nodes.Node) (any, error) {
		return h.Head.Environments(r.Context())
	}))
	mux.HandleFunc("GET /v1/environments/{name}/{version}", h.environment)
	mux.HandleFunc("POST /v1/stream", h.stream)
	if cfg.Requests != nil {
		h.handleRequests(mux)
	}
	return mux
}

// perMachine bounds how often each machine may ask for something.
type perMachine struct {
	mu   sync.Mutex
	each map[int64]*rate.Limiter // by the machine's ID
}

func (p *perMachine) allow(id int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each == nil {
		p.each = map[int64]*rate.Limiter{}
	}
	l := p.each[id]
	if l == nil {
		l = rate.NewLimiter(rate.Every(tokensEvery), tokensBurst)
		p.each[id] = l
	}
	return l.Allow()
}

func (h *handler) answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		p := &Problem{Message: err.Error(), Removed: errors.Is(err, nodes.ErrRemoved), Status: http.StatusBadRequest}
		_ = errors.As(err, &p)
		w.WriteHeader(p.Status)
		v = p
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		h.Log.Debug("a machine went away", "err", err)
	}
}

// nodeName is what Kubernetes takes, and gpulab makes, for a machine's name.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$`)

func (h *handler) join(w http.ResponseWriter, r *http.Request) {
	if !h.joins.Allow() {
		h.answer(w, nil, &Problem{
			Message: "too many machines try to join at once; try again in half a minute", Status: http.StatusTooManyRequests,
		})
		return
	}
	admission, name, err := h.admit(r)
	if err != nil {
		h.Head.Refused(r.Context(), name, r.RemoteAddr, err.Error())
	}
	h.answer(w, admission, err)
}

func (h *handler) admit(r *http.Request) (out Admission, name string, err error) {
	var a Application
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, smallBody)).Decode(&a); err != nil {
		return out, "", fmt.Errorf("the application could not be read: %w", err)
	}
	if !nodeName.MatchString(a.Name) {
		return out, "", fmt.Errorf("%.60q cannot be a machine's name; choose one of lower-case letters, digits and "+
			"hyphens with --name", a.Name)
	}
	if len(a.Code) != 8 || len(a.Secret) != 16 || len(a.Machine) != 64 || len(a.Version) > 64 {
		return out, a.Name, errors.New("the application is not whole")
	}
	switch a.GPUs {
	case "real", "simulated", "none":
	default:
		return out, a.Name, fmt.Errorf("the machine's GPUs are %.20q, but may be real, simulated or none", a.GPUs)
	}
	settings, err := h.Head.Settings(r.Context())
	if err != nil {
		return out, a.Name, err
	}
	if a.Name == settings.Head {
		return out, a.Name, fmt.Errorf("the lab's head is named %s itself; choose another name with --name", a.Name)
	}
	if err := Skew(a.Name, a.Version, h.Head.Hello().Version); err != nil {
		return out, a.Name, err
	}
	request, err := nodes.ParseRequest(a.Request)
	if err != nil {
		return out, a.Name, err
	}
	hash, err := nodes.KeyHash(request.PublicKey)
	if err != nil {
		return out, a.Name, err
	}
	n, replaced, err := h.Registry.Join(r.Context(), nodes.Application{
		CodeID: [8]byte(a.Code), Secret: [16]byte(a.Secret), KeyHash: hash, Name: a.Name, Machine: a.Machine,
		Address: addressOf(r), Version: a.Version, GPUs: a.GPUs, Replace: a.Replace, Try: a.Try,
	})
	if err != nil || a.Try {
		return Admission{Settings: settings}, a.Name, err
	}
	if err := h.Head.Joined(r.Context(), n, replaced); err != nil {
		return out, a.Name, err
	}
	out.Settings = settings
	out.Certificate, err = h.Authority.Sign(request, n.Name)
	return out, a.Name, err
}

func addressOf(r *http.Request) string {
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return a.Addr().Unmap().String()
	}
	return ""
}

// who is the machine that speaks.
func (h *handler) who(r *http.Request) (nodes.Node, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nodes.Node{}, &Problem{
			Message: "only machines of the pool may ask for this; join it with `gpulab join`", Status: http.StatusUnauthorized,
		}
	}
	n, err := h.Registry.Who(r.Context(), r.TLS.PeerCertificates[0])
	if errors.Is(err, nodes.ErrRemoved) || errors.Is(err, nodes.ErrUnknown) {
		err = &Problem{Message: err.Error(), Removed: errors.Is(err, nodes.ErrRemoved), Status: http.StatusForbidden}
	}
	return n, err
}

// member is the machine that asks, which is where it speaks from.
func (h *handler) member(r *http.Request) (nodes.Node, error) {
	n, err := h.who(r)
	if err == nil {
		if err = h.streams.elsewhere(n, addressOf(r)); err != nil {
			h.Head.Refused(r.Context(), n.Name, r.RemoteAddr, err.Error())
		}
	}
	return n, err
}

// machine is for questions that only machines of the pool may ask.
func (h *handler) machine(fn func(*http.Request, nodes.Node) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := h.member(r)
		if err != nil {
			h.answer(w, nil, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, smallBody)
		v, err := fn(r, n)
		h.answer(w, v, err)
	}
}

// renew signs the machine's own key again.
func (h *handler) renew(r *http.Request, n nodes.Node) (any, error) {
	var der []byte
	if err := json.NewDecoder(r.Body).Decode(&der); err != nil {
		return nil, fmt.Errorf("the request for a certificate could not be read: %w", err)
	}
	request, err := nodes.ParseRequest(der)
	if err != nil {
		return nil, err
	}
	asked, err := nodes.KeyHash(request.PublicKey)
	if err != nil {
		return nil, err
	}
	if shown, err := nodes.KeyHash(r.TLS.PeerCertificates[0].PublicKey); err != nil || asked != shown {
		return nil, errors.New("a certificate is renewed for the same key only")
	}
	return h.Authority.Sign(request, n.Name)
}

// stream takes reports, and gives orders, until either side ends.
func (h *handler) stream(w http.ResponseWriter, r *http.Request) {
	n, err := h.who(r)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	l, err := h.streams.enter(n, addressOf(r), cancel)
	if err != nil {
		h.Head.Refused(ctx, n.Name, r.RemoteAddr, err.Error())
		h.answer(w, nil, err)
		return
	}
	defer h.streams.exit(n, l)
	version, before := r.Header.Get("Gpulab-Version"), n.Version
	version = version[:min(len(version), 64)]
	if err := h.Registry.Saw(ctx, n.ID, addressOf(r), version); err != nil {
		h.answer(w, nil, err)
		return
	}
	n.Address, n.Version = addressOf(r), version
	if err := Skew(n.Name, version, h.Head.Hello().Version); err != nil {
		if version != before { // it asks again and again
			h.Log.Warn("a machine is not heard", "machine", n.Name, "err", err)
		}
		h.answer(w, nil, err)
		return
	}
	h.Log.Info("a machine is connected", "machine", n.Name, "address", n.Address, "version", n.Version)
	ended := make(chan struct{})
	go func() { // the only one that writes
		defer close(ended)
		defer cancel()
		h.order(ctx, w, r, n)
	}()
	if err := h.hear(ctx, r, n, l); err != nil && ctx.Err() == nil {
		h.Log.Warn("a machine is not heard any more", "machine", n.Name, "err", err)
	}
	cancel()
	<-ended
}

func (h *handler) order(ctx context.Context, w http.ResponseWriter, r *http.Request, n nodes.Node) {
	enc, control := json.NewEncoder(w), http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/2 is anyway
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		orders := h.Head.Orders(n)
		orders.Version = h.Head.Hello().Version
		_, err := h.who(r)
		if p := (*Problem)(nil); errors.As(err, &p) {
			orders.Leave = p.Removed
		}
		if enc.Encode(orders) != nil || control.Flush() != nil || err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
