package notebooks

import (
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Cookies of gpulab itself begin with this, with or without a browser prefix.
const cookiePrefix = "gpulab"

// hubOwner is the cookie that says whose hub cookies a browser holds.
const hubOwner = "gpulab-hub"

// visitorAddress is the address that every notebook sees: the visitor's own is
// nobody's business there, and single-user servers derive their XSRF token from
// it, so that a laptop that changes networks must not change it. From TEST-NET-1.
const visitorAddress = "192.0.2.1"

// identityHeaders are those by which some programs behind a proxy learn who
// visits and how; a visitor must not be able to write them.
var identityHeaders = []string{
	"Forwarded", "X-Real-Ip", "X-Scheme", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip",
	"X-Original-Url", "X-Rewrite-Url", "Remote-User", "Remote-Groups", "Remote-Email", "Remote-Name",
	"Proxy-Authorization", "Proxy",
}

// identityPrefixes are the same for whole families of headers.
var identityPrefixes = []string{"X-Forwarded-", "X-Remote-", "X-Auth-Request-", "X-Webauth-", "Tailscale-"}

// originHeaders change how a browser treats the whole origin, which a notebook
// shares with every other.
var originHeaders = []string{
	"Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins",
	"Alt-Svc", "Nel", "Report-To", "Reporting-Endpoints", "Set-Cookie2", "Origin-Trial", "Accept-Ch", "Critical-Ch",
}

// cleanRequest removes what a visitor claims to be and sets what gpulab knows.
// keepCookie decides by name which cookies go on.
func cleanRequest(h http.Header, keepCookie func(name string) bool, host, port, address string) {
	for _, name := range identityHeaders {
		h.Del(name)
	}
	for name := range h {
		for _, p := range identityPrefixes {
			if strings.HasPrefix(name, p) {
				delete(h, name)
			}
		}
		// Programs that speak CGI or WSGI read X_Forwarded_For as X-Forwarded-For.
		if strings.ContainsRune(name, '_') {
			delete(h, name)
		}
	}
	dropTokens(h)
	filterCookies(h, keepCookie)
	h["X-Forwarded-For"] = []string{address}
	h["X-Forwarded-Proto"] = []string{"https"}
	h["X-Forwarded-Host"] = []string{host}
	h["X-Forwarded-Port"] = []string{port}
}

// filterCookies keeps the cookies that keep allows, byte for byte.
func filterCookies(h http.Header, keep func(name string) bool) {
	lines, ok := h["Cookie"]
	if !ok {
		return
	}
	var kept []string
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			name, _, hasValue := strings.Cut(part, "=")
			name = strings.TrimSpace(name)
			// Without a name a cookie's value can pass for name and value.
			if hasValue && name != "" && keep(name) {
				kept = append(kept, part)
			}
		}
	}
	if len(kept) == 0 {
		delete(h, "Cookie")
		return
	}
	h["Cookie"] = []string{strings.Join(kept, "; ")}
}

// notebookCookie says which cookies a notebook may see: none of gpulab's and
// none of the hub's.
func notebookCookie(name string) bool {
	return !isOurs(name) && name != "jupyterhub-session-id" && name != "jupyterhub-hub-login"
}

func hubCookie(name string) bool { return !isOurs(name) }

func noCookie(string) bool { return false }

func isOurs(name string) bool {
	lower := strings.ToLower(name)
	for _, p := range []string{"__host-", "__secure-", "__http-", "__host-http-"} {
		if rest, ok := strings.CutPrefix(lower, p); ok && strings.HasPrefix(rest, cookiePrefix) {
			return true
		}
	}
	return strings.HasPrefix(lower, cookiePrefix)
}

// cleanResponse removes what would act beyond prefix, a path that ends in "/".
func cleanResponse(h http.Header, prefix string) {
	delOriginHeaders(h)
	cookies, ok := h["Set-Cookie"]
	if !ok {
		return
	}
	kept := make([]string, 0, len(cookies))
	for _, c := range cookies {
		if c, ok := confine(c, prefix); ok {
			kept = append(kept, c)
		}
	}
	if len(kept) == 0 {
		delete(h, "Set-Cookie")
		return
	}
	h["Set-Cookie"] = kept
}

// originHeadersOf keep the pages of other origins off an answer: none may show it
// in a frame, load it as a part of itself, or hold on to its window.
func originHeadersOf(h http.Header) {
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
	h.Add("Content-Security-Policy", "frame-ancestors 'self'")
	if !strings.EqualFold(h.Get("X-Frame-Options"), "deny") {
		h.Set("X-Frame-Options", "SAMEORIGIN") // browsers without frame-ancestors
	}
}

func delOriginHeaders(h http.Header) {
	for _, name := range originHeaders {
		delete(h, name)
	}
}

// confine limits a Set-Cookie line to prefix on this very host. A cookie for
// the whole origin, or without a path, is moved below prefix, since that is
// where it was meant to work; one for another path is refused, and so are
// gpulab's names and the browser's own prefixes, which promise something about
// the path that is no longer true.
func confine(line, prefix string) (string, bool) {
	pair, attributes, _ := strings.Cut(line, ";")
	name, _, ok := strings.Cut(pair, "=")
	name = strings.TrimSpace(name)
	if !ok || name == "" || strings.ContainsAny(name, " \t\",/:<>?@[]()\\{}") || isOurs(name) || hasBrowserPrefix(name) {
		return "", false
	}
	out := []string{strings.TrimSpace(pair)}
	path := prefix
	for a := range strings.SplitSeq(attributes, ";") {
		a = strings.TrimSpace(a)
		key, value, _ := strings.Cut(a, "=")
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "", "domain":
		case "path":
			path = strings.TrimSpace(value)
		default:
			out = append(out, a)
		}
	}
	if path == "" || path == "/" || path == strings.TrimSuffix(prefix, "/") {
		path = prefix
	}
	if !strings.HasPrefix(path, prefix) || strings.Contains(path, "..") {
		return "", false
	}
	return strings.Join(append(out, "Path="+path), "; "), true
}

func hasBrowserPrefix(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "__host-") || strings.HasPrefix(lower, "__secure-") ||
		strings.HasPrefix(lower, "__http-")
}

// ownerCookie marks the hub's cookies in a browser as this user's.
func ownerCookie(userID int64) string {
	return hubOwner + "=" + strconv.FormatInt(userID, 10) + "; Path=/hub/; Secure; HttpOnly; SameSite=Lax"
}

// hubCookiesOf reports whether the hub cookies of a request were set for this
// user. After somebody else has signed in on the same browser they are not, and
// the hub must not see them: it would take the visitor for the earlier person.
func hubCookiesOf(r *http.Request, userID int64) bool {
	c, err := r.Cookie(hubOwner)
	return err == nil && c.Value == strconv.FormatInt(userID, 10)
}

// remoteIP is the visitor's address without its port.
func remoteIP(r *http.Request) string {
	ip, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return visitorAddress
	}
	ip, _, _ = strings.Cut(ip, "%")
	return ip
}
