package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Dial connects from the visitor's computer. The address must be numeric:
// there is no name server on the wire.
func (l *Lab) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNetwork(l.visitor, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens on the visitor's computer, where the host and its pods reach it.
func (l *Lab) Listen(network, address string) (net.Listener, error) {
	var listener net.Listener
	err := inNetwork(l.visitor, func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// inNetwork calls f with the network of the given process: a socket belongs
// to the network of the thread that makes it.
func inNetwork(pid int, f func() error) error {
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()

	runtime.LockOSThread()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network of the test host: %w", err)
	}
	result := f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, and so ends with the goroutine.
		return fmt.Errorf("leave the network of the test host: %w", err)
	}
	runtime.UnlockOSThread()
	return result
}

// Proxy starts an HTTP proxy on this machine's loopback that connects from the
// visitor's computer, for programs such as a browser. It returns its URL, and
// ends with the test.
func (l *Lab) Proxy() *url.URL {
	l.t.Helper()
	plain := &http.Transport{DialContext: l.Dial}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			l.tunnel(w, r)
			return
		}
		l.forward(plain, w, r)
	}))
	l.t.Cleanup(func() {
		plain.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	address, err := url.Parse(server.URL)
	if err != nil {
		l.t.Fatal(err)
	}
	return address
}

// tunnel answers CONNECT.
func (l *Lab) tunnel(w http.ResponseWriter, r *http.Request) {
	far, err := l.Dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer near.Close()
	io.WriteString(near, "HTTP/1.1 200 Connected\r\n\r\n")
	var both sync.WaitGroup
	both.Go(func() { io.Copy(far, buffered); far.Close() })
	both.Go(func() { io.Copy(near, far); near.Close() })
	both.Wait()
}

// forward answers a request for an http:// address.
func (l *Lab) forward(transport http.RoundTripper, w http.ResponseWriter, r *http.Request) {
	request := r.Clone(r.Context())
	request.RequestURI = ""
	response, err := transport.RoundTrip(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	io.Copy(w, response.Body)
}
