//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// attacks is what people try who have a notebook, with what is in it: Python,
// curl and raw sockets; and what others try from outside. It builds on "two
// notebooks".
var attacks = []chapter{
	{"a notebook's token", testNotebookToken, false},
	{"what a notebook reaches", testNotebookReaches, false},
	{"a notebook's first moment", testFirstMoment, false},
	{"what a notebook may do", testNoPrivileges, false},
	{"what the kernel shares", testKernelShares, false},
	{"past the rules by IPv6", testLinkLocal, false},
	{"stolen cookies", testStolenCookies, false},
	{"more than a namespace holds", testNamespaceHolds, false},
	{"a server of one's own", testOwnServer, false},
	{"a title with script in it", testTitleWithScript, false},
	{"from outside", testOutside, false},
	// Kubernetes notices after some time, in which others go on.
	{"more files than room", testHoard, false},
	{"a fork bomb", testForkBomb, false},
	{"the end of the hoard", testHoardEnds, false},
	{"a greedy notebook", testGreedyNotebook, false},
	{"what an admin allows", testAllowed, false},
}

// privileges tries what breaks out of a container, and tells how each ends.
const privileges = `import ctypes, errno, json, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
def write(path):
    os.close(os.open(path, os.O_WRONLY))
tries = {
    "raw Ethernet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "raw IP": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "a device file of a GPU": lambda: os.mknod("/tmp/card", 0o600 | stat.S_IFCHR, os.makedev(195, 1)),
    "a device file of a disk": lambda: os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
    "a user namespace": lambda: call("unshare", 0x10000000),
    "a mount namespace": lambda: call("unshare", 0x00020000),
    "a mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "root": lambda: os.setuid(0),
    "another group": lambda: os.setgroups([0]),
    "a file of root": lambda: os.chown("/tmp", 0, 0),
    "another root folder": lambda: os.chroot("/tmp"),
    "the clock": lambda: call("sethostname", b"mine", 4),
    "the kernel's log": lambda: call("klogctl", 3, ctypes.create_string_buffer(64), 64),
    "a program in the kernel": lambda: call("syscall", 321, 5, None, 0),
    "the kernel's switches": lambda: write("/proc/sysrq-trigger"),
    "the kernel's settings": lambda: write("/proc/sys/kernel/core_pattern"),
    "the network's settings": lambda: write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6"),
    "control groups": lambda: os.mkdir("/sys/fs/cgroup/mine"),
}
ended = {}
for name, attempt in tries.items():
    try:
        attempt()
        ended[name] = "done"
    except OSError as error:
        ended[name] = errno.errorcode[error.errno]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "Ended": ended,
    "Rights": {key: status[key].strip() for key in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")},
    "Owners": sorted({os.stat("/proc/" + p).st_uid for p in os.listdir("/proc") if p.isdigit()}),
    "Me": os.getuid(), "Outside": int(open("/proc/self/uid_map").read().split()[1]),
    "There": [p for p in (
        "/run/gpulab", "/var/lib/gpulab", "/etc/gpulab", "/run/k3s", "/run/containerd", "/var/run/docker.sock", "/var/lib/kubelet",
        "/var/lib/rancher", "/etc/rancher", "/run/flannel", "/host", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/loop0",
    ) if os.path.exists(p)],
    "Disks": sorted({line.split()[4] + (" read-only" if "ro" in line.split()[5].split(",") else "") for line in open("/proc/self/mountinfo") if line.split(" - ")[1].split()[0] in ("ext4", "xfs", "btrfs")}),
    "Cards": len([f for f in os.listdir("/dev") if f.startswith("nvidia") and f[6:].isdigit()]),
    "SharedMemory": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}))`

