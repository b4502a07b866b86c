package peers

import (
	"net/netip"
	"sync"
)

// Gate bounds how many are inside at once, and how many of one neighbourhood.
type Gate struct {
	most, each int

	mu    sync.Mutex
	total int
	from  map[netip.Prefix]int
}

// NewGate makes one for most in all and each of one neighbourhood.
func NewGate(most, each int) *Gate {
	return &Gate{most: most, each: each, from: map[netip.Prefix]int{}}
}

// Enter lets one in from an address; ok is false where there is no room. leave may be called again. Those without an
// address are of one neighbourhood.
func (g *Gate) Enter(address string) (leave func(), ok bool) {
	from, _ := Neighbourhood(address)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= g.most || g.from[from] >= g.each {
		return nil, false
	}
	g.total++
	g.from[from]++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.total--
		if g.from[from]--; g.from[from] == 0 {
			delete(g.from, from)
		}
	}), true
}
