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
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/nodes"
)

// Client speaks to the head as a machine of the pool, or as one that wants to join.
type Client struct {
	addresses []netip.AddrPort
	http      *http.Client
}

// ErrForeign says that whoever answers is not the lab that made the code.
var ErrForeign = errors.New("what answers there is not the lab that made this code: its fingerprint is another; if the head was set up anew, run `gpulab invite-node` on it for a new code")

// Stranger is a client for a machine with nothing but a code: it knows the head
// by the fingerprint of its authority.
func Stranger(code nodes.Code) *Client {
	return newClient(code.Addresses, &tls.Config{
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
func Member(addresses []netip.AddrPort, authority *x509.Certificate, certificate func() (*tls.Certificate, error)) *Client {
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	return newClient(addresses, &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.HeadName, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() },
	})
}

func newClient(addresses []netip.AddrPort, config *tls.Config) *Client {
	c := &Client{addresses: addresses}
	c.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 30 * time.Second,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, _, err := dialFirst(ctx, network, c.addresses)
			return conn, err
		},
		HTTP2: &http.HTTP2Config{SendPingTimeout: silence / 2, PingTimeout: silence / 2},
	}}
	return c
}

// dialFirst tries the addresses in turn.
func dialFirst(ctx context.Context, network string, addresses []netip.AddrPort) (net.Conn, netip.AddrPort, error) {
	var errs []error
	for _, a := range addresses {
		conn, err := (&net.Dialer{Timeout: 4 * time.Second, KeepAlive: 5 * time.Second}).DialContext(ctx, network, a.String())
		if err == nil {
			return conn, a, nil
		}
		errs = append(errs, err)
	}
	return nil, netip.AddrPort{}, errors.Join(errs...)
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

func (c *Client) do(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	host := net.JoinHostPort(nodes.HeadName, strconv.Itoa(int(c.addresses[0].Port())))
	r, err := http.NewRequestWithContext(ctx, method, "https://"+host+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if errors.Is(err, ErrForeign) {
			return nil, ErrForeign
		}
		return nil, fmt.Errorf("the head does not answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
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
// channel, where newer ones may take their place.
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
				r.Sent = time.Now()
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
		obey(o)
	}
}

func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
