package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/store"
)

// A gpulab that works says so several times within the limit; one that does not
// says nothing until it does.
func TestSayAlive(t *testing.T) {
	const limit = 400 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
	defer cancel()
	began := time.Now()
	sick := func() bool { since := time.Since(began); return since > 2*limit && since < 4*limit }
	var said []time.Duration
	sayAlive(ctx, limit, func(ctx context.Context) error {
		if !sick() {
			return nil
		}
		<-ctx.Done() // it hangs
		return ctx.Err()
	}, func() { said = append(said, time.Since(began)) })
	var well, meanwhile, again int
	for _, at := range said {
		switch {
		case at <= 2*limit:
			well++
		case at < 4*limit:
			meanwhile++
		default:
			again++
		}
	}
	if well < 4 || meanwhile > 1 || again < 1 {
		t.Errorf("said at %v", said)
	}
}

// watched is a daemon of which only the boot is asked.
type watched struct {
	ctl.Daemon
	hangs atomic.Bool
}

func (d *watched) WatchBoot(ctx context.Context, fn func(ctl.Boot) error) error {
	if d.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return fn(ctl.Boot{})
}

func TestWorksAsksSocketAndDatabase(t *testing.T) {
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l := &appliance{app: &app{socket: filepath.Join(t.TempDir(), "s")}, store: s}
	try := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return l.works(ctx)
	}
	if try() == nil {
		t.Error("it works without a control socket")
	}
	d := &watched{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctl.Serve(ctx, l.app.socket, d) }()
	for end := time.Now().Add(time.Minute); try() != nil; {
		if time.Now().After(end) {
			t.Fatal(try())
		}
	}
	d.hangs.Store(true)
	if try() == nil {
		t.Error("it works with a control socket that hangs")
	}
	d.hangs.Store(false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if try() == nil {
		t.Error("it works without a database")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// asSystemd hears what gpulab tells systemd.
func asSystemd(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

// systemd is told in its own words, and only where it asks.
func TestNotify(t *testing.T) {
	conn := asSystemd(t)
	notify("READY=1")
	buf := make([]byte, 64)
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	t.Setenv("WATCHDOG_USEC", "200000")
	l := &appliance{app: &app{socket: filepath.Join(t.TempDir(), "none")}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.watchdog(ctx); err != nil {
		t.Error(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(buf); err == nil {
		t.Errorf("a gpulab that does not work said %q", buf[:n])
	}
	t.Setenv("WATCHDOG_USEC", "")
	if err := l.watchdog(t.Context()); err != nil {
		t.Errorf("without a watchdog: %v", err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := l.watchdog(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a limit that is no number: %v", err)
	}
}