// testNoPrivileges: whether or not a notebook has a user namespace of its own,
// nothing that leads out of its container works. It has one where its pod asks for
// it, which one with a GPU never does.
func testNoPrivileges(t *testing.T, a *appliance) {
	for _, c := range []struct {
		who   string
		k     *kernel
		cards int
		half  float64 // of the profile's memory, in bytes
	}{{adminHandle, a.first.in(t), 1, 4 << 30}, {guestHandle, a.second.in(t), 0, 2 << 30}} {
		var got struct {
			Ended, Rights map[string]string
			Owners        []int
			Me, Outside   int // Outside is what the machine calls the container's user 0
			There, Disks  []string
			Cards         int
			SharedMemory  float64
		}
		text := c.k.run(t, privileges)
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for what, end := range got.Ended {
			if end == "done" {
				t.Errorf("%s got %s", c.who, what)
			}
		}
		const none = "0000000000000000"
		if want := (map[string]string{"CapEff": none, "CapPrm": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2"}); fmt.Sprint(got.Rights) != fmt.Sprint(want) {
			t.Errorf("%s has %v, want %v", c.who, got.Rights, want)
		}
		if !slices.Equal(got.Owners, []int{got.Me}) {
			t.Errorf("%s, who is %d, sees processes of %v", c.who, got.Me, got.Owners)
		}
		shares := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+c.who, "-l", "gpulab.dev/notebook", "-o", "jsonpath={.items[*].spec.hostUsers}")
		if own := got.Outside > 0; own != (shares == "false") || own && c.cards > 0 {
			t.Errorf("user 0 of %s's notebook, which is to share the machine's: %q, is %d outside", c.who, shares, got.Outside)
		}
		if len(got.There) > 0 {
			t.Errorf("%s sees of the machine %v", c.who, got.There)
		}
		for _, path := range got.Disks {
			if !slices.Contains([]string{"/home/" + c.who, "/tmp", "/scratch", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/opt/gpulab/environments read-only"}, path) && c.cards == 0 {
				t.Errorf("%s has something of the machine's disk at %s", c.who, path)
			}
		}
		if got.Cards != c.cards {
			t.Errorf("%s has %d GPUs in /dev, want %d", c.who, got.Cards, c.cards)
		}
		if got.SharedMemory < c.half*0.99 || got.SharedMemory > c.half*1.01 {
			t.Errorf("/dev/shm of %s has %.0f bytes, want %.0f", c.who, got.SharedMemory, c.half)
		}
	}
}

// testLinkLocal: an address that the kernel gives itself is no way around rules
// that are about others.
func testLinkLocal(t *testing.T, a *appliance) {
	if got := a.MustRun(a.ctx, "ip", "-6", "-o", "address", "show", "dev", "cni0"); got != "" {
		t.Errorf("the machine has addresses of IPv6 towards notebooks:\n%s", got)
	}
	a.first.in(t).run(t, `import socket; door6 = socket.create_server(("::", 40006), family=socket.AF_INET6)`)
	_, pod := a.podOf(t, adminHandle)
	address := a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+adminHandle, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	// What the attacker finds in /proc/net/arp after any try to connect.
	a.Run(a.ctx, "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/"+address+"/8888")
	var targets []string
	for _, look := range [][]string{{"sh", "-c", "cat /sys/class/net/cni0/address"}, {"sh", "-c", "ip neigh show " + address + " | sed 's/.*lladdr //; s/ .*//'"}} {
		mac, err := net.ParseMAC(strings.TrimSpace(a.MustRun(a.ctx, look[0], look[1:]...)))
		if err != nil {
			t.Fatal(err)
		}
		local := append(net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0}, mac[0]^2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5])
		targets = append(targets, local.String())
	}
	encoded, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.second.in(t).run(t, fmt.Sprintf(`import json, socket
reached = []
for address in json.loads(%q):
    for port in (443, 8443, 6443, 10250, 8888, 40006):
        with socket.socket(socket.AF_INET6) as s:
            s.settimeout(1)
            if s.connect_ex((address, port, 0, 2)) == 0 or s.connect_ex((address + "%%eth0", port)) == 0:
                reached.append((address, port))
print(reached, sorted({line.split()[-1] for line in open("/proc/net/if_inet6")}))`, encoded)); got != "[] ['lo']" {
		t.Errorf("what is reached by IPv6, and which interfaces have it: %s", got)
	}
}

