//go:build deb && vm

package deb

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// The second machine.
const (
	besideName    = "gpu-two"
	besideAddress = "10.98.0.2"
)

// TestVMPool is a lab of two virtual machines, with what containers have not: homes
// of the head that the other mounts over NFS, what goes between the two encrypted
// with WireGuard, and machines that are rebooted.
func TestVMPool(t *testing.T) {
	packages := current(t)
	ways := []emulator{kvm, userMode}
	head := bootVM(t, ways, "nfs-kernel-server", "nfs-common", "wireguard-tools", "tcpdump")
	p := &vmPool{life: life{machine: head}, beside: head.bootAs(t, ways, besideName, besideAddress)}
	for _, m := range []machine{head, p.beside} {
		m.put(packages, "/packages")
	}
	p.install = "apt-get -q -y install /packages/*.deb"
	p.tell(t, []chapter{
		{"install", (*life).installed},
		{"what the lab is to be", func(l *life) {
			l.run("mkdir -p /etc/gpulab; printf 'lab: VM lab\\nstorage:\\n  export: nfs\\nnetwork:\\n  encrypt: true\\n' >/etc/gpulab/config.yaml")
		}},
		{"first cell", (*life).firstCell},
		{"join", p.chapter(p.join)},
		{"encrypted", p.chapter(p.encrypted)},
		{"a notebook on the other machine", p.chapter(p.notebook)},
		{"a bad network", p.chapter(p.badNetwork)},
		{"the export is away", p.chapter(p.exportAway)},
		{"the other machine is rebooted", p.chapter(p.besideRebooted)},
		{"the head is rebooted", p.chapter(p.headRebooted)},
		{"no longer encrypted", p.chapter(p.opened)},
		{"encrypted anew while the other machine is off", p.chapter(p.encryptedAlone)},
		{"leave", p.chapter(p.left)},
	})
}

type vmPool struct {
	life
	beside machine
}

// chapter is one that has both machines.
func (p *vmPool) chapter(run func()) func(*life) {
	return func(l *life) {
		p.beside.t = l.t
		run()
	}
}

var joinCode = regexp.MustCompile(`gpulab join (\S+)`)

func (p *vmPool) join() {
	p.beside.run(p.install)
	code := joinCode.FindStringSubmatch(p.run("gpulab invite-node"))
	if code == nil {
		p.t.Fatal("no line to join with")
	}
	began := time.Now()
	p.t.Log(p.beside.run("gpulab join " + code[1] + " --gpus simulated"))
	p.t.Logf("in the pool %s after the line was entered", time.Since(began).Round(time.Second))
	p.t.Log(p.run("gpulab nodes"))
}

// Interfaces between the two machines, and what the kernel listens on for them.
const tunnels = `ls /sys/class/net | grep '^flannel'; ss -Hlun 'sport = :51820 or sport = :8472' | awk '{ sub(/.*:/, "", $4); print $4 }' | sort -u`

// encrypted: what pods say crosses the wire in WireGuard's packets alone.
func (p *vmPool) encrypted() {
	p.waitTunnels("flannel-wg", "51820")
	for file, filter := range map[string]string{"udp": "host " + besideAddress + " and udp", "pods": "net 10.42.0.0/16"} {
		p.run("tcpdump -Z root -U -q -n -i eth0 -w /root/" + file + ".pcap '" + filter + "' >/dev/null 2>/root/" + file + ".said & sleep 5; pgrep -f " + file + ".pcap >/dev/null || { cat /root/" + file + ".said; exit 1; }")
	}
	p.launchBeside("Wire")
	p.kernel.Run("import urllib.request; urllib.request.urlopen('http://packages.gpulab-system.svc/-/health').read()")
	p.run("pkill -x tcpdump || true; sleep 2")
	if got := p.run(`tcpdump -n -r /root/udp.pcap 2>/dev/null | awk '{ print $5 }' | sed -n 's/.*\.\([0-9]*\):$/\1/p' | sort -u`); got != "51820" {
		p.t.Errorf("packets between the machines go to UDP ports %q", got)
	}
	if got := p.run0("tcpdump -n -r /root/pods.pcap 2>/dev/null | head -n 3"); got != "" {
		p.t.Errorf("what pods say is on the wire: %s", got)
	}
	if got := p.run("wg show flannel-wg transfer | awk '$2 > 10000 && $3 > 10000 { n = 1 } END { print n+0 }'"); got != "1" {
		p.t.Errorf("WireGuard has carried nothing: %s", p.run("wg show flannel-wg"))
	}
}

