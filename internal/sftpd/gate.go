package sftpd

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// gate bounds how many are inside at once, and how many of one kind.
type gate struct {
	most, each int

	mu    sync.Mutex
	total int
	by    map[string]int
}

func newGate(most, each int) *gate { return &gate{most: most, each: each, by: map[string]int{}} }

// enter lets one in, who calls leave once; ok is false where there is no room.
func (g *gate) enter(key string) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= g.most || g.by[key] >= g.each {
		return nil, false
	}
	g.total++
	g.by[key]++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.total--
		if g.by[key]--; g.by[key] == 0 {
			delete(g.by, key)
		}
	}), true
}

// addressKey puts all addresses that one laptop can choose freely under one key.
func addressKey(a net.Addr) string {
	ip := addressOf(a)
	if ip.Is6() {
		if prefix, err := ip.Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return ip.String()
}

func addressOf(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// refusal is an error in words for the person at the other end.
type refusal string

func (r refusal) Error() string { return string(r) }

func tooMany(format string, n int) error { return refusal(fmt.Sprintf(format, n)) }

func sortBySince(list []Connection) {
	slices.SortFunc(list, func(a, b Connection) int { return a.Since.Compare(b.Since) })
}
