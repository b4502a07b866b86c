package main

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// answerSize is the body of every answer, about a small JSON reply of Jupyter.
const answerSize = 600

// serveBackend is the notebook behind both proxies: as cheap as it can be, so
// that the processors are the proxy's.
func serveBackend(ctx context.Context, _ string) error {
	l, err := announce("0.0.0.0:0", ready{})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil
		}
		go serveConn(conn)
	}
}

// announce listens and says where.
func announce(address string, r ready) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	r.Address = l.Addr().String()
	return l, json.NewEncoder(os.Stdout).Encode(r)
}

func serveConn(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReaderSize(conn, 16<<10)
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		answerSize, strings.Repeat("x", answerSize))
	for {
		key, ok := readRequest(in)
		if !ok {
			return
		}
		if key == "" {
			if _, err := conn.Write(answer); err != nil {
				return
			}
			continue
		}
		sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: "+
			"Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		echoFrames(conn, in)
		return
	}
}

// readRequest reads one request without a body and returns its WebSocket key, if any.
func readRequest(in *bufio.Reader) (key string, ok bool) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", false
		}
		if len(line) <= 2 {
			return key, true
		}
		if len(line) > 19 && strings.EqualFold(string(line[:18]), "sec-websocket-key:") {
			key = strings.TrimSpace(string(line[18:]))
		}
	}
}

// frameSize is the payload of every WebSocket message.
const frameSize = 120

