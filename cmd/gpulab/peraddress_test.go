package main

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

func TestConnectionsPerAddress(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := limitPerAddress(inner, 3)
	t.Cleanup(func() { ln.Close() })
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	next := func() net.Conn {
		t.Helper()
		select {
		case conn := <-accepted:
			return conn
		case <-time.After(10 * time.Second):
			t.Fatal("a connection is not accepted")
			return nil
		}
	}
	var held []net.Conn
	for range 3 {
		dial("127.0.0.1")
		held = append(held, next())
	}
	refused := dial("127.0.0.1")
	_ = refused.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("one too many: %v, want its end", err)
	}
	dial("127.0.0.2") // somebody else
	other := next()
	held[0].Close()
	held[0].Close() // counts once
	dial("127.0.0.1")
	held = append(held[1:], next())
	for _, conn := range append(held, other) {
		conn.Close()
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.open) != 0 {
		t.Errorf("still counted: %v", ln.open)
	}
}

func TestNeighbourhood(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7":         "192.0.2.7/32",
		"::ffff:192.0.2.7":  "192.0.2.7/32",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64",
		"fe80::1%eth0":      "fe80::/64",
	} {
		host, zone := address, ""
		if i := len("fe80::1"); len(address) > i && address[i] == '%' {
			host, zone = address[:i], address[i+1:]
		}
		if got := neighbourhood(&net.TCPAddr{IP: net.ParseIP(host), Zone: zone, Port: 1}).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
