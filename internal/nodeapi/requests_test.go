package nodeapi

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/nodes"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := nodes.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A machine without a code asks, is accepted by its number, and joins with the
// code it gets, which is for its key alone.
func TestAsk(t *testing.T) {
	l := newLab(t)
	l.invite(t) // the port is open
	c, authority, hello, err := Unknown(t.Context(), l.door)
	if err != nil || hello.Lab != "Test lab" || authority != l.authority.Fingerprint() {
		t.Fatal(hello, err)
	}
	key := newKey(t)
	p, err := c.Ask(t.Context(), authority, key, "b", "1")
	if err != nil {
		t.Fatal(err)
	}
	list := l.requests.List()
	if len(list) != 1 || list[0].Number != p.Number || list[0].Name != "b" || list[0].Address != "127.0.0.1" {
		t.Fatalf("the machine shows %s, the head %+v", p.Number, list)
	}
	if a, err := p.Answer(t.Context()); err != nil || a.State != nodes.RequestWaiting || a.Code != "" {
		t.Error(a, err)
	}
	if _, err := l.requests.Accept(p.Number, func(key [sha256.Size]byte) (nodes.Code, error) {
		code, _, err := l.registry.InviteKey(t.Context(), l.authority.Fingerprint(), []netip.AddrPort{l.door}, key)
		return code, err
	}); err != nil {
		t.Fatal(err)
	}
	a, err := p.Answer(t.Context())
	if err != nil || a.State != nodes.RequestAccepted {
		t.Fatal(a, err)
	}
	code, err := nodes.ParseCode(a.Code)
	if err != nil || code.Authority != authority {
		t.Fatal(code, err)
	}
	join := func(key *ecdsa.PrivateKey) error {
		request, err := nodes.NewRequest(key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Stranger(code).Join(t.Context(), Application{Code: code.ID[:], Secret: code.Secret[:], Request: request, Name: "b", Machine: strings.Repeat("b", 64), Version: "1", GPUs: "none"})
		return err
	}
	if err := join(newKey(t)); err == nil || !strings.Contains(err.Error(), "for another machine") {
		t.Errorf("the code with another key: %v", err)
	}
	// The binding is the code's own: a head that was restarted knows of no request any more.
	l.serve(t, nodes.NewRequests(l.authority.Fingerprint()))
	code.Addresses = []netip.AddrPort{l.door}
	if err := join(newKey(t)); err == nil || !strings.Contains(err.Error(), "for another machine") {
		t.Errorf("the code with another key after a restart: %v", err)
	}
	if err := join(key); err != nil {
		t.Error(err)
	}
	if _, err := l.requests.Accept(p.Number, nil); !errors.Is(err, nodes.ErrRequestUnknown) {
		t.Errorf("accepted twice: %v", err)
	}
	for _, id := range []string{"0", strings.Repeat("0", 32)} {
		if _, err := (&Petition{client: c, id: id}).Answer(t.Context()); err == nil {
			t.Errorf("the request %q, which nobody made, is answered", id)
		}
	}
}

// Whoever stands between sees that the two numbers differ, whether it passes on
// what it hears or not.
func TestInTheMiddle(t *testing.T) {
	l := newLab(t)
	l.invite(t)
	middle := newLab(t) // what the machine takes for the head
	middle.invite(t)
	for range 5 {
		c, authority, _, err := Unknown(t.Context(), middle.door)
		if err != nil {
			t.Fatal(err)
		}
		victim, err := c.Ask(t.Context(), authority, newKey(t), "b", "1")
		if err != nil {
			t.Fatal(err)
		}
		onward, real, _, err := Unknown(t.Context(), l.door)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := onward.Ask(t.Context(), real, newKey(t), "b", "1"); err != nil {
			t.Fatal(err)
		}
		list := l.requests.List()
		if got := list[len(list)-1].Number; got == victim.Number {
			t.Errorf("machine and head show the same number, %s", got)
		}
		if _, err := l.requests.Accept(victim.Number, nil); !errors.Is(err, nodes.ErrRequestUnknown) {
			t.Errorf("the number on the machine's screen is accepted: %v", err)
		}
		for _, q := range list {
			_, _ = l.requests.Refuse(q.Number)
		}
		for _, q := range middle.requests.List() {
			_, _ = middle.requests.Refuse(q.Number)
		}
	}
}

// The head that answers first is the head for good: another that takes over the
// address gets nothing.
func TestAnotherHead(t *testing.T) {
	l, other := newLab(t), newLab(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	to := make(chan netip.AddrPort, 1)
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", (<-to).String())
			if err != nil {
				return
			}
			bad := &link{}
			go func() { bad.carry(far, near); _ = far.Close() }()
			go func() { bad.carry(near, far); _ = near.Close() }()
		}
	}()
	to <- l.door
	c, authority, _, err := Unknown(t.Context(), netip.MustParseAddrPort(ln.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	c.http.CloseIdleConnections()
	to <- other.door
	if _, err := c.Ask(t.Context(), authority, newKey(t), "b", "1"); !errors.Is(err, ErrForeign) {
		t.Errorf("another head at the address: %v", err)
	}
}

func TestTooManyAsk(t *testing.T) {
	l := newLab(t)
	l.invite(t)
	c, authority, _, err := Unknown(t.Context(), l.door)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 200 {
		var p *Problem
		if _, err := c.Ask(t.Context(), authority, newKey(t), "b", "1"); errors.As(err, &p) && p.Status == http.StatusTooManyRequests {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.requests.List()); n > 2 || refused < 190 {
		t.Errorf("%d wait, %d of 200 were refused", n, refused)
	}
	hash := sha256.Sum256(nil)
	for name, a := range map[string]Asking{
		"a name":     {Name: "<script>", Key: hash[:], Commitment: hash[:]},
		"a key":      {Name: "b", Key: hash[:3], Commitment: hash[:]},
		"no promise": {Name: "b", Key: hash[:]},
	} {
		if _, err := call[Asked](t.Context(), c, http.MethodPost, "/v1/requests", a); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// A machine asks only while the lab expects one: its requests would keep the port open for ever otherwise.
func TestAskWhileNobodyIsExpected(t *testing.T) {
	l := newLab(t)
	c, authority, _, err := Unknown(t.Context(), l.door)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(t.Context(), authority, newKey(t), "b", "1"); err == nil || !strings.Contains(err.Error(), "expects no machine") {
		t.Errorf("asked: %v", err)
	}
	if l.requests.Pending() {
		t.Error("the request is kept")
	}
}
