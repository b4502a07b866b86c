package webui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// A chainLab is a lab with the real proxy in front of two people's notebooks and of ben's service. Each of them has a
// port, as in a lab that is installed.
type chainLab struct {
	*plantingStory
	hub, lea, ben, demo string // origins: of lasting addresses, lea's notebooks, ben's notebooks, ben's service
	leas, bens          *notebookServer
	proxy               *notebooks.Proxy
}

// everySession finds sessions as the daemon does.
type everySession struct{ webui.Users }

func (s everySession) FromRequest(r *http.Request) (users.Session, bool) {
	c, ok := cookies.FromRequest(r)
	if !ok {
		return users.Session{}, false
	}
	session, err := s.SessionUser(r.Context(), c.Token)
	return session, err == nil
}

// chainPods are what runs in the lab: everybody's notebook "work", and one service that everybody may see.
type chainPods struct {
	addresses map[string]string // by handle; "demo" is the service
	demo      notebooks.Launch
}

func (p *chainPods) PodFor(handle, server string) (notebooks.PodInfo, bool) {
	_, ok := p.addresses[handle]
	return notebooks.PodInfo{UID: handle, Handle: handle, Server: server, IP: "10.42.0.7", Ready: true}, ok && server == "work"
}
func (p *chainPods) PodAddress(uid string) (string, bool) { a, ok := p.addresses[uid]; return a, ok }
func (p *chainPods) HubAddress() (string, bool)           { return "", false }
func (p *chainPods) ServicePod(int64) (notebooks.PodInfo, bool) {
	return notebooks.PodInfo{UID: "demo", Job: true, LaunchID: p.demo.ID, IP: "10.42.0.8", Ready: true}, true
}

func (p *chainPods) ServiceAt(_ context.Context, door int) (notebooks.Launch, error) {
	if door != p.demo.Service.Door {
		return notebooks.Launch{}, notebooks.ErrNotFound
	}
	return p.demo, nil
}
func (p *chainPods) Service(context.Context, int64) (notebooks.Launch, error) { return p.demo, nil }
func (p *chainPods) ServiceCalled(context.Context, string, string) (notebooks.Launch, error) {
	return p.demo, nil
}
func (p *chainPods) MaySee(context.Context, users.User, notebooks.Launch) (bool, error) {
	return true, nil
}

// A notebookServer is somebody's notebook. It defends itself against nothing, allows every origin, and notes what
// reaches it.
type notebookServer struct {
	name string
	mu   sync.Mutex
	list []string
}

func (n *notebookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	note := fmt.Sprintf("%s %s, %s %s from %s", r.Method, r.URL.RequestURI(), r.Header.Get("Sec-Fetch-Mode"), r.Header.Get("Sec-Fetch-Dest"),
		r.Header.Get("Sec-Fetch-Site"))
	n.mu.Lock()
	n.list = append(n.list, note)
	n.mu.Unlock()
	if r.Header.Get("Upgrade") != "" {
		if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
			_ = c.CloseNow()
		}
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Content-Type", "text/html")
	h.Add("Set-Cookie", "_xsrf=known; Path="+r.URL.Path[:strings.Index(r.URL.Path, "/work/")]+"/work/; Secure")
	if strings.HasSuffix(r.URL.Path, "/oauth_callback") {
		w.WriteHeader(http.StatusBadRequest)
	}
	_, _ = fmt.Fprintf(w, `<!doctype html><title>%s</title><h1>notebook of %[1]s</h1>
<script>fetch(location.pathname + (top === self ? "/ran" : "/ran-in-a-frame"), {method: "POST"})</script>`, n.name)
}

func (n *notebookServer) seen() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// hostile reports what has reached the notebook and neither its own page nor a followed link has sent.
func (n *notebookServer) hostile() (list []string) {
	for _, note := range n.seen() {
		link := strings.HasPrefix(note, "GET ") && strings.Contains(note, ", navigate document from ")
		if !link && !strings.HasSuffix(note, "from same-origin") || strings.Contains(note, "ran-in-a-frame") {
			list = append(list, note)
		}
	}
	return list
}

