package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
)

// place is where this machine is in its network.
type place struct {
	address netip.Addr // as pods and other machines reach it
	iface   string
	all     []netip.Addr // all but loopback and those that k3s gives it, sorted
}

func (p *place) same(q *place) bool {
	return p.address == q.address && p.iface == q.iface && slices.Equal(p.all, q.all)
}

// findPlace looks where the machine is. Without a network it has no address.
func (l *appliance) findPlace() (here *place, err error) {
	here = &place{}
	if here.address, here.iface, err = embedk8s.FindAddress(l.cfg.Address); err != nil {
		slog.Warn("the lab starts without an address", "err", err)
	}
	here.all, err = ownAddresses(l.id.ClusterCIDR)
	return here, err
}

// addressPatience is how long a try waits for an address. The next one begins
// as soon as there is one.
const addressPatience = 30 * time.Second

// waitPlace waits until the machine has an address, and makes the lab answer
// there. Kubernetes cannot start without one.
func (l *appliance) waitPlace(ctx context.Context) error {
	return l.boot.do(stageAddress, func(st *stage) error {
		for end := time.Now().Add(addressPatience); ; {
			here := &place{}
			var err error
			if here.address, here.iface, err = l.lookForAddress(); err == nil {
				here.all, err = ownAddresses(l.id.ClusterCIDR)
			}
			if err == nil {
				st.say("%s on %s", here.address, here.iface)
				return l.settle(ctx, here)
			}
			st.say("%s", err)
			if time.Now().After(end) {
				return err
			}
			if !sleep(ctx, time.Second) {
				return ctx.Err()
			}
		}
	})
}

// lookForAddress finds where the machine is, or still is.
func (l *appliance) lookForAddress() (netip.Addr, string, error) {
	if was := l.where.Load(); was.address.IsValid() {
		return embedk8s.FollowAddress(l.cfg.Address, was.address, was.iface)
	}
	return embedk8s.FindAddress(l.cfg.Address)
}

// settle makes the lab answer at the place where a try of the start begins.
func (l *appliance) settle(ctx context.Context, here *place) error {
	switch was := l.where.Load(); {
	case here.same(was):
		return nil
	case l.attached.Load() != nil:
		return nil // keepPlace follows
	}
	l.remember(ctx, l.where.Swap(here).address, here.address)
	if err := l.certs.Renew(l.certNames()); err != nil {
		return err
	}
	if cluster := l.cluster.Load(); cluster != nil {
		return cluster.Move(here.address, here.iface)
	}
	return ctx.Err()
}

// ownAddresses lists the IPv4 addresses of this machine but loopback and those
// in the pods' network.
func ownAddresses(pods netip.Prefix) ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("this machine's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() &&
			!pods.Contains(p.Addr()) {
			out = append(out, p.Addr())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// certNames are all names and addresses people and pods reach us by.
func (l *appliance) certNames() []string {
	here := l.where.Load()
	names := []string{
		"127.0.0.1", "localhost", "gpulab." + systemNamespace + ".svc", "gpulab." + systemNamespace + ".svc.cluster.local",
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		names = append(names, strings.ToLower(host))
	}
	if here.address.IsValid() {
		names = append(names, here.address.String())
	}
	for _, a := range here.all {
		if !a.IsLinkLocalUnicast() {
			names = append(names, a.String())
		}
	}
	if name := l.local.now(); name != "" {
		names = append(names, name)
	}
	return slices.Concat(names, l.cfg.OwnNames(), l.ownCert.Names(), l.tailnet.Names())
}

// allowedHost tells whether a request's host (without port) is one of ours:
// links and issuers are made from it.
func (l *appliance) allowedHost(host string) bool {
	return slices.Contains(l.certs.Names(), strings.ToLower(host))
}

// forbidden are the networks users' pods may not reach: pods, services, and
// every address of this machine, and where the others are.
func (l *appliance) forbidden() ([]netip.Prefix, error) {
	all, err := ownAddresses(l.id.ClusterCIDR)
	if err != nil {
		return nil, err
	}
	out := []netip.Prefix{l.id.ClusterCIDR, l.id.ServiceCIDR}
	for _, a := range append(all, l.pool.nodeAddresses()...) {
		if a.Is4() {
			out = append(out, netip.PrefixFrom(a, 32))
		}
	}
	return out, nil
}

// placeEvery is how often the machine's addresses are looked at; what has
// changed must be so twice, because an address that is renewed is gone for a
// moment.
const placeEvery = 3 * time.Second

// rulesWritten is how long k3s takes to make rules of changed endpoints and
// network policies, with a margin.
const rulesWritten = 3 * time.Second

// keepPlace follows the machine from address to address.
func (l *appliance) keepPlace(ctx context.Context) error {
	tick := time.NewTicker(placeEvery)
	defer tick.Stop()
	var seen *place
	trouble := ""                     // as it was told last
	resolvers := embedk8s.Resolvers() // as the cluster's name server was told
	seenResolvers := resolvers
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		nowResolvers := embedk8s.Resolvers()
		if slices.Equal(nowResolvers, seenResolvers) && !slices.Equal(nowResolvers, resolvers) {
			slog.Info("this machine's name servers changed", "now", nowResolvers, "before", resolvers)
			resolvers = nowResolvers
			l.mendSoon()
		}
		seenResolvers = nowResolvers
		now, err := l.lookForPlace()
		if err == nil {
			trouble = ""
		}
		switch {
		case err != nil:
			if err.Error() != trouble {
				trouble = err.Error()
				slog.Warn("staying with the address known last", "err", err)
			}
			seen = nil
		case now.same(l.where.Load()):
			seen = nil
		case seen == nil || !now.same(seen):
			seen = now
		default:
			seen = nil
			l.move(ctx, now)
		}
	}
}

func (l *appliance) lookForPlace() (now *place, err error) {
	now = &place{}
	if now.address, now.iface, err = l.lookForAddress(); err != nil {
		return nil, err
	}
	now.all, err = ownAddresses(l.id.ClusterCIDR)
	return now, err
}

// move makes the lab answer at its new place. Notebooks stay: of all that
// runs, k3s alone is restarted, and only for another main address.
func (l *appliance) move(ctx context.Context, now *place) {
	was := l.where.Swap(now)
	l.remember(ctx, was.address, now.address)
	slog.Info("this machine's addresses changed", "address", now.address, "before", was.address, "all", now.all)
	if err := l.certs.Renew(l.certNames()); err != nil {
		slog.Error("the certificate could not be made for the new address", "err", err)
	}
	// While the API still answers: a running notebook must not reach the new
	// address in the meantime.
	if err := l.mendObjects(ctx); err != nil {
		slog.Warn("the cluster learns of the new address later", "err", err)
	}
	if now.address != was.address || now.iface != was.iface {
		// What has become rules in the kernel holds while k3s is away.
		sleep(ctx, rulesWritten)
		if err := l.cluster.Load().Move(now.address, now.iface); err != nil {
			slog.Error("k3s could not be given the new address", "err", err)
		}
	}
	l.mendSoon()
	go l.attached.Load().notebooks.Reconnect(ctx)
}

// foundAddress is the address that this machine has now, the zero one for none.
func foundAddress(c config.Config) netip.Addr {
	address, _, err := embedk8s.FindAddress(c.Address)
	if err != nil {
		return netip.Addr{}
	}
	return address
}
