package nodeapi

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/store"
)

// head is a lab that keeps what it hears.
type head struct {
	version string // "" is the "1" that machines say
	mu      sync.Mutex
	reports []Report
	refused []string
	left    []string
	blobs   map[string][]byte // parts of images, by digest
	gate    chan struct{}     // see memoryBlob
	slow    func()            // called for each report, where it is set
}

func (h *head) Hello() Hello {
	return Hello{Lab: "Test lab", Version: cmp.Or(h.version, "1"), Time: time.Now()}
}
func (*head) Settings(context.Context) (Settings, error) {
	return Settings{Lab: "Test lab", Head: "head"}, nil
}
func (*head) Joined(context.Context, nodes.Node, bool) error { return nil }
func (h *head) Refused(_ context.Context, who, _, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = append(h.refused, who+": "+why)
}
func (*head) Token(_ context.Context, n nodes.Node) (string, error) {
	return "token of " + n.Name, nil
}
func (h *head) Report(_ context.Context, _ nodes.Node, r Report) error {
	h.mu.Lock()
	h.reports = append(h.reports, r)
	slow := h.slow
	h.mu.Unlock()
	if slow != nil {
		slow()
	}
	return nil
}

// heard are the reports that have come so far.
func (h *head) heard() []Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.reports)
}
func (*head) Orders(nodes.Node) Orders { return Orders{LentAnyway: []string{"GPU-1"}} }
func (*head) Check(context.Context, nodes.Node, bool) (Progress, error) {
	return Progress{Node: true}, nil
}
func (h *head) Left(_ context.Context, n nodes.Node) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = append(h.left, n.Name)
	return nil
}

type lab struct {
	*head
	db        *sql.DB
	registry  *nodes.Registry
	authority *nodes.Authority
	requests  *nodes.Requests
	door      netip.AddrPort
}

func newLab(t testing.TB) *lab {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	authority, err := nodes.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{head: &head{}, db: s.DB(), registry: nodes.New(s.DB()), authority: authority, requests: nodes.NewRequests(authority.Fingerprint())}
	l.serve(t, l.requests)
	return l
}