// testStolenCookies: whoever gets hold of what Jupyter gives a browser, but not
// of the session with gpulab, has nothing.
func testStolenCookies(t *testing.T, a *appliance) {
	owner := signIn(t, a, adminHandle, adminPassword)
	visit := *owner
	// For browsers, who redirects is no referrer.
	visit.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		r.Header.Del("Referer")
		return nil
	}
	path := a.notebooksOf(t, adminHandle) + notebookPath(a.browser.For(t))
	if status, _, _ := request(t, &visit, "GET", path+"lab", nil); status != http.StatusOK {
		t.Fatalf("the owner gets status %d", status)
	}
	where := mustURL(t, path)
	var stolen []*http.Cookie
	for _, c := range owner.Jar.Cookies(where) {
		if !strings.HasPrefix(c.Name, "__Host-") {
			stolen = append(stolen, &http.Cookie{Name: c.Name, Value: c.Value, Path: "/"})
		}
	}
	if !slices.ContainsFunc(stolen, func(c *http.Cookie) bool { return strings.HasPrefix(c.Name, "jupyterhub-user") }) {
		t.Fatalf("the owner has no cookie of the notebook: %v", stolen)
	}
	nobody := a.HTTPClient(a.ca)
	for who, thief := range map[string]*http.Client{"nobody": nobody, guestHandle: signIn(t, a, guestHandle, guestPassword)} {
		if thief.Jar == nil {
			thief.Jar, _ = cookiejar.New(nil)
		}
		for _, with := range []string{"without the cookies", "with the cookies"} {
			for _, what := range []string{"api/contents", "lab", "api/kernels"} {
				status, body, _ := request(t, thief, "GET", path+what, nil)
				if status == http.StatusOK {
					t.Errorf("%s, %s, gets %s of %s:\n%.300s", who, with, what, adminHandle, body)
				}
			}
			thief.Jar.SetCookies(where, stolen)
		}
	}
}

// testNamespaceHolds: what Kubernetes itself refuses in a person's namespace,
// also to somebody who found a way to ask.
func testNamespaceHolds(t *testing.T, a *appliance) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: probe, namespace: user-` + guestHandle + `}
spec:%s
  securityContext: {runAsNonRoot: true, runAsUser: 30000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: probe
      image: %s
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}%s}
      resources: {limits: {%s}}
