package notebooks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

const testToken = "proxy-token"

// sessionsByCookie are sessions known by the value of gpulab's cookie.
type sessionsByCookie struct {
	mu    sync.Mutex
	known map[string]users.Session
}

func (s *sessionsByCookie) FromRequest(r *http.Request) (users.Session, bool) {
	c, ok := cookies.FromRequest(r)
	if !ok {
		return users.Session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	session, ok := s.known[c.Token]
	return session, ok
}

func (s *sessionsByCookie) forget(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, cookie)
}

// podsByHand is a watch whose pods a test places itself.
type podsByHand struct {
	mu        sync.Mutex
	pods      map[podKey]PodInfo
	addresses map[string]string // by UID
	hub       string
}

func (p *podsByHand) PodFor(handle, server string) (PodInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, ok := p.pods[podKey{handle, server}]
	return pod, ok
}

func (p *podsByHand) PodAddress(uid string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.addresses[uid]
	return a, ok
}

func (p *podsByHand) HubAddress() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hub, p.hub != ""
}

func (p *podsByHand) place(handle, server, uid, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[podKey{handle, server}] = PodInfo{UID: uid, Handle: handle, Server: server, IP: "10.0.0.1", Ready: true}
	p.addresses[uid] = address
}

func (p *podsByHand) remove(handle, server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.addresses, p.pods[podKey{handle, server}].UID)
	delete(p.pods, podKey{handle, server})
}

// origin is a notebooks' origin under test, reached over TLS.
type origin struct {
	t        *testing.T
	proxy    *Proxy
	server   *httptest.Server
	sessions *sessionsByCookie
	pods     *podsByHand
}

func newOrigin(t *testing.T) *origin {
	t.Helper()
	o := &origin{
		t: t,
		sessions: &sessionsByCookie{known: map[string]users.Session{
			"alice-1": {ID: "s1", User: users.User{ID: 1, Handle: "alice"}},
			"alice-2": {ID: "s2", User: users.User{ID: 1, Handle: "alice"}},
			"bob-1":   {ID: "s3", User: users.User{ID: 2, Handle: "bob"}},
			"gone":    {ID: "s4", User: users.User{ID: 3, Handle: "carol", Suspended: true}},
		}},
		pods: &podsByHand{pods: map[podKey]PodInfo{}, addresses: map[string]string{}},
	}
	proxy, err := NewProxy(ProxyConfig{Sessions: o.sessions, Pods: o.pods, AuthToken: testToken, HTTPSPort: 4443, HubPort: 8443, Origins: portsByID{}})
	if err != nil {
		t.Fatal(err)
	}
	o.proxy = proxy
	o.server = httptest.NewUnstartedServer(nil)
	o.server.Config = proxy.Server()
	o.server.Config.Handler = cookies.Limit(o.ownPort())
	o.server.StartTLS()
	t.Cleanup(o.server.Close)
	return o
}

// portsByID are ports that follow from the person's number.
type portsByID struct{}

func (portsByID) Port(_ context.Context, user int64) (int, error) { return 21000 + int(user), nil }

func (portsByID) Authority(_ context.Context, host string, user int64) (string, error) {
	return host + ":" + strconv.Itoa(21000+int(user)), nil
}

func (portsByID) Owner(port int) (int64, bool) {
	return int64(port - 21000), port > 21000 && port < 21100
}

// ownPort takes each visitor to be at the port of their own notebooks, strangers
// to be at Alice's.
func (o *origin) ownPort() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner := int64(1)
		if s, ok := o.sessions.FromRequest(r); ok {
			owner = s.User.ID
		}
		AtPort(21000+int(owner), o.proxy).ServeHTTP(w, r)
	})
}

// notebook runs handler as the pod of a user's server and announces it as the hub would.
func (o *origin) notebook(handle, server string, handler http.HandlerFunc) *httptest.Server {
	o.t.Helper()
	backend := httptest.NewServer(handler)
	o.t.Cleanup(backend.Close)
	o.pods.place(handle, server, "uid-"+handle+"-"+server, backend.Listener.Addr().String())
	o.announce(handle, server, "http://192.0.2.9:8888")
	return backend
}

