package doctor

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// packet is the first one of a connection, asked of a firewall's rules: would
// it get through? Only what is set is known of it.
type packet struct {
	hook     string // input, or forward for what goes on to others
	in, out  string // interfaces; out is "" for input
	protocol string // tcp or udp
	port     int    // it goes to; 0 when it may be any
	to       netip.Addr
	service  bool // it goes to a service of Kubernetes: its destination was translated
}

// sure says how certain an answer is: rules ask for things that are not known
// of a packet, such as where it comes from.
type sure int

const (
	no sure = iota
	perhaps
	yes
)

func certain(b bool) sure {
	if b {
		return yes
	}
	return no
}

// and is no when one of both is, and yes only when both are.
func (a sure) and(b sure) sure { return min(a, b) }

// not turns no and yes around.
func (a sure) not() sure { return yes - a }

// verdict is what a chain of rules does with a packet.
type verdict int

const (
	passes  verdict = iota // no rule has decided
	accepts                // surely, or perhaps: what is not known lets it through
	drops                  // surely
)

// iface matches an interface against a name in a rule, in which the wildcard
// character at the end stands for anything.
func matchesName(have, want, wildcard string) sure {
	if have == "" {
		return perhaps
	}
	if beginning, found := strings.CutSuffix(want, wildcard); found {
		return certain(strings.HasPrefix(have, beginning))
	}
	return certain(have == want)
}

// portIn matches the packet's port against "443", "80:443" or "80-443".
func (p packet) portIn(text, separator string) sure {
	from, to, isRange := strings.Cut(text, separator)
	if !isRange {
		to = from
	}
	low, err1 := strconv.Atoi(from)
	high, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || p.port == 0 {
		return perhaps
	}
	return certain(p.port >= low && p.port <= high)
}

// toAddress matches where the packet goes.
func (p packet) toAddress(text string) sure {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return perhaps
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	switch {
	case prefix.Bits() == 0:
		return yes
	case prefix.Addr().IsMulticast() || prefix.Addr().IsLoopback():
		return no
	case !p.to.IsValid():
		return perhaps
	}
	return certain(prefix.Contains(p.to))
}

// from matches where the packet comes from, of which is known only that it is
// another machine.
func (p packet) from(text string) sure {
	switch prefix, err := netip.ParsePrefix(text); {
	case err == nil && prefix.Bits() == 0:
		return yes
	case err == nil && (prefix.Addr().IsLoopback() || prefix.Addr().IsMulticast()):
		return no
	}
	return perhaps
}

// isNew matches a list of connection states.
func isNew(states []string) sure {
	return certain(slices.ContainsFunc(states, func(s string) bool { return strings.EqualFold(s, "new") }))
}
