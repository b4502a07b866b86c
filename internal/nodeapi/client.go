package nodeapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/nodes"
)

// Client speaks to the head as a machine of the pool, or as one that wants to join.
type Client struct {
	http *http.Client
	// bulk is for images, on connections of their own: readings do not wait for them.
	bulk *http.Client
	port uint16 // of the head's door

	mu     sync.Mutex
	places Places
	head   netip.AddrPort // which answered last
}

// Know tells the client where the head is now.
func (c *Client) Know(p Places) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places = p
}

// Head is where the head answered last, and not valid before it did.
func (c *Client) Head() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head
}

// Reconnect ends connections that nothing uses, so that the next call makes one
// from where this machine is now.
func (c *Client) Reconnect() {
	c.http.CloseIdleConnections()
	c.bulk.CloseIdleConnections()
}

// dial tries where the head answered last, then all else that is known of it.
func (c *Client) dial(ctx context.Context, network string) (net.Conn, error) {
	c.mu.Lock()
	places, last := c.places, c.head
	c.mu.Unlock()
	conn, at, err := dialFirst(ctx, network, addressesOf(places, last))
	if err != nil {
		for _, name := range places.Names {
			found, lookErr := lookUp(ctx, name, c.port)
			if lookErr == nil {
				var dialErr error
				if conn, at, dialErr = dialFirst(ctx, network, found); dialErr == nil {
					err = nil
					break
				}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.head = at
	c.mu.Unlock()
	return conn, nil
}

// addressesOf are the addresses with the given one first, if there is one.
func addressesOf(p Places, first netip.AddrPort) []netip.AddrPort {
	if !first.IsValid() {
		return p.Addresses
	}
	return append([]netip.AddrPort{first}, slices.DeleteFunc(slices.Clone(p.Addresses), func(a netip.AddrPort) bool {
		return a == first
	})...)
}

// lookUp asks where a name leads. Who answers there has to show the lab's
// certificate, so that a name that lies leads nowhere.
func lookUp(ctx context.Context, name string, port uint16) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", name)
	var out []netip.AddrPort
	for _, a := range found {
		if !a.Unmap().IsLoopback() {
			out = append(out, netip.AddrPortFrom(a.Unmap(), port))
		}
	}
	return out, err
}

// Toward is this machine's own address on the way to the head; nothing is sent.
func Toward(head netip.AddrPort) (netip.Addr, error) {
	conn, err := net.Dial("udp", head.String()) //nolint:noctx // it asks the routing table
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return local.Addr().Unmap(), err
}

// ErrForeign says that whoever answers is not the lab that made the code.
var ErrForeign = errors.New("what answers there is not the lab that made this code: its fingerprint is another; if " +
	"the head was set up anew, run `gpulab invite-node` on it for a new code")

// Stranger is a client for a machine with nothing but a code: it knows the head
// by the fingerprint of its authority.
func Stranger(code nodes.Code) *Client {
	return newClient(Places{Addresses: code.Addresses}, &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.HeadName,
		// Not by the system's authorities, and whatever this machine's clock
		// says: VerifyConnection does all of it.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := authorityOf(s.PeerCertificates, code.Authority)
			return err
		},
	})
}

// authorityOf finds the authority with the fingerprint in a head's chain.
func authorityOf(chain []*x509.Certificate, fingerprint [sha256.Size]byte) (*x509.Certificate, error) {
	if len(chain) < 2 {
		return nil, ErrForeign
	}
	authority := chain[len(chain)-1]
	if sum := sha256.Sum256(authority.Raw); subtle.ConstantTimeCompare(sum[:], fingerprint[:]) != 1 {
		return nil, ErrForeign
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, DNSName: nodes.HeadName, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		CurrentTime: chain[0].NotBefore.Add(time.Second),
	})
	return authority, err
}

// Member is a client for a machine of the pool. certificate is asked at every
// new connection, since it is renewed.
func Member(places Places, authority *x509.Certificate, certificate func() (*tls.Certificate, error)) *Client {
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	return newClient(places, &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.HeadName, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() },
	})
}

func newClient(places Places, config *tls.Config) *Client {
	c := &Client{places: places, port: places.Addresses[0].Port()}
	client := func(frame int) *http.Client {
		return &http.Client{Transport: &http.Transport{
			TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout: 30 * time.Second,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return c.dial(ctx, network)
			},
			HTTP2: &http.HTTP2Config{SendPingTimeout: silence / 2, PingTimeout: silence / 2, MaxReadFrameSize: frame},
		}}
	}
	c.http, c.bulk = client(0), client(bulkFrame)
	return c
}

// bulkFrame is how much of an image comes at once, in bytes: the fewer pieces, the
// less work.
const bulkFrame = 256 << 10

// dialFirst tries the addresses in turn.
func dialFirst(ctx context.Context, network string, addresses []netip.AddrPort) (net.Conn, netip.AddrPort, error) {
	var errs []error
	for _, a := range addresses {
		conn, err := (&net.Dialer{Timeout: 4 * time.Second, KeepAlive: 5 * time.Second, Control: impatient}).DialContext(ctx,
			network, a.String())
		if err == nil {
			return conn, a, nil
		}
		errs = append(errs, err)
	}
	return nil, netip.AddrPort{}, errors.Join(errs...)
}

