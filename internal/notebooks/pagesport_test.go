package notebooks

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks/tunneltest"
)

// tunnelled is a lab on real ports: its pages, Alice's notebooks, and the port of lasting addresses.
type tunnelled struct {
	*origin
	pages, own, hub int // ports of the lab
	jar             http.CookieJar
	seen            http.Header // what the notebook got last
}

func newTunnelled(t *testing.T) *tunnelled {
	l := &tunnelled{origin: newOrigin(t)}
	serve := func(handler http.Handler) int {
		server := httptest.NewTLSServer(cookies.Limit(handler))
		t.Cleanup(server.Close)
		return server.Listener.Addr().(*net.TCPAddr).Port
	}
	mux := http.NewServeMux()
	mux.Handle("/user/", l.proxy)
	mux.Handle("/service/", l.proxy)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "pages at "+r.Host+r.URL.RequestURI())
	})
	l.pages, l.own, l.hub = serve(l.proxy.KeepPort(mux)), serve(AtPort(21001, l.proxy)), serve(l.proxy)
	l.proxy.cfg.HTTPSPort, l.proxy.cfg.HubPort = l.pages, l.hub
	l.notebook("alice", "nb", func(w http.ResponseWriter, r *http.Request) {
		l.seen = r.Header
		_, _ = io.WriteString(w, "notebook")
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	l.jar = jar
	return l
}

// signIn gives the browser a session's cookie; without a token it takes it away.
func (l *tunnelled) signIn(token string) {
	c := &http.Cookie{Name: cookies.Session, Value: token, Path: "/", Secure: true}
	if token == "" {
		c.MaxAge = -1
	}
	l.jar.SetCookies(&url.URL{Scheme: "https", Host: "127.0.0.1"}, []*http.Cookie{c})
}

// reply is the beginning of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// open opens a page as a browser does, without following what it leads to.
func (l *tunnelled) open(port int, path string, changes ...change) (reply, string) {
	l.t.Helper()
	client := &http.Client{
		Jar:           l.jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(port)+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	asDocument(r)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, c := range changes {
		c(r)
	}
	res, err := client.Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header}, string(body)
}

// leadsTo checks the port of the pages to which links from the notebooks lead.
func (l *tunnelled) leadsTo(what string, port int) {
	l.t.Helper()
	if res, _ := l.open(l.own, "/hub/home"); res.Header.Get("Location") != "https://127.0.0.1:"+strconv.Itoa(port)+"/" {
		l.t.Errorf("%s: links lead to %s, want port %d", what, res.Header.Get("Location"), port)
	}
}

// kept is the cookie in the browser.
func (l *tunnelled) kept() string {
	for _, c := range l.jar.Cookies(&url.URL{Scheme: "https", Host: "127.0.0.1"}) {
		if c.Name == cookies.Port {
			return c.Value
		}
	}
	return ""
}

// Who comes through a tunnel is led back through it from every place that leads to the pages.
func TestLinksKeepThePort(t *testing.T) {
	l := newTunnelled(t)
	tunnel := tunneltest.Open(t, "127.0.0.1:"+strconv.Itoa(l.pages))
	at := func(port int) string { return "https://127.0.0.1:" + strconv.Itoa(port) }
	// Before the sign-in: the pages' own port is known from the address.
	const notebook, login = "/user/alice/nb/lab", "/login?next=%2Fuser%2Falice%2Fnb%2Flab"
	if res, _ := l.open(tunnel, notebook); res.Header.Get("Location") != at(tunnel)+login {
		t.Errorf("a stranger at the pages is sent to %s", res.Header.Get("Location"))
	}
	l.signIn("alice-1")
	l.leadsTo("before the pages were opened", l.pages)
	if res, body := l.open(tunnel, notebook); res.Header.Get("Refresh") != "0; url=https://127.0.0.1:21001"+notebook {
		t.Fatalf("a lasting address: %v %s", res.Header, body)
	}
	for path, to := range map[string]string{
		"/hub/home": "/", "/hub/admin": "/", "/gpulab/logout": "/", "/elsewhere": "/",
		"/gpulab/authorize?client_id=x": "/oidc/authorize?client_id=x", "/gpulab/job?notebook=a": "/jobs?kernel=&notebook=a",
		"/user/alice/gone/": "/?stopped=gone", "/user/alice/No!/": "/",
	} {
		if res, _ := l.open(l.own, path); res.Header.Get("Location") != at(tunnel)+to {
			t.Errorf("%s leads to %s", path, res.Header.Get("Location"))
		}
	}
	if res, _ := l.open(l.hub, "/elsewhere"); res.Header.Get("Location") != at(tunnel)+"/" {
		t.Errorf("the port of lasting addresses leads to %s", res.Header.Get("Location"))
	}
	if _, body := l.open(l.own, "/user/bob/nb/lab"); !strings.Contains(body, `"`+at(tunnel)+`/"`) {
		t.Errorf("a refusal: %s", body)
	}
	if _, body := l.open(l.own, notebook); body != "notebook" || strings.Contains(l.seen.Get("Cookie"), "gpulab") {
		t.Errorf("the notebook answers %q and got the cookies %q", body, l.seen.Get("Cookie"))
	}
	door, _ := l.door(func(http.ResponseWriter, *http.Request) {})
	doorPort := door.server.Listener.Addr().(*net.TCPAddr).Port
	l.sessions.forget("alice-1")
	for port, next := range map[int]string{l.own: "%2Fuser%2Falice%2Fnb%2Flab", doorPort: "%2Fservice%2Falice%2Fboard%2F"} {
		if res, _ := l.open(port, notebook); res.Header.Get("Location") != at(tunnel)+"/login?next="+next {
			t.Errorf("an ended session leads to %s", res.Header.Get("Location"))
		}
	}
	// After a sign-out nothing proves the port.
	l.signIn("")
	for _, port := range []int{l.own, doorPort} {
		if res, body := l.open(port, notebook); res.StatusCode != http.StatusUnauthorized ||
			!strings.Contains(body, "port "+strconv.Itoa(l.pages)+" of the lab") || strings.Contains(body, strconv.Itoa(tunnel)) {
			t.Errorf("who has signed out sees %d %s", res.StatusCode, body)
		}
	}
	if res, _ := l.open(l.pages, notebook); res.Header.Get("Location") != at(l.pages)+login || l.kept() != "" {
		t.Errorf("at the lab's own port, who has signed out is sent to %s, cookie %q", res.Header.Get("Location"), l.kept())
	}
}

// Of two tabs that came by different ports, the one in which a page was opened last counts.
func TestLinksOfTwoTabs(t *testing.T) {
	l := newTunnelled(t)
	pages := "127.0.0.1:" + strconv.Itoa(l.pages)
	one, two := tunneltest.Open(t, pages), tunneltest.Open(t, pages)
	l.signIn("alice-1")
	for _, port := range []int{one, two, one, l.pages, two, l.pages} {
		if res, body := l.open(port, "/gpus"); body != "pages at 127.0.0.1:"+strconv.Itoa(port)+"/gpus" {
			t.Fatalf("port %d: %d %s", port, res.StatusCode, body)
		}
		l.leadsTo("after a page at "+strconv.Itoa(port), port)
	}
	if l.kept() != "" {
		t.Errorf("the lab's own port is kept as %q", l.kept())
	}
	l.open(one, "/")
	l.signIn("alice-2")
	l.leadsTo("in another session", l.pages)
	l.open(one, "/")
	l.leadsTo("once that has opened a page", one)
}

// Nobody but the visitor's own browser, on the pages, chooses the port, and it is never one at which the lab serves
// something else.
func TestWhichPortsAreKept(t *testing.T) {
	l := newTunnelled(t)
	tunnel := tunneltest.Open(t, "127.0.0.1:"+strconv.Itoa(l.pages))
	host := func(text string) change { return func(r *http.Request) { r.Host = text } }
	l.door(func(http.ResponseWriter, *http.Request) {}) // at 8500
	l.proxy.cfg.OtherPort = func(port int) bool { return port == 6443 }
	l.signIn("alice-1")
	for name, c := range map[string][]change{
		"people's notebooks":          {host("127.0.0.1:21002")},
		"a service":                   {host("127.0.0.1:8500")},
		"another port of the lab":     {host("127.0.0.1:6443")},
		"too large":                   {host("127.0.0.1:99999")},
		"zero":                        {host("127.0.0.1:0")},
		"a sign":                      {host("127.0.0.1:+9443")},
		"no digits":                   {host("127.0.0.1:")},
		"a path behind it":            {host("127.0.0.1:9443/x")},
		"a name in the port":          {host("127.0.0.1:9443@evil.example")},
		"none, as from reverse proxy": {host("127.0.0.1")},
		"a link on another site":      {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		"a link of a service":         {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }},
		"a script":                    {func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "cors") }},
		"a frame":                     {func(r *http.Request) { r.Header.Set("Sec-Fetch-Dest", "iframe") }},
		"two sessions":                {cookie("bob-1")},
	} {
		if l.open(tunnel, "/", c...); l.kept() != "" {
			t.Errorf("%s: kept as %q", name, l.kept())
		}
		l.leadsTo(name, l.pages)
	}
	for _, token := range []string{"", "nobody", "gone"} { // the last is that of a suspended person
		l.signIn(token)
		if l.open(tunnel, "/"); l.kept() != "" {
			t.Errorf("without a session, %q, the port is kept as %q", token, l.kept())
		}
	}
}

