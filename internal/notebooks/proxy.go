package notebooks

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

// Limits of the notebooks' listener.
const (
	headerTimeout = 15 * time.Second // for a client to send its header
	idleTimeout   = 3 * time.Minute  // between requests on one connection
	dialTimeout   = 5 * time.Second
	copyBuffer    = 32 << 10 // bytes
)

// Pods tells the proxy where notebooks and hub are; [KubeCluster] implements it.
type Pods interface {
	PodFor(handle, server string) (PodInfo, bool)
	PodAddress(uid string) (hostPort string, ok bool)
	HubAddress() (hostPort string, ok bool)
}

// PersonalOrigins assigns people the origins of their notebooks; [Origins] implements it.
type PersonalOrigins interface {
	Port(ctx context.Context, user int64) (int, error)
	Authority(ctx context.Context, host string, user int64) (string, error)
	Owner(port int) (user int64, ok bool)
}

// ProxyConfig wires a Proxy. Sessions, Pods, Origins and AuthToken are required.
type ProxyConfig struct {
	Sessions  Sessions
	Pods      Pods
	AuthToken string // of the hub towards the REST API
	// HTTPSPort is where gpulab's own pages are, 0 = 443. HubPort leads to
	// notebooks and services by their lasting addresses, 0 = 8443.
	HTTPSPort, HubPort int
	// OtherPort reports whether the configuration gives a port to something else than the
	// pages; nil = none. People's own ports need not be among them.
	OtherPort func(port int) bool
	// Origins says where whose notebooks are.
	Origins PersonalOrigins
	// Labels are the DNS names of notebooks; nil = none.
	Labels *Labels
	// AllowedHost decides which host names (without port) are answered, nil = all.
	AllowedHost func(host string) bool
	// Notices is what a person, by handle, is told within JupyterLab; nil = nothing.
	Notices func(handle string) []Notice
	// Keep keeps a notebook, by launch, that is about to be stopped and that its
	// owner still needs, and says what came of it in a sentence or two; nil keeps none.
	Keep func(ctx context.Context, u users.User, launch int64, remote string) (text string, done bool)
	// LoginPath and LogoutPath are pages of gpulab, "" = "/login" and "/".
	LoginPath, LogoutPath string
	// RoutesFile keeps the hub's routes across restarts of gpulab, "" = nowhere.
	RoutesFile string
	Log        *slog.Logger
}

// Proxy serves the origins of notebooks and services, and the REST API by which
// the hub runs it.
type Proxy struct {
	cfg     ProxyConfig
	log     *slog.Logger
	table   *routeTable
	gate    *gate
	forward *httputil.ReverseProxy

	services WebServices
	where    ServicePods
	visitors doorVisitors
}

// NewProxy returns a proxy that has taken up the routes of an earlier run.
func NewProxy(cfg ProxyConfig) (*Proxy, error) {
	if cfg.AuthToken == "" || cfg.Origins == nil {
		return nil, errors.New("the hub's proxy needs a token and the origins of notebooks")
	}
	if cfg.HTTPSPort == 0 {
		cfg.HTTPSPort = 443
	}
	if cfg.HubPort == 0 {
		cfg.HubPort = 8443
	}
	cfg.LoginPath = orDefault(cfg.LoginPath, "/login")
	cfg.LogoutPath = orDefault(cfg.LogoutPath, "/")
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	p := &Proxy{
		cfg: cfg, log: cfg.Log,
		table: newRouteTable(cfg.RoutesFile, bootID()),
		gate:  newGate(sessionsAt{cfg.Sessions, cfg.Labels}),
	}
	if err := p.table.load(); err != nil {
		p.log.Warn("the hub will send its routes again", "error", err)
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      p.transport(),
		BufferPool:     &bufferPool{},
		ModifyResponse: p.modifyResponse,
		ErrorHandler:   p.forwardFailed,
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	return p, nil
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// bootID changes with every boot of the machine. Without it kept routes are never trusted.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	return strings.TrimSpace(string(b))
}

// Run watches over long-lived connections until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	tick, often := time.NewTicker(recheckEvery), time.NewTicker(recheckServices)
	defer tick.Stop()
	defer often.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.gate.recheck()
		case <-often.C:
			p.recheckServices(ctx)
		}
	}
}

