package doctor

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

// usual are the networks Kubernetes takes when it is not told otherwise.
var usual = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")}

// probeNetworks tells which of the usual networks this machine already uses;
// init then picks others by itself, so it is never more than information.
func probeNetworks(h host, _ Options) []Finding {
	for _, route := range parseRoutes(h.read("/proc/self/net/route")) {
		for _, network := range usual {
			if route.prefix.Overlaps(network) && !strings.HasPrefix(route.device, "cni") &&
				!strings.HasPrefix(route.device, "flannel") {
				return []Finding{{
					Probe: "networks", State: OK,
					Seen: fmt.Sprintf("The network %s is in use here (%s); gpulab's containers get another.", route.prefix,
						route.device),
				}}
			}
		}
	}
	return []Finding{{Probe: "networks", State: OK, Seen: "The usual networks for containers are free."}}
}

type route struct {
	prefix netip.Prefix
	device string
}

// parseRoutes reads /proc/net/route, leaving the default route out.
func parseRoutes(table string) []route {
	var routes []route
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		address, err1 := hexAddress(fields[1])
		mask, err2 := hexAddress(fields[7])
		if err1 != nil || err2 != nil {
			continue // the heading
		}
		ones := bits.OnesCount32(binary.BigEndian.Uint32(mask.AsSlice()))
		if ones == 0 {
			continue
		}
		routes = append(routes, route{netip.PrefixFrom(address, ones), fields[0]})
	}
	return routes
}

// hexAddress reads an IPv4 address as the kernel prints it on a little-endian
// machine, which all supported ones are.
func hexAddress(text string) (netip.Addr, error) {
	raw, err := hex.DecodeString(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(raw) != 4 {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 address in hexadecimal", text)
	}
	return netip.AddrFrom4([4]byte{raw[3], raw[2], raw[1], raw[0]}), nil
}
