package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// onePod is where everybody's notebook is.
type onePod string

func (p onePod) PodFor(handle, server string) (notebooks.PodInfo, bool) {
	return notebooks.PodInfo{UID: handle, Handle: handle, Server: server, IP: "10.0.0.1", Ready: true}, true
}
func (p onePod) PodAddress(string) (string, bool) { return string(p), true }
func (p onePod) HubAddress() (string, bool)       { return "", false }

// portsByID are ports of notebooks that follow from the person's number.
type portsByID struct{}

func (portsByID) Port(_ context.Context, user int64) (int, error) { return 21000 + int(user), nil }

func (portsByID) Authority(_ context.Context, host string, user int64) (string, error) {
	return host + ":" + strconv.Itoa(21000+int(user)), nil
}

func (portsByID) Owner(port int) (int64, bool) { return int64(port - 21000), port > 21000 }

// atOwnPort takes each visitor to be at the port of their own notebooks.
func atOwnPort(l *appliance, proxy *notebooks.Proxy) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := l.sessionUser(r)
		notebooks.AtPort(21000+int(u.ID), proxy).ServeHTTP(w, r)
	})
}

// liveConnections are what one person has open: a kernel's WebSocket through
// the notebooks' proxy, and the stream of a page.
type liveConnections struct {
	socket *websocket.Conn
	page   *bufio.Reader
}

// connectionsLab runs pages and proxy as the appliance wires them, and opens
// the connections of each person.
func connectionsLab(t *testing.T, p *people, who ...users.User) (open map[string]liveConnections, get func(handle, url string) int) {
	t.Helper()
	l := &appliance{people: p.Service}
	kernel := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	}))
	t.Cleanup(kernel.Close)
	proxy, err := notebooks.NewProxy(notebooks.ProxyConfig{Sessions: l, Pods: onePod(kernel.Listener.Addr().String()), AuthToken: "hub", Origins: portsByID{}})
	if err != nil {
		t.Fatal(err)
	}
	p.OnSessionsEnded(proxy.EndSessions)
	config := pagesConfig(p)
	config.Fleet.(interface{ Update(gpu.Snapshot) }).Update(gpu.Snapshot{Node: "box", Time: time.Now()})
	pages, err := webui.New(config)
	if err != nil {
		t.Fatal(err)
	}
	labs, site := httptest.NewTLSServer(atOwnPort(l, proxy)), httptest.NewTLSServer(pages)
	t.Cleanup(labs.Close)
	t.Cleanup(site.Close)
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // servers of this test
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	sent := map[string]string{}
	request := func(handle, url string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.NewReplacer("LABS", labs.URL, "SITE", site.URL).Replace(url), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Cookie", sent[handle])
		return r
	}
	open = map[string]liveConnections{}
	for _, u := range who {
		token, err := p.StartSession(t.Context(), u.ID, users.SessionMeta{})
		if err != nil {
			t.Fatal(err)
		}
		sent[u.Handle] = cookies.Session + "=" + token
		announce := httptest.NewRequest(http.MethodPost, "/api/routes/user/"+u.Handle+"/work",
			strings.NewReader(`{"target":"http://10.0.0.1:8888","jupyterhub":true,"user":"`+u.Handle+`","server_name":"work"}`))
		announce.Header.Set("Authorization", "token hub")
		announced := httptest.NewRecorder()
		proxy.RoutesAPI().ServeHTTP(announced, announce)
		if announced.Code != http.StatusCreated {
			t.Fatalf("announce: %d %s", announced.Code, announced.Body)
		}
		address := "wss" + strings.TrimPrefix(labs.URL, "https") + "/user/" + u.Handle + "/work/ws"
		socket, _, err := websocket.Dial(t.Context(), address, //nolint:bodyclose // Dial leaves none open
			&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Cookie": {sent[u.Handle]}, "Origin": {labs.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = socket.CloseNow() })
		stream, err := client.Do(request(u.Handle, "SITE/events?view=gpus"))
		if err != nil || stream.StatusCode != http.StatusOK {
			t.Fatalf("%v %+v", err, stream)
		}
		t.Cleanup(func() { _ = stream.Body.Close() })
		open[u.Handle] = liveConnections{socket, bufio.NewReader(stream.Body)}
	}
	return open, func(handle, url string) int {
		t.Helper()
		response, err := client.Do(request(handle, url))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
}

// ends says whether both connections end within a second, and which does not.
func (c liveConnections) ends(t *testing.T) (socket, page bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			if _, err := c.page.ReadString('\n'); err != nil {
				return
			}
		}
	}()
	for ctx.Err() == nil && !socket {
		if err := c.socket.Write(ctx, websocket.MessageText, []byte("x")); err != nil {
			socket = ctx.Err() == nil
			break
		}
		if _, _, err := c.socket.Read(ctx); err != nil {
			socket = ctx.Err() == nil
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case <-over:
		return socket, true
	case <-ctx.Done():
		return socket, false
	}
}

// TestConnectionsEndWithTheAccount: what a person had open when they were kept
// out is cut off at once, theirs only, and they get nothing new.
func TestConnectionsEndWithTheAccount(t *testing.T) {
	for name, end := range map[string]func(p *people, id int64) error{
		"suspended": func(p *people, id int64) error { return p.Suspend(t.Context(), id) },
		"removed":   func(p *people, id int64) error { return p.Remove(t.Context(), id) },
		"other role": func(p *people, id int64) error {
			return p.Change(t.Context(), id, users.Change{Role: new(users.RoleGuest)})
		},
		"new password": func(p *people, id int64) error { return p.SetPassword(t.Context(), id, "another quiet lamp") },
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ben := peopleLab(t)
			ada, err := p.ByHandle(t.Context(), "ada")
			if err != nil {
				t.Fatal(err)
			}
			open, get := connectionsLab(t, p, ada, ben)
			if got := get("ben", "SITE/gpus"); got != http.StatusOK {
				t.Fatalf("before: %d", got)
			}
			if err := end(p, ben.ID); err != nil {
				t.Fatal(err)
			}
			if socket, page := open["ben"].ends(t); !socket || !page {
				t.Errorf("the kernel's connection ended: %v, the page's: %v", socket, page)
			}
			for url, want := range map[string]int{"SITE/gpus": http.StatusSeeOther, "SITE/events?view=gpus": http.StatusUnauthorized, "LABS/user/ben/work/api/kernels": http.StatusUnauthorized} {
				if got := get("ben", url); got != want {
					t.Errorf("%s: %d, want %d", url, got, want)
				}
			}
			if socket, page := open["ada"].ends(t); socket || page {
				t.Errorf("somebody else's connections ended too: %v, %v", socket, page)
			}
		})
	}
}
