package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects from the visitor's computer. The address must be numeric:
// there is no name server on the wire.
func (l *Lab) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, l.visitor, nil, network, address)
}

// DialFrom connects like [Lab.Dial], from the given one of the visitor's addresses.
func (l *Lab) DialFrom(source string) func(ctx context.Context, network, address string) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.ParseIP(source)}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, l.visitor, from, network, address)
	}
}

// DialHost connects from the host itself, which reaches the addresses of pods.
func (l *Lab) DialHost(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, l.head, nil, network, address)
}

func dial(ctx context.Context, pid int, from net.Addr, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNetwork(pid, func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: from}).DialContext(ctx, network, address)
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

// ListenPacket is [Lab.Listen] for datagrams.
func (l *Lab) ListenPacket(network, address string) (net.PacketConn, error) {
	var conn net.PacketConn
	err := inNetwork(l.visitor, func() (err error) {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
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

// HTTPClient returns a client on the visitor's computer that trusts the given
// authorities (PEM) for TLS, keeps cookies, and follows no redirect by itself.
func (l *Lab) HTTPClient(authorities []byte) *http.Client {
	l.t.Helper()
	pool := x509.NewCertPool()
	if len(authorities) > 0 && !pool.AppendCertsFromPEM(authorities) {
		l.t.Fatal("no certificate in the authorities")
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		l.t.Fatal(err)
	}
	transport := &http.Transport{DialContext: l.Dial, TLSClientConfig: &tls.Config{RootCAs: pool}}
	l.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		Jar:           jar,
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
