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
	ifaces, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, "", fmt.Errorf("this machine's interfaces: %w", err)
	}
	byIface := map[string][]netip.Addr{}
	var names, all []string
	for _, i := range ifaces {
		addrs, err := i.Addrs()
		if err != nil || ours(i.Name) || i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			byIface[i.Name] = append(byIface[i.Name], p.Addr())
			all = append(all, p.Addr().String())
		}
		names = append(names, i.Name)
	}
	if want != "" {
		addr, err := netip.ParseAddr(want)
		if err != nil {
			return netip.Addr{}, "", fmt.Errorf("%q is not an IP address; this machine has %s", want, strings.Join(all, ", "))
		}
		for _, n := range names {
			for _, a := range byIface[n] {
				if a == addr {
					return a, n, nil
				}
			}
		}
		return netip.Addr{}, "", fmt.Errorf("%s is not an address of this machine, which has %s; give one of these with --address", want, strings.Join(all, ", "))
	}
	routes, err := readRoutes()
	if err != nil {
		return netip.Addr{}, "", err
	}
	best := ""
	var metric uint64
	for _, r := range routes {
		if r.dst.Bits() == 0 && len(byIface[r.iface]) > 0 && (best == "" || r.metric < metric) {
			best, metric = r.iface, r.metric
		}
	}
	for _, n := range append([]string{best}, names...) {
		if len(byIface[n]) > 0 {
			return byIface[n][0], n, nil
		}
	}
	return netip.Addr{}, "", errors.New("this machine has no network address; connect it to the lab's network and try again")
}
