package doctor

import (
	"net/netip"
	"strings"
)

// resolverFiles are where k3s looks for name servers that pods can use.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// probeResolver: a name server on the machine's own loopback, as that of
// systemd-resolved or dnsmasq, is out of a pod's reach.
func probeResolver(h host, _ Options) []Finding {
	var local, six []string
	for _, file := range resolverFiles {
		usable, loopback, with6 := nameServers(h.read(file))
		local, six = append(local, loopback...), append(six, with6...)
		if len(usable) > 0 {
			return []Finding{{Probe: "resolver", State: OK, Seen: "Name servers that notebooks can use: " + strings.Join(usable, ", ") + " (" + file + ")."}}
		}
	}
	finding := Finding{
		Probe: "resolver", State: Warn,
		Seen:  "This machine has no name server.",
		Means: "Notebooks find no names on the internet: pip and git fail in them. Without a network that is as it must be.",
		Mend:  "With a network: run `echo nameserver 192.0.2.53 > /etc/resolv.conf`, with the address of your network's name server; then `gpulab doctor resolver`.",
	}
	switch {
	case len(six) > 0:
		finding.Seen = "The only name servers have IPv6 (" + six[0] + "), and notebooks do not."
		finding.Mend = "Put a name server with IPv4 into the network's settings, or into /etc/resolv.conf; then `gpulab doctor resolver`."
	case len(local) > 0:
		finding.Seen = "The only name server is on this machine itself (" + local[0] + ")."
		finding.Mend = "Run `apt-get install systemd-resolved && systemctl enable --now systemd-resolved`, which also writes down the network's own servers; or put one of those into /etc/resolv.conf."
	}
	return []Finding{finding}
}

// nameServers tells name servers that pods reach from those on loopback, and those with
// IPv6, which pods do not have.
func nameServers(resolvConf string) (usable, loopback, six []string) {
	for line := range strings.Lines(resolvConf) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		switch addr, err := netip.ParseAddr(f[1]); {
		case err == nil && addr.Is4() && !addr.IsLoopback() && !addr.IsUnspecified():
			usable = append(usable, f[1])
		case err == nil && addr.Is6() && !addr.IsLoopback() && !addr.IsUnspecified():
			six = append(six, f[1])
		default:
			loopback = append(loopback, f[1])
		}
	}
	return usable, loopback, six
}