// serve runs a handler at an origin with the limits that the proxy gives to its listeners.
func serveOrigin(t *testing.T, proxy *notebooks.Proxy, ln net.Listener, handler http.Handler) {
	srv := httptest.NewUnstartedServer(nil)
	_ = srv.Listener.Close()
	srv.Listener = ln
	srv.Config = proxy.Server()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Config.Handler = cookies.Limit(handler)
	srv.StartTLS()
	t.Cleanup(srv.Close)
}

func listen(t *testing.T) (ln net.Listener, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln, ln.Addr().(*net.TCPAddr).Port
}

func origin(port int) string { return "https://127.0.0.1:" + strconv.Itoa(port) }

func newChainLab(t *testing.T, browse func(*lab) visitorsBrowser) *chainLab {
	t.Helper()
	c := &chainLab{leas: &notebookServer{name: "lea"}, bens: &notebookServer{name: "ben"}}
	run := func(h http.Handler) string {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	hub, hubPort := listen(t)
	door, doorPort := listen(t)
	demo := notebooks.Launch{ID: 70, UserID: 2, Handle: "ben", Name: "demo", Title: "Ben’s demo", State: notebooks.Running,
		Job: &notebooks.Job{}, Service: &notebooks.WebService{Door: doorPort}, URL: "/service/ben/demo/"}
	pods := &chainPods{demo: demo, addresses: map[string]string{"lea": run(c.leas), "ben": run(c.bens),
		"demo": run(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<!doctype html><title>demo</title>demo")
		}))}}
	held := map[int]net.Listener{} // the ports of people's notebooks, taken once they are known to be free
	t.Cleanup(func() {
		for _, ln := range held {
			_ = ln.Close()
		}
	})
	l := newLabWith(t, func(config *webui.Config) {
		var ports []int
		for port := 21000; port < 22000; port++ {
			ports = append(ports, port)
		}
		origins, err := notebooks.NewOrigins(t.Context(), config.Users.(*testUsers).db, ports, func(port int) bool {
			ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err == nil {
				held[port] = ln
			}
			return err == nil
		})
		if err != nil {
			t.Fatal(err)
		}
		proxy, err := notebooks.NewProxy(notebooks.ProxyConfig{Sessions: everySession{config.Users}, Pods: pods, AuthToken: "hub",
			HTTPSPort: config.HTTPSPort, HubPort: hubPort, Origins: origins, Log: config.Log})
		if err != nil {
			t.Fatal(err)
		}
		c.proxy = proxy
		proxy.SetServices(pods, pods)
		origins.OnAssigned(func(port int) { serveOrigin(t, proxy, held[port], notebooks.AtPort(port, proxy)) })
		serveOrigin(t, proxy, hub, proxy)
		serveOrigin(t, proxy, door, proxy.Door(doorPort))
		config.HubPort, config.NotebooksAt, config.SeenBy = hubPort, origins.Authority, proxy.SeenBy
		for handle, user := range map[string]int64{"ben": 2, "lea": 3} {
			announce := httptest.NewRequest(http.MethodPost, "/api/routes/user/"+handle+"/work",
				strings.NewReader(fmt.Sprintf(`{"target":"http://10.42.0.7:8888","jupyterhub":true,"user":%q,"server_name":"work"}`, handle)))
			announce.Header.Set("Authorization", "token hub")
			announced := httptest.NewRecorder()
			proxy.RoutesAPI().ServeHTTP(announced, announce)
			port, err := origins.Port(t.Context(), user)
			if announced.Code != http.StatusCreated || err != nil {
				t.Fatalf("%s's notebook: %d %s %v", handle, announced.Code, announced.Body, err)
			}
			if handle == "ben" {
				c.ben = origin(port)
			} else {
				c.lea = origin(port)
			}
		}
		config.Notebooks.(*fakeNotebooks).change(func(list *[]notebooks.Launch) { *list = append(*list, demo) })
	})
	c.hub, c.demo = origin(hubPort), origin(doorPort)
	c.plantingStory = &plantingStory{lab: l, browser: browse(l), neighbour: c.demo,
		evil: cookies.Credential{Token: l.session(t, "ben"), Key: attackersKey}.String()}
	return c
}

