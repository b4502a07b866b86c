package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/tenancy"
)

// Network says what notebooks may reach besides the internet, and how.
type Network struct {
	Allow   []Allowed `json:"allow,omitempty"`
	Proxy   string    `json:"proxy,omitempty"` // ProxyAddress reads it
	NoProxy []string  `json:"noProxy,omitempty"`
	Encrypt bool      `json:"encrypt,omitempty"`
}

// Allowed is an address or network that notebooks may reach.
type Allowed struct {
	Name   string   `json:"name"`
	To     Prefix   `json:"to"`
	Ports  []int    `json:"ports,omitempty"`  // of TCP and UDP; empty for all
	Groups []string `json:"groups,omitempty"` // empty for everyone
}

// Check reports the first mistake in the section.
func (n Network) Check() error {
	if err := n.checkAllow(); err != nil {
		return err
	}
	if err := n.checkNoProxy(); err != nil {
		return err
	}
	_, _, err := n.ProxyAddress()
	return err
}

func (n Network) checkNoProxy() error {
	for _, entry := range n.NoProxy {
		if entry == "" || strings.ContainsAny(entry, ", \t\r\n") {
			return fmt.Errorf("network.noProxy holds %q, but an entry is one name, address or network, such as .example.org",
				entry)
		}
	}
	return nil
}

// Destinations returns the addresses that notebooks may reach.
func (n Network) Destinations() []tenancy.Destination {
	var out []tenancy.Destination
	for _, a := range n.Allow {
		out = append(out, a.Destination())
	}
	return out
}

// Destination returns the entry for the rules of the network.
func (a Allowed) Destination() tenancy.Destination {
	d := tenancy.Destination{Name: a.Name, To: a.To.Value, Groups: a.Groups}
	for _, p := range a.Ports {
		d.Ports = append(d.Ports, uint16(p))
	}
	return d
}

func (n Network) checkAllow() error {
	seen := map[string]bool{}
	for _, a := range n.Allow {
		switch {
		case strings.TrimSpace(a.Name) == "" || len(a.Name) > 60 || strings.ContainsAny(a.Name, "\r\n"):
			return fmt.Errorf("network.allow: the name %q should be one line of 1 to 60 characters, such as nas", a.Name)
		case seen[a.Name]:
			return fmt.Errorf("network.allow: two entries are called %q; give each a name of its own", a.Name)
		}
		seen[a.Name] = true
		if err := a.check(); err != nil {
			return fmt.Errorf("network.allow: %s: %w", a.Name, err)
		}
	}
	return nil
}

// neverAllowed are addresses of this machine, of its cloud and of groups of machines.
var neverAllowed = []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"}

func (a Allowed) check() error {
	switch to := a.To; {
	case to.wrong || to.text == "":
		return fmt.Errorf("to is %q, but must be an address such as 192.168.1.10 or a network such as 192.168.1.0/24; "+
			"names are not accepted, because the rules of the network contain only addresses", to.text)
	case !to.Value.Addr().Is4():
		return fmt.Errorf("to is %s, but notebooks have no IPv6; write the IPv4 address", to)
	case to.Value != to.Value.Masked():
		return fmt.Errorf("to is %s, which is a machine and a network at once; write %s or %s",
			to, to.Value.Masked(), to.Value.Addr())
	}
	for _, closed := range neverAllowed {
		if netip.MustParsePrefix(closed).Overlaps(a.To.Value) {
			return fmt.Errorf("%s reaches into %s, which is never opened; write the addresses that are meant", a.To, closed)
		}
	}
	for _, p := range a.Ports {
		if p < 1 || p > 65535 {
			return fmt.Errorf("the port %d does not exist; ports go from 1 to 65535", p)
		}
	}
	for _, g := range a.Groups {
		if len(validation.IsDNS1123Label(g)) > 0 {
			return fmt.Errorf("%q cannot be the name of a group; `gpulab group list` shows the groups there are", g)
		}
	}
	return nil
}

// ProxyAddress returns the proxy's host and port; an empty host without one.
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
		return "", 0, errors.New("network.proxy holds a name or a password, which every notebook would show; use a proxy " +
			"that accepts this machine without one")
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
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.IsLoopback() ||
		strings.EqualFold(u.Hostname(), "localhost") {
		return "", 0, fmt.Errorf("network.proxy is %q, which for a notebook is the notebook itself; write the name or the "+
			"address of the machine that the proxy runs on", n.Proxy)
	} else if err == nil && !addr.Is4() {
		return "", 0, fmt.Errorf("network.proxy is at %s, but notebooks have no IPv6; write its name or its IPv4 address",
			addr)
	} else if err != nil && len(validation.IsDNS1123Subdomain(strings.ToLower(u.Hostname()))) > 0 {
		return "", 0, fmt.Errorf("network.proxy: %q is no name of a machine%s", u.Hostname(), like)
	}
	return u.Hostname(), uint16(number), nil
}

// ProxyEnv returns the variables that name the proxy in notebooks; nil without one. Some programs read the names in
// capitals, others those in small letters.
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

// ProxyFor returns the function with which this machine chooses the proxy for an address, by the same rules as
// notebooks; nil without a proxy: then the environment of the program may name one.
func (n Network) ProxyFor() func(*url.URL) (*url.URL, error) {
	if n.Proxy == "" {
		return nil
	}
	c := httpproxy.Config{HTTPProxy: n.Proxy, HTTPSProxy: n.Proxy, NoProxy: strings.Join(n.NoProxy, ",")}
	return c.ProxyFunc()
}

// AptEnv returns the variables with which apt uses the lab's proxy, unless the environment names one.
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
