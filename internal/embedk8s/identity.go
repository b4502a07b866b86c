package embedk8s

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Identity is chosen once per machine and never recomputed: k3s compares it
// between servers, and objects in the cluster carry it.
type Identity struct {
	NodeName    string       `json:"nodeName"`
	ClusterCIDR netip.Prefix `json:"clusterCIDR"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// CgroupDriver is "systemd" or "cgroupfs"; switching it would orphan pods.
	CgroupDriver string `json:"cgroupDriver"`
}

// ClusterDNS is the address of the cluster's name server: the tenth of the
// service network.
func (id Identity) ClusterDNS() netip.Addr {
	a := id.ServiceCIDR.Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// LoadIdentity returns the identity recorded under dataDir, choosing and
// recording one the first time.
func LoadIdentity(dataDir string) (Identity, error) {
	path := filepath.Join(dataDir, "identity.json")
	data, err := os.ReadFile(path)
	if err == nil {
		var id Identity
		if err := json.Unmarshal(data, &id); err != nil {
			return Identity{}, fmt.Errorf("%s is damaged (%w); restore it from a backup, or take gpulab off this machine "+
				"with `gpulab reset`", path, err)
		}
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return Identity{}, err
	}
	id, err := chooseIdentity()
	if err != nil {
		return Identity{}, err
	}
	data, err = json.MarshalIndent(id, "", "  ")
	if err != nil {
		return Identity{}, err
	}
	_, err = atomicfile.Update(path, append(data, '\n'), 0o600, 0o700)
	return id, err
}

func chooseIdentity() (Identity, error) {
	taken, err := hostNetworks()
	if err != nil {
		return Identity{}, err
	}
	cluster, service, err := chooseNetworks(taken)
	if err != nil {
		return Identity{}, err
	}
	host, err := os.Hostname()
	if err != nil {
		return Identity{}, fmt.Errorf("this machine's name: %w", err)
	}
	return Identity{NodeName: nodeName(host), ClusterCIDR: cluster, ServiceCIDR: service, CgroupDriver: cgroupDriver()},
		nil
}

func cgroupDriver() string {
	if os.Getenv("INVOCATION_ID") != "" {
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			return "systemd"
		}
	}
	return "cgroupfs"
}

// JoinedIdentity is LoadIdentity for a node of another machine's cluster, which
// has chosen name and networks; the control groups are this machine's matter.
func JoinedIdentity(dataDir, name string, cluster, service netip.Prefix) (Identity, error) {
	path := filepath.Join(dataDir, "identity.json")
	id := Identity{NodeName: name, ClusterCIDR: cluster, ServiceCIDR: service, CgroupDriver: cgroupDriver()}
	var before Identity
	if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &before) == nil && before.CgroupDriver != "" {
		id.CgroupDriver = before.CgroupDriver
	}
	data, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return Identity{}, err
	}
	_, err = atomicfile.Update(path, append(data, '\n'), 0o600, 0o700)
	return id, err
}

// HostName is what Kubernetes is told as this machine's name, unless somebody
// gives it another.
func HostName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("this machine's name: %w", err)
	}
	return nodeName(host), nil
}

// Overlap finds a network that this machine has addresses in, or a route to,
// among those that a cluster takes; false without one.
func Overlap(cluster ...netip.Prefix) (netip.Prefix, bool, error) {
	taken, err := hostNetworks()
	for _, t := range taken {
		for _, c := range cluster {
			if t.Overlaps(c) {
				return t, true, nil
			}
		}
	}
	return netip.Prefix{}, false, err
}

// InterfaceOf names the interface that has an address of this machine's.
func InterfaceOf(address netip.Addr) (string, error) {
	_, iface, err := FindAddress(address.String())
	return iface, err
}

// nodeName turns a host name into a name Kubernetes takes: lower-case letters,
// digits and hyphens.
func nodeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host), "-")
	if len(name) > 50 {
		name = strings.TrimRight(name[:50], "-")
	}
	if name == "" || name == "localhost" {
		return "head"
	}
	return name
}

// tailnets hand out addresses from here (RFC 6598); pods must not.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// chooseNetworks picks a pod and a service network that overlap nothing in
// taken, k3s's usual 10.42/16 and 10.43/16 first.
func chooseNetworks(taken []netip.Prefix) (cluster, service netip.Prefix, err error) {
	taken = append(taken, sharedSpace)
	free := func(p netip.Prefix) bool {
		for _, t := range taken {
			if t.Overlaps(p) {
				return false
			}
		}
		return true
	}
	// An even number of /16 blocks each, so that a pair never spans two ranges.
	for _, r := range []struct{ first, from, to byte }{{10, 42, 249}, {172, 18, 31}} {
		for second := r.from; second < r.to; second += 2 {
			cluster = netip.PrefixFrom(netip.AddrFrom4([4]byte{r.first, second, 0, 0}), 16)
			service = netip.PrefixFrom(netip.AddrFrom4([4]byte{r.first, second + 1, 0, 0}), 16)
			if free(cluster) && free(service) {
				return cluster, service, nil
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, errors.New("no free private network is left for pods: every 10.x and " +
		"172.16–31.x block overlaps a route of this machine; remove a route and try again")
}

// hostNetworks lists the networks this machine has addresses in or routes to,
// apart from those of an embedded k3s.
func hostNetworks() ([]netip.Prefix, error) {
	var out []netip.Prefix
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("this machine's interfaces: %w", err)
	}
	for _, i := range ifaces {
		if ours(i.Name) {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("the addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
				out = append(out, p.Masked())
			}
		}
	}
	routes, err := readRoutes()
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if r.dst.Bits() > 0 && !ours(r.iface) {
			out = append(out, r.dst)
		}
	}
	return out, nil
}

// ours tells the interfaces that the embedded k3s makes.
func ours(iface string) bool {
	return iface == "cni0" || strings.HasPrefix(iface, "flannel") || strings.HasPrefix(iface, "veth") ||
		iface == "kube-ipvs0"
}
