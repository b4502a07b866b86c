package notebooks

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// aService is one service at the port 8500, which alice has shared with some.
type aService struct {
	mu     sync.Mutex
	launch Launch
	guests map[int64]bool
	pod    PodInfo
	gone   bool
}

func (s *aService) ServiceAt(_ context.Context, door int) (Launch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || door != s.launch.Service.Door {
		return Launch{}, ErrNotFound
	}
	return s.launch, nil
}

func (s *aService) Service(context.Context, int64) (Launch, error) {
	return s.ServiceAt(context.Background(), s.launch.Service.Door)
}

func (s *aService) ServiceCalled(_ context.Context, handle, name string) (Launch, error) {
	if handle != s.launch.Handle || name != s.launch.Name {
		return Launch{}, ErrNotFound
	}
	return s.Service(context.Background(), 0)
}

func (s *aService) MaySee(_ context.Context, u users.User, l Launch) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return u.ID == l.UserID || s.guests[u.ID], nil
}

func (s *aService) ServicePod(launch int64) (PodInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pod, launch == s.launch.ID
}

func (s *aService) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// door is the origin of a service under test; what handler does is its program.
func (o *origin) door(handler http.HandlerFunc) (*origin, *aService) {
	o.t.Helper()
	backend := httptest.NewServer(handler)
	o.t.Cleanup(backend.Close)
	s := &aService{
		launch: Launch{ID: 7, UserID: 1, Handle: "alice", Name: "board", State: Running, URL: "/service/alice/board/", Service: &WebService{Port: 6006, Door: 8500}},
		guests: map[int64]bool{}, pod: PodInfo{UID: "uid-7", Job: true, Port: 6006, LaunchID: 7, Ready: true, IP: "10.42.0.7"},
	}
	o.pods.mu.Lock()
	o.pods.addresses["uid-7"] = backend.Listener.Addr().String()
	o.pods.mu.Unlock()
	o.proxy.SetServices(s, s)
	server := httptest.NewUnstartedServer(nil)
	server.Config = o.proxy.Server()
	server.Config.Handler = o.proxy.Door(8500)
	server.StartTLS()
	o.t.Cleanup(server.Close)
	return &origin{t: o.t, proxy: o.proxy, server: server, sessions: o.sessions, pods: o.pods}, s
}

func asDocument(r *http.Request) {
	asPage(r)
	r.Header.Set("Sec-Fetch-Dest", "document")
}

// TestWhoMaySeeAService: its owner, with whom it is shared, and nobody else; who
// is not signed in is sent to do that, and comes back to its lasting address.
func TestWhoMaySeeAService(t *testing.T) {
	labs := newOrigin(t)
	o, s := labs.door(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for _, c := range []struct {
		cookie string
		guest  bool
		status int
	}{{"alice-1", false, 200}, {"bob-1", false, 403}, {"bob-1", true, 200}, {"gone", true, 401}, {"", true, 401}} {
		s.change(func() { s.guests = map[int64]bool{2: c.guest, 3: c.guest} })
		if got, body := o.get("/", cookie(c.cookie)); got.StatusCode != c.status || (body == "hello") != (c.status == 200) {
			t.Errorf("%q, guest %v: %d %s, want %d", c.cookie, c.guest, got.StatusCode, body, c.status)
		}
	}
	if got, _ := o.get("/", asDocument); !strings.HasSuffix(got.Header.Get("Location"), ":4443/login?next=%2Fservice%2Falice%2Fboard%2F") {
		t.Errorf("a stranger is sent to %q", got.Header.Get("Location"))
	}
	s.change(func() { s.guests = nil })
	if got, _ := labs.atHubPort("/service/alice/board/x?y=1", cookie("alice-1"), asDocument); got.StatusCode != http.StatusOK || !strings.HasSuffix(got.Header.Get("Refresh"), ":8500/x?y=1") {
		t.Errorf("its address leads its owner to %d %q", got.StatusCode, got.Header.Get("Refresh"))
	}
	for path, who := range map[string]string{"/service/alice/board/": "bob-1", "/service/alice/other/": "alice-1", "/service/alice/../board/": "alice-1"} {
		if got, _ := labs.atHubPort(path, cookie(who), asDocument); got.StatusCode != http.StatusNotFound || got.Header.Get("Refresh") != "" {
			t.Errorf("%s leads %s to %d %q", path, who, got.StatusCode, got.Header.Get("Refresh"))
		}
	}
	s.change(func() { s.pod.Ready = false })
	if got, _ := o.get("/", cookie("alice-1")); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one that does not answer yet: %d", got.StatusCode)
	}
	s.change(func() { s.gone = true })
	if got, _ := o.get("/", cookie("alice-1")); got.StatusCode != http.StatusNotFound {
		t.Errorf("one that is gone: %d", got.StatusCode)
	}
}