// echoFrames sends every masked frame of frameSize back unmasked.
func echoFrames(conn net.Conn, in *bufio.Reader) {
	frame := make([]byte, 2+4+frameSize)
	out := make([]byte, 2+frameSize)
	out[0], out[1] = 0x82, frameSize
	for {
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		for i := range frameSize {
			out[2+i] = frame[6+i] ^ frame[2+i%4]
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// allPods is a watch in which every student has a pod, by handle.
type allPods map[string]string

func (p allPods) PodFor(handle, server string) (notebooks.PodInfo, bool) {
	_, ok := p[handle]
	return notebooks.PodInfo{UID: handle, Handle: handle, Server: server, IP: "127.0.0.1", Ready: true}, ok
}
func (p allPods) PodAddress(uid string) (string, bool) { a, ok := p[uid]; return a, ok }
func (p allPods) HubAddress() (string, bool)           { return "", false }

// portsByID are ports of notebooks that follow from the person's number.
type portsByID struct{}

func (portsByID) Port(_ context.Context, user int64) (int, error) { return 21000 + int(user), nil }
func (portsByID) Authority(_ context.Context, host string, user int64) (string, error) {
	return net.JoinHostPort(host, strconv.Itoa(21000+int(user))), nil
}
func (portsByID) Owner(port int) (int64, bool) { return int64(port - 21000), true }

// realSessions are gpulab's own, out of its database.
type realSessions struct{ people *users.Service }

func (s realSessions) FromRequest(r *http.Request) (users.Session, bool) {
	c, ok := cookies.FromRequest(r)
	if !ok {
		return users.Session{}, false
	}
	session, err := s.people.SessionUser(r.Context(), c.Token)
	return session, err == nil
}

// serveGpulab is gpulab's proxy with one signed-in person per route.
func serveGpulab(ctx context.Context, file string) error {
	cfg, err := readConfig(file)
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	people := users.New(s.DB())
	r, pods, ports := ready{}, allPods{}, map[string]int{}
	for i := range routeCount {
		pods[handle(i)] = podAddress(cfg.Backend, i)
		u, err := people.Create(ctx, users.NewUser{Handle: handle(i), Name: handle(i), Role: "member"})
		if err != nil {
			return err
		}
		ports[handle(i)], _ = portsByID{}.Port(ctx, u.ID)
		token, err := people.StartSession(ctx, u.ID, users.SessionMeta{})
		if err != nil {
			return err
		}
		r.Cookies = append(r.Cookies, token)
	}
	debug.FreeOSMemory() // making 200 accounts is not the proxy's doing
	r.WithoutProxy = resident(os.Getpid())
	proxy, err := notebooks.NewProxy(notebooks.ProxyConfig{
		Sessions: realSessions{people}, Pods: pods, Origins: portsByID{}, AuthToken: proxyToken,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.API = api.Addr().String()
	go func() { _ = (&http.Server{Handler: proxy.RoutesAPI(), ReadHeaderTimeout: time.Minute}).Serve(api) }()
	l, err := announce("127.0.0.1:0", r)
	if err != nil {
		return err
	}
	server := proxy.Server()
	// One listener stands for the ports of all.
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/user/"), "/")
		notebooks.AtPort(ports[who], proxy).ServeHTTP(w, r)
	})
	context.AfterFunc(ctx, func() { _ = server.Close() })
	_ = server.Serve(l)
	return nil
}

// makeLoad keeps every connection busy with one exchange after the other and
// reports how many there were.
func makeLoad(ctx context.Context, file string) error {
	cfg, err := readConfig(file)
	if err != nil {
		return err
	}
	// Connections are up, and sessions known, before time starts.
	const warmUp = 500 * time.Millisecond
	begin := time.Now().Add(warmUp)
	end := begin.Add(cfg.Duration)
	ctx, cancel := context.WithDeadline(ctx, end.Add(10*time.Second))
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		total outcome
	)
	for c := range cfg.Connections {
		wg.Go(func() {
			took, err := exchange(ctx, cfg, c, begin, end)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				fmt.Fprintln(os.Stderr, "load:", err)
				total.Bad++
			}
			all = append(all, took...)
		})
	}
	wg.Wait()
	if len(all) > 0 {
		slices.Sort(all)
		total.P99 = float64(all[len(all)*99/100].Microseconds()) / 1000
	}
	total.Rate = float64(len(all)) / cfg.Duration.Seconds()
	return json.NewEncoder(os.Stdout).Encode(total)
}

// exchange uses one connection until end and returns how long each exchange after begin took.
func exchange(ctx context.Context, cfg partConfig, c int, begin, end time.Time) ([]time.Duration, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(end.Add(5 * time.Second))
	in := bufio.NewReaderSize(conn, 16<<10)
	// As a browser's, a connection is one person's; together they use all routes.
	route := c * routeCount / cfg.Connections % routeCount
	once := func(int) error { return getOnce(conn, in, cfg, route) }
	if cfg.WebSocket {
		if err := upgrade(conn, in, cfg, route); err != nil {
			return nil, err
		}
		once = func(i int) error { return frameOnce(conn, in, i) }
	}
	var took []time.Duration
	for i := 0; ; i++ {
		began := time.Now()
		if began.After(end) {
			return took, nil
		}
		if err := once(i); err != nil {
			return took, err
		}
		if began.After(begin) {
			took = append(took, time.Since(began))
		}
	}
}

func getOnce(conn net.Conn, in *bufio.Reader, cfg partConfig, route int) error {
	if _, err := conn.Write(request(cfg, route, "/api/contents?n=1", "Accept: application/json\r\n")); err != nil {
		return err
	}
	status, length, err := readHead(in)
	if err != nil {
		return err
	}
	if status != http.StatusOK || length != answerSize {
		return fmt.Errorf("answer %d of %d bytes", status, length)
	}
	_, err = in.Discard(length)
	return err
}

// request is what a browser on JupyterLab's page sends.
func request(cfg partConfig, route int, path, more string) []byte {
	return fmt.Appendf(nil, "GET %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) "+
		"AppleWebKit/537.36\r\n"+
		"Accept-Language: en\r\nReferer: https://%s%s/lab\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Site: same-origin\r\n"+
		"Cookie: "+cookies.Session+"=%s; _xsrf=2|abcdef01|0123456789abcdef; "+
		"jupyterhub-user-student=2|1:0|10:1700000000|abcdef\r\n%s\r\n",
		routePath(route), path, cfg.Address, cfg.Address, routePath(route), cfg.Cookies[route], more)
}

func readHead(in *bufio.Reader) (status, length int, err error) {
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, 0, err
		}
		switch {
		case len(line) <= 2:
			return status, length, nil
		case first && len(line) > 12:
			status, _ = strconv.Atoi(string(line[9:12]))
		case len(line) > 16 && strings.EqualFold(string(line[:15]), "content-length:"):
			length, _ = strconv.Atoi(strings.TrimSpace(string(line[15:])))
		}
	}
}

func upgrade(conn net.Conn, in *bufio.Reader, cfg partConfig, route int) error {
	more := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"AAAAAAAAAAAAAAAAAAAAAA==\r\nOrigin: https://" + cfg.Address + "\r\n"
	if _, err := conn.Write(request(cfg, route, "/api/kernels/1/channels", more)); err != nil {
		return err
	}
	status, _, err := readHead(in)
	if err != nil {
		return err
	}
	if status != http.StatusSwitchingProtocols {
		return fmt.Errorf("WebSocket refused with %d", status)
	}
	return nil
}

func frameOnce(conn net.Conn, in *bufio.Reader, i int) error {
	var frame [2 + 4 + frameSize]byte
	frame[0], frame[1] = 0x82, 0x80|frameSize
	binary.BigEndian.PutUint64(frame[6:], uint64(i))
	if _, err := conn.Write(frame[:]); err != nil {
		return err
	}
	var back [2 + frameSize]byte
	if _, err := io.ReadFull(in, back[:]); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(back[2:]); got != uint64(i) {
		return fmt.Errorf("message %d came back as %d", i, got)
	}
	return nil
}