`
	apply := func(manifest string) lab.Result {
		a.WriteFile("/root/manifest.yaml", manifest)
		return a.Gpulab(a.ctx, "kubectl", "apply", "--dry-run=server", "-o", "json", "-f", "/root/manifest.yaml")
	}
	image := a.notebookImage(t)
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: door, namespace: user-" + guestHandle + "}\nspec: {type: %s, selector: {a: b}, ports: [{port: 80}]}\n"
	for what, c := range map[string][2]string{
		"a port of the machine":  {fmt.Sprintf(service, "NodePort"), "exceeded quota"},
		"a service":              {fmt.Sprintf(service, "ClusterIP"), "exceeded quota"},
		"the machine's programs": {fmt.Sprintf(pod, "\n  hostPID: true", image, "", ""), "violates PodSecurity"},
		"root":                   {fmt.Sprintf(pod, "", image, ", runAsUser: 0", ""), "violates PodSecurity"},
		"no filter of calls":     {fmt.Sprintf(pod, "", image, ", seccompProfile: {type: Unconfined}", ""), "violates PodSecurity"},
		"the machine's network":  {fmt.Sprintf(pod, "\n  hostNetwork: true", image, "", ""), "violates PodSecurity"},
		"the machine's files":    {fmt.Sprintf(pod, "\n  volumes: [{name: h, hostPath: {path: /}}]", image, "", ""), "violates PodSecurity"},
		"all memory there is":    {fmt.Sprintf(pod, "", image, "", "memory: 100Ti"), "maximum memory usage per Container"},
		"all disk there is":      {fmt.Sprintf(pod, "", image, "", "ephemeral-storage: 100Ti"), "maximum ephemeral-storage usage per Container"},
		"all processors thrice":  {fmt.Sprintf(pod, "", image, "", "cpu: 3000"), "maximum cpu usage per Container"},
		"a home of one's choice": {"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: mine, namespace: user-" + guestHandle + "}\nspec: {accessModes: [ReadWriteMany], resources: {requests: {storage: -1}}}\n", "must be greater than"},
	} {
		if result := apply(c[0]); result.Code == 0 || !strings.Contains(result.Stderr, c[1]) {
			t.Errorf("%s: exit code %d, want %q: %.500s", what, result.Code, c[1], result.Stderr)
		}
	}
	var made struct {
		Spec struct {
			Containers []struct {
				Resources struct{ Limits, Requests map[string]string }
			}
		}
	}
	result := apply(fmt.Sprintf(pod, "", image, "", ""))
	if err := json.Unmarshal([]byte(result.Stdout), &made); err != nil || len(made.Spec.Containers) != 1 {
		t.Fatalf("a pod without limits: %v\n%s%s", err, result.Stdout, result.Stderr)
	}
	limits := made.Spec.Containers[0].Resources.Limits
	for _, resource := range []string{"cpu", "memory", "ephemeral-storage"} {
		if limits[resource] == "" {
			t.Errorf("a pod without limits gets %v", limits)
		}
	}
}

// testTitleWithScript: what somebody calls a notebook is text to everybody.
func testTitleWithScript(t *testing.T, a *appliance) {
	const title = `<img src=x onerror=document.title='mine'><script>document.title='mine'</script>`
	b := a.guest.For(t).Tab()
	launch(b, "cpu", title)
	b.WaitText("main", "<script>")
	progress := b.Location()
	waitJupyterLab(b, guestHandle)
	b.Open(pages + "/")
	b.WaitText("#mine", "<script>")
	admin := a.browser.For(t).Tab()
	for _, page := range []string{"/", "/gpus", progress[len(pages):], "/audit"} {
		admin.Open(pages + page)
		for _, b := range []*lab.Browser{admin, b} {
			if got := lab.Evaluate[string](b, `async () => document.title`); got == "mine" {
				t.Errorf("the script in a title ran on %s", b.Location())
			}
		}
	}
	b.Open(progress)
	b.Click("#launch-actions", "Stop")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "script")
}

// heartbeat asks a person's notebook server and gpulab's home page again and
// again until stop is closed, and returns how long the answers took, sorted.
func heartbeat(t *testing.T, a *appliance, stop <-chan struct{}) (took []time.Duration) {
	t.Helper()
	client := signIn(t, a, adminHandle, adminPassword)
	for {
		for _, address := range []string{a.notebooksOf(t, adminHandle) + notebookPath(a.browser.For(t)) + "api", pages + "/"} {
			began := time.Now()
			if status, body, _ := request(t, client, "GET", address, nil); status != http.StatusOK {
				t.Errorf("%s: status %d\n%.300s", address, status, body)
			}
			took = append(took, time.Since(began))
		}
		select {
		case <-stop:
			return took
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// answering judges how long answers took while somebody did their worst: half
// of them come as if nothing were, and nobody waits in vain. The room is wide,
// since other labs may be at work on the same machine.
func answering(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	median, slowest := took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond)
	t.Logf("%d answers beside %s: median %s, slowest %s", len(took), what, median, slowest)
	if median > 2*time.Second || slowest > 20*time.Second {
		t.Errorf("beside %s answers took %s in the middle and %s at most", what, median, slowest)
	}
}

// podGroup prints a file of the pod's own control group, whichever version of
// them the host has and whoever made it.
const podGroup = `for f in $(find /sys/fs/cgroup -path "*pod*" -name "$1"); do
	d=$(basename "$(dirname "$f")"); case "$(echo "$d" | tr _ -)" in *pod"$0"|*pod"$0".slice) cat "$f"; exit;; esac; done; exit 1`

// podUIDs are the UIDs of somebody's notebooks, by name.
func (a *appliance) podUIDs(t *testing.T, handle string) map[string]string {
	t.Helper()
	uids := map[string]string{}
	for _, pod := range strings.Fields(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+handle, "get", "pods", "-l", "app.kubernetes.io/component=notebook",
		"-o", `jsonpath={range .items[*]}{.metadata.labels.gpulab\.dev/notebook}={.metadata.uid} {end}`)) {
		name, uid, _ := strings.Cut(pod, "=")
		uids[name] = uid
	}
	return uids
}

// testForkBomb: a notebook has as many processes as a pod may have, and its
// neighbours do not notice.
func testForkBomb(t *testing.T, a *appliance) {
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Bomb")
	waitJupyterLab(b, guestHandle)
	k := newKernel(b)
	uid := a.podUIDs(t, guestHandle)["bomb"]
	count := func(file string) int {
		n, err := strconv.Atoi(strings.TrimSpace(a.Run(a.ctx, "sh", "-c", podGroup, uid, file).Stdout))
		if err != nil {
			t.Fatalf("%s of the pod %s: %v", file, uid, err)
		}
		return n
	}
	const most = 4096
	if got := count("pids.max"); got != most {
		t.Errorf("the pod may have %d processes, want %d", got, most)
	}
	k.run(t, `import subprocess; bomb = subprocess.Popen(["bash", "-c", "b() { b | b & }; b; sleep 600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)`)
	stop := make(chan struct{})
	var reached int
	go func() {
		defer close(stop)
		began := time.Now()
		for end := began.Add(20 * time.Second); time.Now().Before(end) || reached < most/2 && time.Since(began) < 2*time.Minute; time.Sleep(500 * time.Millisecond) {
			n, _ := strconv.Atoi(strings.TrimSpace(a.Run(a.ctx, "sh", "-c", podGroup, uid, "pids.current").Stdout))
			reached = max(reached, n)
		}
	}()
	answering(t, "a fork bomb", heartbeat(t, a, stop))
	t.Logf("up to %d processes", reached)
	if reached < most/2 || reached > most {
		t.Errorf("the bomb had up to %d processes, want more than %d and at most %d", reached, most/2, most)
	}
	if got := a.first.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the neighbour's variable is %q", got)
	}
	home := a.guest.For(t).Tab()
	home.Open(pages + "/")
	home.Click("#mine", "Stop Bomb")
	home.Click("dialog[open]", "Stop")
	waitGone(home, "Bomb")
}

