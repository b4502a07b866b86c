package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
)

const labelBase = "lab.example.org"

// labelLab is a lab with a wildcard name, whose pages' door listens. Pages other than
// those of notebooks say who is signed in.
type labelLab struct {
	*appliance
	t        *testing.T
	port     int
	at       string // where the door listens
	proxy    *notebooks.Proxy
	listener *notingListener
	pod      http.HandlerFunc // what every notebook is
	people   map[string]users.User
}

func newLabelLab(t *testing.T) *labelLab {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	dir := t.TempDir()
	cfg, err := loadConfig(writeConfig(t, fmt.Sprintf("dataDir: %s\nhttpPort: 0\nhttpsPort: %d\nnames: [%s, \"*.%[3]s\"]\nmetrics: {enabled: false}\n", dir, port, labelBase)))
	if err != nil {
		t.Fatal(err)
	}
	l := &labelLab{
		appliance: &appliance{cfg: cfg, boot: newBoot("1", "x", stageAddress), pages: newSwitchHandler(), labs: newSwitchHandler()},
		t:         t, port: port, at: ln.Addr().String(), listener: &notingListener{Listener: ln}, people: map[string]users.User{},
	}
	if l.store, err = store.Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.store.Close() })
	l.appliance.people = users.New(l.store.DB())
	if l.origins, err = notebooks.NewOrigins(t.Context(), l.store.DB(), []int{21000, 21001, 21002, 21003}, func(int) bool { return true }); err != nil {
		t.Fatal(err)
	}
	l.where.Store(&place{})
	if err := l.openLabels(); err != nil {
		t.Fatal(err)
	}
	if err := l.newTailnet(); err != nil {
		t.Fatal(err)
	}
	if l.certs, err = webca.Ensure(filepath.Join(dir, "tls"), l.certNames(), cfg.Wildcards()...); err != nil {
		t.Fatal(err)
	}
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.pod(w, r) }))
	t.Cleanup(pod.Close)
	l.pod = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "notebook at %s, port %s, cookies %q", r.Host, r.Header.Get("X-Forwarded-Port"), r.Header.Get("Cookie"))
	}
	if l.proxy, err = notebooks.NewProxy(notebooks.ProxyConfig{
		Sessions: l.appliance, Pods: onePod(pod.Listener.Addr().String()), AuthToken: "hub", HTTPSPort: port,
		Origins: l.origins, Labels: l.labels, AllowedHost: l.allowedHost,
	}); err != nil {
		t.Fatal(err)
	}
	l.appliance.people.OnSessionsEnded(l.proxy.EndSessions)
	pages, err := l.routes(map[string]http.Handler{
		"/user/": l.proxy, notebooks.EnterPath: l.proxy,
		"/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u, _ := l.sessionUser(r)
			fmt.Fprintf(w, "pages for %q at %s", u.Handle, r.URL)
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	l.pages.set(pages)
	l.labs.set(l.proxy)
	for _, handle := range []string{"ann", "b-e-n9"} { // hyphens and digits, as far as handles have them
		l.person(handle)
	}
	door := l.doors()[0]
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = door.serve(ctx, door.server(l.certs.GetCertificate), l.listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l
}

// person makes an account with a notebook that runs.
func (l *labelLab) person(handle string) {
	l.t.Helper()
	u, err := l.appliance.people.Create(l.t.Context(), users.NewUser{Handle: handle})
	if err == nil {
		_, err = l.origins.Port(l.t.Context(), u.ID)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.people[handle] = u
	announce := httptest.NewRequest(http.MethodPost, "/api/routes/user/"+handle+"/gpu",
		strings.NewReader(`{"target":"http://10.0.0.1:8888","jupyterhub":true,"user":"`+handle+`","server_name":"gpu"}`))
	announce.Header.Set("Authorization", "token hub")
	w := httptest.NewRecorder()
	l.proxy.RoutesAPI().ServeHTTP(w, announce)
	if w.Code != http.StatusCreated {
		l.t.Fatalf("announce: %d %s", w.Code, w.Body)
	}
}

func (l *labelLab) label(handle string) string {
	return fmt.Sprintf("n%d.%s", 21000+l.people[handle].ID-1, labelBase)
}

func (l *labelLab) url(host, path string) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(l.port)) + path
}

// transport reaches the lab by every name and trusts its authority alone.
func (l *labelLab) transport() *http.Transport {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.certs.CAPEM())
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, //nolint:gosec // as recent as the client's
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, l.at)
		},
	}
	l.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// window is a browser's window, with cookies.