// waitTunnels waits until both machines have this interface to each other alone.
func (p *vmPool) waitTunnels(link, port string) {
	p.t.Helper()
	for _, m := range []machine{p.machine, p.beside} {
		m.wait(2*time.Minute, "[ \"$("+tunnels+")\" = \"$(printf '"+link+"\\n"+port+"')\" ]")
	}
}

// launchBeside starts a notebook on the other machine, and a kernel in it.
func (p *vmPool) launchBeside(name string) {
	p.run("gpulab nodes cordon labhead --reason 'the other one is wanted'")
	defer p.run("gpulab nodes uncordon labhead")
	p.browser.Open(pages + "/")
	p.browser.Launch(pages, "gpu", name)
	p.browser.WaitJupyterLab(notebooksAt, handle)
	p.kernel = lab.NewKernel(p.browser)
	if got := p.run("gpulab kubectl -n user-" + handle + ` get pods --field-selector=status.phase=Running -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}'`); !regexp.MustCompile(strings.ToLower(name) + `\S* ` + besideName).MatchString(got) {
		p.t.Fatalf("the notebook is on %s", got)
	}
}

// notebook: homes are the head's, mounted over NFS, with the same owner.
func (p *vmPool) notebook() {
	if got := p.beside.run("findmnt -n -o FSTYPE /var/lib/gpulab/homes"); got != "nfs4" {
		p.t.Errorf("homes are mounted over %q", got)
	}
	p.kernel.Run("open('from-beside', 'w').write('written far from the disk')")
	if got := p.run("cat /var/lib/gpulab/homes/*/from-beside; stat -c ' %u' /var/lib/gpulab/homes/*/from-beside"); !strings.HasPrefix(got, "written far from the disk 2") {
		p.t.Errorf("on the head it is %q", got)
	}
}

// badNetwork: over a line that is slow, loses packets and mixes them up, the other
// machine stays in the pool and people go on working; without one, it is noticed.
func (p *vmPool) badNetwork() {
	const faults = "tc qdisc replace dev eth0 root netem "
	p.beside.run(faults + "delay 80ms 20ms loss 3% reorder 10% 50%")
	defer func() { _, _ = p.beside.try("tc qdisc del dev eth0 root") }()
	began := time.Now()
	for i := range 6 {
		if got := p.kernel.Run(fmt.Sprintf("open('slow', 'w').write('x' * 1000000); print(%d, len(open('slow').read()))", i)); got != fmt.Sprint(i, " 1000000") {
			p.t.Errorf("over a bad network a cell printed %q", got)
		}
		p.run(besideReady)
		time.Sleep(10 * time.Second)
	}
	p.t.Logf("six cells with 1 MB each to a home, and a minute, took %s", time.Since(began).Round(time.Second))
	p.beside.run("nohup sh -c 'sleep 2; " + faults + "loss 100%; sleep 60; tc qdisc del dev eth0 root' >/dev/null 2>&1 &")
	began = time.Now()
	p.wait(15*time.Second, "! "+besideReady)
	p.t.Logf("a cut line was noticed after %s", time.Since(began).Round(time.Second))
	p.wait(3*time.Minute, besideReady)
	p.browser.Open(notebooksAt + "/user/" + handle + "/wire/lab")
	p.browser.WaitJupyterLab(notebooksAt, handle)
	if got := p.kernel.Run("print(len(open('slow').read()))"); got != "1000000" {
		p.t.Errorf("after a cut line a cell printed %q", got)
	}
}

// exportAway: who writes waits, and nothing is lost.
func (p *vmPool) exportAway() {
	before := p.patience(10 * time.Second)
	p.kernel.Run(fmt.Sprintf(`import os, threading, time
def write():
    time.sleep(%d)
    with open('waits', 'w') as f:
        f.write('all of it')
        f.flush()
        os.fsync(f.fileno())
writing = threading.Thread(target=write, daemon=True)
writing.start()`, int(before.Seconds())))
	p.run("systemctl stop nfs-server")
	time.Sleep(before + time.Minute)
	if got := p.run0("cat /var/lib/gpulab/homes/*/waits 2>/dev/null"); got != "" {
		p.t.Errorf("without the head's export a cell wrote %q", got)
	}
	p.run("systemctl start nfs-server")
	p.wait(4*time.Minute, "test \"$(cat /var/lib/gpulab/homes/*/waits)\" = 'all of it'")
	p.browser.Open(notebooksAt + "/user/" + handle + "/wire/lab")
	p.browser.WaitJupyterLab(notebooksAt, handle)
	if got := p.kernel.Run("writing.join(60); print(writing.is_alive())"); got != "False" {
		p.t.Errorf("with the export back the cell still waits: %s", got)
	}
}

