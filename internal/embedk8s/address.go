package embedk8s

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

type route struct {
	iface  string
	dst    netip.Prefix
	metric uint64
}

// readRoutes reads the IPv4 routing table (proc(5), /proc/net/route: addresses
// are little-endian hexadecimal).
func readRoutes() ([]route, error) {
	data, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("this machine's routes: %w", err)
	}
	return parseRoutes(string(data)), nil
}

func parseRoutes(table string) []route {
	var out []route
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 8 || f[0] == "Iface" {
			continue
		}
		dst, err1 := hexAddr(f[1])
		mask, err2 := hexAddr(f[7])
		if err1 != nil || err2 != nil {
			continue
		}
		m := mask.As4()
		r := route{iface: f[0], dst: netip.PrefixFrom(dst, bits.OnesCount32(binary.BigEndian.Uint32(m[:])))}
		_, _ = fmt.Sscan(f[6], &r.metric)
		out = append(out, r)
	}
	return out
}

func hexAddr(s string) (netip.Addr, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 4 {
		return netip.Addr{}, errors.New("not an address")
	}
	return netip.AddrFrom4([4]byte{b[3], b[2], b[1], b[0]}), nil
}

// FindAddress returns this machine's address and the interface it is on: want
// if given (which must be on the machine), otherwise the first address of the
// interface with the best default route, otherwise the first private one.
func FindAddress(want string) (netip.Addr, string, error) {
	n, err := lookAround()
	if err != nil {
		return netip.Addr{}, "", err
	}
	return n.find(want)
}

// FollowAddress returns where the machine is now, given where it was. It stays
// where it was as long as that may still be so: while its interface leads out,
// whatever others do, and while the machine is offline.
func FollowAddress(want string, was netip.Addr, iface string) (netip.Addr, string, error) {
	n, err := lookAround()
	if err != nil {
		return netip.Addr{}, "", err
	}
	return n.follow(want, was, iface)
}

// surroundings are the interfaces of this machine but those of k3s, in the
// system's order, with their addresses and the routes.
type surroundings struct {
	ifaces []string
	addrs  map[string][]netip.Addr
	routes []route
}

func lookAround() (surroundings, error) {
	n := surroundings{addrs: map[string][]netip.Addr{}}
	ifaces, err := net.Interfaces()
	if err != nil {
		return n, fmt.Errorf("this machine's interfaces: %w", err)
	}
	for _, i := range ifaces {
		addrs, err := i.Addrs()
		if err != nil || ours(i.Name) || i.Flags&net.FlagUp == 0 {
			continue
		}
		n.ifaces = append(n.ifaces, i.Name)
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
				n.addrs[i.Name] = append(n.addrs[i.Name], p.Addr())
			}
		}
	}
	n.routes, err = readRoutes()
	return n, err
}

func (n surroundings) find(want string) (netip.Addr, string, error) {
	if want != "" {
		return n.given(want)
	}
	for _, name := range append([]string{n.exit()}, n.ifaces...) {
		if len(n.addrs[name]) > 0 {
			return n.addrs[name][0], name, nil
		}
	}
	return netip.Addr{},
		"", errors.New("this machine has no network address; connect it to the lab's network and try again")
}

func (n surroundings) follow(want string, was netip.Addr, iface string) (netip.Addr, string, error) {
	out := n.exit()
	leads := slices.ContainsFunc(n.routes, func(r route) bool { return r.dst.Bits() == 0 && r.iface == iface })
	if want == "" && (out == "" || leads && slices.Contains(n.addrs[iface], was)) {
		return was, iface, nil
	}
	return n.find(want)
}

// given is an address that a person has asked for.
func (n surroundings) given(want string) (netip.Addr, string, error) {
	var all []string
	for _, name := range n.ifaces {
		for _, a := range n.addrs[name] {
			all = append(all, a.String())
		}
	}
	addr, err := netip.ParseAddr(want)
	if err != nil {
		return netip.Addr{}, "", fmt.Errorf("%q is not an IP address; this machine has %s", want, strings.Join(all, ", "))
	}
	for _, name := range n.ifaces {
		if slices.Contains(n.addrs[name], addr) {
			return addr, name, nil
		}
	}
	return netip.Addr{}, "", fmt.Errorf("%s is not an address of this machine, which has %s; give one of these with "+
		"--address", want, strings.Join(all, ", "))
}

// exit is the interface with an address and the best default route, "" without one.
func (n surroundings) exit() string {
	best, metric := "", uint64(0)
	for _, r := range n.routes {
		if r.dst.Bits() == 0 && len(n.addrs[r.iface]) > 0 && (best == "" || r.metric < metric) {
			best, metric = r.iface, r.metric
		}
	}
	return best
}