// Server returns an http.Server for the notebooks' listener with its limits
// set: large uploads may take as long as they need, a header may not.
func (p *Proxy) Server() *http.Server {
	srv := &http.Server{
		Handler:           cookies.Limit(p),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	cookies.Server(srv)
	return srv
}

// RoutesAPI is the REST API of configurable-http-proxy, for the hub only. It
// may be mounted below any prefix, such as /hub-proxy.
func (p *Proxy) RoutesAPI() http.Handler {
	return &routesAPI{
		table: p.table,
		token: sha256.Sum256([]byte(p.cfg.AuthToken)),
		fault: func(err error) { p.log.Warn("hub routes", "error", err) },
	}
}

// HasServer implements [Routes].
func (p *Proxy) HasServer(handle, name string) bool {
	_, ok := p.table.server(handle, name)
	return ok
}

// Changes implements [Routes].
func (p *Proxy) Changes() <-chan struct{} { return p.table.changes }

// EndSessions cuts off every request and WebSocket of a user's session at once,
// or of all sessions of the user when sessionID is "".
func (p *Proxy) EndSessions(userID int64, sessionID string) { p.gate.end(userID, sessionID) }

// Traffic is what has gone through a notebook's route so far.
type Traffic struct {
	In, Out int64     // bytes towards the notebook and towards browsers
	Last    time.Time // of the last byte or successful reply
}

// Traffic reports a notebook's traffic; ok is false when the hub has announced none.
func (p *Proxy) Traffic(handle, name string) (t Traffic, ok bool) {
	r, ok := p.table.server(handle, name)
	if !ok {
		return Traffic{}, false
	}
	return Traffic{In: r.in.Load(), Out: r.out.Load(), Last: r.lastActivity()}, true
}

// allowed reports whether the request names the lab, or refuses it.
func (p *Proxy) allowed(w http.ResponseWriter, r *http.Request) bool {
	if o, _ := arrivalOf(r); o.label != "" || p.cfg.AllowedHost == nil || p.cfg.AllowedHost(hostname(r)) {
		return true
	}
	// No page of ours: its link would lead to that name again.
	own(w)
	http.Error(w, "This lab does not go by the name in the address. Open it by its own name or address.",
		http.StatusMisdirectedRequest)
	return false
}

// serveNotebook forwards a request to the pod of the server it names, if the
// visitor may use it.
func (p *Proxy) serveNotebook(w http.ResponseWriter, r *http.Request, where string, port int) {
	handle, name, _ := strings.Cut(where[len("/user/"):], "/")
	name, _, _ = strings.Cut(name, "/")
	r, visit, ok := p.enterOrigin(w, r, port)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	switch {
	case !mayUse(visit.session.User, handle):
		p.refuse(w, r, http.StatusForbidden, notYourNotebook)
		return
	case !validName(name):
		p.elsewhere(w, r, http.StatusNotFound, "There is no such notebook.", "/")
		return
	}
	route, ok := p.table.server(handle, name)
	if !ok {
		p.elsewhere(w, r, http.StatusFailedDependency, "This notebook is not running.", "/?stopped="+url.QueryEscape(name))
		return
	}
	pod, ok := p.cfg.Pods.PodFor(handle, name)
	if !ok || !pod.Reachable() {
		p.starting(w, r)
		return
	}
	p.pass(w, r, &trip{
		traffic: route.traffic, target: pod.UID + podSuffix, prefix: launchURL(handle, name),
		keepCookie: notebookCookie, address: visitorAddress, port: port, after: originHeadersOf,
	})
}

// hubPages are the paths of the hub that are passed from outside, with whether
// they take a form. They are the way of one sign-in and nothing else: nobody
// reaches the hub's API or its pages for starting servers.
var hubPages = map[string]bool{
	"/hub/login":                false,
	"/hub/oauth_login":          false,
	"/hub/oauth_callback":       false,
	"/hub/logout":               false,
	"/hub/api/oauth2/authorize": true,
}

// hubFiles are passed to everybody: they are the same for all.
func hubFile(where string) bool {
	if where == "/hub/logo" {
		return true
	}
	return strings.HasPrefix(where, "/hub/static/") && !strings.ContainsAny(where, "%\\") && path.Clean(where) == where
}

func (p *Proxy) serveHub(w http.ResponseWriter, r *http.Request, where string, port int) {
	takesForm, known := hubPages[where]
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case isWebSocket(r):
		p.refuse(w, r, http.StatusForbidden, "The hub has no WebSockets.")
	case hubFile(where) && read:
		p.passHub(w, r, port, noCookie, nil)
	case known && (read || takesForm && r.Method == http.MethodPost):
		p.serveHubPage(w, r, port)
	default:
		p.elsewhere(w, r, http.StatusForbidden, "JupyterHub's own pages and API are not open here; use gpulab's.", "/")
	}
}