// attack is what a page of another port tries against lea's notebook and gpulab's pages. It returns what it has read,
// or got to run.
const attack = `(async (targets) => {
  const got = [], wait = (start) => new Promise((done) => { start(done); setTimeout(done, 10000); });
  const add = (kind, edit) => { const e = document.createElement(kind); edit(e); document.body.append(e); return e; };
  const request = async (url, mode, method) => {
    const body = method === "POST" ? new URLSearchParams({_xsrf: "known"}) : undefined;
    try {
      const answer = await fetch(url, {method, mode, body, credentials: "include"});
      if (answer.type !== "opaque") got.push(["fetch", mode, method, url, await answer.text()].join(" "));
    } catch {}
  };
  for (const url of targets) {
    navigator.sendBeacon(url, new URLSearchParams({_xsrf: "known"}));
    const tries = ["cors", "no-cors"].flatMap((mode) => ["GET", "POST"].map((method) => request(url, mode, method)));
    tries.push(wait((done) => add("script", (e) => { e.src = url; e.onerror = done; e.onload = () => { got.push("script " + url); done(); }; })));
    tries.push(wait((done) => add("img", (e) => { e.src = url; e.onerror = e.onload = done; })));
    tries.push(wait((done) => add("iframe", (e) => { e.src = url; e.onload = done; })));
    tries.push(wait((done) => {
      const frame = add("iframe", (e) => { e.name = "into" + frames.length; });
      const form = add("form", (e) => { e.method = "POST"; e.action = url; e.target = frame.name; e.innerHTML = "<input name=_xsrf value=known>"; });
      frame.onload = done;
      form.submit();
    }));
    // Chromium delays WebSockets more and more after some that failed.
    if (url.includes("/user/lea/work/")) tries.push(wait((done) => {
      const socket = new WebSocket(url.replace("https:", "wss:"));
      socket.onopen = () => { got.push("websocket " + url); done(); };
      socket.onerror = done;
    }));
    await Promise.all(tries);
  }
  for (let i = 0; i < frames.length; i++) {
    try { const text = frames[i].document.body.innerText; if (text) got.push("frame " + text); } catch {}
  }
  return JSON.stringify(got);
})`

// attackFrom runs the attack in a page that lea has open beside her notebook.
func (c *chainLab) attackFrom(t *testing.T, what string, page visitorsBrowser) {
	t.Helper()
	work := c.lea + "/user/lea/work/"
	targets := []string{
		work + "lab", work + "oauth_callback", work + "api/kernels?_xsrf=known", // the notebook
		c.lea + "/user/lea/other/", c.lea + "/user/ben/work/", c.lea + "/hub/oauth_callback", c.lea + "/gpulab/nothing", // gpulab's answers there
		c.hub + "/user/lea/work/lab", c.server.URL + "/login", c.server.URL + "/account",
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	if got := page.eval(attack + "(" + string(list) + ")"); got != "[]" {
		t.Errorf("%s: got %s", what, got)
	}
	shown := page.frames()
	if len(shown) != 2*len(targets) {
		t.Errorf("%s: %d frames, want two for each of %d addresses: %q", what, len(shown), len(targets), shown)
	}
	for _, address := range shown {
		if strings.HasPrefix(address, "https:") {
			t.Errorf("%s: a frame shows %s", what, address)
		}
	}
	// A window may be opened, as by a link. It is out of reach once it has loaded.
	for i, address := range []string{work + "oauth_callback?popup", c.server.URL + "/account?popup"} {
		name := fmt.Sprintf("window.w%d", i)
		page.eval("(" + name + " = open(" + strconv.Quote(address) + `), "")`)
		for deadline := time.Now().Add(time.Minute); page.eval(name+".closed") != "true"; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%s: the page holds on to the window of %s", what, address)
				break
			}
		}
		if got := page.eval("(() => { try { return " + name + `.document.body.innerText } catch { return "" } })()`); got != "" {
			t.Errorf("%s: read in the window of %s: %s", what, address, got)
		}
	}
	// Nor can a form be sent there in a window of its own.
	page.eval(`(() => { const f = document.createElement("form"); f.method = "POST"; f.target = "_blank"; f.action = ` +
		strconv.Quote(work+"api/kernels?_xsrf=known") + `; document.body.append(f); f.submit(); return "" })()`)
	for _, note := range c.leas.hostile() {
		t.Errorf("%s: lea's notebook got %s", what, note)
	}
}

