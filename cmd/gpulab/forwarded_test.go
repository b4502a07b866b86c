package main

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestForwarded(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32"), netip.MustParsePrefix("10.1.0.0/24")}
	for name, c := range map[string]struct {
		from, host string
		forwarded  []string
		named      string
		wantFrom   string
		wantHost   string
	}{
		"nobody's proxy":           {"192.0.2.9:40", "lab", []string{"198.51.100.1"}, "evil", "192.0.2.9:40", "lab"},
		"the lab's proxy":          {"10.0.0.5:40", "10.0.0.1", []string{"198.51.100.1"}, "lab", "198.51.100.1:0", "lab"},
		"a visitor lies":           {"10.0.0.5:40", "lab", []string{"127.0.0.1, 198.51.100.1"}, "", "198.51.100.1:0", "lab"},
		"a visitor lies in a line": {"10.0.0.5:40", "lab", []string{"127.0.0.1", "198.51.100.1"}, "", "198.51.100.1:0", "lab"},
		"two proxies":              {"10.0.0.5:40", "lab", []string{"198.51.100.1, 10.1.0.7"}, "", "198.51.100.1:0", "lab"},
		"IPv6":                     {"10.0.0.5:40", "lab", []string{"2001:db8::1"}, "", "[2001:db8::1]:0", "lab"},
		"with a port":              {"10.0.0.5:40", "lab", []string{"198.51.100.1:55"}, "", "198.51.100.1:0", "lab"},
		"no address":               {"10.0.0.5:40", "lab", []string{"unknown"}, "", "10.0.0.5:40", "lab"},
		"rubbish before a proxy":   {"10.0.0.5:40", "lab", []string{"<script>, 10.1.0.7"}, "", "10.1.0.7:0", "lab"},
		"it says nothing":          {"10.0.0.5:40", "lab", nil, "", "10.0.0.5:40", "lab"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "https://"+c.host+"/", nil)
			r.RemoteAddr = c.from
			for _, line := range c.forwarded {
				r.Header.Add("X-Forwarded-For", line)
			}
			if c.named != "" {
				r.Header.Set("X-Forwarded-Host", c.named)
			}
			forwarded{proxies, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.RemoteAddr != c.wantFrom || r.Host != c.wantHost {
					t.Errorf("from %s to %s, want from %s to %s", r.RemoteAddr, r.Host, c.wantFrom, c.wantHost)
				}
			})}.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
}