// testHoard: somebody writes more beside the home than there is room for.
func testHoard(t *testing.T, a *appliance) {
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Hoard")
	a.hoard = b.Location()
	waitJupyterLab(b, guestHandle)
	newKernel(b).run(t, `import os
with open("/tmp/hoard", "wb") as f:
    os.posix_fallocate(f.fileno(), 0, 21 << 30)`)
	b = a.guest.For(t).Tab()
	launch(b, "cpu", "Crowd")
	a.crowd = b.Location()
	waitJupyterLab(b, guestHandle)
	newKernel(b).run(t, `import subprocess, sys
crowd = subprocess.Popen([sys.executable, "-c", """
import os
for d in range(700):
    os.mkdir(f"/scratch/{d}")
    for n in range(1000):
        os.mknod(f"/scratch/{d}/{n}")
"""])`)
}

// testHoardEnds: that ends their own notebook, and they are told why.
func testHoardEnds(t *testing.T, a *appliance) {
	home := a.guest.For(t).Tab()
	home.Open(a.hoard)
	home.WaitText("main", "20 GiB")
	home.Open(a.crowd)
	home.WaitText("main", "files and folders outside of its home")
	a.eventually(t, "only the first notebooks are left", func() bool { return strings.Count(a.notebookPods(t), "\n") == 2 })
	a.checkKept(t, a.notebookPods(t))
}