// serveHubPage passes a step of the sign-in. Only the visitor's own hub cookies
// go along.
func (p *Proxy) serveHubPage(w http.ResponseWriter, r *http.Request, port int) {
	r, visit, ok := p.enterOrigin(w, r, port)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	user := visit.session.User.ID
	keep := noCookie
	if hubCookiesOf(r, user) {
		keep = hubCookie
	}
	p.passHub(w, r, port, keep, func(h http.Header) {
		if len(h["Set-Cookie"]) > 0 {
			h.Add("Set-Cookie", ownerCookie(user))
		}
	})
}

func (p *Proxy) passHub(w http.ResponseWriter, r *http.Request, port int, keep func(string) bool,
	after func(http.Header)) {
	address, ok := p.cfg.Pods.HubAddress()
	if !ok {
		p.starting(w, r)
		return
	}
	t := &trip{target: address, prefix: "/hub/", keepCookie: keep, address: remoteIP(r), hub: true, port: port,
		after: func(h http.Header) {
			originHeadersOf(h)
			if after != nil {
				after(h)
			}
		}}
	if hub, ok := p.table.get("/"); ok {
		t.traffic = hub.traffic
	}
	p.pass(w, r, t)
}

// enter finds the visitor's session, or answers the request itself.
func (p *Proxy) enter(w http.ResponseWriter, r *http.Request) (*http.Request, *visit, bool) {
	in, visit, ok := p.gate.enter(r)
	if ok {
		return in, visit, true
	}
	// The sign-in page does not see a twin that is sent to this path alone.
	cookies.ExpireHere(w, r, cookies.Session)
	if p.startHandOver(w, r) {
		return r, nil, false
	}
	// The sign-in page leads back to a path of gpulab's own origin only, which sends
	// it on to the visitor's notebooks.
	p.signIn(w, r, r.URL.RequestURI())
	return r, nil, false
}

// trip is what the parts of the reverse proxy need to know of one request.
type trip struct {
	traffic    *traffic // nil when nothing is counted
	target     string   // the transport's name for where it goes
	prefix     string   // the path the answer may set cookies for
	keepCookie func(name string) bool
	cookies    string // what the names of cookies begin with in browsers, "" for nothing
	port       int    // of the origin
	address    string // what the other side sees as the visitor's
	hub        bool
	after      func(http.Header) // last change to the answer's header, may be nil
}

type tripKey struct{}

func tripOf(r *http.Request) *trip {
	t, _ := r.Context().Value(tripKey{}).(*trip)
	return t
}

func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, t *trip) {
	if o, _ := arrivalOf(r); o.label != "" {
		// The pages' port, where forms are small, has a deadline for the whole request.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		t.port = p.cfg.HTTPSPort
	}
	r = r.WithContext(context.WithValue(r.Context(), tripKey{}, t))
	p.forward.ServeHTTP(&finalWriter{w}, r)
}

func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	t := tripOf(pr.In)
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", t.target
	// The query goes on as it came; nothing here was decided by it.
	out.URL.RawQuery = pr.In.URL.RawQuery
	out.Host = pr.In.Host
	keep := t.keepCookie
	if t.cookies != "" {
		keep = func(name string) bool { return strings.HasPrefix(name, t.cookies) }
	}
	cleanRequest(out.Header, keep, pr.In.Host, strconv.Itoa(t.port), t.address)
	if t.cookies != "" {
		unprefix(out.Header, t.cookies)
	}
	if t.hub {
		// A token would make the hub's pages act for whoever it belongs to.
		out.Header.Del("Authorization")
	}
	if !isWebSocket(pr.In) {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	if out.Body != nil && out.Body != http.NoBody && t.traffic != nil {
		out.Body = &countedBody{ReadCloser: out.Body, bytes: &t.traffic.in, traffic: t.traffic}
	}
}

