package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// machine makes a healthy host out of files, which a test then spoils. A value
// starting with "->" makes a symbolic link.
func machine(t *testing.T, spoil map[string]string) host {
	t.Helper()
	files := map[string]string{
		"/etc/machine-id":                        "5e0b6b1a3c8d4f7e9a2b1c0d9e8f7a6b\n",
		"/etc/resolv.conf":                       "nameserver 192.0.2.53\n",
		"/proc/sys/kernel/hostname":              "gpu1\n",
		"/etc/os-release":                        "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		"/sys/fs/cgroup/cgroup.controllers":      "cpuset cpu io memory pids\n",
		"/proc/sys/kernel/osrelease":             "6.12.48-amd64\n",
		"/proc/filesystems":                      "nodev\toverlay\n\text4\n",
		"/lib/modules/6.12.48-amd64/modules.dep": "kernel/drivers/net/vxlan/vxlan.ko.xz: x\nkernel/net/bridge/br_netfilter.ko: y\nkernel/net/netfilter/nf_tables.ko: z\nkernel/net/netfilter/nft_chain_nat.ko: x\n",
		"/proc/self/status":                      "Name:\tx\nCapEff:\t000001ffffffffff\n",
		"/proc/meminfo":                          "MemTotal:       16384000 kB\n",
		"/proc/self/net/tcp":                     "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
		"/proc/self/net/route":                   "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n",
	}
	for path, content := range spoil {
		files[path] = content
	}
	root := t.TempDir()
	for path, content := range files {
		if content == "absent" {
			continue
		}
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, isLink := strings.CutPrefix(content, "->"); isLink {
			if err := os.Symlink(target, full); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return host{
		root:   root,
		arch:   "amd64",
		ctx:    t.Context(),
		now:    time.Now,
		statfs: func(string) (unix.Statfs_t, error) { return healthyDisk, nil },
		synced: func() (synced, known bool) { return true, true },
		dial:   dialer(nameServer(t, answerWell)),
		ask:    func() (Lab, error) { return Lab{}, ErrNoDaemon },
		output: func(_ context.Context, name string, args ...string) (string, error) {
			return map[string]string{"iptables-save": "", "nft": `{"nftables": []}`}[name], nil
		},
		freeBytes: func(string) (uint64, error) { return 100 * gib, nil },
		addresses: func() ([]netip.Prefix, error) {
			return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("192.0.2.7/24")}, nil
		},
		lookPath:  func(name string) (string, error) { return "/usr/sbin/" + name, nil },
		processes: func(string) ([]process, error) { return nil, nil },
	}
}

// healthyDisk is a local file system of 100 GiB.
var healthyDisk = unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096, Blocks: 25 << 20, Bavail: 20 << 20, Files: 6 << 20, Ffree: 5 << 20}

// look runs one probe as the doctor does. What is true of every finding is
// checked here, in the test of every probe.
func look(t *testing.T, h host, name string, opts Options) []Finding {
	t.Helper()
	if opts.DataDir == "" {
		opts.DataDir = "/var/lib/gpulab"
	}
	if opts.Socket == "" {
		opts.Socket = "/run/gpulab/gpulab.sock"
	}
	at := slices.IndexFunc(all(), func(p Probe) bool { return p.Name == name })
	if at < 0 {
		t.Fatalf("there is no probe %s", name)
	}
	var findings []Finding
	h.run(t.Context(), all()[at:at+1], opts, Watcher{Done: func(_ Probe, found []Finding) { findings = found }})
	for _, f := range findings {
		checkFinding(t, name, f)
	}
	return findings
}

