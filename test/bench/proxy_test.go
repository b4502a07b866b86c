//go:build e2e

package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// The load: as many routes as a large lab has notebooks, as many connections
// as keep two cores busy.
const (
	routeCount  = 200
	connections = 32
	loadFor     = 10 * time.Second
	chpVersion  = "5.3.0"
	apiToken    = "bench"
)

// TestMain is also the proxy and the notebooks under test: each is a process
// of its own, so that its CPU time and memory can be told apart.
func TestMain(m *testing.M) {
	switch role := os.Getenv("GPULAB_BENCH_ROLE"); role {
	case "proxy":
		exitOn(serveProxy(os.Getenv("GPULAB_BENCH_DATA"), os.Getenv("GPULAB_BENCH_BACKEND")))
	case "backend":
		exitOn(serveBackend())
	default:
		os.Exit(m.Run())
	}
}

func exitOn(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// announce opens a loopback port, and prints it for the process that waits.
func announce() (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		fmt.Println(listener.Addr())
	}
	return listener, err
}

// serveBackend answers as a notebook would: a small JSON text, or an echo.
func serveBackend() error {
	listener, err := announce()
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte(`{"name": "kernel"}`), 50)
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Content-Type", "application/json")
			w.Write(body)
			return
		}
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer socket.CloseNow()
		for {
			kind, message, err := socket.Read(r.Context())
			if err != nil || socket.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	}))
}

// serveProxy is gpulab's proxy with everything it does for each request, the
// look-up of the session in the database included.
func serveProxy(dir, backend string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, dir)
	if err != nil {
		return err
	}
	proxy, err := notebooks.NewProxy(notebooks.ProxyConfig{
		Sessions: sessions{users.New(db.DB())}, Pods: onePod(backend), AuthToken: apiToken,
	})
	if err != nil {
		return err
	}
	go func() { _ = proxy.Run(ctx) }()
	listener, err := announce()
	if err != nil {
		return err
	}
	api, err := announce()
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(api, proxy.RoutesAPI()) }()
	return proxy.Server().Serve(listener)
}

type sessions struct{ people *users.Service }

func (s sessions) FromRequest(r *http.Request) (users.Session, bool) {
	cookie, err := r.Cookie("__Host-gpulab")
	if err != nil {
		return users.Session{}, false
	}
	session, err := s.people.SessionUser(r.Context(), cookie.Value)
	return session, err == nil
}

// onePod says that every notebook is ready at one address.
type onePod string

func (p onePod) PodFor(handle, server string) (notebooks.PodInfo, bool) {
	host, _, _ := net.SplitHostPort(string(p))
	return notebooks.PodInfo{UID: handle, Handle: handle, Server: server, IP: host, Ready: true, Scheduled: true}, true
}
func (p onePod) PodAddress(string) (string, bool) { return string(p), true }
func (p onePod) HubAddress() (string, bool)       { return string(p), true }

// child is a process under test.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Reader
}

func startChild(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &child{cmd, bufio.NewReader(output)}
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// role returns this program in one of the roles of TestMain.
func role(name string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), "GPULAB_BENCH_ROLE="+name), env...)
	return cmd
}

// cpu returns the CPU time the process has used.
func (c *child) cpu(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, _ := strconv.Atoi(field)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ is 100 on all of our processors
}

// memory returns the resident memory of the process in MB.
func (c *child) memory(t *testing.T) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, _ := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kib) * 1024 / 1e6
}

// person is somebody with one notebook.
type person struct{ handle, token string }

func (p person) path() string { return "/user/" + p.handle + "/bench/" }

// people makes the accounts and sessions that gpulab's proxy will look up.
func people(t *testing.T, dir string) []person {
	t.Helper()
	ctx := t.Context()
	db, err := store.Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	service := users.New(db.DB())
	list := make([]person, routeCount)
	for i := range list {
		user, err := service.Create(ctx, users.NewUser{Handle: fmt.Sprintf("person%d", i), Name: "Person", Role: users.RoleMember})
		if err != nil {
			t.Fatal(err)
		}
		token, err := service.StartSession(ctx, user.ID, users.SessionMeta{})
		if err != nil {
			t.Fatal(err)
		}
		list[i] = person{user.Handle, token}
	}
	return list
}

// contender is a proxy in the comparison.
type contender struct {
	name      string
	child     *child
	base, api string
}

// figures are what the load has measured.
type figures struct {
	requests, roundTrips float64 // per second
	cpuPerRequest        time.Duration
	memory               float64 // MB, after the load
}

// TestProxy compares gpulab's proxy with npm's configurable-http-proxy: the
// same 200 routes, the same load, one after the other.
func TestProxy(t *testing.T) {
	dir := t.TempDir()
	visitors := people(t, dir)
	backend := startChild(t, role("backend")).line(t)

	ours := startChild(t, role("proxy", "GPULAB_BENCH_DATA="+dir, "GPULAB_BENCH_BACKEND="+backend))
	contenders := []contender{
		{"gpulab", ours, "http://" + ours.line(t), "http://" + ours.line(t)},
		startCHP(t),
	}
	measured := make([]figures, len(contenders))
	for i, c := range contenders {
		addRoutes(t, c, visitors, "http://"+backend)
		measured[i] = measure(t, c, visitors)
	}
	fmt.Printf("%d routes, %d connections, %s each, loopback, plain HTTP; load, proxy and notebook share %s\n",
		routeCount, connections, loadFor, cores())
	fmt.Printf("%-28s %12s %12s %14s %10s\n", "", "requests/s", "ws trips/s", "CPU/request", "memory")
	for i, c := range contenders {
		f := measured[i]
		fmt.Printf("%-28s %12.0f %12.0f %14s %7.0f MB\n", c.name, f.requests, f.roundTrips, f.cpuPerRequest.Round(time.Microsecond), f.memory)
	}
	a, b := measured[0], measured[1]
	fmt.Printf("%-28s %11.1f× %11.1f× %13.2f× %8.2f×\n", "gpulab / npm's", a.requests/b.requests, a.roundTrips/b.roundTrips,
		float64(a.cpuPerRequest)/float64(b.cpuPerRequest), a.memory/b.memory)
}