type window struct {
	lab *labelLab
	*http.Client
	jar http.CookieJar
}

func (l *labelLab) window() *window {
	jar, _ := cookiejar.New(nil)
	return &window{l, &http.Client{Jar: jar, Transport: l.transport(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, jar}
}

// signedIn is a window of somebody who has signed in to the pages.
func (l *labelLab) signedIn(handle string) (w *window, token string) {
	l.t.Helper()
	token, err := l.appliance.people.StartSession(l.t.Context(), l.people[handle].ID, users.SessionMeta{})
	if err != nil {
		l.t.Fatal(err)
	}
	w = l.window()
	w.set(labelBase, cookies.Session, token)
	return w, token
}

func (w *window) set(host, name, value string) {
	w.jar.SetCookies(w.at(host), []*http.Cookie{{Name: name, Value: value, Path: "/", Secure: true}})
}

func (w *window) at(host string) *url.URL { return &url.URL{Scheme: "https", Host: host, Path: "/"} }

// cookie is what the window has for a host, "" for nothing.
func (w *window) cookie(host, name string) string {
	for _, c := range w.jar.Cookies(w.at(host)) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

type reply struct {
	*http.Response
	text string
}

// get asks for one page as a navigation of the whole window, unless changed.
func (w *window) get(address string, changes ...func(*http.Request)) reply {
	w.lab.t.Helper()
	r, err := http.NewRequestWithContext(w.lab.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		w.lab.t.Fatal(err)
	}
	for name, value := range map[string]string{"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none", "Accept": "text/html"} {
		r.Header.Set(name, value)
	}
	for _, change := range changes {
		change(r)
	}
	response, err := w.Do(r)
	if err != nil {
		w.lab.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.lab.t.Fatal(err)
	}
	return reply{response, string(text)}
}

// next is where an answer sends the browser, "" for nowhere.
func (r reply) next() string {
	if to := r.Header.Get("Location"); to != "" {
		u, _ := r.Request.URL.Parse(to)
		return u.String()
	}
	_, to, _ := strings.Cut(r.Header.Get("Refresh"), "url=")
	return to
}

// open follows an address to where it ends.
func (w *window) open(address string) (last reply, hops []string) {
	w.lab.t.Helper()
	for address != "" {
		if hops = append(hops, address); len(hops) > 8 {
			w.lab.t.Fatalf("it goes round in circles: %s", strings.Join(hops, "\n"))
		}
		last = w.get(address)
		address = last.next()
	}
	return last, hops
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// notingListener notes the deadline that reading from the newest connection has.
type notingListener struct {
	net.Listener
	mu       sync.Mutex
	deadline time.Time
}

func (n *notingListener) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &notingConn{c, n}, nil
}

func (n *notingListener) last() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.deadline
}

type notingConn struct {
	net.Conn
	listener *notingListener
}

func (c *notingConn) SetReadDeadline(at time.Time) error {
	c.listener.mu.Lock()
	c.listener.deadline = at
	c.listener.mu.Unlock()
	return c.Conn.SetReadDeadline(at)
}

// TestNotebooksByLabel: who comes by the lab's name is led to the label of their own
// notebooks, with a session there that is not the one of the pages.
func TestNotebooksByLabel(t *testing.T) {
	l := newLabelLab(t)
	for handle := range l.people {
		w, token := l.signedIn(handle)
		path := "/user/" + handle + "/gpu/lab/tree/a%20b..c?x=%2F&y=1"
		got, hops := w.open(l.url(labelBase, path))
		label := l.label(handle)
		if got.StatusCode != http.StatusOK || got.Request.URL.String() != l.url(label, path) {
			t.Fatalf("%s ends at %s: %s %s\n%s", handle, got.Request.URL, got.Status, got.text, strings.Join(hops, "\n"))
		}
		if want := fmt.Sprintf("notebook at %s:%d, port %[2]d, cookies %q", label, l.port, ""); got.text != want {
			t.Errorf("the notebook says %q, want %q", got.text, want)
		}
		child := w.cookie(label, cookies.Session)
		if child == "" || strings.Contains(child, token) || w.cookie(labelBase, cookies.Session) != token {
			t.Errorf("the label has %q, the pages %q", child, w.cookie(labelBase, cookies.Session))
		}
		if left := w.cookie(label, cookies.Enter); left != "" {
			t.Errorf("the nonce is still there: %q", left)
		}
		if !strings.Contains(got.Header.Get("Content-Security-Policy"), "frame-ancestors 'self'") || got.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("headers at the label: %v", got.Header)
		}
		if got, hops := w.open(l.url(label, "/user/"+handle+"/gpu/api")); got.StatusCode != http.StatusOK || len(hops) != 1 {
			t.Errorf("the second time: %s, %v", got.Status, hops)
		}
		for _, from := range []struct{ name, value string }{{"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site"}} {
			if got := w.get(l.url(label, "/user/"+handle+"/gpu/api"), header("Sec-Fetch-Mode", "cors"), header("Sec-Fetch-Dest", "empty"), header(from.name, from.value)); got.StatusCode != http.StatusForbidden {
				t.Errorf("a page of another origin (%s) asks: %s", from.value, got.Status)
			}
		}
	}
	w, _ := l.signedIn("ann")
	if got, hops := w.open(l.url(l.label("ann"), "/user/ann/gpu/lab")); got.StatusCode != http.StatusOK || got.Request.URL.Host != l.url(l.label("ann"), "")[len("https://"):] {
		t.Errorf("the label at once: %s %v", got.Status, hops)
	}
	// By an address, the port.
	w.set("127.0.0.1", cookies.Session, w.cookie(labelBase, cookies.Session))
	if got := w.get(l.url("127.0.0.1", "/user/ann/gpu/lab")); got.next() != "https://127.0.0.1:21000/user/ann/gpu/lab" {
		t.Errorf("by an address: %s to %q", got.Status, got.next())
	}
}

// TestLabelWithoutSession: nobody gets in without a session of the pages, and whoever
// signs in comes back.
func TestLabelWithoutSession(t *testing.T) {
	l := newLabelLab(t)
	w := l.window()
	got, _ := w.open(l.url(l.label("ann"), "/user/ann/gpu/lab?a=b"))
	if want := l.url(labelBase, "/login?next=%2Fuser%2Fann%2Fgpu%2Flab%3Fa%3Db"); got.Request.URL.String() != want || !strings.HasPrefix(got.text, `pages for ""`) {
		t.Errorf("it ends at %s: %s, want %s", got.Request.URL, got.text, want)
	}
	if got := w.get(l.url(l.label("ann"), "/user/ann/gpu/api"), header("Sec-Fetch-Mode", "cors"), header("Sec-Fetch-Dest", "empty")); got.StatusCode != http.StatusUnauthorized || got.next() != "" {
		t.Errorf("a script: %s to %q", got.Status, got.next())
	}
	if got := w.get(l.url(l.label("ann"), "/user/ann/gpu/lab"), header("Sec-Fetch-Dest", "iframe")); strings.Contains(got.next(), notebooks.EnterPath) {
		t.Errorf("a frame starts it: %q", got.next())
	}
	if got := w.get(l.url(l.label("ann"), "/gpulab/authorize?x=1")); got.next() != l.url(labelBase, "/oidc/authorize?x=1") {
		t.Errorf("the hub's sign-in goes to %q", got.next())
	}
	if got := w.get(l.url(l.label("ann"), "/")); got.next() != l.url(labelBase, "/") {
		t.Errorf("the label itself leads to %q", got.next())
	}
	w, _ = l.signedIn("b-e-n9")
	if got, hops := w.open(l.url(l.label("ann"), "/user/ann/gpu/lab")); got.StatusCode != http.StatusForbidden || w.cookie(l.label("ann"), cookies.Session) != "" {
		t.Errorf("at another person's label: %s, %v", got.Status, hops)
	}
}

// TestCredentialOfALabel: the label's credential counts there alone and ends with its
// session; the session's own counts everywhere but there.
func TestCredentialOfALabel(t *testing.T) {
	l := newLabelLab(t)
	w, token := l.signedIn("ann")
	ann, ben := l.label("ann"), l.label("b-e-n9")
	w.open(l.url(ann, "/user/ann/gpu/lab"))
	child := w.cookie(ann, cookies.Session)
	id, mac, _ := strings.Cut(child, ".")
	notebook := l.url(ann, "/user/ann/gpu/api")
	program := func(r *http.Request) { r.Header = http.Header{} }
	with := func(lines ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header = http.Header{"Cookie": {strings.Join(lines, "; ")}} }
	}
	if got := w.get(notebook, program); got.StatusCode != http.StatusOK {
		t.Fatalf("with the credential: %s", got.Status)
	}
	last := "A"
	if strings.HasSuffix(mac, "A") {
		last = "Q"
	}
	empty := l.window()
	for what, c := range map[string]struct{ url, cookie string }{
		"the session's own token":        {notebook, token},
		"its ID alone":                   {notebook, id},
		"another MAC":                    {notebook, id + "." + mac[:len(mac)-1] + last},
		"no MAC":                         {notebook, id + "."},
		"something behind it":            {notebook, child + ".x"},
		"another person's label":         {l.url(ben, "/user/ann/gpu/api"), child},
		"another person's label, theirs": {l.url(ben, "/user/b-e-n9/gpu/api"), child},
	} {
		if got := empty.get(c.url, with(cookies.Session+"="+c.cookie)); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s %s", what, got.Status, got.text)
		}
	}
	for _, lines := range [][]string{{child, child}, {child, token}, {token, child}, {"x", child}} {
		if got := empty.get(notebook, with(cookies.Session+"="+lines[0], cookies.Session+"="+lines[1])); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("two cookies: %s", got.Status)
		}
		// A page says so, expires them, and does not go round in circles.
		got := empty.get(notebook, func(r *http.Request) {
			r.Header.Set("Cookie", cookies.Session+"="+lines[0]+"; "+cookies.Session+"="+lines[1])
		})
		if got.StatusCode != http.StatusUnauthorized || got.next() != "" || !strings.Contains(got.text, "second session cookie") || !strings.Contains(strings.Join(got.Header.Values("Set-Cookie"), "\n"), "Max-Age=0") {
			t.Errorf("two cookies on a page: %s to %q: %s", got.Status, got.next(), got.text)
		}
	}
	if got := empty.get(l.url(labelBase, "/account"), with(cookies.Session+"="+child)); !strings.HasPrefix(got.text, `pages for ""`) {
		t.Errorf("the pages take the label's credential: %s", got.text)
	}
	at := httptest.NewRequest(http.MethodGet, "https://"+labelBase+":21000/user/ann/gpu/api", nil)
	at.Header.Set("Cookie", cookies.Session+"="+child)
	port := httptest.NewRecorder()
	notebooks.AtPort(21000, l.proxy).ServeHTTP(port, at)
	if port.Code != http.StatusUnauthorized {
		t.Errorf("the port takes the label's credential: %d", port.Code)
	}
	for _, ending := range []struct { // sign-out first: a suspended person cannot sign in again
		what string
		end  func() error
	}{
		{"sign-out", func() error { return l.appliance.people.EndSession(t.Context(), token) }},
		{"suspended", func() error { return l.appliance.people.Suspend(t.Context(), l.people["ann"].ID) }},
	} {
		what := ending.what
		w, token = l.signedIn("ann")
		w.open(l.url(ann, "/user/ann/gpu/lab"))
		if got := w.get(notebook, program); got.StatusCode != http.StatusOK {
			t.Fatalf("before %s: %s", what, got.Status)
		}
		if err := ending.end(); err != nil {
			t.Fatal(err)
		}
		if got := w.get(notebook, program); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("after %s: %s", what, got.Status)
		}
		if got, _ := w.open(notebook); !strings.Contains(got.Request.URL.String(), "/login?next=") {
			t.Errorf("after %s the page leads to %s", what, got.Request.URL)
		}
	}
}

