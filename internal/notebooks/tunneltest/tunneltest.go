// Package tunneltest forwards ports as an SSH tunnel does, for tests. Only tests import it.
package tunneltest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Open passes connections from a new port of this machine on to address, as `ssh -L` does, until the test ends. It
// returns that port.
func Open(t testing.TB, address string) (port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		wait.Wait()
	})
	wait.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			wait.Go(func() { pass(ctx, in, address) })
		}
	})
	return ln.Addr().(*net.TCPAddr).Port
}

func pass(ctx context.Context, in net.Conn, address string) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
	defer stop()
	var wait sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		wait.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].(*net.TCPConn).CloseWrite()
		})
	}
	wait.Wait()
}
