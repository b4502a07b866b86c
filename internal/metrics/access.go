package metrics

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Access says who may read the metrics: they tell who uses what.
type Access struct {
	// Token is what Prometheus sends as "Authorization: Bearer TOKEN".
	Token string
	// Networks may read without it, Except those addresses in them.
	Networks, Except []netip.Prefix
	// Admin tells a request of a signed-in administrator.
	Admin func(*http.Request) bool
}

// Guard lets those pass to next who may, and tells everybody else in one
// sentence what is missing.
func (a Access) Guard(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(a.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, sent := bearer(r)
		got := sha256.Sum256([]byte(token))
		known := sent && a.Token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
		switch {
		case known, a.near(r.RemoteAddr), a.Admin != nil && a.Admin(r):
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="gpulab metrics"`)
		w.Header().Set("Cache-Control", "no-store")
		if sent {
			http.Error(w, "This token is not the lab's; `sudo gpulab metrics --scrape-config` on the head says where the "+
				"right one lies.", http.StatusUnauthorized)
			return
		}
		http.Error(w, "Metrics need the lab's token; `sudo gpulab metrics --scrape-config` on the head prints what "+
			"Prometheus needs.", http.StatusUnauthorized)
	})
}

func bearer(r *http.Request) (token string, sent bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), found && strings.EqualFold(scheme, "Bearer")
}

// near tells whether the far end of the connection, and not what a header
// says, is in one of the networks.
func (a Access) near(remote string) bool {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	addr := from.Addr().Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	return slices.ContainsFunc(a.Networks, in) && !slices.ContainsFunc(a.Except, in)
}

// Handler serves what collect tells.
func Handler(collect func(*http.Request) *Lab) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var out bytes.Buffer
		if err := Write(&out, collect(r)); err != nil {
			slog.Error("the metrics could not be written", "err", err)
			http.Error(w, "The metrics could not be written; `gpulab logs` on the head says why.",
				http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", ContentType)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Length", strconv.Itoa(out.Len()))
		_, _ = w.Write(out.Bytes()) // Prometheus has gone away
	})
}
