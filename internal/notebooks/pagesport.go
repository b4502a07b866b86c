package notebooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
)

// KeepPort wraps gpulab's pages. A visitor may reach them by another port than the lab's own, through an SSH tunnel or
// NAT. KeepPort stores that port in a cookie, so that links from notebooks and services, which have ports of their own,
// lead back to it.
//
// The cookie holds a port and no host. It is signed for one session, because a page of a service may set cookies for
// the whole host, and its owner can have any port signed for a session of their own.
func (p *Proxy) KeepPort(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.keepPort(w, r)
		pages.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), onPages{}, true)))
	})
}

// onPages marks requests to the origin of gpulab's pages.
type onPages struct{}

func isOnPages(r *http.Request) bool { return r.Context().Value(onPages{}) != nil }

func (p *Proxy) keepPort(w http.ResponseWriter, r *http.Request) {
	// A link on another site, or a frame, must not choose the port.
	if site := r.Header.Get("Sec-Fetch-Site"); !isTopLevel(r) || site != "same-origin" && site != "none" {
		return
	}
	port, ok := p.portOf(r.Host)
	switch credential, signedIn := cookies.FromRequest(r); {
	case !ok:
	case port == p.cfg.HTTPSPort:
		if cookies.Count(r, cookies.Port) > 0 {
			cookies.Expire(w, r, cookies.Port)
		}
	case signedIn && port != p.keptPort(r) && !p.servedElse(r, port):
		if session, ok := p.gate.sessions.FromRequest(r); ok && !session.User.Suspended {
			cookies.Set(w, r, cookies.Port, p.signedPort(r, credential, port))
		}
	}
}

// pagesPort returns the port by which a visitor reaches gpulab's pages.
func (p *Proxy) pagesPort(r *http.Request) int {
	here, ok := p.portOf(r.Host)
	if ok && isOnPages(r) {
		return here
	}
	kept := p.keptPort(r)
	if ok && kept == here {
		return p.cfg.HTTPSPort // the request came by this port and did not reach the pages
	}
	return kept
}

// keptPort returns the port of the cookie, or the lab's own. A session that has ended counts: the sign-in page is at
// the port that its person came by.
func (p *Proxy) keptPort(r *http.Request) int {
	value, ok := cookies.One(r, cookies.Port)
	credential, signedIn := cookies.FromRequest(r)
	digits, _, _ := strings.Cut(value, ".")
	port, err := parsePort(digits)
	if !ok || !signedIn || err != nil || !sameText(value, p.signedPort(r, credential, port)) ||
		p.servedElse(r, port) {
		return p.cfg.HTTPSPort
	}
	return port
}

// signedPort returns the value of the cookie for a port and a session.
func (p *Proxy) signedPort(r *http.Request, c cookies.Credential, port int) string {
	digits := strconv.Itoa(port)
	m := hmac.New(sha256.New, []byte(p.cfg.AuthToken))
	_, _ = m.Write([]byte("pages at \x00" + strings.ToLower(hostname(r)) + "\x00" + digits + "\x00" + c.Token))
	return digits + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// servedElse reports whether the lab serves something else than its pages at a port: people decide what their notebooks
// and services show, so no link to the pages leads there.
func (p *Proxy) servedElse(r *http.Request, port int) bool {
	if port == p.cfg.HTTPSPort {
		return false
	}
	if _, ok := p.cfg.Origins.Owner(port); ok || p.cfg.OtherPort != nil && p.cfg.OtherPort(port) {
		return true
	}
	if p.services == nil {
		return false
	}
	// A running service keeps its port when servicePorts changes.
	_, err := p.services.ServiceAt(r.Context(), port)
	return !errors.Is(err, ErrNotFound)
}

// portOf returns the port in the address that a browser used. An address without one counts as the lab's own, because
// reverse proxies leave it out.
func (p *Proxy) portOf(host string) (port int, ok bool) {
	_, digits, err := net.SplitHostPort(host)
	if err != nil {
		return p.cfg.HTTPSPort, true
	}
	port, err = parsePort(digits)
	return port, err == nil
}

func parsePort(digits string) (int, error) {
	port, err := strconv.ParseUint(digits, 10, 16)
	if err == nil && port == 0 {
		err = strconv.ErrRange
	}
	return int(port), err
}