func checkFinding(t *testing.T, probe string, f Finding) {
	t.Helper()
	if f.Probe != probe || f.Seen == "" {
		t.Errorf("the probe %s has found %+v", probe, f)
	}
	if !slices.Contains([]string{OK, Warn, Fail, Unseen}, f.State) {
		t.Errorf("%s: the state is %q", probe, f.State)
	}
	if (f.State == Fail || f.State == Warn) && f.Means == "" {
		t.Errorf("%s: nobody learns what it means: %s", probe, f)
	}
	if f.State == Fail && f.Mend == "" {
		t.Errorf("%s: nothing mends it: %s", probe, f)
	}
	if f.State == OK && f.Mend != "" {
		t.Errorf("%s: it is well and yet to be mended: %s", probe, f)
	}
	for _, sentence := range []string{f.Seen, f.Means, f.Mend} {
		if strings.Contains(sentence, "\n") || strings.Count(sentence, "`")%2 != 0 || sentence != "" && !strings.HasSuffix(sentence, ".") && !strings.HasSuffix(sentence, ")") {
			t.Errorf("%s: no sentence of one line: %q", probe, sentence)
		}
	}
}

// finds runs a probe and compares its only finding.
func finds(t *testing.T, h host, name string, opts Options, state string, says ...string) Finding {
	t.Helper()
	found := look(t, h, name, opts)
	if len(found) != 1 {
		t.Fatalf("%s has %d findings: %v", name, len(found), found)
	}
	for _, part := range says {
		if !strings.Contains(found[0].String(), part) {
			t.Errorf("%q is not in: %s", part, found[0])
		}
	}
	if found[0].State != state {
		t.Errorf("got %s, want %s: %s", found[0].State, state, found[0])
	}
	return found[0]
}

const sampleListener = "   0: 00000000:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x\n"

