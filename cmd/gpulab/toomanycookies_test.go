package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/notebooks"
)

// TestTooManyCookies: each door, on the tailnet as well, answers a browser that sends too many cookies.
func TestTooManyCookies(t *testing.T) {
	proxy, err := notebooks.NewProxy(notebooks.ProxyConfig{Sessions: &appliance{}, Pods: onePod(""), AuthToken: "hub", Origins: portsByID{}})
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string]*http.Server{"a service": (&serviceDoors{proxy: proxy}).server(8500, nil)}
	for _, what := range []string{"pages", "notebooks"} {
		servers[what] = door{what: what, tls: true, handler: http.NotFoundHandler(), forwards: what == "notebooks"}.server(nil)
	}
	for what, srv := range servers {
		server := httptest.NewUnstartedServer(nil)
		srv.TLSConfig.GetCertificate = nil
		server.Config, server.TLS = srv, srv.TLSConfig
		if what == "pages" {
			server.EnableHTTP2, srv.TLSConfig = true, nil // which net/http would take for one without HTTP/2
		}
		server.StartTLS()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Cookie", strings.Repeat("a="+strings.Repeat("x", 4000)+"; ", 180)+"z=1")
		response, err := server.Client().Do(r)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge || len(response.Header["Set-Cookie"]) == 0 || (response.ProtoMajor == 2) != server.EnableHTTP2 {
				t.Errorf("%s over %s: %d", what, response.Proto, response.StatusCode)
			}
		}
		server.Close()
	}
}