func (o *origin) hub(handler http.HandlerFunc) {
	backend := httptest.NewServer(handler)
	o.t.Cleanup(backend.Close)
	o.pods.mu.Lock()
	o.pods.hub = backend.Listener.Addr().String()
	o.pods.mu.Unlock()
}

func (o *origin) announce(handle, server, target string) {
	o.t.Helper()
	rec := apiCall(o.proxy.RoutesAPI(), http.MethodPost, "/hub-proxy/api/routes/user/"+handle+"/"+server, testToken,
		fmt.Sprintf(`{"target":%q,"jupyterhub":true,"user":%q,"server_name":%q}`, target, handle, server))
	if rec.Code != http.StatusCreated {
		o.t.Fatalf("announce %s/%s: %d %s", handle, server, rec.Code, rec.Body)
	}
}

// client follows no redirects and trusts the test's certificate.
func (o *origin) client() *http.Client {
	c := o.server.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

type change func(*http.Request)

func cookie(value string) change {
	return func(r *http.Request) { r.Header.Add("Cookie", cookies.Session+"="+value) }
}

func header(name, value string) change {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func asPage(r *http.Request) {
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Accept", "text/html")
}

// answer is an HTTP response whose body has been read.
type answer struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// atHubPort is get at the port of lasting addresses.
func (o *origin) atHubPort(path string, changes ...change) (answer, string) {
	o.t.Helper()
	at := *o
	at.server = httptest.NewUnstartedServer(nil)
	at.server.Config = o.proxy.Server()
	at.server.StartTLS()
	defer at.server.Close()
	return at.get(path, changes...)
}

// get sends path exactly as written and returns the answer with its body.
func (o *origin) get(path string, changes ...change) (answer, string) {
	o.t.Helper()
	return o.do(http.MethodGet, path, nil, changes...)
}

func (o *origin) do(method, path string, body io.Reader, changes ...change) (answer, string) {
	o.t.Helper()
	req, err := http.NewRequest(method, o.server.URL, body)
	if err != nil {
		o.t.Fatal(err)
	}
	where, query, _ := strings.Cut(path, "?")
	req.URL.RawQuery = query
	req.URL.Opaque = where
	if strings.HasPrefix(where, "//") {
		req.URL.Opaque = "//" + req.URL.Host + where // such a path can be sent in the absolute form only
	}
	for _, c := range changes {
		c(req)
	}
	res, err := o.client().Do(req)
	if err != nil {
		o.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		o.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{res.StatusCode, res.Status, res.Header}, string(b)
}

// dial opens a WebSocket, or returns the status it was refused with.
func (o *origin) dial(ctx context.Context, path string, changes ...change) (conn *websocket.Conn, status int, err error) {
	req := &http.Request{Header: http.Header{}}
	for _, c := range changes {
		c(req)
	}
	conn, res, err := websocket.Dial(ctx, "wss"+strings.TrimPrefix(o.server.URL, "https")+path, &websocket.DialOptions{
		HTTPClient: o.client(), HTTPHeader: req.Header,
	})
	if res != nil {
		status = res.StatusCode
		if res.Body != nil {
			_ = res.Body.Close()
		}
	}
	return conn, status, err
}

func (o *origin) self() change { return header("Origin", o.server.URL) }

// echo is a notebook that sends WebSocket messages back and tells HTTP headers.
func echo(w http.ResponseWriter, r *http.Request) {
	if !isWebSocket(r) {
		_, _ = io.Copy(w, r.Body)
		return
	}
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

func TestOwnerReachesNotebook(t *testing.T) {
	o := newOrigin(t)
	seen := make(chan *http.Request, 1)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		_, _ = io.WriteString(w, "hello")
	})
	res, body := o.get("/user/alice/gpu/lab%2Ftree?a=1;b=%zz", cookie("alice-1"),
		header("Sec-Fetch-Mode", "cors"), header("Authorization", "token abc"), header("X-Xsrftoken", "x"))
	if res.StatusCode != http.StatusOK || body != "hello" {
		t.Fatalf("got %d %q", res.StatusCode, body)
	}
	r := <-seen
	host, _ := url.Parse(o.server.URL)
	for _, c := range []struct{ what, got, want string }{
		{"path", r.URL.EscapedPath(), "/user/alice/gpu/lab%2Ftree"},
		{"query", r.URL.RawQuery, "a=1;b=%zz"},
		{"host", r.Host, host.Host},
		{"X-Forwarded-Proto", r.Header.Get("X-Forwarded-Proto"), "https"},
		{"X-Forwarded-Host", r.Header.Get("X-Forwarded-Host"), host.Host},
		{"X-Forwarded-Port", r.Header.Get("X-Forwarded-Port"), "21001"},
		{"X-Forwarded-For", r.Header.Get("X-Forwarded-For"), visitorAddress},
		{"Sec-Fetch-Mode", r.Header.Get("Sec-Fetch-Mode"), "cors"},
		{"Authorization", r.Header.Get("Authorization"), "token abc"},
		{"X-Xsrftoken", r.Header.Get("X-Xsrftoken"), "x"},
		{"Cookie", r.Header.Get("Cookie"), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
		}
	}
}

func TestWhoMayComeIn(t *testing.T) {
	o := newOrigin(t)
	reached := false
	o.notebook("alice", "gpu", func(http.ResponseWriter, *http.Request) { reached = true })
	upgrade := func(r *http.Request) {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Version", "13")
		r.Header.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	}
	host := mustURL(t, o.server.URL).Hostname()
	for _, c := range []struct {
		name     string
		changes  []change
		status   int
		location string
	}{
		{"nobody, a program", nil, http.StatusUnauthorized, ""},
		{"nobody, a page", []change{asPage}, http.StatusFound, "https://" + host + ":4443/login?next=%2Fuser%2Falice%2Fgpu%2Flab%3Fx%3D1"},
		{"nobody, a WebSocket", []change{upgrade, o.self()}, http.StatusUnauthorized, ""},
		{"a made-up session", []change{cookie("guess")}, http.StatusUnauthorized, ""},
		{"somebody else", []change{cookie("bob-1")}, http.StatusForbidden, ""},
		{"somebody else, a page", []change{cookie("bob-1"), asPage}, http.StatusForbidden, ""},
		{"somebody suspended", []change{cookie("gone")}, http.StatusUnauthorized, ""},
		{"WebSocket from another site", []change{cookie("alice-1"), upgrade, header("Origin", "https://evil.example")}, http.StatusForbidden, ""},
		{"WebSocket from gpulab's own pages", []change{cookie("alice-1"), upgrade, header("Origin", "https://"+host)}, http.StatusForbidden, ""},
		{"WebSocket without an origin", []change{cookie("alice-1"), upgrade}, http.StatusForbidden, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, _ := o.get("/user/alice/gpu/lab?x=1", c.changes...)
			if res.StatusCode != c.status || res.Header.Get("Location") != c.location {
				t.Errorf("got %d to %q, want %d to %q", res.StatusCode, res.Header.Get("Location"), c.status, c.location)
			}
		})
	}
	for _, c := range []struct {
		name    string
		changes []change
	}{
		{"form of another site", []change{cookie("alice-1"), header("Sec-Fetch-Site", "cross-site")}},
		{"form of gpulab's pages", []change{cookie("alice-1"), header("Sec-Fetch-Site", "same-site")}},
		{"form of another site, old browser", []change{cookie("alice-1"), header("Origin", "https://evil.example")}},
		{"form without an origin", []change{cookie("alice-1"), header("Origin", "null")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if res, _ := o.do(http.MethodPost, "/user/alice/gpu/api/kernels", strings.NewReader("{}"), c.changes...); res.StatusCode != http.StatusForbidden {
				t.Errorf("got %d, want 403", res.StatusCode)
			}
		})
	}
	if reached {
		t.Error("a refused request reached the notebook")
	}
	if res, _ := o.do(http.MethodPost, "/user/alice/gpu/api/kernels", strings.NewReader("{}"), cookie("alice-1"), header("Sec-Fetch-Site", "same-origin")); res.StatusCode != http.StatusOK || !reached {
		t.Errorf("the owner's own form: got %d", res.StatusCode)
	}
}

// A student may replace his server by a program of his own: it must learn
// nothing of whoever visits it.
func TestNotebookSeesNoVisitorIdentity(t *testing.T) {
	o := newOrigin(t)
	seen := make(chan http.Header, 1)
	o.notebook("alice", "gpu", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	res, _ := o.get("/user/alice/gpu/", cookie("alice-1"),
		header("Cookie", "gpulab-hub=1; a=1; jupyterhub-session-id=2; __Secure-gpulab-x=3; __HOST-GPULAB=4"),
		header("Cookie", "=__Host-gpulab=5; __Host-gpulab; b=2; jupyterhub-hub-login=6"),
		header("X-Forwarded-User", "root"), header("X-Forwarded-Email", "root@example.org"), header("Forwarded", "for=1.2.3.4"),
		header("X-Real-IP", "1.2.3.4"), header("Remote-User", "root"), header("X-Remote-User", "root"), header("Remote_user", "root"),
		header("X-Forwarded-For", "1.2.3.4"), header("X-Scheme", "http"), header("Connection", "X-Forwarded-Proto"))
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	h := <-seen
	if got := h.Get("Cookie"); got != "a=1; b=2" {
		t.Errorf("cookies: got %q, want %q", got, "a=1; b=2")
	}
	for _, name := range []string{"X-Forwarded-User", "X-Forwarded-Email", "Forwarded", "X-Real-Ip", "Remote-User", "X-Remote-User", "Remote_user", "X-Scheme"} {
		if h.Get(name) != "" {
			t.Errorf("%s reached the notebook: %q", name, h.Get(name))
		}
	}
	if got := strings.Join(h["X-Forwarded-For"], "|"); got != visitorAddress {
		t.Errorf("X-Forwarded-For: got %q", got)
	}
	if got := strings.Join(h["X-Forwarded-Proto"], "|"); got != "https" {
		t.Errorf("X-Forwarded-Proto: got %q", got)
	}
}

func TestNotebookAnswerStaysBelowItsPath(t *testing.T) {
	o := newOrigin(t)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "</evil.css>; rel=preload")
		h.Set("Clear-Site-Data", `"cookies"`)
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		for name, value := range map[string]string{
			"Clear-Site-Data": `"*"`, "Service-Worker-Allowed": "/", "Strict-Transport-Security": "max-age=99999999",
			"Alt-Svc": `h3=":9999"`, "Nel": "{}", "Report-To": "{}", "X-Own": "stays",
		} {
			h.Set(name, value)
		}
		for _, c := range []string{
			"own=1; Path=/user/alice/gpu/; HttpOnly", "root=2; Path=/", "bare=3", "deep=4; path=/user/alice/gpu/api; Secure; SameSite=Lax",
			"other=5; Path=/user/bob/", "hub=6; Path=/hub/", "up=7; Path=/user/alice/gpu/../../bob/", "wide=8; Domain=example.org",
			"__Host-gpulab=9; Path=/; Secure", "__Host-x=10; Path=/; Secure", "__Secure-x=11; Secure", "gpulab-hub=12; Path=/hub/",
			"=__Host-gpulab=13", "__Host-gpulab", "sibling=14; Path=/user/alice/gpux/",
		} {
			h.Add("Set-Cookie", c)
		}
	})
	res, _ := o.get("/user/alice/gpu/", cookie("alice-1"))
	for _, name := range originHeaders {
		if name != "Set-Cookie" && res.Header.Get(name) != "" {
			t.Errorf("%s came through: %q", name, res.Header.Get(name))
		}
	}
	if res.Header.Get("X-Own") != "stays" || res.Header.Get("Link") != "" {
		t.Errorf("headers: %v", res.Header)
	}
	want := []string{
		"own=1; HttpOnly; Path=/user/alice/gpu/", "root=2; Path=/user/alice/gpu/", "bare=3; Path=/user/alice/gpu/",
		"deep=4; Secure; SameSite=Lax; Path=/user/alice/gpu/api", "wide=8; Path=/user/alice/gpu/",
	}
	if got := res.Header["Set-Cookie"]; strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("cookies:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	o := newOrigin(t)
	host := mustURL(t, o.server.URL).Hostname()
	check := func(name string, wantStatus int, wantPage int, wantLocation string) {
		t.Helper()
		if res, body := o.get("/user/alice/gpu/api/status", cookie("alice-1")); res.StatusCode != wantStatus || !strings.HasPrefix(body, "{") {
			t.Errorf("%s, program: got %d %s", name, res.StatusCode, body)
		}
		if res, _ := o.get("/user/alice/gpu/lab", cookie("alice-1"), asPage); res.StatusCode != wantPage || res.Header.Get("Location") != wantLocation {
			t.Errorf("%s, page: got %d to %q", name, res.StatusCode, res.Header.Get("Location"))
		}
	}
	home := "https://" + host + ":4443/?stopped=gpu"
	check("no route", http.StatusFailedDependency, http.StatusFound, home)
	o.announce("alice", "gpu", "http://192.0.2.9:8888")
	check("route without a pod", http.StatusServiceUnavailable, http.StatusServiceUnavailable, "")

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	o.pods.place("alice", "gpu", "u1", closed.Addr().String())
	check("pod that does not listen yet", http.StatusServiceUnavailable, http.StatusServiceUnavailable, "")

	o.pods.mu.Lock()
	delete(o.pods.addresses, "u1")
	o.pods.mu.Unlock()
	check("pod that went away between look-up and dial", http.StatusServiceUnavailable, http.StatusServiceUnavailable, "")

	rec := apiCall(o.proxy.RoutesAPI(), http.MethodDelete, "/api/routes/user/alice/gpu", testToken, "")
	if rec.Code != http.StatusNoContent {
		t.Fatal(rec.Code)
	}
	check("route deleted", http.StatusFailedDependency, http.StatusFound, home)
}