func TestPreflight(t *testing.T) {
	lab := Options{DataDir: "/var/lib/gpulab"}
	tests := []struct {
		name  string
		spoil map[string]string
		host  func(*host)
		opts  Options
		probe string
		state string
		says  string
	}{
		{name: "not root", host: func(h *host) { h.euid = 1000 }, probe: "root", state: Fail, says: "sudo"},
		{name: "foreign processor", host: func(h *host) { h.arch = "riscv64" }, probe: "system", state: Fail, says: "riscv64"},
		{name: "untested system", spoil: map[string]string{"/etc/os-release": "ID=fedora\nPRETTY_NAME=Fedora\n"}, probe: "system", state: Warn, says: "Fedora"},
		{name: "no memory controller", spoil: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu pids"}, probe: "cgroups", state: Fail, says: "cgroup_enable=memory"},
		{name: "version 1 without pids", spoil: map[string]string{
			"/sys/fs/cgroup/cgroup.controllers": "absent",
			"/proc/mounts":                      "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\ncgroup /x cgroup rw,cpuset,memory 0 0\n",
		}, probe: "cgroups", state: Fail, says: "(version 1) lack: pids"},
		{name: "no overlay", spoil: map[string]string{"/proc/filesystems": "\text4\n"}, probe: "kernel", state: Fail, says: "overlay"},
		{name: "no vxlan", spoil: map[string]string{"/lib/modules/6.12.48-amd64/modules.dep": "kernel/net/bridge/br_netfilter.ko: y\nkernel/net/netfilter/nf_tables.ko: z\nkernel/net/netfilter/nft_chain_nat.ko: x\n"}, probe: "kernel", state: Warn, says: "vxlan"},
		{name: "no nf_tables", spoil: map[string]string{"/lib/modules/6.12.48-amd64/modules.dep": "kernel/drivers/net/vxlan/vxlan.ko.xz: x\nkernel/net/bridge/br_netfilter.ko: y\nkernel/net/netfilter/nft_chain_nat.ko: z\n"}, probe: "kernel", state: Fail, says: "nf_tables"},
		{name: "no nat in nftables", spoil: map[string]string{"/lib/modules/6.12.48-amd64/modules.dep": "kernel/drivers/net/vxlan/vxlan.ko.xz: x\nkernel/net/bridge/br_netfilter.ko: y\nkernel/net/netfilter/nf_tables.ko: z\n"}, probe: "kernel", state: Warn, says: "nft_chain_nat"},
		{name: "half of root", spoil: map[string]string{"/proc/self/status": "CapEff:\t00000000a80425fb\n"}, probe: "capabilities", state: Fail, says: "CAP_SYS_ADMIN"},
		{name: "no CAP_SYS_RESOURCE", spoil: map[string]string{"/proc/self/status": "CapEff:\t000001fffeffffff\n"}, probe: "capabilities", state: Warn, says: "adapts"},
		{name: "no ipset", host: func(h *host) {
			h.lookPath = func(name string) (string, error) {
				if name == "ipset" {
					return "", errors.New("not found")
				}
				return name, nil
			}
		}, probe: "commands", state: Fail, says: "apt-get install ipset"},
		{name: "little memory", spoil: map[string]string{"/proc/meminfo": "MemTotal: 2000000 kB\n"}, probe: "memory", state: Fail, says: "1.9 GiB"},
		{name: "few inotify instances left", spoil: map[string]string{"/proc/sys/fs/inotify/max_user_instances": "33\n",
			"/proc/812/fd/3": "->anon_inode:inotify", "/proc/812/fd/4": "->anon_inode:inotify", "/proc/812/fd/5": "->anon_inode:[eventfd]"},
			host: func(h *host) { h.euid = os.Geteuid() }, probe: "inotify", state: Fail, says: "2 of 33"},
		{name: "our inotify instances", spoil: map[string]string{"/proc/sys/fs/inotify/max_user_instances": "33\n",
			"/proc/812/fd/3": "->anon_inode:inotify", "/proc/812/fd/4": "->anon_inode:inotify", "/proc/812/exe": "->/var/lib/gpulab/bin/abc/k3s"},
			host: func(h *host) { h.euid = os.Geteuid() }, probe: "inotify", state: OK},
		{name: "little disk", host: func(h *host) { h.freeBytes = func(string) (uint64, error) { return 9 * gib, nil } }, probe: "disk", state: Fail, says: "Only 9 GiB are free for /var/lib/gpulab."},
		{name: "little disk left by ourselves", spoil: map[string]string{"/var/lib/gpulab/bin/current": "->abc", "/var/lib/gpulab/bin/abc": "x"},
			host: func(h *host) { h.freeBytes = func(string) (uint64, error) { return 9 * gib, nil } }, probe: "disk", state: OK},
		{name: "address of another machine", opts: Options{Address: "203.0.113.9"}, probe: "address", state: Fail, says: "Name one of these: 192.0.2.7."},
		{name: "no address at all", opts: Options{Address: "lab.local"}, probe: "address", state: Fail, says: `"lab.local" is not an IP address`},
		{name: "own address", opts: Options{Address: "192.0.2.7"}, probe: "address", state: OK},
		{name: "no network", host: func(h *host) { h.addresses = func() ([]netip.Prefix, error) { return nil, nil } }, probe: "address", state: Fail, says: "Connect it"},
		{name: "port of somebody", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/812/fd/3": "->socket:[4711]"},
			host:  processList(process{812, "nginx", "/usr/sbin/nginx"}),
			probe: "ports", state: Fail, says: "Port 443 is taken by nginx (process 812)."},
		{name: "port of somebody and their children", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/1/fd/9": "->socket:[4711]", "/proc/812/fd/3": "->socket:[4711]", "/proc/1044/fd/3": "->socket:[4711]"},
			host:  processList(process{1, "systemd", "/usr/lib/systemd/systemd"}, process{1044, "nginx", "/usr/sbin/nginx"}, process{812, "nginx", "/usr/sbin/nginx"}, process{813, "sh", "/bin/sh"}, process{1045, "curl", "/bin/curl"}),
			probe: "ports", state: Fail, says: "Port 443 is taken by nginx (process 812)."},
		{name: "port of somebody, and a child of theirs", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/812/fd/3": "->socket:[4711]", "/proc/1044/fd/3": "->socket:[4711]"},
			host:  processList(process{812, "nginx", "/usr/sbin/nginx"}, process{1044, "nginx", "/usr/sbin/nginx"}),
			probe: "ports", state: Fail, says: "Port 443 is taken by nginx (process 812)."},
		{name: "port of nobody known", spoil: map[string]string{"/proc/self/net/tcp": sampleListener}, probe: "ports", state: Fail, says: "ss -ltnp 'sport = :443'"},
		{name: "port of ours", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/812/fd/3": "->socket:[4711]"},
			host: processList(process{812, "gpulab", "/usr/bin/gpulab"}), probe: "ports", state: OK},
		{name: "port of ours, kept by systemd too", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/1/fd/9": "->socket:[4711]", "/proc/812/fd/3": "->socket:[4711]"},
			host: processList(process{1, "systemd", "/usr/lib/systemd/systemd"}, process{812, "gpulab", "/usr/bin/gpulab"}), probe: "ports", state: OK},
		{name: "port of ours, kept by systemd for the next start", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/1/fd/9": "->socket:[4711]", "/run/systemd/system/x": ""},
			host: keptBySystemd("5\n"), probe: "ports", state: OK},
		{name: "port of a socket unit", spoil: map[string]string{"/proc/self/net/tcp": sampleListener, "/proc/1/fd/9": "->socket:[4711]", "/run/systemd/system/x": ""},
			host: keptBySystemd("0\n"), probe: "ports", state: Fail, says: "Port 443 is taken by systemd (process 1)."},
		{name: "another k3s", host: processList(process{99, "k3s-server", "/usr/local/bin/k3s"}), probe: "neighbours", state: Fail, says: "k3s (process 99)"},
		{name: "pods of another k3s", spoil: map[string]string{"/proc/77/cmdline": "/opt/shim\x00-namespace\x00k8s.io\x00-id\x001\x00"},
			host: processList(process{77, "containerd-shim", "/opt/shim"}), probe: "neighbours", state: Fail, says: "Pods of another Kubernetes"},
		{name: "containers of Docker", spoil: map[string]string{"/proc/77/cmdline": "/opt/shim\x00-namespace\x00moby\x00-id\x001\x00"},
			host: processList(process{77, "containerd-shim", "/opt/shim"}), probe: "neighbours", state: OK},
		{name: "our k3s", host: processList(process{99, "k3s-server", "/var/lib/gpulab/bin/abc/k3s"}), probe: "neighbours", state: OK},
		{name: "docker", host: processList(process{99, "dockerd", "/usr/bin/dockerd"}), probe: "neighbours", state: Warn, says: "Docker"},
		{name: "usual network taken", spoil: map[string]string{"/proc/self/net/route": "wg0\t00002A0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"}, probe: "networks", state: OK, says: "10.42.0.0/16 is in use here (wg0)"},
		{name: "real asked, none there", opts: Options{GPUMode: "real"}, probe: "nvidia", state: Fail, says: "no NVIDIA card"},
		{name: "card without driver", spoil: card(nil), probe: "nvidia", state: Fail, says: "0000:01:00.0) without a driver"},
		{name: "card without driver, simulation asked", spoil: card(nil), opts: Options{GPUMode: "simulated"}, probe: "nvidia", state: Warn, says: "left alone"},
		{name: "nouveau", spoil: card(map[string]string{"/sys/bus/pci/devices/0000:01:00.0/driver": "->../../../../bus/pci/drivers/nouveau"}), probe: "nvidia", state: Fail, says: "driven by nouveau"},
		{name: "nouveau, no GPUs wanted", spoil: card(map[string]string{"/sys/bus/pci/devices/0000:01:00.0/driver": "->../../../../bus/pci/drivers/nouveau"}), opts: Options{GPUMode: "none"}, probe: "nvidia", state: Warn, says: "driven by nouveau"},
		{name: "mismatch", spoil: card(map[string]string{
			"/proc/driver/nvidia/version":                         "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n",
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07": "",
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":         "->libnvidia-ml.so.550.90.07",
		}), probe: "nvidia", state: Fail, says: "Reboot"},
		{name: "working card", spoil: card(map[string]string{
			"/proc/driver/nvidia/version":                         "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": "",
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":         "->libnvidia-ml.so.580.95.05",
		}), probe: "nvidia", state: OK, says: "driver 580.95.05"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := machine(t, test.spoil)
			if test.host != nil {
				test.host(&h)
			}
			opts := test.opts
			opts.DataDir = lab.DataDir
			for _, finding := range preflight(t.Context(), h, opts) {
				if finding.Probe != test.probe {
					if finding.State != OK && finding.State != Unseen {
						t.Errorf("unexpected finding: %+v", finding)
					}
					continue
				}
				if finding.State != test.state || !strings.Contains(finding.String(), test.says) {
					t.Errorf("got %s: %s\nwant %s with %q", finding.State, finding, test.state, test.says)
				}
				if finding.State == Fail && finding.Mend == "" {
					t.Errorf("no next step in: %s", finding)
				}
			}
		})
	}
}

