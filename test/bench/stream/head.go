package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/test/bench/part"
)

// heard is what a head has heard so far.
type heard struct {
	Readings, Refused int64
	Received, Sent    int64 // bytes, encrypted
	Nodes             int
	Late              float64 // milliseconds, of the slowest reading since it was asked before
}

// head is a lab that knows nothing but machines.
type head struct {
	fleet             *fleet.Fleet
	readings, refused atomic.Int64
	late              atomic.Int64 // nanoseconds
	received, sent    atomic.Int64
}

func (*head) Hello() nodeapi.Hello {
	return nodeapi.Hello{Lab: "Bench", Version: "bench", Time: time.Now()}
}

func (*head) Settings(context.Context) (nodeapi.Settings, error) {
	return nodeapi.Settings{Lab: "Bench", Head: "head"}, nil
}
func (*head) Joined(context.Context, nodes.Node, bool) error    { return nil }
func (h *head) Refused(context.Context, string, string, string) { h.refused.Add(1) }
func (*head) Token(context.Context, nodes.Node) (string, error) { return "", nil }
func (*head) Orders(nodes.Node) nodeapi.Orders                  { return nodeapi.Orders{} }
func (*head) Left(context.Context, nodes.Node) error            { return nil }
func (*head) Images(context.Context) (nodeapi.Images, error)    { return nodeapi.Images{}, nil }
func (*head) Blob(context.Context, string) (nodeapi.Blob, error) {
	return nil, errors.New("there are no images")
}
func (*head) Environments(context.Context) (nodeapi.Environments, error) {
	return nodeapi.Environments{}, nil
}
func (*head) Environment(context.Context, string, io.Writer) error {
	return errors.New("there are no environments")
}
func (*head) Check(context.Context, nodes.Node, bool) (nodeapi.Progress, error) {
	return nodeapi.Progress{}, nil
}

// Report does what gpulab's pool does with a reading.
func (h *head) Report(_ context.Context, n nodes.Node, r nodeapi.Report) error {
	if err := h.fleet.Claim(n.Name, r.Snapshot.GPUs); err != nil {
		return err
	}
	h.fleet.Update(r.Snapshot)
	h.readings.Add(1)
	for late := int64(time.Since(r.Snapshot.Time)); ; {
		before := h.late.Load()
		if late <= before || h.late.CompareAndSwap(before, late) {
			return nil
		}
	}
}

// counting counts what goes through a listener's connections.
type counting struct {
	net.Listener
	h *head
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.h}, err
}

type countingConn struct {
	net.Conn
	h *head
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.h.received.Add(int64(n))
	return n, err
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.h.sent.Add(int64(n))
	return n, err
}

// serve is the head.
func serve(ctx context.Context, file string) error {
	cfg, err := part.Config[config](file)
	if err != nil {
		return err
	}
	databases, err := store.Open(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = databases.Close() }()
	authority, err := nodes.LoadAuthority(filepath.Join(cfg.Dir, "tls"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	h, registry := &head{fleet: fleet.New()}, nodes.New(databases.DB())
	recorder := history.New(history.Config{Store: databases})
	tasks.Go(func() { _ = recorder.Run(ctx, h.fleet.Subscribe(ctx)) })
	tasks.Go(func() {
		for range h.fleet.Subscribe(ctx) {
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	door := netip.MustParseAddrPort(ln.Addr().String())
	server := nodeapi.NewServer(nodeapi.Config{
		Head: h, Registry: registry, Authority: authority, Log: slog.New(slog.DiscardHandler),
	})
	tasks.Go(func() { _ = server.ServeTLS(counting{ln, h}, "", "") })
	defer func() { _ = server.Close() }()
	r := ready{Door: door, Lab: authority.PEM()}
	for i := range cfg.Machines {
		m, err := letIn(ctx, registry, authority, door, fmt.Sprintf("gpu-%02d", i))
		if err != nil {
			return err
		}
		r.Members = append(r.Members, m)
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(r); err != nil {
		return err
	}
	return h.obey(out, cfg.Profile)
}

// letIn makes a machine one of the pool's. It joins on the head itself, since
// the door lets nobody try codes fast.
func letIn(ctx context.Context, registry *nodes.Registry, authority *nodes.Authority, door netip.AddrPort,
	name string) (m member, err error) {
	code, _, err := registry.Invite(ctx, authority.Fingerprint(), []netip.AddrPort{door})
	if err != nil {
		return m, err
	}
	key, err := nodes.NewKey()
	if err != nil {
		return m, err
	}
	m.Name = name
	if m.Key, err = nodes.EncodeKey(key); err != nil {
		return m, err
	}
	der, err := nodes.NewRequest(key)
	if err != nil {
		return m, err
	}
	request, err := nodes.ParseRequest(der)
	if err != nil {
		return m, err
	}
	hash, err := nodes.KeyHash(request.PublicKey)
	if err != nil {
		return m, err
	}
	_, _, err = registry.Join(ctx, nodes.Application{
		CodeID: code.ID, Secret: code.Secret, KeyHash: hash, Name: name, Machine: name, Version: "bench", GPUs: "real",
	})
	if err != nil {
		return m, err
	}
	m.Certificate, err = authority.Sign(request, name)
	return m, err
}

// obey does what the measurement says until it ends.
func (h *head) obey(out *json.Encoder, profile string) error {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "begin":
			if err := part.Profile(profile); err != nil {
				return err
			}
		case "end":
			pprof.StopCPUProfile()
		}
		err := out.Encode(heard{
			Readings: h.readings.Load(), Refused: h.refused.Load(), Received: h.received.Load(), Sent: h.sent.Load(),
			Nodes: len(h.fleet.Snapshots()), Late: float64(h.late.Swap(0)) / 1e6,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var _ nodeapi.Head = (*head)(nil)