// After a reboot or a restart a pod's address may be somebody else's. Nothing
// that was meant for one person's notebook may reach another's.
func TestReusedAddressLeaksNothing(t *testing.T) {
	o := newOrigin(t)
	var mu sync.Mutex
	var got []string
	shared := o.notebook("alice", "gpu", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.URL.Path)
	})
	address := shared.Listener.Addr().String()
	// Alice's pod answers, so that a connection to the address is pooled.
	if res, _ := o.get("/user/alice/gpu/first", cookie("alice-1")); res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	// Her pod ends and the address becomes Bob's; the hub's route to it is stale and even names it.
	o.pods.remove("alice", "gpu")
	o.pods.place("bob", "train", "uid-bob", address)
	o.announce("bob", "train", "http://"+address)
	o.announce("alice", "gpu", "http://"+address)
	if res, _ := o.get("/user/alice/gpu/secret", cookie("alice-1")); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("request for a pod that is gone: got %d, want 503", res.StatusCode)
	}
	if _, status, err := o.dial(t.Context(), "/user/alice/gpu/ws", cookie("alice-1"), o.self()); err == nil || status != http.StatusServiceUnavailable {
		t.Errorf("WebSocket for a pod that is gone: %v", err)
	}
	if res, _ := o.get("/user/bob/train/own", cookie("bob-1")); res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(got, " ") != "/user/alice/gpu/first /user/bob/train/own" {
		t.Errorf("the address saw %v", got)
	}
}

func TestWebSocketAndItsEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(o *origin)
		ends bool
	}{
		{"sign-out", func(o *origin) { o.sessions.forget("alice-1"); o.proxy.EndSessions(1, "s1") }, true},
		{"suspension", func(o *origin) { o.proxy.EndSessions(1, "") }, true},
		{"sign-out elsewhere", func(o *origin) { o.proxy.EndSessions(1, "s2") }, false},
		{"somebody else's sign-out", func(o *origin) { o.proxy.EndSessions(2, "") }, false},
		{"session expired unnoticed", func(o *origin) {
			o.sessions.forget("alice-1")
			o.proxy.gate.now = func() time.Time { return time.Now().Add(2 * recheckEvery) }
			o.proxy.gate.recheck()
		}, true},
		{"session still good at the next check", func(o *origin) {
			o.proxy.gate.now = func() time.Time { return time.Now().Add(2 * recheckEvery) }
			o.proxy.gate.recheck()
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOrigin(t)
			o.notebook("alice", "gpu", echo)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			conn, _, err := o.dial(ctx, "/user/alice/gpu/ws", cookie("alice-1"), o.self())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.CloseNow() }()
			if err := roundTrip(ctx, conn, "one"); err != nil {
				t.Fatal(err)
			}
			counted := func() bool { tr, _ := o.proxy.Traffic("alice", "gpu"); return tr.In > 0 && tr.Out > 0 }
			if !eventually(counted) {
				t.Error("traffic was not counted")
			}
			c.end(o)
			// Cutting off takes a moment; what goes on must go on for longer.
			for range 20 {
				if err = roundTrip(ctx, conn, "two"); err != nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if c.ends != (err != nil) {
				t.Errorf("after the end: %v", err)
			}
			if ctx.Err() != nil {
				t.Error("the connection was not closed but left alone")
			}
		})
	}
}