func cores() string {
	out, err := exec.Command("nproc").Output()
	if err != nil {
		return "this machine"
	}
	return strings.TrimSpace(string(out)) + " cores"
}

// startCHP runs npm's proxy, installed once in the user's cache folder.
func startCHP(t *testing.T) contender {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "gpulab", "bench", "chp-"+chpVersion)
	program := filepath.Join(dir, "node_modules/.bin/configurable-http-proxy")
	if _, err := os.Stat(program); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		install := exec.Command("npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "configurable-http-proxy@"+chpVersion)
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("npm install configurable-http-proxy (apt-get install npm): %v\n%s", err, out)
		}
	}
	ports := freePorts(t, 2)
	cmd := exec.Command(program, "--ip=127.0.0.1", "--port="+ports[0], "--api-ip=127.0.0.1", "--api-port="+ports[1], "--log-level=error")
	cmd.Env = append(os.Environ(), "CONFIGPROXY_AUTH_TOKEN="+apiToken, "NODE_ENV=production")
	c := contender{"configurable-http-proxy " + chpVersion, startChild(t, cmd), "http://127.0.0.1:" + ports[0], "http://127.0.0.1:" + ports[1]}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if conn, err := net.Dial("tcp", strings.TrimPrefix(c.api, "http://")); err == nil {
			conn.Close()
			return c
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatal("configurable-http-proxy did not start")
		}
	}
}

func freePorts(t *testing.T, n int) []string {
	t.Helper()
	ports := make([]string, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, ports[i], _ = net.SplitHostPort(listener.Addr().String())
	}
	return ports
}

// addRoutes tells the proxy of every notebook, as JupyterHub does.
func addRoutes(t *testing.T, c contender, visitors []person, backend string) {
	t.Helper()
	for _, p := range visitors {
		body := fmt.Sprintf(`{"target": %q, "user": %q, "server_name": "bench"}`, backend, p.handle)
		r, err := http.NewRequest(http.MethodPost, c.api+"/api/routes"+p.path(), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "token "+apiToken)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			t.Fatalf("%s: POST of a route: status %d", c.name, response.StatusCode)
		}
	}
}

func measure(t *testing.T, c contender, visitors []person) figures {
	t.Helper()
	requestLoad(t, c, visitors, loadFor/5) // until caches and JIT are warm
	before := c.child.cpu(t)
	count := requestLoad(t, c, visitors, loadFor)
	used := c.child.cpu(t) - before
	trips := socketLoad(t, c, visitors, loadFor)
	return figures{
		requests:      float64(count) / loadFor.Seconds(),
		roundTrips:    float64(trips) / loadFor.Seconds(),
		cpuPerRequest: used / time.Duration(max(count, 1)),
		memory:        c.child.memory(t),
	}
}

// load calls work on every connection until the time is over, and returns how
// often it did. The first error ends the test.
func load(t *testing.T, span time.Duration, work func(ctx context.Context, done *atomic.Int64) error) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			if err := work(ctx, &done); err != nil && ctx.Err() == nil {
				failed.CompareAndSwap(nil, &err)
				cancel()
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
	return done.Load()
}

func requestLoad(t *testing.T, c contender, visitors []person, span time.Duration) int64 {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	return load(t, span, func(ctx context.Context, done *atomic.Int64) error {
		for ctx.Err() == nil {
			p := visitors[rand.IntN(len(visitors))]
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+p.path()+"api/kernels", nil)
			if err != nil {
				return err
			}
			r.Header.Set("Cookie", "__Host-gpulab="+p.token)
			response, err := transport.RoundTrip(r)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: status %d", c.name, response.StatusCode)
			}
			if err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
}

func socketLoad(t *testing.T, c contender, visitors []person, span time.Duration) int64 {
	t.Helper()
	message := bytes.Repeat([]byte("x"), 100)
	return load(t, span, func(ctx context.Context, done *atomic.Int64) error {
		p := visitors[rand.IntN(len(visitors))]
		header := http.Header{"Cookie": {"__Host-gpulab=" + p.token}, "Origin": {strings.Replace(c.base, "http:", "https:", 1)}}
		socket, _, err := websocket.Dial(ctx, c.base+p.path()+"api/kernels/1/channels", &websocket.DialOptions{HTTPHeader: header})
		if err != nil {
			return fmt.Errorf("%s: WebSocket: %w", c.name, err)
		}
		defer socket.CloseNow()
		for ctx.Err() == nil {
			if err := socket.Write(ctx, websocket.MessageText, message); err != nil {
				return err
			}
			if _, _, err := socket.Read(ctx); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
}
