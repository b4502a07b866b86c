package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

// errMoved ends a stream whose machine has another address by now.
var errMoved = errors.New("this machine has another address")

// know takes over where the head says that it is.
func (g *agent) know(now nodeapi.Places) {
	if len(now.Addresses) == 0 {
		return // a head that does not say
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all := now.After(g.file.places())
	if all.Equal(g.file.places()) {
		return
	}
	slog.Info("the head is found at", "addresses", all.Addresses, "names", all.Names)
	g.file.Head, g.file.Names, g.file.Settings.URL = all.Addresses, all.Names, all.URL
	g.client.Know(all)
	if err := g.file.save(); err != nil {
		slog.Warn("where the head is could not be kept", "err", err)
	}
}

// pages is where people find the lab.
func (g *agent) pages() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.file.Settings.URL
}

// headAddresses are where the head is looked for, that which answered last first.
func (g *agent) headAddresses() []netip.AddrPort {
	g.mu.Lock()
	known := g.file.Head
	g.mu.Unlock()
	last := g.client.Head()
	if !last.IsValid() {
		return known
	}
	out := []netip.AddrPort{last}
	for _, a := range known {
		if a != last {
			out = append(out, a)
		}
	}
	return out
}

// address is this machine's own, "" before it is known.
func (g *agent) address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.own.IsValid() {
		return ""
	}
	return g.own.String()
}

func (g *agent) kubernetesAt(head netip.AddrPort) string {
	return "https://" + netip.AddrPortFrom(head.Addr(), uint16(g.file.Settings.APIPort)).String()
}

// agentPlace is where a machine and its head are.
type agentPlace struct {
	own  netip.Addr
	head netip.AddrPort
}

// keepPlace follows this machine, and its head, from address to address: of all
// that runs here k3s alone is started anew for it. What has changed must be so
// twice, because an address that is renewed is gone for a moment.
func (g *agent) keepPlace(ctx context.Context) error {
	var at, seen agentPlace
	for sleep(ctx, placeEvery) {
		cluster, head := g.cluster.Load(), g.client.Head()
		if cluster == nil || !head.IsValid() {
			continue
		}
		own, err := nodeapi.Toward(head)
		if err != nil {
			seen = agentPlace{} // offline: it stays what it was
			continue
		}
		now := agentPlace{own, head}
		if now == at || now != seen {
			seen = now
			continue
		}
		iface, err := embedk8s.InterfaceOf(own)
		if err == nil {
			err = cluster.Follow(own, iface, g.kubernetesAt(head))
		}
		if err != nil {
			slog.Warn("another address could not be followed; trying again", "address", own, "err", err)
			continue
		}
		g.mu.Lock()
		was := g.own
		g.own = own
		g.mu.Unlock()
		if was.IsValid() && was != own {
			slog.Info("this machine has another address", "address", own, "before", was)
			select {
			case g.moved <- struct{}{}:
			default:
			}
		}
		at = now
	}
	return nil
}
