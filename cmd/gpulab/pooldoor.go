package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/nodeapi"
)

// poolDoor is the port for machines, which is open only while some machine may come.
type poolDoor struct {
	begin func() (end func(), err error) // listens and answers until end

	mu  sync.Mutex
	end func() // nil while the port is closed
}

// open opens the port where it is closed.
func (d *poolDoor) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened()
}

func (d *poolDoor) opened() (err error) {
	if d.end == nil {
		d.end, err = d.begin()
	}
	return err
}

// openFor opens the port and runs f, which gives somebody a reason to come. The port does not close in between.
func (d *poolDoor) openFor(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.opened(); err != nil {
		return err
	}
	return f()
}

// shutUnless closes the port unless some machine is expected. It asks while nobody can be invited.
func (d *poolDoor) shutUnless(expected func() (bool, error)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.end == nil {
		return nil
	}
	if yes, err := expected(); yes || err != nil {
		return err
	}
	d.end()
	d.end = nil
	return nil
}

// expects tells whether some machine may come: one of the pool, an invited one, or one that asks to be let in.
func (p *pool) expects(ctx context.Context) (bool, error) {
	open, err := p.registry.Open(ctx)
	return open || p.requests.Pending(), err
}

// openDoor listens for machines until end or ctx.
func (p *pool) openDoor(ctx context.Context, g *errgroup.Group) (end func(), err error) {
	port := p.lab.cfg.NodesPort
	ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, explainListen("machines that join (nodesPort in the configuration)", port, err)
	}
	srv := nodeapi.NewServer(nodeapi.Config{
		Head: p, Registry: p.registry, Authority: p.authority, Requests: p.requests, Log: slog.Default(),
	})
	slog.Info("machines may join", "port", port)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	g.Go(func() error {
		defer stop()
		err := srv.ServeTLS(limitPerAddress(ln, connectionsPerMachine, nil), "", "")
		if !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving the pool's machines: %w", err)
		}
		return nil
	})
	return func() {
		_ = srv.Close()
		_ = ln.Close() // where it was not served yet
		slog.Info("no machine is expected any more, so their port is closed", "port", port)
	}, nil
}
