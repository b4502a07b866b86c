package main

import (
	"net"
	"net/netip"
	"sync"
)

// connectionsPerAddress is how many connections one address may hold at a time: enough for a class with its
// notebooks behind one router, and far from what the machine's memory and file descriptors hold.
const connectionsPerAddress = 2048

// perAddress is a listener from which no address gets more than most connections at a time; what goes beyond is
// closed at once, and others do not notice.
type perAddress struct {
	net.Listener
	most int
	mu   sync.Mutex
	open map[netip.Prefix]int
}

func limitPerAddress(ln net.Listener, most int) *perAddress {
	return &perAddress{Listener: ln, most: most, open: map[netip.Prefix]int{}}
}

func (l *perAddress) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := neighbourhood(conn.RemoteAddr())
		if l.enter(from) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *perAddress) enter(from netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= l.most {
		return false
	}
	l.open[from]++
	return true
}

func (l *perAddress) leave(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// neighbourhood holds all addresses that one machine can choose freely.
func neighbourhood(a net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // of a length that the address has
	return prefix
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
