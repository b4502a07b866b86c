package embedk8s

import (
	"net/netip"
	"strings"
	"testing"
)

// machine describes a machine as "iface address..." lines, then the interfaces
// of its default routes, the preferred one first.
func machine(exits string, ifaces ...string) surroundings {
	n := surroundings{addrs: map[string][]netip.Addr{}}
	for _, line := range ifaces {
		f := strings.Fields(line)
		n.ifaces = append(n.ifaces, f[0])
		for _, a := range f[1:] {
			n.addrs[f[0]] = append(n.addrs[f[0]], netip.MustParseAddr(a))
		}
	}
	for i, name := range strings.Fields(exits) {
		n.routes = append(n.routes, route{iface: name, dst: netip.MustParsePrefix("0.0.0.0/0"), metric: uint64(i)})
	}
	return n
}

func TestFollowAddress(t *testing.T) {
	for _, tc := range []struct {
		name string
		now  surroundings
		want string // as the configuration asks for
		is   string // "" for an error
	}{
		{"nothing changed", machine("eth0", "docker0 172.17.0.1", "eth0 10.0.0.5"), "", "10.0.0.5 eth0"},
		{"another address", machine("eth0", "docker0 172.17.0.1", "eth0 10.0.0.6"), "", "10.0.0.6 eth0"},
		{"one more address before it", machine("eth0", "eth0 10.0.0.6 10.0.0.5"), "", "10.0.0.5 eth0"},
		{"a VPN takes the default route", machine("tun0 eth0", "eth0 10.0.0.5", "tun0 10.8.0.2"), "", "10.0.0.5 eth0"},
		{"another network card", machine("eth1", "eth0", "eth1 10.1.0.7"), "", "10.1.0.7 eth1"},
		{"its card stays but leads nowhere", machine("eth1", "eth0 10.0.0.5", "eth1 10.1.0.7"), "", "10.1.0.7 eth1"},
		{"cable pulled", machine("", "docker0 172.17.0.1", "eth0"), "", "10.0.0.5 eth0"},
		{"a lab without a way out", machine("", "eth0 10.0.0.5"), "", "10.0.0.5 eth0"},
		{"the given address", machine("eth0", "eth0 10.0.0.5 10.0.0.6"), "10.0.0.6", "10.0.0.6 eth0"},
		{"the given address is away", machine("eth0", "eth0 10.0.0.5"), "10.0.0.6", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, iface, err := tc.now.follow(tc.want, netip.MustParseAddr("10.0.0.5"), "eth0")
			got := ""
			if err == nil {
				got = addr.String() + " " + iface
			}
			if got != tc.is {
				t.Errorf("got %q (%v), want %q", got, err, tc.is)
			}
		})
	}
}

func TestFindAddress(t *testing.T) {
	for _, tc := range []struct {
		name, want, is string
		now            surroundings
	}{
		{"the best default route", "", "10.1.0.7 eth1", machine("eth1 eth0", "eth0 10.0.0.5", "eth1 10.1.0.7")},
		{"no default route", "", "10.0.0.5 eth0", machine("", "eth0 10.0.0.5", "eth1 10.1.0.7")},
		{"no address", "", "", machine("eth0", "eth0")},
		{"not an address", "ten", "", machine("eth0", "eth0 10.0.0.5")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, iface, err := tc.now.find(tc.want)
			got := ""
			if err == nil {
				got = addr.String() + " " + iface
			}
			if got != tc.is {
				t.Errorf("got %q (%v), want %q", got, err, tc.is)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	for want, now := range map[string]surroundings{
		"10.1.0.7 eth1, 10.0.0.5 eth0": machine("eth1", "eth0 10.0.0.5", "docker0 172.17.0.1", "br-0a1b2c3d 172.18.0.1", "virbr0 192.168.122.1", "eth1 10.1.0.7"),
		"10.0.0.5 eth0":                machine("eth0", "eth0 10.0.0.5", "docker0 172.17.0.1"),
		"172.17.0.1 docker0":           machine("", "docker0 172.17.0.1"),
		"10.0.0.5 eth0, 10.0.0.6 eth0": machine("eth0", "eth0 10.0.0.5 10.0.0.6"),
		"":                             machine("", "eth0"),
	} {
		list, err := now.candidates()
		var got []string
		for _, c := range list {
			got = append(got, c.Address.String()+" "+c.Interface)
		}
		if strings.Join(got, ", ") != want || (err == nil) != (want != "") {
			t.Errorf("%v, %v; want %q", got, err, want)
		}
	}
}
