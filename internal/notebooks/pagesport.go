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

// KeepPort wraps gpulab's pages. A visitor may reach them by another port than the lab's own, through an SSH tunnel or
// another machine's forwarding. KeepPort stores that port in a cookie, so that links from notebooks and services, which
// have ports of their own, lead back to it.
//
// The cookie is signed: scripts of a service can set cookies for the whole host, and could otherwise choose the port to
// which those links lead.
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

// pagesPort returns the port by which a visitor reaches gpulab's pages.
func (p *Proxy) pagesPort(r *http.Request) int {
	value, ok := cookies.One(r, cookies.Port)
	digits, _, _ := strings.Cut(value, ".")
	port, err := strconv.Atoi(digits)
	if !ok || err != nil || port < 1 || port > 65535 || !sameText(value, p.signedPort(r, port)) {
		return p.cfg.HTTPSPort
	}
	return port
}

// signedPort returns the value of the cookie for a port.
func (p *Proxy) signedPort(r *http.Request, port int) string {
	digits := strconv.Itoa(port)
	m := hmac.New(sha256.New, []byte(p.cfg.AuthToken))
	_, _ = m.Write([]byte("pages at \x00" + strings.ToLower(hostname(r)) + "\x00" + digits))
	return digits + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// portOf returns the port in the address that a browser used; 0 if it is not valid. An address without a port counts as
// the lab's own port, because reverse proxies leave it out.
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