// testAllowed: private addresses open for whom the configuration names them,
// the others stay closed, and notebooks find the proxy.
func testAllowed(t *testing.T, a *appliance) {
	const everybodys, groups, proxy = "192.168.77.1", "192.168.78.1", lab.VisitorAddress + ":3128"
	for _, address := range []string{everybodys, groups} {
		a.MustRunVisitor(a.ctx, "ip", "address", "add", address+"/32", "dev", "br0")
		t.Cleanup(func() { a.MustRunVisitor(a.ctx, "ip", "address", "del", address+"/32", "dev", "br0") })
		for _, port := range []string{"8080", "8081"} {
			listener, err := a.Listen("tcp", net.JoinHostPort(address, port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
		}
	}
	listener, err := a.Listen("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "by proxy to %s", r.URL.Host) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })

	k := a.second.in(t)
	try := fmt.Sprintf(connect, fmt.Sprintf(`[["%[1]s", 8080], ["%[1]s", 8081], ["%[2]s", 8080], ["%[3]s", 3128]]`, everybodys, groups, lab.VisitorAddress))
	reaches := func() string { return k.run(t, try) }
	if got := reaches(); got != "[false, false, false, false]" {
		t.Errorf("before anything is allowed: %s", got)
	}
	pods := a.notebookPods(t)
	a.MustRun(a.ctx, "sed", "-i", `/^network:/,/^$/ {
		s|^  allow: .*|  allow: [{name: licences, to: `+everybodys+`, ports: [8080]}, {name: nas, to: `+groups+`, groups: [vision]}]|
		s|^  proxy: .*|  proxy: http://`+proxy+`|
	}`, "/etc/gpulab/config.yaml")
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.eventually(t, "what everybody may reach is open", func() bool { return reaches() == "[true, false, false, true]" })
	for _, c := range a.status(t).Components {
		if c.Name == "network" && (c.State != "warning" || !strings.Contains(c.Detail, "no group vision")) {
			t.Errorf("without the group, status says %q: %s", c.State, c.Detail)
		}
	}
	a.MustGpulab(a.ctx, "group", "add", "vision")
	a.MustGpulab(a.ctx, "group", "member", "add", "vision", guestHandle)
	began := time.Now()
	a.eventually(t, "a new member reaches what is the group's", func() bool { return reaches() == "[true, false, true, true]" })
	t.Logf("open for a new member after %s", time.Since(began).Round(100*time.Millisecond))
	a.MustGpulab(a.ctx, "group", "member", "remove", "vision", guestHandle)
	a.eventually(t, "it is closed to one who left", func() bool { return reaches() == "[true, false, false, true]" })
	a.checkKept(t, pods)

	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Proxied")
	waitJupyterLab(b, guestHandle)
	got := newKernel(b).run(t, `import os, urllib.request
print(urllib.request.urlopen("http://pypi.example/simple", timeout=10).read().decode())
print(all(os.environ[n] == "http://`+proxy+`" for n in ("HTTP_PROXY", "https_proxy")), "svc" in os.environ["NO_PROXY"])`)
	if got != "by proxy to pypi.example\nTrue True" {
		t.Errorf("through the proxy: %s", got)
	}
	// Of gpulab's own programs only containerd, which fetches images, is told of it.
	for program, want := range map[string]bool{"containerd": true, "k3s.*": false, "gpulab.*": false} {
		environment := a.MustRun(a.ctx, "sh", "-c", "for p in $(pgrep -x '"+program+"'); do tr '\\0' '\\n' </proc/$p/environ; done; pgrep -x '"+program+"'")
		if got := strings.Contains(environment, "\nHTTPS_PROXY=http://"+proxy+"\n"); got != want {
			t.Errorf("%s is told of the proxy: %v, want %v\n%s", program, got, want, environment)
		}
	}
	page := a.guest.For(t).Tab()
	page.Open(pages + "/network")
	page.WaitText("main", "licences")
	if text := page.Text("main"); strings.Contains(text, "nas") || !strings.Contains(text, (&url.URL{Scheme: "http", Host: proxy}).String()) {
		t.Errorf("the page says\n%s", text)
	}
	page.Pictures("network")
}