const besideReady = "gpulab nodes | grep -Eq '^" + besideName + " +node +ready '"

func (p *vmPool) besideRebooted() {
	was := p.beside.run(bootTime)
	began := time.Now()
	p.beside.run("systemctl reboot")
	p.wait(time.Minute, "! "+besideReady)
	p.t.Logf("noticed after %s", time.Since(began).Round(time.Second))
	p.beside.again(was)
	p.wait(3*time.Minute, besideReady)
	p.t.Logf("in the pool again after %s", time.Since(began).Round(time.Second))
	p.waitTunnels("flannel-wg", "51820")
	p.browser.Open(pages + "/")
	p.browser.WaitText("#mine", "Start again")
	p.launchBeside("After")
	if got := p.kernel.Run("print(open('waits').read())"); got != "all of it" {
		p.t.Errorf("after a reboot a notebook reads %q", got)
	}
}

// headRebooted: a kernel on the other machine goes on.
func (p *vmPool) headRebooted() {
	p.kernel.Run("kept = 6 * 7")
	was := p.run(bootTime)
	began := time.Now()
	p.run("systemctl reboot")
	p.again(was)
	p.ready(3 * time.Minute)
	p.wait(3*time.Minute, besideReady)
	p.t.Logf("the pool is there again after %s", time.Since(began).Round(time.Second))
	p.browser.Open(pages + "/")
	p.browser.WaitText("#mine", "After")
	p.browser.Open(notebooksAt + "/user/" + handle + "/after/lab")
	p.browser.WaitJupyterLab(notebooksAt, handle)
	if got := p.kernel.Run("print(kept, open('waits').read())"); got != "42 all of it" {
		p.t.Errorf("over a reboot of the head a kernel on the other machine kept %q", got)
	}
}

// opened: the head ends the encryption, and the other machine follows, with its
// notebook at work.
func (p *vmPool) opened() {
	p.run("sed -i 's/encrypt: true/encrypt: false/' /etc/gpulab/config.yaml && gpulab init --yes")
	p.waitTunnels("flannel.1", "8472")
	p.ready(2 * time.Minute)
	p.wait(2*time.Minute, besideReady)
	if got := p.kernel.Run("import urllib.request; print(kept, urllib.request.urlopen('http://packages.gpulab-system.svc/-/health').status)"); got != "42 200" {
		p.t.Errorf("without encryption a kernel on the other machine says %q", got)
	}
}

// encryptedAlone: a machine that was off follows when it is back.
func (p *vmPool) encryptedAlone() {
	p.beside.run("systemctl stop gpulab")
	p.run("sed -i 's/encrypt: false/encrypt: true/' /etc/gpulab/config.yaml && gpulab init --yes")
	p.wait(time.Minute, "! "+besideReady)
	p.beside.run("systemctl start gpulab")
	p.waitTunnels("flannel-wg", "51820")
	p.wait(3*time.Minute, besideReady)
	if got := p.kernel.Run("print(kept, urllib.request.urlopen('http://packages.gpulab-system.svc/-/health').status)"); got != "42 200" {
		p.t.Errorf("after both ends changed a kernel on the other machine says %q", got)
	}
}

// left: nothing of gpulab is left on the other machine, nor of its mounts.
func (p *vmPool) left() {
	p.beside.run("gpulab leave --yes && apt-get -q -y purge gpulab gpulab-images")
	for _, kept := range []string{"findmnt -n -t nfs4", "ls -d " + filepath.Join("/var/lib/gpulab", "*"), "ls /sys/class/net | grep -E 'flannel|cni'"} {
		if got := p.beside.run0(kept + " 2>/dev/null"); got != "" {
			p.t.Errorf("%s: %s", kept, got)
		}
	}
	if got := p.run("gpulab nodes"); strings.Contains(got, besideName) {
		p.t.Errorf("the head still knows of it:\n%s", got)
	}
}
