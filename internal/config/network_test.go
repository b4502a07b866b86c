package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/embedk8s"
)

func TestNetworkConfig(t *testing.T) {
	cfg, err := Load(write(t, `
network:
  allow:
    - {name: nas, to: 192.168.1.10, ports: [2049, 445], groups: [vision]}
    - {name: campus, to: 10.0.0.0/8}
  proxy: http://proxy.example.org:3128
  noProxy: [.example.org]
k3s: {podMaxPids: 2000}
`))
	if err != nil {
		t.Fatal(err)
	}
	list := cfg.Network.Destinations()
	if want := "[{nas 192.168.1.10/32 [2049 445] [vision]} {campus 10.0.0.0/8 [] []}]"; fmt.Sprint(list) != want {
		t.Errorf("%v, want %s", list, want)
	}
	env := cfg.Network.ProxyEnv(embedk8s.Identity{
		ClusterCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"),
	})
	const direct = "localhost,127.0.0.1,::1,.svc,.cluster.local,.cluster.local.,10.42.0.0/16,10.43.0.0/16,.example.org"
	for name, want := range map[string]string{
		"HTTP_PROXY": cfg.Network.Proxy, "https_proxy": cfg.Network.Proxy, "NO_PROXY": direct, "no_proxy": direct,
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	// What gpulab writes down, it reads as the same.
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := Save(path, cfg); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil || fmt.Sprint(again.Network, again.K3s) != fmt.Sprint(cfg.Network, cfg.K3s) {
		t.Errorf("written and read again: %v, %v", again.Network, err)
	}
	t.Setenv("HTTP_PROXY", "http://other.example:1") // the machine's own is for nobody else
	if cfg, err = Load(write(t, "")); err != nil || cfg.K3s.PodMaxPIDs != 4096 ||
		cfg.Network.ProxyEnv(embedk8s.Identity{}) != nil {
		t.Errorf("without any: %+v %v", cfg, err)
	}
}

func TestNetworkConfigRefusals(t *testing.T) {
	for text, says := range map[string]string{
		"network: {allow: [{name: nas, to: nas.example.org}]}":                      "names are not accepted",
		"network: {allow: [{name: nas, to: 192.168.1.10/24}]}":                      "192.168.1.0/24 or 192.168.1.10",
		"network: {allow: [{name: nas, to: fd00::1}]}":                              "no IPv6",
		"network: {allow: [{name: nas, to: \"\"}]}":                                 "must be an address",
		"network: {allow: [{to: 10.0.0.1}]}":                                        "name",
		"network: {allow: [{name: a, to: 10.0.0.1}, {name: a, to: 10.0.0.2}]}":      "two entries",
		"network: {allow: [{name: all, to: 0.0.0.0/0}]}":                            "never opened",
		"network: {allow: [{name: cloud, to: 169.254.169.254}]}":                    "never opened",
		"network: {allow: [{name: self, to: 127.0.0.1}]}":                           "never opened",
		"network: {allow: [{name: nas, to: 10.0.0.1, ports: [0]}]}":                 "port 0",
		"network: {allow: [{name: nas, to: 10.0.0.1, ports: [70000]}]}":             "port 70000",
		"network: {allow: [{name: nas, to: 10.0.0.1, groups: [\"Vision Group\"]}]}": "cannot be the name of a group",
		"network: {allow: [{name: nas, to: 10.0.0.1, port: 80}]}":                   "port",
		"network: {proxy: proxy.example.org:3128}":                                  "no address of a proxy",
		"network: {proxy: \"socks5://proxy.example.org:1080\"}":                     "no address of a proxy",
		"network: {proxy: \"http://proxy.example.org\"}":                            "does not say the port",
		"network: {proxy: \"http://proxy.example.org:0\"}":                          "does not say the port",
		"network: {proxy: \"http://proxy.example.org:3128/a\"}":                     "behind the port",
		"network: {proxy: \"http://ada:secret@proxy.example.org:3128\"}":            "every notebook would show",
		"network: {proxy: \"http://[fd00::1]:3128\"}":                               "no IPv6",
		"network: {proxy: \"http://proxy_1:3128\"}":                                 "no name of a machine",
		"network: {noProxy: [.example.org]}":                                        "no network.proxy",
		"network: {proxy: \"http://10.0.0.1:3128\", noProxy: [\"a,b\"]}":            "one name",
		"k3s: {podMaxPids: 10}":                                                     "podMaxPids",
	} {
		_, err := Load(write(t, text))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", text, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the refusal shows the password: %v", err)
		}
	}
}

// The lab's own way to identity providers is the one that notebooks have.
func TestProxyFor(t *testing.T) {
	if (Network{}).ProxyFor() != nil {
		t.Error("a proxy that nobody configured")
	}
	n := Network{Proxy: "http://proxy.example.org:3128", NoProxy: []string{".example.org", "10.0.0.0/8"}}
	for address, want := range map[string]string{
		"https://accounts.google.com/x": n.Proxy, "https://id.example.org/x": "", "https://10.1.2.3/": "",
		"https://localhost:8443/": "",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		proxy, err := n.ProxyFor()(u)
		if proxy != nil {
			got = proxy.String()
		}
		if err != nil || got != want {
			t.Errorf("%s: by %q, %v; want %q", address, got, err, want)
		}
	}
}
