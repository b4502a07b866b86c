package notebooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
)

// KeepPort stands in front of gpulab's pages. It remembers by which port a visitor came to them where that is not the
// lab's own, as through an SSH tunnel or another machine's forwarding: links from notebooks and services, which are at
// ports of their own, lead back to it.
//
// The cookie is signed, because scripts of a service can set cookies for the whole host: their link would lead to a port
// of their choice.
func (p *Proxy) KeepPort(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isTopPage(r) && (p.cfg.AllowedHost == nil || p.cfg.AllowedHost(hostname(r))) {
			switch port := p.portOf(r.Host); {
			case port == p.pagesPort(r):
			case port == p.cfg.HTTPSPort:
				cookies.Expire(w, r, cookies.Port)
			case port != 0:
				cookies.Set(w, r, cookies.Port, p.signedPort(r, port))
			}
		}
		pages.ServeHTTP(w, r)
	})
}

// pagesPort is the port of gpulab's pages for a visitor.
func (p *Proxy) pagesPort(r *http.Request) int {
	value, ok := cookies.One(r, cookies.Port)
	digits, _, _ := strings.Cut(value, ".")
	port, err := strconv.Atoi(digits)
	if !ok || err != nil || port < 1 || port > 65535 || !sameText(value, p.signedPort(r, port)) {
		return p.cfg.HTTPSPort
	}
	return port
}

// signedPort is the value of the cookie.
func (p *Proxy) signedPort(r *http.Request, port int) string {
	digits := strconv.Itoa(port)
	m := hmac.New(sha256.New, []byte(p.cfg.AuthToken))
	_, _ = m.Write([]byte("pages at \x00" + strings.ToLower(hostname(r)) + "\x00" + digits))
	return digits + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// portOf is the port in the address that a browser used, 0 where it has none that can be. Without one it is taken for the
// lab's own: reverse proxies leave it out, too.
func (p *Proxy) portOf(host string) int {
	_, digits, err := net.SplitHostPort(host)
	if err != nil {
		return p.cfg.HTTPSPort
	}
	port, err := strconv.Atoi(digits)
	if err != nil || port < 1 || port > 65535 {
		return 0
	}
	return port
}
