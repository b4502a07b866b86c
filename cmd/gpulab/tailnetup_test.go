package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
)

// onNetwork opens a door of the lab on this machine's own network, and returns its address.
func (l *appliance) onNetwork(t *testing.T, d door) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx, d.server(l.certs.GetCertificate), ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// TestSlowControlServer: while the lab waits for it, pages on the lab's own network come as fast as ever.
func TestSlowControlServer(t *testing.T) {
	const late = 2 * time.Second
	control := tailnettest.Start(t, "127.0.0.1", "0")
	l := tailnetLab(t, "")
	at := l.onNetwork(t, l.doors()[0])
	client := l.trusting(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, at)
	})
	began := time.Now()
	if _, err := l.TailnetUp(t.Context(), ctl.TailnetRequest{LoginServer: control.Slow(t, late)}); err != nil {
		t.Fatal(err)
	}
	for pages := 0; ; pages++ {
		asked := time.Now()
		response, err := client.Get("https://localhost/")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if took := time.Since(asked); took > late/2 || response.StatusCode != http.StatusOK {
			t.Errorf("page %d: status %d after %s", pages, response.StatusCode, took)
		}
		if l.tailnetNow().State == ctl.TailnetUp {
			if took := time.Since(began); took < late {
				t.Errorf("the control server is not slow: it took %s", took)
			}
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("not in the tailnet: %+v", l.tailnetNow())
		}
		time.Sleep(50 * time.Millisecond)
	}
}