func eventually(cond func() bool) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}

func roundTrip(ctx context.Context, c *websocket.Conn, text string) error {
	if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return err
	}
	_, b, err := c.Read(ctx)
	if err == nil && string(b) != text {
		return fmt.Errorf("got %q back", b)
	}
	return err
}

func TestSignOutCutsStreams(t *testing.T) {
	o := newOrigin(t)
	gone := make(chan struct{})
	o.notebook("alice", "gpu", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	req, err := http.NewRequest(http.MethodGet, o.server.URL+"/user/alice/gpu/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	cookie("alice-1")(req)
	res, err := o.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	first := make([]byte, 9)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal("the stream was held back:", err)
	}
	o.proxy.EndSessions(1, "s1")
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream ended as if it were complete")
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("the notebook was not told")
	}
}

// A session that ends while a request is being let in must not slip through.
func TestSessionEndsWhileEntering(t *testing.T) {
	o := newOrigin(t)
	o.notebook("alice", "gpu", echo)
	asked := 0
	racing := sessionsFunc(func(r *http.Request) (users.Session, bool) {
		asked++
		s, ok := o.sessions.FromRequest(r)
		if asked == 1 {
			o.sessions.forget("alice-1")
			o.proxy.EndSessions(1, "s1")
		}
		return s, ok
	})
	o.proxy.gate.sessions = racing
	if res, _ := o.get("/user/alice/gpu/", cookie("alice-1")); res.StatusCode != http.StatusUnauthorized || asked != 2 {
		t.Errorf("got %d after %d questions", res.StatusCode, asked)
	}
	if n := len(o.proxy.gate.live); n != 0 {
		t.Errorf("%d visits left registered", n)
	}
}