// serve opens a door, which is the lab's from then on.
func (l *lab) serve(t testing.TB, requests *nodes.Requests) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.door = netip.MustParseAddrPort(ln.Addr().String())
	server := NewServer(Config{Head: l, Registry: l.registry, Authority: l.authority, Requests: requests, Log: slog.New(slog.DiscardHandler)})
	go func() { _ = server.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

func (l *lab) invite(t testing.TB) nodes.Code {
	t.Helper()
	c, _, err := l.registry.Invite(t.Context(), l.authority.Fingerprint(), []netip.AddrPort{l.door})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// join lets a machine in, and returns a client for it.
func (l *lab) join(t testing.TB, name string) (*Client, *ecdsa.PrivateKey) {
	t.Helper()
	code := l.invite(t)
	key, err := nodes.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := nodes.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	stranger := Stranger(code)
	hello, authority, err := stranger.Hello(t.Context())
	if err != nil || hello.Lab != "Test lab" {
		t.Fatal(hello, err)
	}
	admission, err := stranger.Join(t.Context(), Application{
		Code: code.ID[:], Secret: code.Secret[:], Request: request, Name: name, Machine: strings.Repeat(name[:1], 64), Version: "1", GPUs: "none",
	})
	if err != nil {
		t.Fatal(err)
	}
	return l.member(t, authority, key, admission.Certificate), key
}

func (l *lab) member(t testing.TB, authority *x509.Certificate, key *ecdsa.PrivateKey, text []byte) *Client {
	t.Helper()
	leaf, err := nodes.ParseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	pair := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return Member(Places{Addresses: []netip.AddrPort{l.door}}, authority, func() (*tls.Certificate, error) { return pair, nil })
}

func TestForeignHead(t *testing.T) {
	l := newLab(t)
	code := l.invite(t)
	code.Authority = sha256.Sum256([]byte("another"))
	if _, _, err := Stranger(code).Hello(t.Context()); !errors.Is(err, ErrForeign) {
		t.Errorf("%v", err)
	}
}

func TestStream(t *testing.T) {
	l := newLab(t)
	c, key := l.join(t, "b")
	if token, err := c.Token(t.Context()); err != nil || token != "token of b" {
		t.Errorf("%q, %v", token, err)
	}
	request, err := nodes.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.Renew(t.Context(), request); err != nil {
		t.Error(err)
	} else if leaf, err := nodes.ParseCertificate(text); err != nil || leaf.Subject.CommonName != "b" {
		t.Error(leaf, err)
	}
	another, _ := nodes.NewKey()
	if request, err := nodes.NewRequest(another); err != nil {
		t.Error(err)
	} else if _, err := c.Renew(t.Context(), request); err == nil {
		t.Error("a certificate is renewed for another key")
	}

	ctx, stop := context.WithCancel(t.Context())
	reports := make(chan Report)
	orders := make(chan Orders, 100)
	ended := make(chan error, 1)
	go func() { ended <- c.Stream(ctx, "1", reports, func(o Orders) { orders <- o }) }()
	for n := 1; n <= 3; n++ {
		reports <- Report{Snapshot: gpu.Snapshot{Node: "b", GPUs: []gpu.GPU{}}}
		eventually(t, "the report comes", 5*time.Second, func() bool { return len(l.heard()) == n })
	}
	if o := <-orders; len(o.LentAnyway) != 1 || o.Leave {
		t.Errorf("%+v", o)
	}
	// A machine that is removed hears of it on the stream, and nothing after.
	if _, err := l.registry.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	for o := range orders {
		if o.Leave {
			break
		}
	}
	if err := <-ended; err == nil {
		t.Error("the stream of a removed machine ends well")
	}
	stop()
	var p *Problem
	if err := c.Stream(t.Context(), "1", nil, func(Orders) {}); !errors.As(err, &p) || !p.Removed || p.Status != http.StatusForbidden {
		t.Errorf("a removed machine's next stream: %v", err)
	}
	if _, err := c.Token(t.Context()); !errors.As(err, &p) || !p.Removed {
		t.Errorf("a removed machine's token: %v", err)
	}
}

// Machines speak for themselves only, and strangers not at all.
func TestLies(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	l.join(t, "d")
	for _, lie := range []gpu.Snapshot{{Node: "d"}, {Node: "head"}, {Node: ""}, {Node: "b", GPUs: make([]gpu.GPU, 65)}} {
		reports := make(chan Report, 1)
		reports <- Report{Snapshot: lie}
		if err := c.Stream(t.Context(), "1", reports, func(Orders) {}); err == nil {
			t.Errorf("%+v", lie)
		}
	}
	l.mu.Lock()
	if len(l.reports) != 0 || len(l.refused) != 4 || !strings.Contains(l.refused[0], "machines speak for themselves only") {
		t.Errorf("%v, %v", l.reports, l.refused)
	}
	l.mu.Unlock()
	var p *Problem
	stranger := Stranger(l.invite(t))
	for name, ask := range map[string]func() error{
		"token":  func() error { _, err := stranger.Token(t.Context()); return err },
		"leave":  func() error { return stranger.Leave(t.Context()) },
		"stream": func() error { return stranger.Stream(t.Context(), "1", nil, func(Orders) {}) },
	} {
		if err := ask(); !errors.As(err, &p) || p.Status != http.StatusUnauthorized {
			t.Errorf("%s of a stranger: %v", name, err)
		}
	}
	// An authority of somebody else's signs nothing that is believed here.
	mine, err := nodes.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, _ := nodes.NewKey()
	der, _ := nodes.NewRequest(key)
	request, err := nodes.ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := mine.Sign(request, "b")
	if err != nil {
		t.Fatal(err)
	}
	_, authority, err := stranger.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.member(t, authority, key, forged).Token(t.Context()); err == nil {
		t.Error("a forged certificate is believed")
	}
}

// The cluster keeps each credential for a while: a machine cannot have any number of them.
func TestTooManyTokens(t *testing.T) {
	l := newLab(t)
	c, _ := l.join(t, "b")
	other, _ := l.join(t, "d")
	var p *Problem
	for n := 0; ; n++ {
		_, err := c.Token(t.Context())
		if errors.As(err, &p) && p.Status == http.StatusTooManyRequests && n >= tokensBurst {
			break
		}
		if err != nil || n > 100 {
			t.Fatalf("after %d: %v", n, err)
		}
	}
	if _, err := other.Token(t.Context()); err != nil {
		t.Errorf("of another machine: %v", err)
	}
}

func TestTooManyTries(t *testing.T) {
	l := newLab(t)
	stranger := Stranger(l.invite(t))
	var p *Problem
	for range joinsBurst {
		if _, err := stranger.Join(t.Context(), Application{Name: "b"}); !errors.As(err, &p) || p.Status != http.StatusBadRequest {
			t.Fatalf("%v", err)
		}
	}
	if _, err := stranger.Join(t.Context(), Application{Name: "b"}); !errors.As(err, &p) || p.Status != http.StatusTooManyRequests {
		t.Errorf("%v", err)
	}
}

func requestFor(t *testing.T, key *ecdsa.PrivateKey) *x509.CertificateRequest {
	t.Helper()
	der, err := nodes.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := nodes.ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return request
}
