package embedk8s

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChooseNetworks(t *testing.T) {
	for _, tc := range []struct {
		name             string
		taken            []string
		cluster, service string
	}{
		{"nothing taken", nil, "10.42.0.0/16", "10.43.0.0/16"},
		{"another k3s's pods", []string{"10.42.0.0/24"}, "10.44.0.0/16", "10.45.0.0/16"},
		{"the service half taken", []string{"10.43.7.1/32"}, "10.44.0.0/16", "10.45.0.0/16"},
		{"the campus has all of 10", []string{"10.0.0.0/8"}, "172.18.0.0/16", "172.19.0.0/16"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var taken []netip.Prefix
			for _, s := range tc.taken {
				taken = append(taken, netip.MustParsePrefix(s))
			}
			c, s, err := chooseNetworks(taken)
			if err != nil || c.String() != tc.cluster || s.String() != tc.service {
				t.Errorf("got %v %v %v, want %s %s", c, s, err, tc.cluster, tc.service)
			}
		})
	}
	if _, _, err := chooseNetworks([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}); err == nil {
		t.Error("networks were found where every address is taken")
	}
}

func TestClusterDNSIsTheTenthServiceAddress(t *testing.T) {
	id := Identity{ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16")}
	if got := id.ClusterDNS().String(); got != "10.43.0.10" {
		t.Errorf("got %s", got)
	}
}

func TestNodeName(t *testing.T) {
	for in, want := range map[string]string{
		"ws1": "ws1", "WS_1.lab.example": "ws-1", "": "head", "localhost": "head",
		"--x--": "x", "Rechner ä": "rechner", strings.Repeat("a", 80): strings.Repeat("a", 50),
	} {
		if got := nodeName(in); got != want {
			t.Errorf("nodeName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestIdentityIsChosenOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.NodeName = "renamed-machine"
	t.Setenv("INVOCATION_ID", "x") // what it was chosen from may change later
	second, err := LoadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.NodeName = first.NodeName
	if first != second {
		t.Errorf("first %+v, later %+v", first, second)
	}
	if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged identity gave %v", err)
	}
}

func TestParseRoutes(t *testing.T) {
	table := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\tFE00630A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
		"eth0\t0000630A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	got := parseRoutes(table)
	if len(got) != 2 || got[0].dst.String() != "0.0.0.0/0" || got[0].metric != 100 || got[1].dst.String() != "10.99.0.0/24" {
		t.Errorf("got %+v", got)
	}
}

func TestFindAddressRefusesAStrangersAddress(t *testing.T) {
	for in, want := range map[string]string{"192.0.2.77": "not an address of this machine", "lab.example": "not an IP address"} {
		if _, _, err := FindAddress(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("FindAddress(%q) = %v, want …%s…", in, err, want)
		}
	}
}

// Pods are told of name servers that they can reach; systemd-resolved's stub leads to those behind it.
func TestResolvers(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "etc"), filepath.Join(dir, "run")
	for _, c := range []struct{ first, second, file, want string }{
		{"nameserver 10.1.1.1\n", "nameserver 10.2.2.2\n", first, "[10.1.1.1]"},
		{"nameserver 127.0.0.53\noptions edns0\n", "nameserver 10.2.2.2\nnameserver 10.2.2.3\nnameserver 10.2.2.2\n", second, "[10.2.2.2 10.2.2.3]"},
		{"nameserver 127.0.0.1\nnameserver 10.1.1.1\n", "", first, "[10.1.1.1]"},
		{"search x\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 2001:db8::1\nnameserver\nnameserver x\nnameserver 0.0.0.0\n", "", "", "[]"},
		{"", "", "", "[]"},
	} {
		if err := errors.Join(os.WriteFile(first, []byte(c.first), 0o600), os.WriteFile(second, []byte(c.second), 0o600)); err != nil {
			t.Fatal(err)
		}
		if file, list := resolversIn([]string{first, second}); file != c.file || fmt.Sprint(list) != c.want {
			t.Errorf("%+v: %q, %v", c, file, list)
		}
	}
	if file, list := resolversIn([]string{filepath.Join(dir, "none")}); file != "" || list != nil {
		t.Errorf("without files: %q, %v", file, list)
	}
}

func TestPrepareWritesOnlyWhatChanged(t *testing.T) {
	c := New(Config{DataDir: t.TempDir(), Address: netip.MustParseAddr("10.0.0.1"), Identity: Identity{NodeName: "n"}})
	if changed, err := c.Prepare(); err != nil || !changed {
		t.Fatalf("first: %v %v", changed, err)
	}
	if changed, err := c.Prepare(); err != nil || changed {
		t.Fatalf("second: %v %v", changed, err)
	}
	if kubelet, err := os.ReadFile(filepath.Join(c.k3sDir(), "agent/etc/kubelet.conf.d/50-gpulab.conf")); err != nil || !strings.Contains(string(kubelet), "singleProcessOOMKill: true") {
		t.Errorf("the kubelet is told %q, %v", kubelet, err)
	}
	c.cfg.Address = netip.MustParseAddr("10.0.0.2")
	if changed, err := c.Prepare(); err != nil || !changed {
		t.Fatalf("after a new address: %v %v", changed, err)
	}
}

// Another wish for encryption is another configuration, which k3s is started anew
// for: on the head, and on a machine whose k3s asks the head.
func TestEncrypt(t *testing.T) {
	for what, join := range map[string]*Join{"head": nil, "machine": {Server: "https://10.0.0.1:6443"}} {
		t.Run(what, func(t *testing.T) {
			c := New(Config{DataDir: t.TempDir(), Address: netip.MustParseAddr("10.0.0.1"), Identity: Identity{NodeName: "n"}, Join: join})
			digest := func() string {
				t.Helper()
				if _, err := c.Prepare(); err != nil {
					t.Fatal(err)
				}
				d, err := fileDigest(c.configFile())
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			open := digest()
			if err := c.Encrypt(true); err != nil {
				t.Fatal(err)
			}
			if digest() == open {
				t.Error("k3s would not notice")
			}
			config, err := os.ReadFile(c.configFile())
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(config), "flannel-backend: wireguard-native"); got != (join == nil) {
				t.Errorf("the configuration is\n%s", config)
			}
			if err := c.Encrypt(false); err != nil {
				t.Fatal(err)
			}
			if digest() != open {
				t.Error("there is no way back")
			}
		})
	}
}

func TestWithoutOurRules(t *testing.T) {
	saved := "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A INPUT -j KUBE-SERVICES\n-A INPUT -p tcp --dport 22 -j ACCEPT\n-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n-A OUTPUT -m comment --comment \"KUBE-ROUTER rule to explicitly ACCEPT traffic\" -m mark --mark 0x20000/0x20000 -j ACCEPT\nCOMMIT\n"
	got, changed := withoutOurRules(saved)
	want := "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n"
	if !changed || got != want {
		t.Errorf("changed=%v, got:\n%s", changed, got)
	}
	if _, changed := withoutOurRules(want); changed {
		t.Error("a machine's own rules count as ours")
	}
}

// Of the proxy only containerd is told, in the way in which k3s passes it on; what the service's own environment says
// reaches nothing.
func TestProxyIsForImagesOnly(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://other.example:1")
	t.Setenv("no_proxy", "x")
	t.Setenv("CONTAINERD_HTTP_PROXY", "http://other.example:1")
	c := New(Config{
		DataDir: t.TempDir(), Address: netip.MustParseAddr("10.0.0.5"), Proxy: "http://proxy.example:3128", NoProxy: []string{".example.org"},
		Identity: Identity{ClusterCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16")},
	})
	var got []string
	for _, kv := range c.environment("/bin", "x") {
		if strings.Contains(strings.ToLower(kv), "proxy") {
			got = append(got, kv)
		}
	}
	want := "CONTAINERD_HTTP_PROXY=http://proxy.example:3128 CONTAINERD_HTTPS_PROXY=http://proxy.example:3128 " +
		"CONTAINERD_NO_PROXY=localhost,127.0.0.1,::1,.svc,.cluster.local,10.0.0.5,10.42.0.0/16,10.43.0.0/16,.example.org"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	c.cfg.Proxy = ""
	for _, kv := range c.environment("/bin", "x") {
		if strings.Contains(strings.ToLower(kv), "proxy") {
			t.Errorf("without a proxy: %s", kv)
		}
	}
}