type sessionsFunc func(*http.Request) (users.Session, bool)

func (f sessionsFunc) FromRequest(r *http.Request) (users.Session, bool) { return f(r) }

func TestUploadIsNotHeldBack(t *testing.T) {
	o := newOrigin(t)
	first := make(chan struct{})
	size := make(chan int64, 1)
	o.notebook("alice", "gpu", func(_ http.ResponseWriter, r *http.Request) {
		one := make([]byte, 1)
		_, _ = io.ReadFull(r.Body, one)
		close(first)
		n, _ := io.Copy(io.Discard, r.Body)
		size <- n + 1
	})
	body, feed := io.Pipe()
	go func() {
		_, _ = feed.Write(make([]byte, 1<<20))
		<-first // comes only if the start of the body was passed on before its end existed
		_, _ = feed.Write(make([]byte, 31<<20))
		_ = feed.Close()
	}()
	res, _ := o.do(http.MethodPut, "/user/alice/gpu/api/contents/big", body, cookie("alice-1"))
	if n := <-size; res.StatusCode != http.StatusOK || n != 32<<20 {
		t.Errorf("got %d, %d bytes", res.StatusCode, n)
	}
	if tr, _ := o.proxy.Traffic("alice", "gpu"); tr.In != 32<<20 {
		t.Errorf("counted %d bytes", tr.In)
	}
}

