package doctor

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// route out over eth0, as /proc/net/route shows it.
const outOverEth0 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"

var (
	labPorts    = []int{443, 8443, 6443, 10250, 2022}
	labServices = []int{8500, 8501, 8699}
)

// walled is a machine with the rules of recorded files.
func walled(t *testing.T, save, nft string) host {
	t.Helper()
	h := machine(t, map[string]string{"/proc/self/net/route": outOverEth0})
	recorded := map[string]string{"iptables-save": "", "nft": `{"nftables": []}`}
	for command, file := range map[string]string{"iptables-save": save, "nft": nft} {
		if file == "" {
			continue
		}
		content, err := os.ReadFile("testdata/firewall/" + file)
		if err != nil {
			t.Fatal(err)
		}
		recorded[command] = string(content)
	}
	h.output = func(_ context.Context, name string, _ ...string) (string, error) { return recorded[name], nil }
	return h
}

// TestFirewallRecorded: what Debian's ufw and firewalld set when they are
// switched on, and after the commands that the doctor names.
func TestFirewallRecorded(t *testing.T) {
	opts := Options{Ports: labPorts, ServicePorts: labServices}
	for _, test := range []struct{ name, save, nft, ports, services, pods string }{
		{"ufw", "ufw.save", "", "`ufw allow 443/tcp && ufw allow 8443/tcp && ufw allow 2022/tcp`", "`ufw allow 8500:8699/tcp`", "`ufw allow in on cni0 && ufw route allow in on cni0 && ufw route allow out on cni0`"},
		{"firewalld", "", "firewalld.json", "--add-port=443/tcp --add-port=8443/tcp --add-port=2022/tcp && firewall-cmd --reload`", "--add-port=8500-8699/tcp && firewall-cmd --reload`", "--zone=trusted --add-interface=cni0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := look(t, walled(t, test.save, test.nft), "firewall", opts)
			if len(found) != 3 || found[0].State != Fail || found[1].State != Warn || found[2].State != Fail {
				t.Fatalf("got %v", found)
			}
			for i, want := range []string{test.ports, test.services, test.pods} {
				if !strings.Contains(found[i].Mend, want) || !strings.HasPrefix(found[i].Seen, "The firewall "+test.name+" drops") {
					t.Errorf("got %s\nwant %s", found[i], want)
				}
			}
			open := walled(t, strings.Replace(test.save, ".", "-open.", 1), strings.Replace(test.nft, ".", "-open.", 1))
			finds(t, open, "firewall", opts, OK)
			finds(t, open, "firewall", Options{Ports: labPorts, ServicePorts: []int{8700}}, Warn, "(port 8700)", "`servicePorts: off`")
		})
	}
}

func TestFirewallUnseen(t *testing.T) {
	h := machine(t, nil)
	finds(t, h, "firewall", Options{}, OK)
	h.euid = 1000
	finds(t, h, "firewall", Options{}, Unseen)
	h = machine(t, nil)
	h.output = func(context.Context, string, ...string) (string, error) { return "", exec.ErrNotFound }
	finds(t, h, "firewall", Options{}, Unseen, "apt-get install")
}

// TestFirewallKernel lets the kernel judge: each set of rules is loaded into a
// network of the test's own, the doctor reads it with the machine's programs,
// and its commands are run until nothing is left to mend.
func TestFirewallKernel(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		name, rules string
		says        []string // in the findings, one each; none: nothing is dropped
	}{
		{"none", "true", nil},
		{"Debian's example for a server", `nft -f - <<'E'
table inet filter {
  chain input {
    type filter hook input priority 0; policy drop;
    ct state vmap { established : accept, related : accept, invalid : drop }
    iifname lo accept
    meta l4proto { icmp, ipv6-icmp } accept
    tcp dport { 22, 80 } accept
  }
  chain forward { type filter hook forward priority 0; policy drop; }
}
E`, []string{"ports 443, 8443 and 2022", "services of notebooks", "to this machine", "to one another"}},
		{"open as documented", `nft -f - <<'E'
table inet filter {
  chain input {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname { lo, cni0, flannel.1 } accept
    tcp dport { 22, 443, 8000-9000 } accept
    tcp dport 2022 ip saddr 192.0.2.0/24 accept
  }
  chain forward { type filter hook forward priority 0; policy drop; iifname cni0 accept; oifname cni0 accept; }
}
E`, nil},
		{"one port", "nft add table ip mine; nft 'add chain ip mine in { type filter hook input priority 5; }'; nft add rule ip mine in tcp dport 443 counter drop", []string{"port 443"}},
		{"one port on another interface", "nft add table ip mine; nft 'add chain ip mine in { type filter hook input priority 5; }'; nft add rule ip mine in iifname wlan0 tcp dport 443 reject", nil},
		{"a jump", `nft -f - <<'E'
table inet a {
  chain web { tcp dport 443 return; drop; }
  chain input { type filter hook input priority 0; tcp dport 400-9000 jump web; }
}
E`, []string{"ports 8443 and 2022", "to this machine"}},
		{"iptables, by hand", "iptables -P INPUT DROP; iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A INPUT -p tcp -m multiport --dports 22,443 -j ACCEPT; iptables -A INPUT -i cni+ -j ACCEPT",
			[]string{"ports 8443 and 2022", "services of notebooks"}},
		{"Docker", "iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
			[]string{"to one another"}},
		{"Docker beside flannel", "iptables -P FORWARD DROP; iptables -N FLANNEL-FWD; iptables -A FORWARD -j FLANNEL-FWD; iptables -A FLANNEL-FWD -s 10.42.0.0/16 -j ACCEPT; iptables -A FLANNEL-FWD -d 10.42.0.0/16 -j ACCEPT", nil},
		{"some services", "nft add table ip mine; nft 'add chain ip mine in { type filter hook input priority 5; }'; nft add rule ip mine in tcp dport 8600-8999 drop", []string{"services of notebooks (ports 8500 to 8699)"}},
		{"a comment with -j DROP in it", `iptables -A INPUT -p tcp --dport 9 -m comment --comment "so -j DROP \"it\"" -j DROP`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The thread goes back to nobody: it ends with the goroutine.
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Skipf("no network namespace here: %v", err)
			}
			sh(t, test.rules)
			h := machine(t, map[string]string{"/proc/self/net/route": outOverEth0})
			h.output = output
			// In this very thread, whose network it is. One way of notebooks after
			// the other is closed, and named when the one before is open.
			var said []string
			var found []Finding
			for range 6 {
				found = probeFirewall(h, Options{Ports: labPorts, ServicePorts: labServices})
				for _, f := range found {
					checkFinding(t, "firewall", f)
					said = append(said, f.Seen)
					if f.State == Fail || f.State == Warn {
						sh(t, command(t, f))
					}
				}
			}
			for _, want := range test.says {
				if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, want) }) {
					t.Errorf("%q is not in what was said: %q", want, said)
				}
			}
			if test.says == nil && strings.Contains(said[0], "drops") {
				t.Errorf("nothing is dropped, but the doctor says %q", said[0])
			}
			if len(found) != 1 || found[0].State != OK {
				t.Errorf("after its own commands the doctor says %v", found)
			}
		})
	}
}

// command is what a finding tells people to run.
func command(t *testing.T, f Finding) string {
	t.Helper()
	parts := strings.Split(f.Mend, "`")
	if len(parts) < 3 {
		t.Fatalf("no command in %q", f.Mend)
	}
	return parts[1]
}

// sh runs a script in this thread's network.
func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
