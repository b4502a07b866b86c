package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/tenancy"
	"golang.org/x/net/http/httpproxy"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Network says what notebooks may reach besides the internet.
type Network struct {
	// Allow are private addresses that some groups, or all, may reach.
	Allow []Allowed `json:"allow,omitempty"`
	// Proxy is for the way to the internet, such as http://proxy.example:3128.
	Proxy string `json:"proxy,omitempty"`
	// NoProxy are names and networks that are reached without it.
	NoProxy []string `json:"noProxy,omitempty"`
	// Encrypt has what notebooks of different machines, and head, say to each other encrypted.
	Encrypt bool `json:"encrypt,omitempty"`
}

// Allowed is one address, or network of them, beyond the lab.
type Allowed struct {
	Name   string   `json:"name"`
	To     string   `json:"to"`               // 192.168.1.10, or 192.168.1.0/24
	Ports  []int    `json:"ports,omitempty"`  // of TCP and UDP; none means all
	Groups []string `json:"groups,omitempty"` // none means everybody
}

func (n Network) Check() error {
	if _, err := n.Destinations(); err != nil {
		return err
	}
	for _, entry := range n.NoProxy {
		if entry == "" || strings.ContainsAny(entry, ", \t\r\n") {
			return fmt.Errorf("network.noProxy holds %q, but an entry is one name, address or network, such as .example.org", entry)
		}
	}
	_, _, err := n.ProxyAddress()
	return err
}

// destinations are the entries as addresses.
func (n Network) Destinations() ([]tenancy.Destination, error) {
	var out []tenancy.Destination
	seen := map[string]bool{}
	for _, a := range n.Allow {
		d, err := a.Destination()
		if err != nil {
			return nil, err
		}
		if seen[d.Name] {
			return nil, fmt.Errorf("network.allow: two entries are called %q; give each a name of its own", d.Name)
		}
		seen[d.Name] = true
		out = append(out, d)
	}
	return out, nil
}

func (a Allowed) Destination() (tenancy.Destination, error) {
	d := tenancy.Destination{Name: a.Name, Groups: a.Groups}
	fail := func(format string, args ...any) (tenancy.Destination, error) {
		return d, fmt.Errorf("network.allow: %s: %w", a.Name, fmt.Errorf(format, args...))
	}
	if strings.TrimSpace(a.Name) == "" || len(a.Name) > 60 || strings.ContainsAny(a.Name, "\r\n") {
		return d, fmt.Errorf("network.allow: the name %q should be one line of 1 to 60 characters, such as nas", a.Name)
	}
	var err error
	if d.To, err = parseNetwork(a.To); err != nil {
		return fail("to %w", err)
	}
	for _, closed := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"} {
		if netip.MustParsePrefix(closed).Overlaps(d.To) {
			return fail("%s reaches into %s, which is never opened; write the addresses that are meant", d.To, closed)
		}
	}
	for _, p := range a.Ports {
		if p < 1 || p > 65535 {
			return fail("the port %d does not exist; ports go from 1 to 65535", p)
		}
		d.Ports = append(d.Ports, uint16(p))
	}
	for _, g := range a.Groups {
		if len(validation.IsDNS1123Label(g)) > 0 {
			return fail("%q cannot be the name of a group; `gpulab group list` shows the groups there are", g)
		}
	}
	return d, nil
}

// parseNetwork reads an IPv4 address or network.
func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		text = netip.PrefixFrom(addr, addr.BitLen()).String()
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("is %q, but must be an address such as 192.168.1.10 or a network such as 192.168.1.0/24; names are not taken, because the rules of the network know addresses only", text)
	case !p.Addr().Is4():
		return p, fmt.Errorf("is %s, but notebooks have no IPv6; write the IPv4 address", p)
	case p != p.Masked():
		return p, fmt.Errorf("is %s, which is a machine and a network at once; write %s or %s", p, p.Masked(), p.Addr())
	}
	return p, nil
}

// proxy is the proxy's host and port, "" without one.
func (n Network) ProxyAddress() (host string, port uint16, err error) {
	if n.Proxy == "" {
		if len(n.NoProxy) > 0 {
			return "", 0, errors.New("network.noProxy says what is reached without the proxy, but there is no network.proxy")
		}
		return "", 0, nil
	}
	const like = "; write it like http://proxy.example.org:3128"
	// First of all: what follows shows the address.
	if strings.Contains(n.Proxy, "@") {
		return "", 0, errors.New("network.proxy holds a name or a password, which every notebook would show; use a proxy that lets this machine in without")
	}
	u, err := url.Parse(n.Proxy)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", 0, fmt.Errorf("network.proxy is %q, which is no address of a proxy%s", n.Proxy, like)
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return "", 0, fmt.Errorf("network.proxy is %q, which has something behind the port%s", n.Proxy, like)
	}
	number, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || number == 0 {
		return "", 0, fmt.Errorf("network.proxy is %q, which does not say the port%s", n.Proxy, like)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.IsLoopback() || strings.EqualFold(u.Hostname(), "localhost") {
		return "", 0, fmt.Errorf("network.proxy is %q, which for a notebook is the notebook itself; write the name or the address of the machine that the proxy runs on", n.Proxy)
	} else if err == nil && !addr.Is4() {
		return "", 0, fmt.Errorf("network.proxy is at %s, but notebooks have no IPv6; write its name or its IPv4 address", addr)
	} else if err != nil && len(validation.IsDNS1123Subdomain(strings.ToLower(u.Hostname()))) > 0 {
		return "", 0, fmt.Errorf("network.proxy: %q is no name of a machine%s", u.Hostname(), like)
	}
	return u.Hostname(), uint16(number), nil
}

// proxyEnv is what tells programs in notebooks of the proxy, empty without
// one. Some read the names in capitals, others the small ones.
func (n Network) ProxyEnv(id embedk8s.Identity) map[string]string {
	if n.Proxy == "" {
		return nil
	}
	direct := append([]string{
		"localhost", "127.0.0.1", "::1", ".svc", ".cluster.local",
		".cluster.local.", // Python matches names literally, with their final dot
		id.ClusterCIDR.String(), id.ServiceCIDR.String(),
	}, n.NoProxy...)
	env := map[string]string{}
	for name, value := range map[string]string{
		"HTTP_PROXY": n.Proxy, "HTTPS_PROXY": n.Proxy, "NO_PROXY": strings.Join(direct, ","),
	} {
		env[name], env[strings.ToLower(name)] = value, value
	}
	return env
}

// proxyFor tells which proxy leads to an address from this machine, as it does from notebooks; nil without one: then the
// environment of the program may name one.
func (n Network) ProxyFor() func(*url.URL) (*url.URL, error) {
	if n.Proxy == "" {
		return nil
	}
	c := httpproxy.Config{HTTPProxy: n.Proxy, HTTPSProxy: n.Proxy, NoProxy: strings.Join(n.NoProxy, ",")}
	return c.ProxyFunc()
}

// AptEnv leads apt over the lab's proxy, unless the environment names one.
func (n Network) AptEnv() []string {
	if n.Proxy == "" {
		return nil
	}
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy"} {
		if os.Getenv(name) == "" {
			env = append(env, name+"="+n.Proxy)
		}
	}
	if len(n.NoProxy) > 0 && os.Getenv("no_proxy") == "" {
		env = append(env, "no_proxy="+strings.Join(n.NoProxy, ","))
	}
	return env
}