// work lets lea open her notebook, whose page runs in her session.
func (c *chainLab) work(t *testing.T) {
	t.Helper()
	before := len(c.leas.seen())
	c.browser.open(c.hub + "/user/lea/work/lab") // leads on to her own port
	c.until(t, "lea works", `document.readyState === "complete" && document.querySelector("h1")?.innerText === "notebook of lea"`)
	if at := c.browser.eval("location.origin"); at != c.lea {
		t.Errorf("lea's notebook is at %s, want %s", at, c.lea)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if i := slices.IndexFunc(c.leas.seen()[before:], func(note string) bool { return strings.HasPrefix(note, "POST /user/lea/work/lab/ran, ") }); i >= 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the notebook's own page does not reach it: %q", c.leas.seen())
		}
	}
}

// attackChain is the whole way from "open my demo" to the visitor's own notebook, which must lead nowhere: first as far as
// a script comes in this browser, then with a session planted as in one that does not know the cookie's prefix.
func attackChain(t *testing.T, browse func(*lab) visitorsBrowser) {
	c := newChainLab(t, browse)
	c.signIn(t)
	c.until(t, "lea is signed in", leasHome)
	page := c.browser.tab()
	page.open(c.hub + "/service/ben/demo/")
	for deadline := time.Now().Add(20 * time.Second); page.eval("location.origin") != c.demo || page.eval("document.title") != "demo"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("ben's demo does not open: %s", page.eval("location.href + document.body.innerText"))
		}
	}
	// The script pushes lea's session out and plants ben's, as one cookie and in every way there is. Neither ben's notebook
	// nor the port of lasting addresses takes it for a session.
	one, err := json.Marshal([]string{cookies.Session + "=" + c.evil + "; Secure; Path=/"})
	if err != nil {
		t.Fatal(err)
	}
	scout := c.browser.tab()
	for _, planted := range []string{string(one), variants(c.evil)} {
		for range 3 {
			page.eval(`(() => { for (let i = 0; i < 400; i++) document.cookie = "c" + i + "=1; Secure; Path=/";
				for (const line of ` + planted + `) document.cookie = line; })()`)
		}
		for _, address := range []string{c.ben + "/user/ben/work/lab", c.hub + "/user/ben/work/lab"} {
			scout.open(address)
		}
		if seen := c.bens.seen(); len(seen) > 0 {
			t.Fatalf("with what a script can plant, ben's notebook is opened: %q", seen)
		}
	}
	for _, path := range []string{"/account", "/", "/jobs"} {
		c.browser.open(c.server.URL + path)
		c.notBens(t)
	}
	c.until(t, "lea is signed out", `location.pathname === "/login"`)
	// It covers its tracks. Lea signs in and works, and the page is still open.
	page.eval(`(() => { for (const line of ` + variants(c.evil) + `) document.cookie = line + "; Max-Age=0"; })()`)
	c.signIn(t)
	c.until(t, "lea signs in again", leasHome)
	c.work(t)
	c.attackFrom(t, "the service's page", page)

	// The same with ben's session in the browser. His notebook opens, at his own port.
	c.browser.plant(c.evil, false)
	page.open(c.ben + "/user/ben/work/lab")
	if got := page.eval(`document.querySelector("h1")?.innerText`); got != "notebook of ben" {
		t.Fatalf("this shows nothing: ben's notebook is %q", got)
	}
	leas := len(c.leas.seen())
	for _, address := range []string{c.lea, c.hub} {
		scout.open(address + "/user/lea/work/lab")
		if text := scout.eval("document.body.innerText"); !strings.Contains(text, "This notebook belongs to somebody else.") {
			t.Errorf("in ben's session, %s says %q", address, text)
		}
	}
	if seen := c.leas.seen()[leas:]; len(seen) > 0 {
		t.Errorf("in ben's session, lea's notebook got %q", seen)
	}
	c.browser.open(c.server.URL + "/account")
	c.until(t, "whose session it is", `location.pathname === "/other-session" && document.body.innerText.includes("the session of Ben Okafor (ben)")`)
	if text := c.browser.eval("document.body.innerText"); !strings.Contains(text, "Ben’s demo of ben, port "+strings.TrimPrefix(c.demo, "https://127.0.0.1:")) {
		t.Errorf("which tab to close is missing: %s", text)
	}
	c.leave(t)
	c.fill(t)
	c.until(t, "lea is back", leasHome)
	c.work(t)
	c.attackFrom(t, "the page of ben's notebook", page)
}
