package notebooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// WebServices tells the proxy of services; [Service] implements it.
type WebServices interface {
	ServiceAt(ctx context.Context, door int) (Launch, error)
	Service(ctx context.Context, id int64) (Launch, error)
	ServiceCalled(ctx context.Context, handle, name string) (Launch, error)
	MaySee(ctx context.Context, u users.User, l Launch) (bool, error)
}

// recheckServices is how often it is asked again who may see the services that
// have connections: a group may have lost a member.
const recheckServices = 3 * time.Second

// ServicePods tells where services are; [KubeCluster] implements it.
type ServicePods interface {
	ServicePod(launch int64) (PodInfo, bool)
}

// SetServices gives the proxy the services, before it is used.
func (p *Proxy) SetServices(s WebServices, where ServicePods) { p.services, p.where = s, where }

// Door serves the services that have a port of the head, which is an origin of
// their own: what a service shows to its visitors is its owner's choice, and in
// their browsers it must be a stranger to notebooks and to other services.
func (p *Proxy) Door(port int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.allowed(w, r) {
			return
		}
		p.serveService(w, r, port)
	})
}

func (p *Proxy) serveService(w http.ResponseWriter, r *http.Request, port int) {
	l, err := p.services.ServiceAt(r.Context(), port)
	if errors.Is(err, ErrNotFound) {
		p.elsewhere(w, r, http.StatusNotFound, "There is no service here any more.", "/services")
		return
	}
	if err != nil {
		p.serviceTrouble(w, r, err)
		return
	}
	in, visit, ok := p.gate.enter(r)
	if !ok {
		p.signIn(w, r, l.URL)
		return
	}
	defer p.gate.leave(visit)
	r = in
	// From here on a change of who may see it finds this visit.
	p.gate.watch(visit, l.ID)
	may, err := p.services.MaySee(r.Context(), visit.session.User, l)
	switch {
	case err != nil:
		p.serviceTrouble(w, r, err)
		return
	case !may:
		p.refuse(w, r, http.StatusForbidden, "This service is not shared with you.")
		return
	case crossOrigin(r):
		p.refuse(w, r, http.StatusForbidden, "This request comes from another site.")
		return
	case r.Header.Get("Service-Worker") != "" || r.Header.Get("Sec-Fetch-Dest") == "serviceworker":
		// It would stay in the browser and answer for whatever is here next.
		p.refuse(w, r, http.StatusForbidden, "Services have no service workers.")
		return
	}
	pod, ok := p.where.ServicePod(l.ID)
	if !ok || !pod.Reachable() {
		p.starting(w, r)
		return
	}
	stale := isTopLevel(r) && p.visitors.first(visit.session.ID, port, l.ID)
	p.pass(w, r, &trip{
		target: pod.UID + podSuffix, address: visitorAddress, port: port,
		cookies: p.serviceCookies(l.ID),
		after:   func(h http.Header) { serviceHeaders(h, stale) },
	})
}

func (p *Proxy) serviceTrouble(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.log.Error("a service cannot be looked up", "error", err)
	}
	p.refuse(w, r, http.StatusInternalServerError, "gpulab could not look this service up. Try again.")
}

// serveServiceAddress leads from a service's lasting address to where it is to be had now.
func (p *Proxy) serveServiceAddress(w http.ResponseWriter, r *http.Request, where string) {
	handle, rest, _ := strings.Cut(where[len("/service/"):], "/")
	name, rest, _ := strings.Cut(rest, "/")
	r, visit, ok := p.enter(w, r)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	const nothing = "There is no such service, or it is not shared with you."
	var l Launch
	err := ErrNotFound
	if p.services != nil && validName(name) {
		l, err = p.services.ServiceCalled(r.Context(), handle, name)
	}
	may := false
	if err == nil {
		may, err = p.services.MaySee(r.Context(), visit.session.User, l)
	}
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		p.serviceTrouble(w, r, err)
		return
	case !may:
		p.refuse(w, r, http.StatusNotFound, nothing)
		return
	}
	target := "/" + rest
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	p.moved(w, r, "https://"+authorityAt(hostname(r), l.Service.Door)+target)
}

