package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// probeAddress checks that the address people will use is one of this machine's.
func probeAddress(h host, opts Options) []Finding {
	prefixes, err := h.addresses()
	if err != nil {
		return []Finding{{Probe: "address", State: Warn,
			Seen: fmt.Sprintf("The network interfaces cannot be read: %v.", err)}}
	}
	usable := usableAddresses(prefixes)
	if opts.Address == "" {
		if len(usable) == 0 {
			return []Finding{{
				Probe: "address", State: Fail,
				Seen:  "This machine has no address other machines could use.",
				Means: "The pages of the lab would be reachable from nowhere.",
				Mend:  "Connect it to the network, and look with `ip -brief address`.",
			}}
		}
		return []Finding{{Probe: "address", State: OK, Seen: "Addresses of this machine: " + join(usable) + "."}}
	}
	wanted, err := netip.ParseAddr(opts.Address)
	if err != nil {
		return []Finding{{
			Probe: "address", State: Fail,
			Seen:  fmt.Sprintf("%q is not an IP address.", opts.Address),
			Means: "The setting address takes one of this machine's.",
			Mend:  "Name one of this machine's addresses: " + join(usable) + ".",
		}}
	}
	for _, prefix := range prefixes {
		if prefix.Addr().Unmap() == wanted.Unmap() {
			return []Finding{{Probe: "address", State: OK, Seen: fmt.Sprintf("%s is an address of this machine.", wanted)}}
		}
	}
	return []Finding{{
		Probe: "address", State: Fail,
		Seen:  fmt.Sprintf("%s is not an address of this machine.", wanted),
		Means: "gpulab can listen only on an address that is here.",
		Mend:  "Name one of these: " + join(usable) + ".",
	}}
}

// usableAddresses leaves out what only this machine or this wire can reach.
func usableAddresses(prefixes []netip.Prefix) []netip.Addr {
	var usable []netip.Addr
	for _, prefix := range prefixes {
		addr := prefix.Addr()
		if addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			continue
		}
		usable = append(usable, addr)
	}
	return usable
}

func join(addresses []netip.Addr) string {
	if len(addresses) == 0 {
		return "none"
	}
	names := make([]string, len(addresses))
	for i, address := range addresses {
		names[i] = address.String()
	}
	return strings.Join(names, ", ")
}

func interfaceAddresses() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, address := range list {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, nil
}