// processList replaces the running programs.
func processList(list ...process) func(*host) {
	return func(h *host) { h.processes = func(string) ([]process, error) { return list, nil } }
}

// keptBySystemd lets systemd alone hold sockets, so many of them for gpulab.
func keptBySystemd(kept string) func(*host) {
	return func(h *host) {
		processList(process{1, "systemd", "/usr/lib/systemd/systemd"})(h)
		asked := h.output
		h.output = func(ctx context.Context, name string, args ...string) (string, error) {
			if slices.Contains(args, "--property=NFileDescriptorStore") {
				return kept, nil
			}
			return asked(ctx, name, args...)
		}
	}
}

// card adds an NVIDIA card on PCI, and what else is given.
func card(more map[string]string) map[string]string {
	files := map[string]string{
		"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
		"/sys/bus/pci/devices/0000:01:00.0/class":  "0x030000\n",
		// The sound device of the same card is no GPU.
		"/sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n",
		"/sys/bus/pci/devices/0000:01:00.1/class":  "0x040300\n",
	}
	for path, content := range more {
		files[path] = content
	}
	return files
}

// TestThisMachine runs the probes on the machine of the test, where a port is
// really taken: every probe answers, and the port's owner is this program.
func TestThisMachine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port

	findings := Preflight(t.Context(), Options{DataDir: t.TempDir(), Ports: []int{port}})
	for _, probe := range []string{"root", "system", "clock", "cgroups", "kernel", "commands", "memory", "disk", "address", "ports", "networks", "nvidia"} {
		if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Probe == probe && f.Seen != "" }) {
			t.Errorf("the probe %s said nothing", probe)
		}
	}
	at := slices.IndexFunc(findings, func(f Finding) bool { return f.Probe == "ports" })
	want := fmt.Sprintf("Port %d is taken by doctor.test (process %d).", port, os.Getpid())
	if findings[at].State != Fail || findings[at].Seen != want {
		t.Errorf("ports: got %s %q, want %q", findings[at].State, findings[at].Seen, want)
	}
}

// TestForeignAddress asks for an address that is reserved for documentation.
func TestForeignAddress(t *testing.T) {
	findings := Failures(Preflight(t.Context(), Options{DataDir: t.TempDir(), Address: "203.0.113.1", Ports: []int{}}))
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Probe == "address" }) {
		t.Errorf("an address of elsewhere was accepted: %v", findings)
	}
}

func TestParseListeners(t *testing.T) {
	table := "  sl  local_address rem_address   st\n" + sampleListener +
		"   1: 0100007F:1F90 0100007F:A0B0 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 x\n"
	listeners := parseListeners(table, "")
	if len(listeners) != 1 || !listeners[443]["4711"] {
		t.Errorf("got %v, want only the listening socket 4711 on %s", listeners, strconv.Itoa(443))
	}
}
