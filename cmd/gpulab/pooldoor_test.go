package main

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/store"
)

// The port for machines is open while a machine may come, and at no other time.
func TestPoolDoorCloses(t *testing.T) {
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	authority, err := nodes.LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	p := &pool{lab: &appliance{cfg: config.Config{NodesPort: port}}, registry: nodes.New(s.DB()), authority: authority,
		requests: nodes.NewRequests(authority.Fingerprint())}
	g, ctx := errgroup.WithContext(t.Context())
	door := &poolDoor{begin: func() (func(), error) { return p.openDoor(ctx, g) }}
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	is := func(open bool, when string) {
		t.Helper()
		if err := door.shutUnless(func() (bool, error) { return p.expects(ctx) }); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != open {
			t.Errorf("%s: open is %v, not %v", when, err == nil, open)
		}
	}

	is(false, "nobody was invited")
	for range 2 { // it opens again
		err = door.openFor(func() (err error) {
			_, _, err = p.registry.Invite(ctx, authority.Fingerprint(), []netip.AddrPort{netip.MustParseAddrPort(at)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		is(true, "somebody was invited")
		_, _, _, err = p.requests.Ask(nodes.Request{Name: "b", Address: "192.0.2.7"}, [sha256.Size]byte{1}, [sha256.Size]byte{2})
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.registry.Invitations(ctx)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if err := p.registry.Withdraw(ctx, list[0].ID); err != nil {
			t.Fatal(err)
		}
		is(true, "the invitation was withdrawn, but a machine waits for its answer")
		p.requests = nodes.NewRequests(authority.Fingerprint())
		is(false, "the invitation was withdrawn")
	}
	door.mu.Lock()
	door.end = nil
	door.mu.Unlock()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