// TestServiceSeesNoCookiesButItsOwn: a browser sends a service's port the cookies
// of the whole host, those of notebooks and of other services among them.
func TestServiceSeesNoCookiesButItsOwn(t *testing.T) {
	var seen string
	labs := newOrigin(t)
	o, _ := labs.door(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Cookie")
		w.Header().Add("Set-Cookie", "sid=1; Path=/; Domain=lab.example")
		w.Header().Add("Set-Cookie", "__Host-gpulab=evil; Path=/; Secure")
		w.Header().Set("Service-Worker-Allowed", "/")
		w.Header().Set("Clear-Site-Data", `"*"`)
	})
	got, _ := o.get("/user/bob/cpu/", cookie("alice-1"), header("Cookie", "_xsrf=a; jupyterhub-user-alice=b; gpulab-service-"+strings.Repeat("0", 32)+"-sid=c; sid=d"))
	if seen != "" {
		t.Errorf("it sees %q", seen)
	}
	set := got.Header["Set-Cookie"]
	for _, line := range set {
		if !strings.HasPrefix(line, o.proxy.serviceCookies(7)) || !strings.Contains(line, "HttpOnly") || !strings.Contains(line, "Secure") || strings.Contains(line, "Domain") {
			t.Errorf("it sets %q", line)
		}
	}
	if got.Header.Get("Service-Worker-Allowed") != "" || got.Header.Get("Clear-Site-Data") != "" {
		t.Errorf("headers for the whole origin pass: %v", got.Header)
	}
	if len(set) != 2 {
		t.Fatalf("it sets %q", set)
	}
	pair, _, _ := strings.Cut(set[0], ";")
	if _, _ = o.get("/", cookie("alice-1"), header("Cookie", pair)); seen != "sid=1" {
		t.Errorf("its own cookie %q comes back as %q", pair, seen)
	}
	if o.proxy.serviceCookies(7) == o.proxy.serviceCookies(8) {
		t.Error("two services share their cookies")
	}
	// A notebook sees none of a service's.
	var notebookSaw string
	labs.notebook("alice", "cpu", func(_ http.ResponseWriter, r *http.Request) { notebookSaw = r.Header.Get("Cookie") })
	if labs.get("/user/alice/cpu/", cookie("alice-1"), header("Cookie", pair)); notebookSaw != "" {
		t.Errorf("a notebook sees %q", notebookSaw)
	}
}