func TestActivity(t *testing.T) {
	o := newOrigin(t)
	o.notebook("alice", "gpu", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/user/alice/gpu/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/user/alice/gpu/redirect":
			w.WriteHeader(http.StatusFound)
		}
	})
	for _, c := range []struct {
		path string
		want bool
	}{{"ok", true}, {"missing", false}, {"redirect", false}} {
		r, _ := o.proxy.table.server("alice", "gpu")
		r.last.Store(0)
		_, _ = o.get("/user/alice/gpu/"+c.path, cookie("alice-1"))
		if got := r.last.Load() != 0; got != c.want {
			t.Errorf("%s counted as activity: %v, want %v", c.path, got, c.want)
		}
	}
	r, _ := o.proxy.table.server("alice", "gpu")
	r.last.Store(0)
	_, _ = o.get("/user/alice/gpu/ok", cookie("bob-1"))
	if r.last.Load() != 0 {
		t.Error("a refused visitor counted as activity")
	}
}

func TestOtherProtocolsAreNotSwitchedTo(t *testing.T) {
	o := newOrigin(t)
	seen := make(chan http.Header, 1)
	o.notebook("alice", "gpu", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	_, _ = o.get("/user/alice/gpu/", cookie("alice-1"), header("Connection", "Upgrade"), header("Upgrade", "h2c"))
	if h := <-seen; h.Get("Upgrade") != "" {
		t.Errorf("Upgrade: %s was passed on", h.Get("Upgrade"))
	}
}

func TestGpulabsOwnPaths(t *testing.T) {
	o := newOrigin(t)
	u := mustURL(t, o.server.URL)
	home := "https://" + u.Hostname() + ":4443"
	for _, c := range []struct {
		path     string
		changes  []change
		status   int
		location string
	}{
		{"/gpulab/authorize?response_type=code&state=a%2Fb", []change{asPage}, http.StatusFound, home + "/oidc/authorize?response_type=code&state=a%2Fb"},
		{"/gpulab/logout", []change{asPage}, http.StatusFound, home + "/"},
		{"/gpulab/ping", nil, http.StatusNoContent, ""},
		{"/gpulab/other", nil, http.StatusNotFound, ""},
		{"/", []change{asPage}, http.StatusFound, home + "/"},
		{"/", nil, http.StatusNotFound, ""},
		{"/users", []change{asPage}, http.StatusFound, home + "/"},
		{"/user/alice", []change{cookie("alice-1"), asPage}, http.StatusFound, home + "/"},
		{"/user/alice/", []change{cookie("alice-1"), asPage}, http.StatusFound, home + "/"},
		{"/user/alice/%2e%2e/", []change{cookie("alice-1")}, http.StatusNotFound, ""},
		{"/user/alice%2Fgpu/", []change{cookie("alice-1")}, http.StatusForbidden, ""},
		{"//user/alice/gpu/", []change{cookie("alice-1")}, http.StatusNotFound, ""},
	} {
		res, _ := o.get(c.path, c.changes...)
		if res.StatusCode != c.status || res.Header.Get("Location") != c.location {
			t.Errorf("%s: got %d to %q, want %d to %q", c.path, res.StatusCode, res.Header.Get("Location"), c.status, c.location)
		}
	}
	page := "https://" + u.Hostname()
	res, _ := o.get("/gpulab/ping", header("Origin", page))
	if res.Header.Get("Access-Control-Allow-Origin") != page {
		t.Errorf("ping is not readable by gpulab's page: %v", res.Header)
	}
	if res, _ := o.get("/gpulab/ping", header("Origin", "https://evil.example")); res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("ping is readable by any page")
	}
	conn, _, err := o.dial(t.Context(), "/gpulab/ws-check", header("Origin", page))
	if err != nil {
		t.Fatal(err)
	}
	if _, b, err := conn.Read(t.Context()); err != nil || string(b) != "ok" {
		t.Errorf("ws-check: %q %v", b, err)
	}
	_ = conn.CloseNow()
	if _, status, err := o.dial(t.Context(), "/gpulab/ws-check", header("Origin", "https://evil.example")); err == nil || status != http.StatusForbidden {
		t.Errorf("ws-check for another site: %v", err)
	}
}

