// Package peers says who is at the other end of a connection: their address, and as whom they count where somebody is
// bounded who could choose another address.
//
// Any package may import it; it imports none.
package peers

import "net/netip"

// Address is the address in a text, with or without a port; an IPv4 address is one however it is written. ok is false
// where there is none.
func Address(text string) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

// Neighbourhood holds all addresses that one machine or household can choose freely: the address alone, or of IPv6 the
// 64 bits of its network. ok is false where the text has no address.
func Neighbourhood(text string) (of netip.Prefix, ok bool) {
	addr, ok := Address(text)
	if !ok {
		return netip.Prefix{}, false
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	of, _ = addr.Prefix(bits) // of a length that the address has
	return of, true
}
