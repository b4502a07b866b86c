package doctor

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// proxyVariables name the way to the internet; programs read either case.
var proxyVariables = []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"}

// proxyPatience is how long a proxy may take to answer.
const proxyPatience = 3 * time.Second

// probeProxy checks that proxies are written as programs read them, and are
// there.
func probeProxy(h host, opts Options) []Finding {
	var findings []Finding
	seen := map[string]bool{}
	for _, p := range h.proxies(opts) {
		if seen[p.url] {
			continue
		}
		seen[p.url] = true
		findings = append(findings, h.tryProxy(p))
	}
	if findings == nil {
		return []Finding{{Probe: "proxy", State: OK, Seen: "No proxy is set."}}
	}
	return findings
}

// namedProxy is a proxy and where it stands.
type namedProxy struct{ url, from string }

func (h host) proxies(opts Options) []namedProxy {
	var list []namedProxy
	for _, u := range opts.Proxies {
		list = append(list, namedProxy{u, "network.proxy in the configuration"})
	}
	for _, source := range []struct {
		from  string
		lines []string
	}{{"the environment", h.environ}, {"/etc/environment", strings.Split(h.read("/etc/environment"), "\n")}} {
		for _, line := range source.lines {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			name = strings.TrimPrefix(name, "export ")
			if value = strings.Trim(value, `"'`); value != "" && slices.Contains(proxyVariables, name) {
				list = append(list, namedProxy{value, name + " in " + source.from})
			}
		}
	}
	return list
}

func (h host) tryProxy(p namedProxy) Finding {
	written := p.url
	if !strings.Contains(written, "://") {
		written = "http://" + written // as curl and Go take it
	}
	u, err := url.Parse(written)
	if err != nil || u.Hostname() == "" {
		return Finding{
			Probe: "proxy", State: Warn,
			Seen:  fmt.Sprintf("The proxy of %s is no address.", p.from),
			Means: "Programs refuse it, or go without.",
			Mend:  "Write it as `http://proxy.example.org:3128`.",
		}
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	at := net.JoinHostPort(u.Hostname(), port)
	ctx, cancel := context.WithTimeout(h.ctx, proxyPatience)
	defer cancel()
	conn, err := h.dial(ctx, "tcp", at)
	if err != nil {
		return Finding{
			Probe: "proxy", State: Warn,
			Seen:  fmt.Sprintf("The proxy %s, of %s, does not answer.", at, p.from),
			Means: "What goes through it, such as pip in notebooks or images from a registry, fails.",
			Mend:  fmt.Sprintf("Try it with `curl -sSI --proxy http://%s http://deb.debian.org`, and correct %s.", at, p.from),
		}
	}
	conn.Close()
	return Finding{Probe: "proxy", State: OK, Seen: fmt.Sprintf("The proxy %s, of %s, answers.", at, p.from)}
}