// A page of a service can set cookies, and its owner can have any port signed in a session of their own. Neither chooses
// where the links of somebody else lead.
func TestPlantedPort(t *testing.T) {
	l := newTunnelled(t)
	tunnel := tunneltest.Open(t, "127.0.0.1:"+strconv.Itoa(l.pages))
	signedFor := func(token, host string) string {
		r := httptest.NewRequest(http.MethodGet, "https://"+host+"/", nil)
		asDocument(r)
		r.Header.Set("Sec-Fetch-Site", "none")
		cookie(token)(r)
		w := httptest.NewRecorder()
		l.proxy.KeepPort(http.NotFoundHandler()).ServeHTTP(w, r)
		for _, c := range w.Result().Cookies() {
			if c.Name == cookies.Port && c.MaxAge >= 0 {
				return c.Value
			}
		}
		t.Fatalf("%s in the session %s is not kept", host, token)
		return ""
	}
	l.signIn("alice-1")
	l.open(tunnel, "/")
	own, digits := l.kept(), strconv.Itoa(tunnel)
	mac := strings.TrimPrefix(own, digits)
	if l.leadsTo("her own", tunnel); mac == own {
		t.Fatalf("kept as %q", own)
	}
	plant := func(value string) {
		l.jar.SetCookies(&url.URL{Scheme: "https", Host: "127.0.0.1"},
			[]*http.Cookie{{Name: cookies.Port, Value: value, Path: "/", Secure: true}})
	}
	for _, value := range []string{
		signedFor("bob-1", "127.0.0.1:9443"), signedFor("alice-2", "127.0.0.1:9443"), signedFor("alice-1", "localhost:9443"),
		"9443", "9443.", "9443.AAAA", "9443" + mac, "0" + own, "+" + own, " " + own, "99999" + mac, own + "x",
		"evil.example", "evil.example:" + own,
		digits + "@evil.example" + mac, digits + "%0d%0aX: y" + mac,
	} {
		plant(value)
		l.leadsTo(value, l.pages)
	}
	plant(own)
	l.leadsTo("her own again", tunnel)
	twin := func(r *http.Request) { r.Header.Add("Cookie", cookies.Port+"="+own) }
	res, _ := l.open(l.own, "/hub/home", twin)
	if got := res.Header.Get("Location"); got != "https://127.0.0.1:"+strconv.Itoa(l.pages)+"/" {
		t.Errorf("two of them lead to %s", got)
	}
	// A port that was free may become a service's, and the port of notebooks never leads to itself.
	l.proxy.cfg.OtherPort = func(port int) bool { return port == tunnel }
	l.leadsTo("a port of the lab", l.pages)
	l.proxy.cfg.OtherPort = nil
	plant(signedFor("alice-1", "127.0.0.1:"+strconv.Itoa(l.own)))
	l.leadsTo("the port of the request itself", l.pages)
}