// TestHostileServiceReachesNothingElse: what a page of a service makes its
// visitor's browser send to a notebook, or to another service, is refused.
func TestHostileServiceReachesNothingElse(t *testing.T) {
	labs := newOrigin(t)
	asked := 0
	count := func(w http.ResponseWriter, r *http.Request) { asked++; echo(w, r) }
	o, _ := labs.door(count)
	labs.notebook("alice", "cpu", count)
	from := func(site, mode, dest string, more ...change) []change {
		return append(more, cookie("alice-1"), header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", mode), header("Sec-Fetch-Dest", dest))
	}
	evil := header("Origin", "https://lab.example:8501")
	for name, c := range map[string]struct {
		method  string
		changes []change
	}{
		"fetch":        {"GET", from("same-site", "cors", "empty", evil)},
		"no-cors":      {"GET", from("same-site", "no-cors", "script")},
		"image":        {"GET", from("same-site", "no-cors", "image")},
		"frame":        {"GET", from("same-site", "navigate", "iframe")},
		"object":       {"GET", from("same-site", "navigate", "embed")},
		"form":         {"POST", from("same-site", "navigate", "document", evil)},
		"put":          {"PUT", from("same-site", "cors", "empty", evil)},
		"preflight":    {"OPTIONS", from("same-site", "cors", "empty", evil)},
		"sandboxed":    {"GET", from("cross-site", "no-cors", "script")},
		"null":         {"POST", from("cross-site", "cors", "empty", header("Origin", "null"))},
		"old browsers": {"POST", []change{cookie("alice-1"), evil}},
	} {
		for path, at := range map[string]*origin{"/user/alice/cpu/api/contents": labs, "/data/runs": o} {
			if got, _ := at.do(c.method, path, nil, c.changes...); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s of %s: %d", name, path, got.StatusCode)
			}
			if _, status, err := at.dial(t.Context(), path, cookie("alice-1"), evil); err == nil || status != http.StatusForbidden {
				t.Errorf("a WebSocket to %s: %d", path, status)
			}
		}
	}
	if asked != 0 {
		t.Errorf("%d requests arrived", asked)
	}
	if got, _ := o.get("/sw.js", from("same-origin", "same-origin", "serviceworker", header("Service-Worker", "script"))...); got.StatusCode != http.StatusForbidden {
		t.Errorf("a service worker: %d", got.StatusCode)
	}
	// A link may be followed, and the service's own page may ask it everything.
	for name, changes := range map[string][]change{
		"a link": from("same-site", "navigate", "document"), "its own page": from("same-origin", "cors", "empty"), "a frame of its own": from("same-origin", "navigate", "iframe"),
	} {
		if got, _ := o.get("/", changes...); got.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", name, got.StatusCode)
		}
	}
	got, _ := o.get("/", from("same-origin", "cors", "empty")...)
	for name, want := range map[string]string{"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin-allow-popups", "Content-Security-Policy": "frame-ancestors 'self'"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s is %q", name, got.Header.Get(name))
		}
	}
}

// TestServiceAfterAnother: what a former service of the same port has left in a
// browser is cleared at the first look at the next one, and only then.
func TestServiceAfterAnother(t *testing.T) {
	o, s := newOrigin(t).door(func(http.ResponseWriter, *http.Request) {})
	cleared := func(who string, changes ...change) bool {
		got, _ := o.get("/", append(changes, cookie(who))...)
		return got.Header.Get("Clear-Site-Data") == `"storage", "cache"`
	}
	if !cleared("alice-1", asDocument) || cleared("alice-1", asDocument) {
		t.Error("not at the first look alone")
	}
	if cleared("alice-2") || !cleared("alice-2", asDocument) {
		t.Error("another browser of hers is not treated by itself")
	}
	s.change(func() { s.launch.ID = 8 })
	if !cleared("alice-1", asDocument) {
		t.Error("not for the next service")
	}
}

// TestSharingEndsConnections: a WebSocket ends when its visitor may not see the
// service any more, signs out, or the service ends.
func TestSharingEndsConnections(t *testing.T) {
	o, s := newOrigin(t).door(echo)
	ends := map[string]func(){
		"not shared any more": func() { s.change(func() { s.guests = nil }); o.proxy.recheckServices(t.Context()) },
		"signed out":          func() { o.proxy.EndSessions(2, "s3") },
		"gone":                func() { s.change(func() { s.gone = true }); o.proxy.recheckServices(t.Context()) },
	}
	for name, end := range ends {
		s.change(func() { s.guests, s.gone = map[int64]bool{2: true}, false })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		guest, _, err := o.dial(ctx, "/ws", cookie("bob-1"), o.self())
		if err != nil {
			t.Fatal(err)
		}
		owner, _, err := o.dial(ctx, "/ws", cookie("alice-1"), o.self())
		if err != nil {
			t.Fatal(err)
		}
		if err := roundTrip(ctx, guest, "one"); err != nil {
			t.Fatal(err)
		}
		o.proxy.recheckServices(ctx)
		if err := roundTrip(ctx, guest, "two"); err != nil {
			t.Fatalf("%s: it was cut off before: %v", name, err)
		}
		end()
		if _, _, err := guest.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("%s: the connection goes on (%v)", name, ctx.Err())
		}
		if name != "gone" {
			if err := roundTrip(ctx, owner, "three"); err != nil {
				t.Errorf("%s: the owner was cut off, too: %v", name, err)
			}
		}
		_, _ = guest.CloseNow(), owner.CloseNow()
		cancel()
	}
}
