package cookies

import (
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

const (
	// Most is how many bytes of head a request may have. What has more is answered with the status 431.
	Most = 64 << 10
	// MaxHeaderBytes belongs into every http.Server behind which Limit stands: as much as browsers send. They keep
	// 180 cookies of 4 KiB per site, and 10 KiB more in a partition. A server that reads less ends the connection, and
	// the person sees no page that says why.
	MaxHeaderBytes = 1 << 20
	// MaxStreams belongs there as well: how many requests one HTTP/2 connection may have under way. Together with
	// Most it bounds what the heads on one connection hold in memory.
	MaxStreams = 100

	// maxExpiring is how many bytes of Set-Cookie an answer carries; browsers take 256 KiB of head. Who has more
	// cookies than that opens the page again.
	maxExpiring = 120 << 10
	// maxNames is how many of them are looked at.
	maxNames = 1000
	// maxPaths is for how many paths a cookie is expired.
	maxPaths = 24

	clearPath = "/gpulab/clear-cookies"
)

// Server sets the limits on a server that stand before [Limit].
func Server(srv *http.Server) {
	srv.MaxHeaderBytes = MaxHeaderBytes
	if srv.HTTP2 == nil {
		srv.HTTP2 = &http.HTTP2Config{}
	}
	srv.HTTP2.MaxConcurrentStreams = MaxStreams
}

// Limit answers a request whose head is larger than [Most] with a page that says what to do, and expires the cookies
// that arrived. It lets go of the head first, so that a client that does not read the answer holds no memory by it.
func Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if headSize(r) <= Most {
			next.ServeHTTP(w, r)
			return
		}
		refuse(w, r)
	})
}

// cookieSize is how many bytes of the head are cookies.
func cookieSize(r *http.Request) (size int) {
	for _, line := range r.Header["Cookie"] {
		size += len(line)
	}
	return size
}

func headSize(r *http.Request) int {
	size := len(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return size
}

func refuse(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Connection", "close")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	view := struct {
		Cookies bool
		Clear   string // what the button clears, "" for no button
	}{Cookies: cookieSize(r) > Most/2} // otherwise a long link on any page would sign people out
	host := hostOf(r)
	alone, site := siteOf(host)
	asked := r.Method == http.MethodPost && r.URL.Path == clearPath && r.Header.Get("Sec-Fetch-Site") == "same-origin"
	if view.Cookies {
		for _, line := range expiringAll(r, host, site) {
			h.Add("Set-Cookie", line)
		}
		switch {
		case alone || asked:
			h.Set("Clear-Site-Data", `"cookies"`)
		default:
			view.Clear = site
		}
	}
	clear(r.Header)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri "+
		"'none'; frame-ancestors 'none'")
	w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	_ = tooLarge.Execute(w, view)
}

func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// siteOf says whether a host shares its cookies with no other name, and the domain that it shares them with if it
// does: "Clear-Site-Data: cookies" clears all of that domain.
func siteOf(host string) (alone bool, site string) {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return true, ""
	}
	site, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil || site == host {
		return true, ""
	}
	return false, site
}

// expiringAll are the headers that make a browser forget the cookies of a request: for the root and for each path on
// the way to the one that was asked for, for the host alone and for the domains above it. Where not all fit, each of
// these kinds gets its part, so that opening the page again always comes further.
func expiringAll(r *http.Request, host, site string) (lines []string) {
	names := namesIn(r.Header)
	root, paths := []string{"/"}, pathsTo(r.URL.EscapedPath())
	none, domains := []string{""}, domainsOf(host, site)
	kinds := []struct{ paths, domains []string }{{root, none}, {paths, none}, {root, domains}, {paths, domains}}
	kinds = slices.DeleteFunc(kinds, func(k struct{ paths, domains []string }) bool {
		return len(k.paths)*len(k.domains) == 0
	})
	used := 0
	for i, kind := range kinds {
		room := maxExpiring * (i + 1) / len(kinds)
	kind:
		for _, name := range names {
			for _, path := range kind.paths {
				for _, domain := range kind.domains {
					for _, line := range expiring(name, path, domain) {
						if used+len(line) > room {
							break kind
						}
						used += len(line)
						lines = append(lines, line)
					}
				}
			}
		}
	}
	return lines
}

// namesIn are the names of the cookies that arrived, and the empty one.
func namesIn(h http.Header) []string {
	names, known := []string{""}, map[string]bool{"": true}
	for p := range pairs(h) {
		name := strings.TrimLeft(p.name, "=")
		if known[name] {
			continue
		}
		if len(names) == maxNames {
			break
		}
		known[name] = true
		names = append(names, name)
	}
	return names
}

// pathsTo are the paths but the root for which a browser sends a cookie to where: /a, /a/, /a/b for /a/b.
func pathsTo(where string) (paths []string) {
	for i := 1; i <= len(where) && len(paths) < maxPaths; i++ {
		if i != len(where) && where[i] != '/' {
			continue
		}
		if path := where[:i]; path != "/" && !strings.ContainsAny(path, ";, ") {
			paths = append(paths, path)
			if i < len(where) {
				paths = append(paths, path+"/")
			}
		}
	}
	return paths
}

// domainsOf are the domains whose cookies a host receives beside its own: none for an address.
func domainsOf(host, site string) (domains []string) {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return nil
	}
	for domain := host; ; {
		domains = append(domains, domain)
		_, parent, more := strings.Cut(domain, ".")
		if domain == site || !more || site == "" {
			return domains
		}
		domain = parent
	}
}

var tooLarge = template.Must(template.New("too large").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Too many cookies</title>
<style>:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}</style>
</head><body><main>{{if .Cookies}}<h1>This browser sends too many cookies</h1>
<p>A request may hold 64 KiB. A page that is open in this browser, such as a service of this lab,
has set more cookies than that.
gpulab has told the browser to delete them, so you have to sign in again.</p>
<p>Close the pages of services that you do not trust. Then <a href="/">open the lab again</a>.
If this page comes back, open the lab once more: a browser deletes some of them each time.
If it still comes back, delete the cookies of this address in the settings of your browser.</p>
{{with .Clear}}<form method="post" action="/gpulab/clear-cookies"><p><button>Delete the cookies of {{.}}</button></p>
<p>This deletes the cookies of all addresses in {{.}} and signs you out there.</p></form>{{end}}
{{else}}<h1>This request is too large</h1><p>Its address and headers may have 64 KiB together.</p><p>
<a href="/">Open the lab</a></p>{{end}}
</main></body></html>
`))
