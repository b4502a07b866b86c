package webui

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
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

// origin is this host at another port, such as https://lab.example:8443.
func (s *Server) hubAuthority(r *http.Request) (string, bool) {
	name, ok := host(r)
	if !ok {
		return "", false
	}
	if s.cfg.HubPort == 443 {
		return name, true
	}
	return name + ":" + strconv.Itoa(s.cfg.HubPort), true
}

// headers sets what every answer carries. There is no HSTS: it would lock
// people out whose browser does not know the lab's own certificate authority.
func (s *Server) headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connect, form := "'self'", "'self'"
		if hub, ok := s.hubAuthority(r); ok {
			// The notebooks' origin: asked whether WebSockets reach it, and
			// where a sign-in on the way to a notebook ends.
			connect += fmt.Sprintf(" https://%s wss://%s", hub, hub)
			form += " https://" + hub
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"connect-src "+connect+"; form-action "+form+"; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Not no-referrer: with it, browsers send "Origin: null" with forms.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
