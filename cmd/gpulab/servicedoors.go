package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// portFree reports whether nobody listens on a port of the head.
func portFree(port int) bool {
	ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = ln.Close()
	return true
}

// serviceDoors listens on the ports of services, on the tailnet too: each is an origin of its own.
type serviceDoors struct {
	services *notebooks.Service
	proxy    *notebooks.Proxy
	lab      *appliance
	open     map[int]func() // closes it
	trouble  map[int]string // what was said of ports that cannot be had
}

// run keeps the ports of those services open that have not ended, until ctx does.
func (d *serviceDoors) run(ctx context.Context) error {
	d.open, d.trouble = map[int]func(){}, map[int]string{}
	changes := d.services.Subscribe(ctx)
	defer func() {
		for _, shut := range d.open {
			shut()
		}
	}()
	for {
		if err := d.keep(ctx); err != nil && ctx.Err() == nil {
			slog.Error("the ports of services are not kept", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		}
	}
}

func (d *serviceDoors) keep(ctx context.Context) error {
	ports, err := d.services.Doors(ctx)
	if err != nil {
		return err
	}
	wanted := map[int]bool{}
	for _, port := range ports {
		wanted[port] = true
		if d.open[port] != nil {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			if why := err.Error(); d.trouble[port] != why {
				d.trouble[port] = why
				slog.Error("a service cannot be reached", "err", explainListen("the service of this address", port, err))
			}
			continue
		}
		delete(d.trouble, port)
		srv := d.server(port, d.lab.certs.GetCertificate)
		shut := d.lab.serviceOnTailnet(port, func() *http.Server { return d.server(port, d.lab.tailnet.GetCertificate) })
		d.open[port] = func() {
			_ = srv.Close()
			shut()
		}
		go func() { _ = srv.ServeTLS(limitPerAddress(ln, connectionsPerAddress, nil), "", "") }()
	}
	for port, shut := range d.open {
		if !wanted[port] {
			shut()
			delete(d.open, port)
		}
	}
	return nil
}

func (d *serviceDoors) server(port int, certs func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	srv := d.proxy.Server()
	srv.Handler = cookies.Limit(d.proxy.Door(port))
	// HTTP/1.1 only, as on the notebooks' port: WebSockets need it.
	srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs, NextProtos: []string{"http/1.1"}}
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	return srv
}
