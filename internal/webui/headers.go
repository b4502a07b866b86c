package webui

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// hostPattern is what may stand in a header or link of ours as a host: a name,
// an IPv4 address, or an IPv6 address in brackets.
var hostPattern = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])$`)

// host returns the name the browser used, without its port, and whether it is
// one that can safely be repeated.
func host(r *http.Request) (string, bool) {
	name := r.Host
	if bare, _, err := net.SplitHostPort(name); err == nil {
		name = bare
		if net.ParseIP(bare) != nil && net.ParseIP(bare).To4() == nil {
			name = "[" + bare + "]"
		}
	}
	return name, hostPattern.MatchString(name)
}

// authorityAt is this host at another port, such as lab.example:8443.
func authorityAt(r *http.Request, port int) (string, bool) {
	name, ok := host(r)
	if !ok {
		return "", false
	}
	if port == 443 {
		return name, true
	}
	return name + ":" + strconv.Itoa(port), true
}

// forwarded reports whether a visitor comes by another port than the lab's own, or by the name of their own machine.
// Then something forwards the port, such as an SSH tunnel, and the visitor reaches only the lab's ports that it
// forwards.
func (s *Server) forwarded(r *http.Request) bool {
	// Reverse proxies leave the port out.
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != strconv.Itoa(s.cfg.HTTPSPort) {
		return true
	}
	ip := net.ParseIP(hostOf(r))
	return ip.IsLoopback() || strings.EqualFold(hostOf(r), "localhost")
}

// headers sets what every answer carries. There is no HSTS: it would lock
// people out whose browser does not know the lab's own certificate authority.
func (s *Server) headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy(""))
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Not no-referrer: with it, browsers send "Origin: null" with forms.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		cookies.ExpireFormer(w, r)
		next.ServeHTTP(w, r)
	})
}

// contentPolicy is what a page may load and do. notebooks is the authority of its visitor's
// own notebooks, such as lab.example:21000, which a script asks whether WebSockets reach
// it; "" for none.
func contentPolicy(notebooks string) string {
	connect := "'self'"
	if notebooks != "" {
		connect += fmt.Sprintf(" https://%s wss://%[1]s", notebooks)
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " + connect +
		"; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// notebooksAt is the authority of a person's notebooks, "" where there is none.
func (s *Server) notebooksAt(r *http.Request, user int64) string {
	name, ok := host(r)
	if !ok {
		return ""
	}
	authority, err := s.cfg.NotebooksAt(r.Context(), name, user)
	if err != nil && !errors.Is(err, notebooks.ErrNoOrigin) && r.Context().Err() == nil {
		s.cfg.Log.Error("the address of a person's notebooks is not known", "error", err)
	}
	return authority
}
