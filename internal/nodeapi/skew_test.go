package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodes"
)

// A machine of a neighbouring release is heard, one that is further away is told
// what to install where, and both are known by their versions.
func TestVersions(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	l.version = "0.4.1"
	for _, machine := range []string{"0.4.1", "0.4.9", "0.3.0", "0.5.2"} {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		reports := make(chan Report, 1)
		reports <- Report{Snapshot: gpu.Snapshot{Node: "b", GPUs: []gpu.GPU{}}}
		heard := false
		_ = c.Stream(ctx, machine, reports, func(o Orders) {
			heard = o.Version == "0.4.1"
			stop()
		})
		if !heard {
			t.Errorf("a machine with %s got no orders", machine)
		}
	}
	for machine, says := range map[string]string{
		"0.2.7": "of version 0.4.1 on b", "0.6.0": "of version 0.6.0 on the head", "1.0.0": "of version 0.4.1 on b", "": "runs gpulab an unknown version",
	} {
		err := c.Stream(t.Context(), machine, nil, func(Orders) { t.Errorf("orders for %q", machine) })
		var p *Problem
		if !errors.As(err, &p) || !p.Skewed || p.Removed || p.Status != http.StatusUpgradeRequired || !strings.Contains(p.Message, says) {
			t.Errorf("a machine with %q: %v", machine, err)
		}
		list, err := l.registry.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Version != machine {
			t.Errorf("after %q the list has %+v, %v", machine, list, err)
		}
	}
	code := l.invite(t)
	key, _ := nodes.NewKey()
	request, err := nodes.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	application := Application{Code: code.ID[:], Secret: code.Secret[:], Request: request, Name: "e", Machine: strings.Repeat("e", 64), Version: "0.6.0", GPUs: "none"}
	if _, err := Stranger(code).Join(t.Context(), application); err == nil || !strings.Contains(err.Error(), "of version 0.6.0 on the head") {
		t.Errorf("a machine that is too new joins: %v", err)
	}
	// The refusal has not used the code up.
	application.Version = "0.5.0"
	if _, err := Stranger(code).Join(t.Context(), application); err != nil {
		t.Errorf("with the neighbouring release: %v", err)
	}
}

// What only a newer machine says does not end its stream, and is not taken for a report.
func TestNewerMachine(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	line := `{"kind":"weather","wind":3}
{"snapshot":{"node":"b","gpus":[],"mood":"good"},"later":{"a":[1]}}
{"kind":"weather","snapshot":{"node":"somebody"}}
{"snapshot":{"node":"b","gpus":[]}}
`
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	resp, err := c.do(ctx, http.MethodPost, "/v1/stream", strings.NewReader(line), http.Header{"Gpulab-Version": {"1"}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // until the head has read all
	resp.Body.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	// Of two that come at once, the newer one is enough.
	if len(l.reports) == 0 || len(l.reports) > 2 || len(l.refused) != 0 {
		t.Errorf("heard %+v, refused %v", l.reports, l.refused)
	}
}

// What only a newer head says is no order, and an older or newer head than works is not obeyed.
func TestNewerHead(t *testing.T) {
	authority, err := nodes.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	says := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, says) }))
	server.TLS = authority.ServerConfig()
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	code := nodes.Code{Addresses: []netip.AddrPort{netip.MustParseAddrPort(server.Listener.Addr().String())}, Authority: authority.Fingerprint()}
	for _, x := range []struct {
		says, want string
		obeyed     int
	}{
		{`{"kind":"weather","leave":true}` + "\n" + `{"lentAnyway":["GPU-1"],"version":"0.5.0","later":1}` + "\n", "has ended the connection", 1},
		{`{"lentAnyway":["GPU-1"],"version":"0.6.0"}` + "\n", "of version 0.6.0 on this machine", 0},
		{`{"lentAnyway":["GPU-1"],"version":"0.2.0"}` + "\n", "of version 0.4.0 on the head", 0},
		{`{"leave":true,"version":"0.6.0"}` + "\n", "has ended the connection", 1},
	} {
		says = x.says
		var got []Orders
		err := Stranger(code).Stream(t.Context(), "0.4.0", nil, func(o Orders) { got = append(got, o) })
		if err == nil || !strings.Contains(err.Error(), x.want) || len(got) != x.obeyed {
			t.Errorf("%s: %v, %+v", x.says, err, got)
		}
	}
}
