package main

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/peers"
)

// forwarded stands in front of every door: what a request says of where it comes from is
// believed from the lab's own reverse proxies alone, and from nobody where it has none.
type forwarded struct {
	proxies []netip.Prefix
	next    http.Handler
}

func (f forwarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if inNetworks(f.proxies, r.RemoteAddr) {
		r = r.Clone(r.Context())
		if visitor, ok := f.visitor(r.Header.Values("X-Forwarded-For")); ok {
			r.RemoteAddr = net.JoinHostPort(visitor.String(), "0")
		}
		if host := r.Header.Get("X-Forwarded-Host"); host != "" {
			r.Host = host // whether it is one of ours is looked at as for any other
		}
	}
	f.next.ServeHTTP(w, r)
}

// visitor is who spoke to the first of the lab's proxies on the way: the last address in
// the list that is none of them. What stands before it, anybody can have written.
func (f forwarded) visitor(lines []string) (visitor netip.Addr, ok bool) {
	list := strings.Split(strings.Join(lines, ","), ",")
	for _, text := range slices.Backward(list) {
		address, valid := peers.Address(strings.TrimSpace(text))
		if !valid {
			return visitor, ok
		}
		visitor, ok = address, true
		if !inNetworks(f.proxies, address.String()) {
			break
		}
	}
	return visitor, ok
}

// inNetworks tells whether an address, with or without a port, is in one of them.
func inNetworks(networks []netip.Prefix, text string) bool {
	address, ok := peers.Address(text)
	return ok && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(address) })
}
