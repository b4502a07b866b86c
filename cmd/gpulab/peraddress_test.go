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
	ln := limitPerAddress(inner, 3, nil)
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
		case <-time.After(time.Minute):
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
	for range 3 { // nothing is counted still
		dial("127.0.0.1")
		next()
	}
}
