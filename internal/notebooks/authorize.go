package notebooks

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// Sessions finds gpulab's session of a request. It is asked once per request and
// must not answer with a session that has ended.
type Sessions interface {
	FromRequest(r *http.Request) (users.Session, bool)
}

// recheckEvery is how often the sessions of live connections are asked for
// again: a WebSocket may live for days, a session must not live through it.
const recheckEvery = time.Minute

// gate decides who comes in, and knows every request and WebSocket that is
// under way so that they can be cut off.
type gate struct {
	sessions Sessions
	now      func() time.Time

	epoch atomic.Uint64 // grows whenever sessions ended
	mu    sync.Mutex
	live  map[*visit]struct{}
}

// visit is one authorised request or WebSocket.
type visit struct {
	session users.Session
	request *http.Request // as it came, to ask for its session again
	began   time.Time
	cancel  context.CancelFunc
	service int64 // to which one, by launch; 0 for none
}

func newGate(sessions Sessions) *gate {
	return &gate{sessions: sessions, now: time.Now, live: map[*visit]struct{}{}}
}

// enter finds the session of a request and registers the visit. The caller must
// call leave when the request is over; the returned request carries a context
// that ends with the session.
func (g *gate) enter(r *http.Request) (*http.Request, *visit, bool) {
	for {
		epoch := g.epoch.Load()
		session, ok := g.sessions.FromRequest(r)
		if !ok || session.User.Suspended {
			return r, nil, false
		}
		ctx, cancel := context.WithCancel(r.Context())
		v := &visit{session: session, request: r, began: g.now(), cancel: cancel}
		g.mu.Lock()
		g.live[v] = struct{}{}
		g.mu.Unlock()
		// A session that ended between the look-up and here has missed this visit.
		if g.epoch.Load() == epoch {
			return r.WithContext(ctx), v, true
		}
		g.leave(v)
	}
}

func (g *gate) leave(v *visit) {
	v.cancel()
	g.mu.Lock()
	delete(g.live, v)
	g.mu.Unlock()
}

// end cuts off what runs under a user's sessions, or under one of them.
func (g *gate) end(userID int64, sessionID string) {
	ends := func(s users.Session) bool {
		return s.User.ID == userID && (sessionID == "" || s.ID == sessionID)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.epoch.Add(1)
	for v := range g.live {
		if ends(v.session) {
			v.cancel()
		}
	}
}

// recheck asks again for the sessions of connections that have lived for long.
func (g *gate) recheck() {
	old := g.now().Add(-recheckEvery)
	var visits []*visit
	g.mu.Lock()
	for v := range g.live {
		if v.began.Before(old) {
			visits = append(visits, v)
		}
	}
	g.mu.Unlock()
	for _, v := range visits {
		s, ok := g.sessions.FromRequest(v.request)
		if !ok || s.User.Suspended || s.User.ID != v.session.User.ID {
			v.cancel()
		}
	}
}

// mayUse reports whether a person may use a server of handle: their own only.
func mayUse(u users.User, handle string) bool { return u.Handle == handle }

// isPage reports whether the answer is shown to a person, who can be sent
// elsewhere, rather than read by a program.
func isPage(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || isWebSocket(r) {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

func isWebSocket(r *http.Request) bool {
	return headerHas(r.Header, "Connection", "upgrade") && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

func headerHas(h http.Header, name, token string) bool {
	for _, v := range h[http.CanonicalHeaderKey(name)] {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// crossOrigin reports whether another origin's page makes a browser send this
// request, unless it opens it as a page of its own window: a link to a notebook or
// service may be followed, and nothing else may reach one from there.
//
// A WebSocket must name its origin, because browsers let every page open one.
// Browsers without Sec-Fetch headers (Safari before 16.4) say where a request
// comes from by Origin or Referer. A program that is no browser sends none of the
// three, and needs the session's cookie anyway.
func crossOrigin(r *http.Request) bool {
	origins, sites := r.Header.Values("Origin"), r.Header.Values("Sec-Fetch-Site")
	if len(origins) > 1 || len(sites) > 1 {
		return true
	}
	origin := r.Header.Get("Origin")
	if isWebSocket(r) {
		return !sameOrigin(origin, r.Host)
	}
	if len(sites) == 1 {
		return sites[0] != "same-origin" && sites[0] != "none" && !isTopLevel(r)
	}
	if len(origins) == 1 {
		return !sameOrigin(origin, r.Host)
	}
	if referer := r.Header.Get("Referer"); referer != "" && !sameOrigin(referer, r.Host) {
		// A frame asks for a page, too; it does not show it (frame-ancestors).
		return !isPage(r)
	}
	return false
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Scheme == "https" && u.Host != "" && strings.EqualFold(u.Host, host)
}
