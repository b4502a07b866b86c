package main

import (
	"math"
	"net"
	"net/netip"

	"github.com/gpulab/gpulab/internal/peers"
)

// connectionsPerAddress is how many connections one address may hold at a time: enough for a class with its
// notebooks behind one router, and far from what the machine's memory and file descriptors hold.
const connectionsPerAddress = 2048

// perAddress is a listener from which no address gets more than most connections at a time; what goes beyond is
// closed at once, and others do not notice.
type perAddress struct {
	net.Listener
	gate   *peers.Gate
	exempt []netip.Prefix // which speak for many
}

func limitPerAddress(ln net.Listener, most int, exempt []netip.Prefix) *perAddress {
	return &perAddress{Listener: ln, gate: peers.NewGate(math.MaxInt, most), exempt: exempt}
}

func (l *perAddress) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if inNetworks(l.exempt, conn.RemoteAddr().String()) {
			return conn, nil
		}
		if leave, ok := l.gate.Enter(conn.RemoteAddr().String()); ok {
			return &counted{Conn: conn, leave: leave}, nil
		}
		_ = conn.Close()
	}
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