func TestNotices(t *testing.T) {
	o := newOrigin(t)
	o.proxy.cfg.Notices = func(handle string) []Notice {
		if handle != "alice" {
			return nil
		}
		return []Notice{{Key: "memory GPU-a", Text: "The memory of GPU 0 is nearly full."}}
	}
	for who, want := range map[string]string{
		"alice-1": `[{"key":"memory GPU-a","text":"The memory of GPU 0 is nearly full."}]` + "\n",
		"bob-1":   "[]\n",
	} {
		if res, body := o.get("/gpulab/notices", cookie(who)); res.StatusCode != http.StatusOK || body != want {
			t.Errorf("%s: got %d %s", who, res.StatusCode, body)
		}
	}
	if res, body := o.get("/gpulab/notices"); res.StatusCode != http.StatusUnauthorized || strings.Contains(body, "memory") {
		t.Errorf("nobody: got %d %s", res.StatusCode, body)
	}
	if res, _ := o.get("/gpulab/notices", cookie("alice-1"), header("Origin", "https://evil.example")); res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("another site may read them")
	}
}

// JupyterLab leads to gpulab's pages of jobs and services, with nothing but what their forms take.
func TestJupyterLabLeadsToPages(t *testing.T) {
	o := newOrigin(t)
	for from, want := range map[string]struct {
		path  string
		query url.Values
	}{
		"/gpulab/job?notebook=a%2Fb+c.ipynb&kernel=pytorch.2.5&next=//evil.example": {
			"/jobs", url.Values{"notebook": {"a/b c.ipynb"}, "kernel": {"pytorch.2.5"}},
		},
		"/gpulab/service?port=7860&next=//evil.example": {"/services", url.Values{"port": {"7860"}}},
	} {
		res, _ := o.get(from, func(r *http.Request) { r.Host = "lab.example:8443" })
		to, err := url.Parse(res.Header.Get("Location"))
		if err != nil || res.StatusCode != http.StatusFound || to.Scheme != "https" || to.Hostname() != "lab.example" || to.Path != want.path {
			t.Fatalf("%s: got %d to %s, %v", from, res.StatusCode, to, err)
		}
		if got := to.Query(); !reflect.DeepEqual(got, want.query) {
			t.Errorf("%s: the query is %v", from, got)
		}
	}
}

func TestAllowedHost(t *testing.T) {
	o := newOrigin(t)
	o.proxy.cfg.AllowedHost = func(h string) bool { return h == "lab.example" }
	if res, _ := o.get("/gpulab/ping"); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("foreign name: got %d", res.StatusCode)
	}
	if res, _ := o.get("/gpulab/ping", func(r *http.Request) { r.Host = "lab.example:8443" }); res.StatusCode != http.StatusNoContent {
		t.Errorf("own name: got %d", res.StatusCode)
	}
}

// The listener gives up on a client that does not finish its header.
func TestSlowHeader(t *testing.T) {
	o := newOrigin(t)
	if s := o.proxy.Server(); s.ReadHeaderTimeout == 0 || s.MaxHeaderBytes == 0 || s.ReadTimeout != 0 || s.WriteTimeout != 0 {
		t.Errorf("limits: %+v", s)
	}
	quick := o.proxy.Server()
	quick.ReadHeaderTimeout = 100 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = quick.Serve(listener) }()
	t.Cleanup(func() { _ = quick.Close() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection was kept: %v", err)
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
