package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/config"
)

// lookupEvery is how soon a proxy that moves to another address is followed.
const lookupEvery = 15 * time.Second

// turns is for how long an address stays open that the name no longer leads
// to: many names give their addresses in turns.
const turns = 10 * time.Minute

// proxyName follows the addresses behind the proxy's name: the rules of the
// network know addresses only.
type proxyName struct {
	host string // "" without a proxy
	port uint16
	look func(ctx context.Context, network, host string) ([]netip.Addr, error)
	now  func() time.Time

	mu   sync.Mutex
	seen map[netip.AddrPort]time.Time
	err  error // of the last look
}

func newProxyName(n config.Network) (*proxyName, error) {
	host, port, err := n.ProxyAddress()
	return &proxyName{host: host, port: port, look: net.DefaultResolver.LookupNetIP, now: time.Now,
		seen: map[netip.AddrPort]time.Time{}}, err
}

// run looks the name up now and again until ctx ends.
func (p *proxyName) run(ctx context.Context) error {
	for p.host != "" {
		p.refresh(ctx)
		if !sleep(ctx, lookupEvery) {
			break
		}
	}
	return nil
}

// refresh looks the name up. While that fails, the addresses known last stay:
// a name server that is away must not cut notebooks off.
func (p *proxyName) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found, err := p.look(ctx, "ip4", p.host)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s has no IPv4 address", p.host)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err != nil {
		return
	}
	now := p.now()
	for _, a := range found {
		p.seen[netip.AddrPortFrom(a.Unmap(), p.port)] = now
	}
	maps.DeleteFunc(p.seen, func(_ netip.AddrPort, last time.Time) bool { return now.Sub(last) > turns })
}

// addresses is where the proxy listens, as far as known, in order.
func (p *proxyName) addresses() []netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Keys(p.seen), netip.AddrPort.Compare)
}

// problem is why the name leads nowhere, nil while it does.
func (p *proxyName) problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