// isTopLevel reports whether the answer becomes a page in a window of its own.
func isTopLevel(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// serviceCookies is the beginning of the names under which browsers keep the
// cookies of a service. Cookies do not know ports: without it, those of all
// services, and of notebooks, would be one heap. No page can find it out, for
// they are kept from scripts, so none can plant one for another service.
func (p *Proxy) serviceCookies(launch int64) string {
	mac := hmac.New(sha256.New, []byte(p.cfg.AuthToken))
	_, _ = mac.Write([]byte("cookies of service " + strconv.FormatInt(launch, 10)))
	return "gpulab-service-" + hex.EncodeToString(mac.Sum(nil)[:16]) + "-"
}

// unprefix takes prefix off the names of cookies, all of which have it.
func unprefix(h http.Header, prefix string) {
	if lines := h["Cookie"]; len(lines) == 1 {
		pairs := strings.Split(lines[0], "; ")
		for i := range pairs {
			pairs[i] = strings.TrimPrefix(pairs[i], prefix)
		}
		h["Cookie"] = []string{strings.Join(pairs, "; ")}
	}
}

// addPrefix renames the cookies that an answer sets, keeps them from scripts and
// to this host.
func addPrefix(h http.Header, prefix string) {
	cookies := h["Set-Cookie"]
	delete(h, "Set-Cookie")
	for _, line := range cookies {
		c, err := http.ParseSetCookie(line)
		if err != nil {
			continue
		}
		c.Name = prefix + c.Name
		c.Domain, c.Secure, c.HttpOnly, c.Partitioned = "", true, true, false
		if c.SameSite != http.SameSiteStrictMode {
			c.SameSite = http.SameSiteLaxMode
		}
		if !strings.HasPrefix(c.Path, "/") {
			c.Path = "/"
		}
		if text := c.String(); text != "" {
			h.Add("Set-Cookie", text)
		}
	}
}

// serviceHeaders keep other pages off a service's answers, and a service off the
// page that it was opened from. At a visitor's first look what a former service
// of this port has left in the browser is cleared.
func serviceHeaders(h http.Header, stale bool) {
	originHeadersOf(h)
	if stale {
		h.Set("Clear-Site-Data", `"storage", "cache"`)
	}
}

// doorVisitors are which service a browser's session last saw at which port.
type doorVisitors struct {
	mu   sync.Mutex
	seen map[doorVisit]int64
}

type doorVisit struct {
	session string
	port    int
}

// maxDoorVisits bounds the memory; who is forgotten only loses what services
// keep in the browser.
const maxDoorVisits = 10000

// first reports whether the session has not seen this service at this port yet,
// or another one since.
func (v *doorVisitors) first(session string, port int, launch int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := doorVisit{session, port}
	if v.seen[key] == launch {
		return false
	}
	if v.seen == nil || len(v.seen) >= maxDoorVisits {
		v.seen = map[doorVisit]int64{}
	}
	v.seen[key] = launch
	return true
}

// watch notes that a visit is to a service.
func (g *gate) watch(v *visit, launch int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v.service = launch
}

// recheckServices cuts off who may not see a service any more, or one that is gone.
func (p *Proxy) recheckServices(ctx context.Context) {
	if p.services == nil {
		return
	}
	type look struct{ user, service int64 }
	visits := map[look][]*visit{}
	p.gate.mu.Lock()
	for v := range p.gate.live {
		if v.service != 0 {
			key := look{v.session.User.ID, v.service}
			visits[key] = append(visits[key], v)
		}
	}
	p.gate.mu.Unlock()
	for key, list := range visits {
		l, err := p.services.Service(ctx, key.service)
		may := false
		if err == nil && l.Active() {
			may, err = p.services.MaySee(ctx, list[0].session.User, l)
		}
		if ctx.Err() != nil || err != nil && !errors.Is(err, ErrNotFound) || may {
			continue
		}
		for _, v := range list {
			v.cancel()
		}
	}
}