// impatient gives a connection up on which nothing that is sent arrives: by
// itself the kernel would go on for a quarter of an hour, with ever longer
// pauses, while a new connection may well get through.
func impatient(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unheard.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// Reach finds which of the head's addresses answers, and this machine's own
// address towards it.
func Reach(ctx context.Context, addresses []netip.AddrPort) (head netip.AddrPort, own netip.Addr, err error) {
	conn, head, err := dialFirst(ctx, "tcp", addresses)
	if err != nil {
		return head, own, err
	}
	defer conn.Close()
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return head, local.Addr().Unmap(), err
}

func (c *Client) do(ctx context.Context, method, path string, body io.Reader,
	header http.Header) (*http.Response, error) {
	return c.send(ctx, c.http, method, path, body, header)
}

func (c *Client) send(ctx context.Context, client *http.Client, method, path string, body io.Reader,
	header http.Header) (*http.Response, error) {
	host := net.JoinHostPort(nodes.HeadName, strconv.Itoa(int(c.port)))
	r, err := http.NewRequestWithContext(ctx, method, "https://"+host+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := client.Do(r)
	if err != nil {
		if errors.Is(err, ErrForeign) {
			return nil, ErrForeign
		}
		return nil, fmt.Errorf("the head does not answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		defer resp.Body.Close()
		p := &Problem{Message: "the head answered " + resp.Status}
		_ = json.NewDecoder(io.LimitReader(resp.Body, smallBody)).Decode(p)
		p.Status = resp.StatusCode
		return nil, p
	}
	return resp, nil
}

func call[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return out, err
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.do(ctx, method, path, body, nil)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, longLine)).Decode(&out); err != nil {
		return out, fmt.Errorf("the head's answer could not be read: %w", err)
	}
	return out, nil
}

// Hello asks who is there. The authority is the one that the head showed.
func (c *Client) Hello(ctx context.Context) (Hello, *x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var out Hello
	resp, err := c.do(ctx, http.MethodGet, "/v1/hello", nil, nil)
	if err != nil {
		return out, nil, err
	}
	defer resp.Body.Close()
	chain := resp.TLS.PeerCertificates
	return out, chain[len(chain)-1], json.NewDecoder(io.LimitReader(resp.Body, smallBody)).Decode(&out)
}

// Join applies to the lab.
func (c *Client) Join(ctx context.Context, a Application) (Admission, error) {
	return call[Admission](ctx, c, http.MethodPost, "/v1/join", a)
}

// Settings asks what a machine needs to know of its lab.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	return call[Settings](ctx, c, http.MethodGet, "/v1/settings", nil)
}

// Token asks for the credential with which Kubernetes lets the machine in.
func (c *Client) Token(ctx context.Context) (string, error) {
	return call[string](ctx, c, http.MethodPost, "/v1/token", nil)
}

// Progress asks how far the machine's way into the pool is.
// With pods, a pod there is let ask one on the head, once that can be.
func (c *Client) Progress(ctx context.Context, pods bool) (Progress, error) {
	path := "/v1/progress"
	if pods {
		path += "?pods=yes"
	}
	return call[Progress](ctx, c, http.MethodGet, path, nil)
}

// Renew asks for another certificate for the same key.
func (c *Client) Renew(ctx context.Context, request []byte) (certificate []byte, err error) {
	return call[[]byte](ctx, c, http.MethodPost, "/v1/certificate", request)
}

// Leave tells the head that this machine takes itself out of the pool.
func (c *Client) Leave(ctx context.Context) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, "/v1/leave", nil)
	return err
}

// Stream sends reports and hands on orders until ctx ends or the connection
// does, of which the error tells. While the head is slow, reports wait in their
// channel, where newer ones may take their place. A head whose version does not
// work with this one's is not obeyed, if it was not the first to say so.
func (c *Client) Stream(ctx context.Context, version string, reports <-chan Report, obey func(Orders)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read, write := io.Pipe()
	defer write.Close()
	go func() {
		enc := json.NewEncoder(write)
		for {
			select {
			case <-ctx.Done():
				_ = write.CloseWithError(ctx.Err())
				return
			case r, open := <-reports:
				if !open || enc.Encode(r) != nil {
					_ = write.Close()
					return
				}
			}
		}
	}()
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("the head has said nothing for %s", silence)) })
	defer quiet.Stop()
	resp, err := c.do(ctx, http.MethodPost, "/v1/stream", read, http.Header{"Gpulab-Version": {version}})
	if err != nil {
		return because(ctx, err)
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var o Orders
		if err := dec.Decode(&o); err != nil {
			return because(ctx, fmt.Errorf("the head has ended the connection: %w", err))
		}
		quiet.Reset(silence)
		if o.Kind != "" {
			continue
		}
		if o.Version != "" && !o.Leave {
			if err := Skew("this machine", version, o.Version); err != nil {
				return err
			}
		}
		obey(o)
	}
}

func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