func (p *Proxy) modifyResponse(res *http.Response) error {
	t := tripOf(res.Request)
	if t.cookies != "" {
		addPrefix(res.Header, t.cookies)
		delOriginHeaders(res.Header)
	} else {
		cleanResponse(res.Header, t.prefix)
	}
	if t.after != nil {
		t.after(res.Header)
	}
	if t.traffic == nil {
		return nil
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		if conn, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &countedConn{ReadWriteCloser: conn, traffic: t.traffic}
		}
	} else {
		counted := &countedBody{ReadCloser: res.Body, bytes: &t.traffic.out}
		if res.StatusCode < 300 {
			counted.traffic = t.traffic
		}
		res.Body = counted
	}
	// A flood of refusals must not make a notebook look used.
	if res.StatusCode < 300 {
		t.traffic.touch()
	}
	return nil
}

// forwardFailed answers when a pod or the hub could not be reached.
func (p *Proxy) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		// The browser or the session is gone: nobody waits for an answer.
		panic(http.ErrAbortHandler)
	}
	var dial *net.OpError
	if errors.Is(err, errNotThere) || errors.As(err, &dial) && dial.Op == "dial" {
		p.starting(w, r)
		return
	}
	p.log.Debug("forwarding failed", "path", r.URL.Path, "error", err)
	p.refuse(w, r, http.StatusBadGateway, "The notebook broke off its answer.")
}

const podSuffix = ".pod"

var errNotThere = errors.New("the pod is not there")

// transport connects to pods by their UID, not by address: what is pooled for
// one pod is never used for another, and every new connection asks the watch
// where the pod is now.
func (p *Proxy) transport() *http.Transport {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, fmt.Errorf("dial %s: %w", address, err)
			}
			if uid, ok := strings.CutSuffix(host, podSuffix); ok {
				if address, ok = p.cfg.Pods.PodAddress(uid); !ok {
					return nil, errNotThere
				}
			}
			return dialer.DialContext(ctx, network, address)
		},
		DisableCompression:     true, // bodies pass as they are
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// finalWriter lets only the final answer's header through: interim answers come
// before modifyResponse and would carry whatever a notebook writes there.
type finalWriter struct{ http.ResponseWriter }

func (w *finalWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap lets http.ResponseController find what the server's writer can do.
func (w *finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte {
	if v, ok := b.pool.Get().(*[]byte); ok {
		return *v
	}
	return make([]byte, copyBuffer)
}

func (b *bufferPool) Put(v []byte) { b.pool.Put(&v) }

func hostname(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

// gpulabURL is a page of gpulab under the name and the port that the visitor uses. target
// is a path with its query.
func (p *Proxy) gpulabURL(r *http.Request, target string) string {
	return "https://" + authorityAt(pagesHost(r), p.pagesPort(r)) + target
}

// pagesHost is the host by which the visitor knows gpulab's pages.
func pagesHost(r *http.Request) string {
	if o, _ := arrivalOf(r); o.label != "" {
		return o.base
	}
	return hostname(r)
}

// countedConn counts a WebSocket's bytes both ways.
type countedConn struct {
	io.ReadWriteCloser
	traffic *traffic
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(b)
	if n > 0 {
		c.traffic.out.Add(int64(n))
		c.traffic.touch()
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(b)
	if n > 0 {
		c.traffic.in.Add(int64(n))
		c.traffic.touch()
	}
	return n, err
}

// CloseWrite passes on that the browser has nothing more to say.
func (c *countedConn) CloseWrite() error {
	if cw, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Close()
}

// countedBody counts a body's bytes and, where it has a traffic, its activity.
type countedBody struct {
	io.ReadCloser
	bytes   interface{ Add(int64) int64 }
	traffic *traffic
}

func (c *countedBody) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if n > 0 {
		c.bytes.Add(int64(n))
		if c.traffic != nil {
			c.traffic.touch()
		}
	}
	return n, err
}