// TestCodesOfLabels: a code is good for one browser, label and minute, and once.
func TestCodesOfLabels(t *testing.T) {
	l := newLabelLab(t)
	w, _ := l.signedIn("ann")
	ann, ben := l.label("ann"), l.label("b-e-n9")
	start := func(w *window) (enter, code string) {
		t.Helper()
		enter = w.get(l.url(ann, "/user/ann/gpu/lab")).next()
		code = w.get(enter).next()
		if !strings.HasPrefix(enter, l.url(labelBase, notebooks.EnterPath)) || !strings.HasPrefix(code, l.url(ann, "/gpulab/enter?code=")) {
			t.Fatalf("%s\n%s", enter, code)
		}
		return enter, code
	}
	refused := func(what string, w *window, address, host string) {
		t.Helper()
		if got := w.get(address); got.StatusCode != http.StatusForbidden || got.next() != "" || w.cookie(host, cookies.Session) != "" {
			t.Errorf("%s: %s to %q, with %q", what, got.Status, got.next(), w.cookie(host, cookies.Session))
		}
	}
	enter, code := start(w)
	nonce := w.cookie(ann, cookies.Enter)
	stranger := l.window()
	refused("in another browser", stranger, code, ann)
	stranger.set(ann, cookies.Enter, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	refused("with another nonce", stranger, code, ann)
	// Ben's code at Ann's label, and Ann's at Ben's.
	benW, _ := l.signedIn("b-e-n9")
	benW.set(ben, cookies.Enter, nonce)
	refused("at another label", benW, strings.Replace(code, ann, ben, 1), ben)
	// Somebody leads Ann to where her session makes a code for their nonce.
	evil := strings.Replace(enter, "nonce=", "nonce="+strings.Repeat("A", 43)+"&was=", 1)
	refused("for a nonce of somebody else's", w, w.get(evil).next(), ann)
	_, code = start(w)
	if got := w.get(enter, header("Sec-Fetch-Mode", "cors"), header("Sec-Fetch-Dest", "empty")); got.StatusCode != http.StatusForbidden || got.next() != "" {
		t.Errorf("a script asks for a code: %s to %q", got.Status, got.next())
	}
	if got := w.get(enter, header("Sec-Fetch-Dest", "iframe")); got.StatusCode != http.StatusForbidden || got.next() != "" {
		t.Errorf("a frame asks for a code: %s to %q", got.Status, got.next())
	}
	if got := w.get(code, header("Sec-Fetch-Dest", "iframe")); got.StatusCode != http.StatusForbidden || w.cookie(ann, cookies.Session) != "" {
		t.Errorf("a frame enters: %s", got.Status)
	}
	if got := benW.get(enter); got.StatusCode != http.StatusForbidden || got.next() != "" {
		t.Errorf("a code for another person's label: %s to %q", got.Status, got.next())
	}
	for what, change := range map[string][2]string{
		"next elsewhere": {"next=%2Fuser%2F", "next=https%3A%2F%2Fevil.example%2Fuser%2F"}, "next with //": {"next=%2Fuser%2F", "next=%2F%2Fevil.example%2Fuser%2F"},
		"next on the pages": {"next=%2Fuser%2F", "next=%2Faccount%2F"}, "next upwards": {"next=%2Fuser%2F", "next=%2Fuser%2F..%2F"},
		"another lab's port": {"port=21000", "port=443"}, "no port": {"port=21000", "port="}, "a short nonce": {"nonce=", "nonce=x&was="},
	} {
		changed := strings.Replace(enter, change[0], change[1], 1)
		if got := w.get(changed); changed == enter || strings.Contains(got.next(), "code=") || strings.Contains(got.next(), "evil") {
			t.Errorf("%s (%s): %s to %q", what, changed, got.Status, got.next())
		}
	}
	twice := l.window()
	got := twice.get(code, header("Cookie", cookies.Enter+"="+nonce+"; "+cookies.Enter+"="+nonce))
	if got.StatusCode != http.StatusForbidden {
		t.Errorf("with the nonce twice: %s", got.Status)
	}
	if got := w.get(code); got.StatusCode != http.StatusSeeOther || got.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Fatalf("the right browser: %s", got.Status)
	}
	// Once more without the credential, as after a sign-out.
	w.jar.SetCookies(w.at(ann), []*http.Cookie{{Name: cookies.Session, Path: "/", MaxAge: -1, Secure: true}})
	refused("a second time", w, code, ann)
	// A session that ended on the way.
	w, token := l.signedIn("ann")
	_, code = start(w)
	if err := l.appliance.people.EndSession(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	refused("of a session that is over", w, code, ann)
}

// TestDoorOfLabels: labels answer on the pages' port, as ports of notebooks do, and no
// other name gets there.
func TestDoorOfLabels(t *testing.T) {
	l := newLabelLab(t)
	w, _ := l.signedIn("ann")
	ann := l.label("ann")
	w.open(l.url(ann, "/user/ann/gpu/lab"))
	if got := w.get(l.url(ann, "/user/ann/gpu/api")); got.ProtoMajor != 1 || got.StatusCode != http.StatusOK {
		t.Errorf("the label speaks %s: %s", got.Proto, got.Status)
	}
	if got := w.get(l.url(labelBase, "/")); got.ProtoMajor != 2 {
		t.Errorf("the pages speak %s", got.Proto)
	}
	child := cookies.Session + "=" + w.cookie(ann, cookies.Session)
	// On a connection to the pages, which browsers use for every name of the certificate.
	asAnn := func(r *http.Request) { r.Host, r.Header = ann, http.Header{"Cookie": {child}} }
	got := l.window().get(l.url(labelBase, "/user/ann/gpu/api"), asAnn)
	if got.ProtoMajor != 2 || got.StatusCode != http.StatusOK || !strings.HasPrefix(got.text, "notebook at "+ann) {
		t.Errorf("over the pages' connection: %s %s %s", got.Proto, got.Status, got.text)
	}
	for _, host := range []string{"*." + labelBase, "n21002." + labelBase, "n021000." + labelBase, "n443." + labelBase, "n." + labelBase, "x." + labelBase, "a." + ann, ann + ".", "n21000.evil.example"} {
		got := w.get(l.url(labelBase, "/user/ann/gpu/api"), func(r *http.Request) { r.Host = host })
		if got.StatusCode != http.StatusMisdirectedRequest || !strings.Contains(got.text, "another name") {
			t.Errorf("%s: %s", host, got.Status)
		}
	}
	if l.allowedHost(ann) || l.allowedHost("*."+labelBase) || !l.allowedHost(labelBase) {
		t.Errorf("the lab goes by %v", l.certs.Names())
	}
	for what, handler := range map[string]http.Handler{"the port of lasting addresses": l.doors()[1].handler, "a service": l.proxy.Door(8500), "a port of notebooks": notebooks.AtPort(21000, l.proxy)} {
		r := httptest.NewRequest(http.MethodGet, "https://"+ann+"/user/ann/gpu/api", nil)
		r.Header.Set("Cookie", child)
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		if rec.Code != http.StatusMisdirectedRequest {
			t.Errorf("%s by a label: %d", what, rec.Code)
		}
	}
	// Funnel's door is another one, without notebooks.
	funnel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.publicDoor(l.doors()[0])(ctx, funnel) }()
	outside := &window{l, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, nil}
	if got := outside.get("http://"+funnel.Addr().String()+"/user/ann/gpu/api", asAnn); got.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("through Funnel: %s %s", got.Status, got.text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLabelWithoutEncryption: whoever leaves the https:// out goes on to it at the same name.
func TestLabelWithoutEncryption(t *testing.T) {
	l := newLabelLab(t)
	for host, want := range map[string]string{l.label("ann"): l.label("ann"), "n21003." + labelBase: labelBase} {
		w := httptest.NewRecorder()
		l.redirect(w, httptest.NewRequest(http.MethodGet, "http://"+host+"/user/ann/gpu/lab", nil))
		if got := w.Header().Get("Location"); got != l.url(want, "/user/ann/gpu/lab") {
			t.Errorf("%s: to %s", host, got)
		}
	}
}

// TestCertificateWithoutLabels: an admin hears of a certificate that does not cover the wildcard name.
func TestCertificateWithoutLabels(t *testing.T) {
	for bases, said := range map[string]string{"": "does not cover *." + labelBase, labelBase: ""} {
		dir := t.TempDir()
		names := []string{labelBase}
		if _, err := webca.Ensure(dir, names, strings.Fields(bases)...); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "web.pem") // certificate and key
		path := writeConfig(t, fmt.Sprintf("names: [%s, \"*.%[1]s\"]\ntls: {certificate: %s, key: %[2]s}\n", labelBase, file))
		var out strings.Builder
		c := newConfig(&app{configPath: path})
		c.SetArgs([]string{"check"})
		c.SetOut(&out)
		if err := c.Execute(); err != nil || !strings.Contains(out.String(), "is right") || strings.Contains(out.String(), "cover") != (said != "") || !strings.Contains(out.String(), said) {
			t.Errorf("with a certificate for *.%q: %v\n%s", bases, err, out.String())
		}
		cfg, err := loadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		own, err := cfg.TLS.Open()
		if err != nil || strings.Contains(cfg.Uncovered(own), "cover") != (said != "") {
			t.Errorf("%q, %v", cfg.Uncovered(own), err)
		}
	}
}

// TestUploadThroughALabel: the deadline for forms on the pages' port holds for no upload
// to a notebook.
func TestUploadThroughALabel(t *testing.T) {
	l := newLabelLab(t)
	w, _ := l.signedIn("ann")
	ann := l.label("ann")
	w.open(l.url(ann, "/user/ann/gpu/lab"))
	var deadline time.Time // for the rest of a request that the pod has begun to read
	begun := make(chan struct{})
	l.pod = func(_ http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		deadline = l.listener.last()
		close(begun)
		_, _ = io.Copy(io.Discard, r.Body)
	}
	body, write := io.Pipe()
	go func() {
		_, _ = write.Write([]byte("x"))
		<-begun
		_, _ = write.Write(make([]byte, 1<<20))
		_ = write.Close()
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, l.url(ann, "/user/ann/gpu/api/contents/f"), body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := w.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || !deadline.IsZero() {
		t.Errorf("an upload: %s, which has to be there by %s", response.Status, deadline)
	}
}

// TestWebSocketThroughALabel: a kernel's connection, from the label's own pages alone.
func TestWebSocketThroughALabel(t *testing.T) {
	l := newLabelLab(t)
	l.pod = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		kind, text, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), kind, append([]byte("echo "), text...))
			_, _, _ = c.Read(r.Context())
		}
	}
	w, token := l.signedIn("ann")
	ann := l.label("ann")
	w.open(l.url(ann, "/user/ann/gpu/lab"))
	dial := func(path, origin, cookie string) (*websocket.Conn, error) {
		c, _, err := websocket.Dial(t.Context(), "wss"+strings.TrimPrefix(l.url(ann, path), "https"), //nolint:bodyclose // Dial leaves none open
			&websocket.DialOptions{HTTPClient: &http.Client{Transport: l.transport()}, HTTPHeader: http.Header{"Cookie": {cookies.Session + "=" + cookie}, "Origin": {origin}}})
		return c, err
	}
	child := w.cookie(ann, cookies.Session)
	for origin, ok := range map[string]bool{l.url(ann, ""): true, l.url(labelBase, ""): false, "https://" + labelBase + ":8501": false, l.url(l.label("b-e-n9"), ""): false} {
		c, err := dial("/user/ann/gpu/ws", origin, child)
		if (err == nil) != ok {
			t.Errorf("from %s: %v", origin, err)
		}
		if err == nil {
			_ = c.CloseNow()
		}
	}
	c, err := dial("/user/ann/gpu/ws", l.url(ann, ""), child)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := c.Read(t.Context()); err != nil || string(text) != "echo hello" {
		t.Errorf("%q, %v", text, err)
	}
	if err := l.appliance.people.EndSession(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the connection outlives its session")
	}
	// The script of the pages tries whether WebSockets work.
	c, err = dial("/gpulab/ws-check", l.url(labelBase, ""), "")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.CloseNow()
	if c, err := dial("/gpulab/ws-check", "https://evil.example", ""); err == nil {
		_ = c.CloseNow()
		t.Error("any site may try")
	}
}
