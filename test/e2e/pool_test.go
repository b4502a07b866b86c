//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/test/lab"
)

// TestPool is a lab of two machines: the second joins by the printed line, works
// with the first, and is removed with nothing left on it.
//
//test:about internal/nodes internal/nodeapi internal/fleet
func TestPool(t *testing.T) {
	t.Parallel()
	p := &pool{}
	fresh(t).live(t, []chapter{
		{"set up", p.setUp, true},
		{"codes", p.refusedCodes, false},
		{"join", p.join, true},
		{"used code", p.usedCode, false},
		{"join again", p.joinAgain, false},
		{"images from the head", p.images, false},
		{"doctor of a machine", p.doctor, false},
		{"GPUs of both", p.gpusOfBoth, true},
		{"a notebook on each", p.notebooks, true},
		{"removed", p.removed, false},
	})
}

// TestPoolPlacing is a pool whose admins say what runs where: machines take no new
// work, are for some people or for some notebooks only, and are emptied.
//
//test:about internal/nodes internal/queue internal/notebooks
func TestPoolPlacing(t *testing.T) {
	t.Parallel()
	a, p := readyPool(t)
	a.live(t, []chapter{
		{"a notebook on each", p.notebooks, true},
		{"the page of the machines", p.machinesPage, false},
		{"no new work", p.noNewWork, false},
		{"what machines are called", p.renamed, false},
		{"a machine without GPUs", p.withoutGPUs, false},
		{"emptied", p.emptied, true},
	})
}

// TestPoolEnvironments is a pool whose machines share environments.
//
//test:about internal/environments
func TestPoolEnvironments(t *testing.T) {
	t.Parallel()
	a, p := readyPool(t)
	a.live(t, []chapter{
		{"a notebook on each", p.notebooks, true},
		{"environments on both", p.environments, false},
	})
}

// TestPoolTrust is a pool that believes a machine only what that machine may say,
// and works with one of the next release.
//
//test:about internal/nodes internal/nodeapi internal/version
func TestPoolTrust(t *testing.T) {
	t.Parallel()
	a, p := readyPool(t)
	a.live(t, []chapter{
		{"a notebook on each", p.notebooks, true},
		{"a stolen certificate", p.stolen, false},
		{"a machine gone bad", p.goneBad, false},
		{"another version", p.anotherVersion, false},
		{"memory", p.memory, false},
	})
}

// TestPoolFaults is a pool whose second machine is hard to reach, dies, moves and
// comes back. Its notebook lives through that, and after it the machine is removed
// with nothing left on it.
//
//test:about internal/nodeapi internal/fleet internal/embedk8s
func TestPoolFaults(t *testing.T) {
	t.Parallel()
	a, p := readyPool(t)
	a.live(t, []chapter{
		{"a notebook on each", p.notebooks, true},
		{"bad network", p.badNetwork, false},
		{"agent killed", p.agentKilled, false},
		{"the machine moves", p.machineMoves, false},
		{"machine lost", p.lost, true},
		{"removed", p.removed, false},
	})
}

// TestPoolWithHomesOnTheHead is a lab whose homes lie on the head's own disk:
// what the other machine has is seen, and notebooks stay where homes are.
//
//test:about internal/nodes internal/nodeapi
func TestPoolWithHomesOnTheHead(t *testing.T) {
	t.Parallel()
	p := &pool{}
	fresh(t).live(t, []chapter{
		{"set up", p.setUpLocal, true},
		{"join", p.joinLocal, true},
		{"notebooks stay", p.notebooksStay, false},
		{"leave", p.leave, true},
		{"found on the network", p.found, true},
		{"the head moves", p.headMoves, false},
		{"the head is found by its name", p.headFound, false},
	})
}

// TestPoolWithHomesOverNFS is a lab whose head exports the homes on its disk, and
// whose other machine mounts them. The kernel here may have no NFS: what stands in
// for it is the lowest layer, the programs exportfs and mount.nfs4.
//
//test:gate
func TestPoolWithHomesOverNFS(t *testing.T) {
	t.Parallel()
	p := &pool{}
	fresh(t).live(t, []chapter{
		{"set up", p.setUpExport, true},
		{"join", p.joinExport, true},
		{"two GPUs at once", p.twoAtOnce, true},
		{"a notebook on each", p.notebooks, true},
		{"leave", p.leaveExport, false},
	})
}

// pool is the lab's second machine, and what the chapters leave each other.
type pool struct {
	head   string // the name of the first machine
	node   *lab.Lab
	before lab.Snapshot // of the second machine, when it has its storage
	code   string       // with which it joined
	shared string       // the lab's storage, as this machine sees it
	cut    bool         // a part of an image was under way when it was killed
	// The first notebook on the head, the second on the node.
	kernels map[string]*kernel
	pods    map[string]poolPod
	token   string // of the admin's, see api
}

type poolPod struct{ Name, Namespace, UID, Node string }

const (
	nodeName    = "gpu-two"
	nodeAddress = "10.99.0.2"
	nodesDoor   = lab.Address + ":8444"
	sharedPath  = "/srv/lab" // where both machines have the lab's storage
)

const poolConfig = `
lab: Pool lab
gpus: simulated
simulatedGPUs: 1
storage:
  shared: ` + sharedPath + `
profiles:
  - slug: cpu
    title: CPU notebook
  - slug: gpu
    title: GPU notebook
    gpus: 1
  - slug: torch
    title: PyTorch notebook
    image: ` + torchImage + `
network:
  allow:
    - name: the wire
      to: 10.99.0.0/24
      ports: [9999]
environments:
  index: ` + indexURL + `
`

// mountShared gives a machine the storage that all have at the same path.
func (p *pool) mountShared(a *appliance, on *lab.Lab) { on.MountShared(a.ctx, p.shared, sharedPath) }

func (p *pool) setUp(t *testing.T, a *appliance) {
	p.shared = lab.SharedFolder(a.lifeOf)
	a.WriteFile("/etc/gpulab/config.yaml", poolConfig)
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code == 0 || !strings.Contains(result.Stderr, "the lab's storage is not at /srv/lab on this machine") {
		t.Errorf("init without the storage: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	p.mountShared(a, a.Lab)
	testSetUp(t, a)
	if a.Run(a.ctx, "sh", "-c", "ss -ltn | grep -q :8444").Code == 0 {
		t.Error("the door for machines is open, and nobody was invited")
	}
	p.second(t, a)
	p.mountShared(a, p.node)
	hideImages(a, p.node)
	p.before = p.node.Snapshot(a.ctx)
}

// second makes the machine that joins, and asks for the name of the one that is there.
func (p *pool) second(t *testing.T, a *appliance) {
	p.head = p.nodes(t, a).Nodes[0].Name
	p.node = a.beside(a.lifeOf, nodeName, nodeAddress)
}

// hideImages makes a machine one on which the package gpulab-images is not: what
// it needs it gets from the head.
func hideImages(a *appliance, on *lab.Lab) {
	on.MustRun(a.ctx, "mount", "-t", "tmpfs", "none", filepath.Join(filepath.Dir(a.Binary()), "images"))
}

type invitation struct {
	Command, Code string
	Expires       time.Time
	Addresses     []string
}

func (p *pool) invite(t *testing.T, a *appliance) invitation {
	t.Helper()
	var i invitation
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "invite-node", "--json")), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// refused checks that a code is refused on a machine, with its sentence, and
// leaves nothing half-joined.
func refused(t *testing.T, a *appliance, on *lab.Lab, code, says string, args ...string) {
	t.Helper()
	checkFailure(t, on.Run(a.ctx, on.Binary(), append([]string{"join", code}, args...)...), exitPreflight, says)
	if on.Run(a.ctx, "test", "-e", "/etc/gpulab/node.json").Code == 0 {
		t.Errorf("after a refusal (%s) the machine has joined by half", says)
	}
}

func (p *pool) refusedCodes(t *testing.T, a *appliance) {
	i := p.invite(t, a)
	if left := time.Until(i.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("a code works for %s", left)
	}
	if i.Command != "gpulab join "+i.Code || !slices.Contains(i.Addresses, nodesDoor) {
		t.Errorf("%+v", i)
	}
	refused(t, a, p.node, i.Code[:len(i.Code)-5], "is not whole")
	refused(t, a, a.Lab, i.Code, "this machine is the head of a lab itself")
	code, err := nodes.ParseCode(i.Code)
	if err != nil {
		t.Fatal(err)
	}
	foreign, unknown := code, code
	foreign.Authority[3]++
	unknown.Secret[3]++
	refused(t, a, p.node, foreign.String(), "not the lab that made this code")
	refused(t, a, p.node, unknown.String(), "this lab has not made that join code")
	refused(t, a, p.node, i.Code, "choose another name", "--name", p.head)
	a.MustRun(a.ctx, "python3", "-c", `import sqlite3
db = sqlite3.connect("/var/lib/gpulab/gpulab.db", timeout=10)
db.execute("UPDATE join_codes SET expires_at = created_at + 1")
db.commit()`)
	open, err := nodes.ParseCode(p.invite(t, a).Code) // without an open invitation, the door closes
	if err != nil {
		t.Fatal(err)
	}
	refused(t, a, p.node, i.Code, "has expired")
	a.MustGpulab(a.ctx, "nodes", "withdraw", fmt.Sprintf("%x", open.ID))
	if got := a.MustGpulab(a.ctx, "audit", "list", "--action", "node.refused"); strings.Count(got, "node.refused")+strings.Count(got, "did not let a machine in") == 0 {
		t.Errorf("the audit log does not tell of refusals:\n%s", got)
	}
}

// poolNodes is what `gpulab nodes --json` tells.
type poolNodes struct {
	Nodes []struct {
		Name, Role, State, Version, Address, Detail string
		OtherVersion                                bool
		GPUs                                        int
		LastContact                                 time.Time
	}
	Note string
}

func (p *pool) nodes(t *testing.T, a *appliance) poolNodes {
	t.Helper()
	var n poolNodes
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "nodes", "--json")), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// state is how the head calls the second machine, "" where it does not know it.
func (p *pool) state(t *testing.T, a *appliance) string {
	t.Helper()
	for _, n := range p.nodes(t, a).Nodes {
		if n.Name == nodeName {
			return n.State
		}
	}
	return ""
}

// imageParts is where containerd keeps parts of images, in ingest those under way.
const imageParts = "/var/lib/gpulab/k3s/agent/containerd/io.containerd.content.v1.content/"

// joinCutShort lets the machine join, and kills all of gpulab there while the head
// hands over a large part of an image.
func (p *pool) joinCutShort(t *testing.T, a *appliance) {
	var out bytes.Buffer
	cmd := p.node.Command(a.ctx, p.node.Binary(), "join", p.code)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	p.node.MustRun(a.ctx, "sh", "-c", `for i in $(seq 6000); do
		for part in `+imageParts+`ingest/*; do
			have=$(stat -c %s "$part/data" 2>/dev/null) && all=$(cat "$part/total" 2>/dev/null) || continue
			[ "$have" -gt 4000000 ] && [ $((2 * have)) -lt "$all" ] && exit
		done; sleep 0.02; done; exit 1`)
	p.node.Kill(a.ctx, "KILL", "gpulab")
	<-ended
	// On a fast wire the part may have come to its end before the kill did.
	p.cut = p.node.MustRun(a.ctx, "sh", "-c", `for part in `+imageParts+`ingest/*; do
		[ -s "$part/data" ] && [ "$(stat -c %s "$part/data")" -lt "$(cat "$part/total")" ] && echo "$part"; done; true`) != ""
	t.Logf("killed while images came, with a part cut short: %t\n%s", p.cut, out.String())
}

func (p *pool) join(t *testing.T, a *appliance) {
	p.code = p.invite(t, a).Code
	p.joinCutShort(t, a)
	cmd := p.node.Command(a.ctx, p.node.Binary(), "join", "-")
	cmd.Stdin = strings.NewReader("gpulab join " + p.code + "\n")
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(nodeName+" is in the pool of Pool lab after")) {
		t.Fatalf("join: %v\n%s", err, out)
	}
	t.Logf("from the kill to the pool: %s\n%s", time.Since(began).Round(100*time.Millisecond), out)
	if p.cut && p.node.Run(a.ctx, "grep", "-rq", "a part of an image goes on where it stopped", "/var/lib/gpulab/log").Code != 0 {
		t.Error("a part of an image that was cut short has begun anew")
	}
	list := p.nodes(t, a)
	if len(list.Nodes) != 2 || list.Nodes[0].Role != "head" || list.Note != "" {
		t.Fatalf("%+v", list)
	}
	if n := list.Nodes[1]; n.Name != nodeName || n.State != "ready" || n.Address != nodeAddress || n.GPUs != 1 || time.Since(n.LastContact) > 5*time.Second {
		t.Errorf("%+v", n)
	}
	t.Log(a.MustGpulab(a.ctx, "nodes"))
	if result := p.node.Gpulab(a.ctx, "user", "list"); result.Code == 0 || !strings.Contains(result.Stderr, "run this on its head") {
		t.Errorf("a command of the head's on the node: %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	if result := p.node.Gpulab(a.ctx, "status"); result.Code != 0 || !strings.Contains(result.Stdout, "connected for") {
		t.Errorf("status on the node: %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	checkFailure(t, p.node.Gpulab(a.ctx, "init", "--yes"), exitPreflight, "belongs to the pool of Pool lab")
}

// goneBad: with the credentials that Kubernetes gave it, a machine changes nothing of others, and makes no pods that look
// like the lab's.
func (p *pool) goneBad(t *testing.T, a *appliance) {
	const agent = "/var/lib/gpulab/k3s/agent/"
	try := func(as, input string, args ...string) lab.Result {
		cmd := p.node.Command(a.ctx, "/var/lib/gpulab/bin/current/kubectl", append([]string{"--cache-dir", "/var/lib/gpulab/kubectl", "--kubeconfig", agent + as + ".kubeconfig"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		result := lab.Result{Stderr: string(out)}
		if err != nil {
			result.Code = 1
		}
		return result
	}
	const controller, kubelet = "k3scontroller", "kubelet"
	uid := strings.TrimSpace(a.MustGpulab(a.ctx, "kubectl", "get", "node", nodeName, "-o", "jsonpath={.metadata.uid}"))
	hub := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub-false", "namespace": "gpulab-system",
		"labels": {"app.kubernetes.io/component": "hub"}, "annotations": {"kubernetes.io/config.mirror": "1"},
		"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "` + nodeName + `", "uid": "` + uid + `", "controller": true}]},
		"spec": {"nodeName": "` + nodeName + `", "automountServiceAccountToken": false, "enableServiceLinks": false,
		"containers": [{"name": "hub", "image": "gpulab.local/hub"}]}}`
	for _, attack := range []struct {
		as, input, says string
		args            []string
	}{
		{controller, "", "cannot patch", []string{"label", "node", nodeName, "node-role.kubernetes.io/control-plane=true"}},
		{controller, "", "cannot patch", []string{"label", "node", p.head, "node-role.kubernetes.io/control-plane-"}},
		{controller, "", "cannot", []string{"get", "secrets", "-A"}},
		{kubelet, "", "not allowed", []string{"label", "node", nodeName, "node-role.kubernetes.io/control-plane=true"}},
		{kubelet, "", "cannot", []string{"label", "node", p.head, "x=y"}},
		{kubelet, "", "cannot list", []string{"get", "secrets", "-A"}},
		{kubelet, "", "no relationship", []string{"get", "secret", "-n", "kube-system", p.head + ".node-password.k3s"}},
		{kubelet, hub, "a machine makes no pods", []string{"create", "-f", "-"}},
	} {
		if r := try(attack.as, attack.input, attack.args...); r.Code == 0 || !strings.Contains(r.Stderr, attack.says) {
			t.Errorf("as %s, %v: %d\n%s", attack.as, attack.args, r.Code, r.Stderr)
		}
	}
	// The same by way of the status, which its network of pods may write.
	for change, says := range map[string]string{
		`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":null}}}`: "changes no labels",
		`{"metadata":{"annotations":{"k3s.io/node-args":"x"}}}`:                  "changes no annotations",
		`{"status":{"capacity":{"cpu":"1k"}}}`:                                   "changes nothing of a node's status",
	} {
		out := p.node.MustRun(a.ctx, "curl", "-sk", "--cert", agent+"client-k3s-controller.crt", "--key", agent+"client-k3s-controller.key", "-X", "PATCH",
			"-H", "Content-Type: application/strategic-merge-patch+json", "-d", change, "https://"+lab.Address+":6443/api/v1/nodes/"+p.head+"/status")
		if !strings.Contains(out, says) {
			t.Errorf("%s: %s", change, out)
		}
	}
}

// memory prints what gpulab takes on the node besides k3s, in MB (10⁶ bytes) of
// its share of pages (PSS).
func (p *pool) memory(t *testing.T, a *appliance) {
	for _, name := range []string{"gpulab", "gpulab-probe"} {
		got := p.node.MustRun(a.ctx, "sh", "-c", `for p in $(pgrep -x `+name+`); do awk '/^Pss(|_Anon|_File):/ { print $1, $2 * 1024 / 1e6 }' /proc/$p/smaps_rollup; done`)
		if strings.TrimSpace(got) == "" {
			t.Errorf("%s does not run on the node", name)
		}
		t.Logf("memory of %s on the node, MB: %s", name, strings.Join(strings.Fields(got), " "))
	}
}

// usedCode: a third machine finds the code used up, is told that it lacks the
// lab's storage, and, as a copy of the second's disk, that it is one.
func (p *pool) usedCode(t *testing.T, a *appliance) {
	third := a.beside(t, "gpu-three", "10.99.0.3")
	refused(t, a, third, p.code, "has been used")
	fresh := p.invite(t, a).Code
	refused(t, a, third, fresh, "the lab's storage is not at /srv/lab on this machine")
	p.mountShared(a, third)
	refused(t, a, third, fresh, "is in the pool already", "--name", nodeName)
	id, err := os.ReadFile(p.node.Path("/etc/machine-id"))
	if err != nil {
		t.Fatal(err)
	}
	third.WriteFile("/etc/machine-id", string(id))
	refused(t, a, third, fresh, "same machine-id as "+nodeName)
}

func (p *pool) joinAgain(t *testing.T, a *appliance) {
	began := time.Now()
	if got := p.node.MustGpulab(a.ctx, "join"); !strings.Contains(got, "nothing changed") {
		t.Errorf("join again:\n%s", got)
	}
	t.Logf("join again took %s", time.Since(began).Round(100*time.Millisecond))
}

// images: an image that admins bring in on the head reaches the machine. A part of
// it that is damaged there is refused, and said; a notebook that can run nowhere
// else waits for it; and when it is removed on the head, it goes on the machine.
func (p *pool) images(t *testing.T, a *appliance) {
	if n := p.node.Kill(a.ctx, "KILL", "gpulab"); n != 1 {
		t.Errorf("%d programs called gpulab ran on the node", n)
	}
	file, _ := writeImage(t, a, "CUDA_VERSION=13.0.1")
	a.MustGpulab(a.ctx, "images", "import", file)
	spoil := func(is, becomes string) {
		a.MustRun(a.ctx, "sh", "-ec", `for f in $(find `+imageParts+`blobs -type f -size -64k); do
			if grep -q CUDA_VERSION=`+is+` $f; then sed -i s/CUDA_VERSION=`+is+`/CUDA_VERSION=`+becomes+`/ $f; fi; done`)
	}
	spoil("13.0.1", "13.0.2")
	began := time.Now()
	t.Log(p.node.MustGpulab(a.ctx, "join"))
	detail := func() string { return p.nodes(t, a).Nodes[1].Detail }
	a.eventually(t, "the head says that the image came damaged", func() bool {
		return strings.Contains(detail(), "lacks images of the pool: the image "+torchImage+": it arrived damaged")
	})
	a.MustGpulab(a.ctx, "nodes", "cordon", p.head)
	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	b.WaitText("#machine-"+nodeName, "it arrived damaged")
	b.Pictures("pool-images")
	launch(b, "torch", "Handed")
	b.WaitText("#launch-state", "Its image is not on "+nodeName+" yet. It starts when that is there.")
	b.Pictures("pool-waits-for-image")
	spoil("13.0.2", "13.0.1")
	waitJupyterLab(b, adminHandle)
	t.Logf("handed over, and a notebook of it runs, %s after the machine was back", time.Since(began).Round(100*time.Millisecond))
	if got := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "-o", "jsonpath={.items[*].spec.nodeName}"); got != nodeName {
		t.Errorf("the notebook runs on %q", got)
	}
	if got := detail(); got != "" {
		t.Errorf("of the machine is said %q", got)
	}
	b.Open(pages + "/")
	b.Click("#mine", "Stop Handed")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "Handed")
	a.MustGpulab(a.ctx, "nodes", "uncordon", p.head)

	const spare = "lab.example/spare:1"
	there := func() bool {
		return p.node.Run(a.ctx, "sh", "-c", `PATH=/var/lib/gpulab/bin/current:$PATH; bash -c "exec -a ctr k3s --address /run/k3s/containerd/containerd.sock -n k8s.io images ls -q" | grep -qx `+spare).Code == 0
	}
	a.MustGpulab(a.ctx, "images", "import", "--as", spare, file)
	a.eventually(t, "it is on the machine", there)
	a.MustGpulab(a.ctx, "images", "remove", spare)
	a.eventually(t, "it is off the machine", func() bool { return !there() })
	a.MustRun(a.ctx, "rm", file)
}

// doctor: a machine that has joined is looked at as what it is.
func (p *pool) doctor(t *testing.T, a *appliance) {
	result := p.node.Gpulab(a.ctx, "doctor")
	t.Log(result.Took, "\n"+result.Stdout)
	if result.Code != 0 || strings.Contains(result.Stdout, "✗") || !strings.Contains(result.Stdout, "by a certificate that is good until") {
		t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	for _, line := range strings.Split(strings.TrimSpace(p.node.MustGpulab(a.ctx, "doctor", "--list")), "\n")[1:] {
		if name := strings.Fields(line)[0]; !strings.Contains(result.Stdout, " "+name+" ") {
			t.Errorf("nothing is said of %s", name)
		}
	}
	checkFailure(t, p.node.Gpulab(a.ctx, "doctor", "pages"), exitUsage, "is for heads")
	checkFailure(t, a.Gpulab(a.ctx, "doctor", "stream"), exitUsage, "is for machines that have joined")
	if out := p.node.MustGpulab(a.ctx, "status"); !strings.HasPrefix(out, nodeName+", a machine in the pool of Pool lab") || !strings.Contains(out, "good until") {
		t.Errorf("status:\n%s", out)
	}
	var s struct {
		Ready bool
		Pool  struct {
			Name, Lab   string
			Connected   bool
			Certificate time.Time
		}
	}
	if err := json.Unmarshal([]byte(p.node.MustGpulab(a.ctx, "status", "--json")), &s); err != nil || !s.Ready || s.Pool.Name != nodeName || !s.Pool.Connected || time.Until(s.Pool.Certificate) < 80*24*time.Hour {
		t.Errorf("%+v, %v", s, err)
	}
	// The homes are shown in the data folder still; what they came from is gone.
	p.node.MustRun(a.ctx, "umount", "/srv/lab")
	if state, seen, _ := p.looks(t, a, "sharedstorage"); state != "fail" || !strings.Contains(seen, "/srv/lab") {
		t.Errorf("%s: %s", state, seen)
	}
	if result := p.node.Gpulab(a.ctx, "status"); result.Code == 0 || !strings.Contains(result.Stdout, "the lab's storage is not at /srv/lab") {
		t.Errorf("status without the storage: %d\n%s", result.Code, result.Stdout)
	}
	p.mountShared(a, p.node)
	if state, seen, _ := p.looks(t, a, "sharedstorage"); state != "ok" {
		t.Errorf("%s: %s", state, seen)
	}
}

// looks is what a probe finds on the second machine.
func (p *pool) looks(t *testing.T, a *appliance, probe string) (state, seen, command string) {
	t.Helper()
	return a.diagnosis(t, p.node.Gpulab(a.ctx, "doctor", "--json", probe)).of(t, probe)
}

type poolGPUs []struct {
	Node, Error string
	GPUs        []struct {
		UUID    string
		Holders []struct{ User, Notebook, Name, Namespace string }
	}
}

func (p *pool) gpus(t *testing.T, a *appliance) poolGPUs {
	t.Helper()
	var g poolGPUs
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "gpus", "--json")), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (p *pool) gpusOfBoth(t *testing.T, a *appliance) {
	g := p.gpus(t, a)
	if len(g) != 2 || len(g[0].GPUs) != 1 || len(g[1].GPUs) != 1 || g[0].GPUs[0].UUID == g[1].GPUs[0].UUID {
		t.Fatalf("%+v", g)
	}
	own := p.node.MustGpulab(a.ctx, "gpus", "--json")
	for _, s := range g {
		if here := strings.Contains(own, s.GPUs[0].UUID); here != (s.Node == nodeName) {
			t.Errorf("the node shows %s of %s: %v", s.GPUs[0].UUID, s.Node, here)
		}
	}
	metrics := a.MustGpulab(a.ctx, "metrics")
	b := a.browser.For(t)
	b.Open(pages + "/gpus")
	for _, s := range g {
		b.WaitText("#machines", s.Node)
		if !strings.Contains(metrics, fmt.Sprintf(`UUID="%s"`, s.GPUs[0].UUID)) || !strings.Contains(metrics, fmt.Sprintf("%q", s.Node)) {
			t.Errorf("the metrics miss %s of %s", s.GPUs[0].UUID, s.Node)
		}
	}
	b.Pictures("pool-gpus")
	p.waitGPUs(t, a)
	a.eventually(t, "the node's labels say what GPU it has", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.metadata.labels.nvidia\.com/gpu\.product}`) == "Simulated-GPU-24GB"
	})
}

// notebooks: with one GPU each, two GPU notebooks are on two machines; what one
// writes, the other reads.
func (p *pool) notebooks(t *testing.T, a *appliance) {
	p.kernels, p.pods = map[string]*kernel{}, map[string]poolPod{}
	for _, title := range []string{"One", "Two"} {
		b := a.browser.For(a.lifeOf).Tab().For(t) // for the chapters after this one, too
		launch(b, "gpu", title)
		waitJupyterLab(b, adminHandle)
		k := newKernel(b)
		var list struct {
			Items []struct {
				Metadata struct {
					Name, Namespace, UID string
				}
				Spec struct{ NodeName string }
			}
		}
		if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Items {
			if _, known := p.pods[i.Spec.NodeName]; !known {
				p.pods[i.Spec.NodeName] = poolPod{i.Metadata.Name, i.Metadata.Namespace, i.Metadata.UID, i.Spec.NodeName}
				p.kernels[i.Spec.NodeName] = k
			}
		}
	}
	if len(p.pods) != 2 || p.pods[nodeName].UID == "" {
		t.Fatalf("the notebooks are on %v", p.pods)
	}
	if got := p.kernels[nodeName].run(t, gpuCell); !strings.HasPrefix(got, "1 ") || !slices.Contains(p.gpusOf(t, a, nodeName), got[strings.LastIndexByte(got, ' ')+1:]) {
		t.Errorf("the notebook on %s sees %q", nodeName, got)
	}
	p.kernels[p.head].run(t, `open("from-head.txt", "w").write("one home"); precious = 6 * 7`)
	if got := p.kernels[nodeName].run(t, `print(open("from-head.txt").read())`); got != "one home" {
		t.Errorf("on %s the file says %q", nodeName, got)
	}
	p.kernels[nodeName].run(t, `open("from-node.txt", "w").write("as well"); precious = 7 * 7`)
	if got := p.kernels[p.head].run(t, `print(open("from-node.txt").read())`); got != "as well" {
		t.Errorf("on the head the file says %q", got)
	}
	// Scratch is each one's own, on its machine.
	const scratch = `import os; print(os.environ["SCRATCH"], sorted(os.listdir("/scratch")))`
	p.kernels[nodeName].run(t, `open("/scratch/here", "w").write("x")`)
	if got := p.kernels[nodeName].run(t, scratch); got != "/scratch ['here']" {
		t.Errorf("on %s: %s", nodeName, got)
	}
	if got := p.kernels[p.head].run(t, scratch); got != "/scratch []" {
		t.Errorf("on the head: %s", got)
	}
	a.eventually(t, "the head says who holds which GPU, on both machines", func() bool {
		holders := 0
		for _, s := range p.gpus(t, a) {
			for _, g := range s.GPUs {
				for _, h := range g.Holders {
					if h.User == adminHandle && h.Notebook != "" {
						holders++
					}
				}
			}
		}
		return holders == 2
	})
	b := a.guest.For(t)
	b.Open(pages + "/gpus")
	b.WaitFor("both GPUs with their holder", `[...document.querySelectorAll("#machines .gpu")].filter(g => g.innerText.includes("`+adminHandle+`")).length === 2`)
	b.Pictures("pool-held")
}

// environments: what is built on the head is on the other machine, too, for notebooks
// that run there and for jobs; it is in use where it is used, and goes everywhere.
func (p *pool) environments(t *testing.T, a *appliance) {
	var index packageIndex
	index.open(t, a)
	a.WriteFile("/root/small.txt", "humanize==4.9.0\n")
	a.MustGpulab(a.ctx, "env", "create", "small", "--title", "Small", "--version", "1", "-r", "/root/small.txt")
	built := time.Now()
	a.eventually(t, "the other machine has it", func() bool {
		var e struct{ Missing []string }
		if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "env", "show", "small/1", "--json")), &e); err != nil {
			t.Fatal(err)
		}
		return len(e.Missing) == 0
	})
	t.Logf("handed over in %s", time.Since(built).Round(time.Millisecond))
	a.MustGpulab(a.ctx, "env", "default", "small")
	there := p.kernels[nodeName].in(t)
	expect(t, adminHandle, there, "sorted(os.listdir('/opt/gpulab/environments/kernels'))", "['small.1']", "os.access('"+smallPlace+"', os.W_OK)", "False")
	a.eventually(t, "the default of the other machine's notebooks", func() bool {
		return p.node.Run(a.ctx, "grep", "-q", "small.1", "/var/lib/gpulab/environments/ready/config/jupyter_server_config.json").Code == 0
	})
	in := &kernel{lab.NewKernelOf(there.browser, "small.1"), there.browser}
	if got := in.run(t, inEnvironment); got != "4.9.0 "+smallPlace {
		t.Errorf("on %s the cell printed %q", nodeName, got)
	}
	if got := in.run(t, "import urllib.request as r; print(r.urlopen('http://packages.gpulab-system.svc/-/health').read())"); got != `b'ok\n'` {
		t.Errorf("the cache of packages told a notebook on %s %q", nodeName, got)
	}
	// Whoever asks for a model may show a token, and this way is not encrypted.
	if got := in.run(t, "import os; print(os.environ.get('HF_ENDPOINT'))"); got != "None" {
		t.Errorf("on %s models come from %s", nodeName, got)
	}
	a.eventually(t, "the head knows that it is in use", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "env", "show", "small/1"), adminHandle+"/")
	})
	checkFailure(t, a.Gpulab(a.ctx, "env", "remove", "small/1"), exitFailure, "small/1 is in use: "+adminHandle+"/")

	a.MustGpulab(a.ctx, "nodes", "cordon", p.head, "--reason", "the disk is full")
	defer a.MustGpulab(a.ctx, "nodes", "uncordon", p.head)
	var job struct{ ID int64 }
	made := p.api(t, a, "POST", "/jobs", `{"command": ["python", "-c", "`+inEnvironment+`"], "environment": "small"}`, http.StatusCreated)
	if err := json.Unmarshal([]byte(made), &job); err != nil {
		t.Fatal(err)
	}
	var done struct{ Machine, State, Reason string }
	a.eventually(t, "the job has ended", func() bool {
		if err := json.Unmarshal([]byte(p.api(t, a, "GET", fmt.Sprintf("/jobs/%d", job.ID), "", http.StatusOK)), &done); err != nil {
			t.Fatal(err)
		}
		return done.State != "waiting" && done.State != "starting" && done.State != "running" && done.State != "stopping"
	})
	var log struct{ Data []byte }
	if err := json.Unmarshal([]byte(p.api(t, a, "GET", fmt.Sprintf("/jobs/%d/log", job.ID), "", http.StatusOK)), &log); err != nil {
		t.Fatal(err)
	}
	if done.State != "succeeded" || !strings.Contains(string(log.Data), "4.9.0 "+smallPlace) || done.Machine != nodeName {
		t.Errorf("the job on %q (%s, %s) said %s", done.Machine, done.State, done.Reason, log.Data)
	}

	a.MustGpulab(a.ctx, "env", "remove", "small/1", "--force")
	a.eventually(t, "it is gone on the other machine", func() bool {
		return there.run(t, "print(sorted(os.listdir('/opt/gpulab/environments')))") == "['.bin', 'config', 'kernels']"
	})
	// Containers on a machine that has joined see their limits, too.
	if got := there.run(t, "print('/proc/meminfo fuse.lxcfs' in [' '.join((l.split()[4], l.split(' - ')[1].split()[0])) for l in open('/proc/self/mountinfo')])"); got != "True" {
		t.Errorf("on the other machine LXCFS shows its files in a notebook: %s", got)
	}
}

// machinesPage: an admin sees both machines as they are, and makes and withdraws
// an invitation there that works as one of the command line.
func (p *pool) machinesPage(t *testing.T, a *appliance) {
	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	for _, name := range []string{p.head, nodeName} {
		card := "#machine-" + name
		b.WaitText(card, "ready")
		b.WaitText(card, "simulated")
		b.WaitText(card, adminHandle)
		b.WaitFor(name+" says how busy it is", `document.querySelectorAll("`+card+` .readings .unknown").length === 0`)
	}
	b.WaitText("#machine-"+nodeName, "clock right")
	b.WaitText("#machine-"+nodeName, "heard of now")
	b.Pictures("pool-machines")

	b.Click("main", "Make the line")
	b.WaitText("main", "It works once, until")
	line := lab.Evaluate[string](b, `async () => document.getElementById("join-line").value`)
	b.ClickOn("details.fold summary")
	b.Pictures("pool-invitation")
	third := a.beside(t, "gpu-four", "10.99.0.4")
	refused(t, a, third, line, "the lab's storage is not at /srv/lab on this machine") // and let in otherwise
	if got := a.MustGpulab(a.ctx, "nodes"); !strings.Contains(got, "Open invitations") {
		t.Errorf("the command line does not know of it:\n%s", got)
	}
	b.ClickOn("#open-invitations button")
	b.WaitFor("the question", `document.getElementById("confirm").open`)
	b.ClickOn("#confirm [data-yes]")
	b.WaitFor("the page without that invitation", `!document.querySelector("#join-line")`)
	refused(t, a, third, line, "this lab has not made that join code")
	if got := a.MustGpulab(a.ctx, "audit", "list", "--json"); !strings.Contains(got, `"node.withdraw"`) || strings.Contains(got, "gl1") {
		t.Error("the audit log does not know who withdrew it, or knows the code")
	}
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "withdraw", "0123456789abcdef"), 1, "is not open any more")
}

// taint is what Kubernetes has of a machine that takes no new work.
func (p *pool) taint(a *appliance, node string) string {
	return a.MustGpulab(a.ctx, "kubectl", "get", "node", node, "-o", `jsonpath={.spec.taints[?(@.key=="gpulab.dev/cordoned")].effect}{.spec.unschedulable}`)
}

// closeOnPage fills in the form with which a machine takes no new work.
func closeOnPage(b *lab.Browser, machine, reason, ends string) {
	for id, value := range map[string]string{"cordon-machine": machine, "cordon-ends": ends} {
		b.WaitFor("the choice of "+value, fmt.Sprintf(`(() => { const s = document.getElementById(%q); s.value = %q; return s.value === %[2]q })()`, id, value))
	}
	b.Fill("Reason", reason)
	b.Click("form", "Take no new work")
}

// noNewWork: a machine that takes none keeps what it has and gets nothing new,
// says why to those who wait, and stays so whatever is done by hand.
func (p *pool) noNewWork(t *testing.T, a *appliance) {
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "cordon", "nobody"), 1, `no machine named "nobody"`)
	a.MustGpulab(a.ctx, "nodes", "cordon", nodeName, "--reason", "new memory")
	a.within(t, 10*time.Second, "Kubernetes knows it", func() bool { return p.taint(a, nodeName) == "NoSchedule" })
	a.MustGpulab(a.ctx, "kubectl", "taint", "node", nodeName, "gpulab.dev/cordoned-")
	a.within(t, 10*time.Second, "what was taken away by hand is back", func() bool { return p.taint(a, nodeName) == "NoSchedule" })
	a.MustGpulab(a.ctx, "kubectl", "cordon", p.head)
	a.within(t, 10*time.Second, "what was closed by hand is open again", func() bool { return p.taint(a, p.head) == "" })
	if got := a.MustGpulab(a.ctx, "nodes"); !strings.Contains(got, nodeName+" takes no new work: new memory.") || !strings.Contains(got, "Still there: "+adminHandle+"/") {
		t.Errorf("nodes says\n%s", got)
	}

	b := a.browser.For(t).Tab()
	launch(b, "gpu", "Third")
	b.WaitText("#launch-state", "The lab's GPU is in use. "+nodeName+" (new memory) takes no new work now.")
	third := b.Location()
	guest := a.guest.For(t).Tab()
	guest.Open(pages + "/gpus")
	guest.WaitText("#machines", nodeName+" takes no new work: new memory.")

	// The head too, on the page.
	b.Open(pages + "/machines")
	closeOnPage(b, p.head, "the disk is full", "")
	b.WaitText("#machine-"+p.head, "It takes no new work: the disk is full.")
	b.WaitText("#machine-"+nodeName, "by root")
	b.Pictures("pool-cordoned")
	a.within(t, 10*time.Second, "Kubernetes knows it of the head", func() bool { return p.taint(a, p.head) == "NoSchedule" })
	guest.Open(pages + "/")
	guest.WaitText("main", "would wait: no machine takes new work now")
	guest.Pictures("pool-cordoned-home")
	launch(guest, "cpu", "Fourth")
	guest.WaitText("#launch-state", "(the disk is full)")
	guest.WaitText("#launch-state", "It starts when that has changed.")
	// What runs the lab has a place there all the same.
	a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "delete", "pod", "-l", "k8s-app=kube-dns", "--wait=false")
	a.eventually(t, "the cluster's DNS starts on a head that takes no new work", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", `jsonpath={.items[*].status.containerStatuses[0].ready}`) == "true"
	})

	b.Click("#machine-"+p.head, "Take work again on "+p.head)
	b.WaitFor("the head without it", `!document.querySelector("#machine-`+p.head+` .banner")`)
	waitJupyterLab(guest, guestHandle) // it starts by itself
	b.Open(third)
	b.Click("main", "Cancel")
	a.MustGpulab(a.ctx, "nodes", "uncordon", nodeName)
	a.within(t, 10*time.Second, "Kubernetes lets work in again", func() bool { return p.taint(a, nodeName) == "" })
	p.samePod(t, a)
}

// emptied: those who work on a machine are told when their notebooks end there;
// it can be taken back, outlasts a restart of gpulab, and ends what is left.
func (p *pool) emptied(t *testing.T, a *appliance) {
	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	closeOnPage(b, nodeName, "new memory", "1h")
	b.WaitText("#machine-"+nodeName, "It is being emptied: 1 notebook left")
	b.Pictures("pool-emptied")
	home := a.browser.For(t).Tab()
	home.Open(pages + "/")
	home.WaitText("#emptying", nodeName+" is being emptied (new memory). Your notebook")
	home.Pictures("pool-emptied-home")
	guest := a.guest.For(t).Tab()
	guest.Open(pages + "/")
	guest.WaitText("main", nodeName+" takes no new work: new memory. It is being emptied")
	if got := guest.Text("#emptying"); got != "" {
		t.Errorf("who has nothing there is told %q", got)
	}

	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	if got := a.MustGpulab(a.ctx, "nodes"); !strings.Contains(got, "It is being emptied; notebooks there end") {
		t.Errorf("after a restart:\n%s", got)
	}
	a.MustGpulab(a.ctx, "nodes", "drain", nodeName, "--cancel")
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "drain", nodeName, "--cancel"), 1, "is not being emptied")
	home.Open(pages + "/")
	home.WaitFor("a home page without the notice", `document.querySelector("#emptying.hidden")`)
	p.samePod(t, a)

	// What is there ends earlier than was said, on the page.
	t.Log(a.MustGpulab(a.ctx, "nodes", "drain", nodeName, "--in", "1h"))
	b.Open(pages + "/machines")
	b.Click("#machine-"+nodeName, "End now what is on "+nodeName)
	b.WaitText("#confirm", "These notebooks end, and what is not saved in them is lost: "+adminHandle)
	b.Pictures("pool-end-now")
	b.ClickOn("#confirm [data-yes]")
	a.within(t, 60*time.Second, "no notebook is left", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "--field-selector", "spec.nodeName="+nodeName, "-o", "name") == ""
	})
	home.WaitText("#mine", "interrupted")
	home.WaitText("#mine", nodeName+" was emptied (new memory)")
	home.Pictures("pool-emptied-after")
	if got := p.kernels[p.head].in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the notebook on the head says %q", got)
	}
	if got := a.MustGpulab(a.ctx, "audit", "list", "--json"); !strings.Contains(got, `"node.stop"`) || !strings.Contains(got, `"node.drain"`) || !strings.Contains(got, `"node.keep"`) {
		t.Error("the audit log does not know of it")
	}
	a.MustGpulab(a.ctx, "nodes", "uncordon", nodeName)
	launch(home, "gpu", "Five") // the head's GPU is taken
	waitJupyterLab(home, adminHandle)
}

// api asks the HTTP API as the admin, with a token made for it, and returns what
// it answers.
func (p *pool) api(t *testing.T, a *appliance, method, path, body string, want int) string {
	t.Helper()
	ask := func(method, path, body string, want int) string {
		r, err := http.NewRequestWithContext(a.ctx, method, pages+"/api/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		if p.token != "" {
			r.Header.Set("Authorization", "Bearer "+p.token)
		}
		response, err := a.HTTPClient(a.ca).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != want {
			t.Fatalf("%s %s: status %d, %v\n%s", method, path, response.StatusCode, err, text)
		}
		return string(text)
	}
	if p.token == "" {
		var made struct{ Secret string }
		text := ask("POST", "/tokens", fmt.Sprintf(`{"handle": %q, "password": %q, "name": "pool", "scope": "full"}`, adminHandle, adminPassword), http.StatusCreated)
		if err := json.Unmarshal([]byte(text), &made); err != nil || made.Secret == "" {
			t.Fatalf("no token: %v", err)
		}
		p.token = made.Secret
	}
	return ask(method, path, body, want)
}

// renamed: a machine is shown under what people know it by, everywhere where they
// read of it, and is the same machine still.
func (p *pool) renamed(t *testing.T, a *appliance) {
	const door = "By the door"
	t.Log(a.MustGpulab(a.ctx, "nodes", "rename", nodeName, door))
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "rename", p.head, "by the DOOR"), 1, "another machine is called that")
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "cordon", door), 1, nodeName+" is shown as that")
	guest := a.guest.For(t).Tab()
	guest.Open(pages + "/gpus")
	guest.WaitText("#machines", door)
	if got := a.MustGpulab(a.ctx, "gpus"); !strings.Contains(got, door) {
		t.Errorf("gpus says\n%s", got)
	}
	a.MustGpulab(a.ctx, "nodes", "cordon", nodeName)
	guest.WaitText("#machines", door+" takes no new work.")
	a.MustGpulab(a.ctx, "nodes", "uncordon", nodeName)

	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	b.WaitText("#machine-"+nodeName, "named "+nodeName)
	b.WaitFor("the choice of the head", fmt.Sprintf(`(() => { const s = document.getElementById("rename-machine"); s.value = %q; return s.value === %[1]q })()`, p.head))
	b.Fill("Shown as", "Under the window")
	b.Click("form", "Rename")
	b.WaitText("#machine-"+p.head, "Under the window")
	b.Pictures("pool-renamed")
	// The metrics have names that last.
	if got := a.MustGpulab(a.ctx, "metrics"); strings.Contains(got, door) {
		t.Error("the metrics know it by its title")
	}
	if got := p.api(t, a, "PUT", "/machines/"+p.head+"/title", `{"title": ""}`, http.StatusOK); !strings.Contains(got, `"before":"Under the window"`) {
		t.Error(got)
	}
	t.Log(a.MustGpulab(a.ctx, "nodes", "rename", nodeName, nodeName))
	guest.WaitText("#machines", nodeName)
	if got := a.MustGpulab(a.ctx, "audit", "list", "--action", "node.rename", "--json"); strings.Count(got, `"node.rename"`) != 4 || !strings.Contains(got, door) {
		t.Errorf("the audit log says\n%s", got)
	}
}

// whereIs tells on which machine a notebook of the guest's runs, by its title.
func (p *pool) whereIs(t *testing.T, a *appliance, title string) (machine, why string) {
	t.Helper()
	var list struct {
		Notebooks []struct{ User, Title, State, Machine, WhyThere string }
	}
	if err := json.Unmarshal([]byte(p.api(t, a, "GET", "/notebooks?of=everybody", "", http.StatusOK)), &list); err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Notebooks {
		if n.Title == title {
			return n.Machine, n.WhyThere
		}
	}
	t.Fatalf("there is no notebook %q in %+v", title, list)
	return "", ""
}

// withoutGPUs: CPU notebooks are kept off machines with GPUs, as a condition and as
// a wish; what becomes of them where there is no such machine is said.
func (p *pool) withoutGPUs(t *testing.T, a *appliance) {
	for title, want := range map[string]string{"One": "Of the machines with room for it, it had the fewest free GPUs", "Two": "No other machine had room for it."} {
		if _, why := p.whereIs(t, a, title); !strings.HasPrefix(why, want) {
			t.Errorf("%s runs where it does because: %q", title, why)
		}
	}
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "placing", "--cpu", "never"), 1, "on machines without GPUs where one has room (prefer)")
	if got := a.MustGpulab(a.ctx, "nodes", "placing", "--cpu", "require"); !strings.Contains(got, "they do not start") {
		t.Errorf("placing says\n%s", got)
	}
	guest := a.guest.For(t).Tab()
	guest.Open(pages + "/")
	guest.WaitText("main", "this lab has no such machine")
	guest.Pictures("pool-cpu-nowhere")

	quiet := a.beside(t, "quiet", "10.99.0.5")
	p.mountShared(a, quiet)
	if got := quiet.MustGpulab(a.ctx, "join", p.invite(t, a).Code, "--gpus", "none"); !strings.Contains(got, "quiet is in the pool of Pool lab after") {
		t.Fatal(got)
	}
	guest.WaitFor("a card that can be launched", `!document.querySelector("main").innerText.includes("this lab has no such machine")`)
	// It is for others at first, whom the guest is not among.
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "for", "quiet", "group:nobody"), 1, "There is no group")
	t.Log(a.MustGpulab(a.ctx, "nodes", "for", "quiet", "role:admin"))
	launch(guest, "cpu", "Apart")
	guest.WaitText("#launch-state", "No machine that could take it is for you. quiet is for admins only.")
	guest.Pictures("pool-not-for-you")
	p.api(t, a, "DELETE", "/machines/quiet/limit", "", http.StatusNoContent)
	waitJupyterLab(guest, guestHandle) // it starts by itself
	if machine, why := p.whereIs(t, a, "Apart"); machine != "quiet" || !strings.Contains(why, "machines without GPUs only") {
		t.Errorf("it runs on %s: %s", machine, why)
	}

	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	b.WaitFor("the choice", `(() => { const s = document.getElementById("placing-cpu"); const had = s.value; s.value = "prefer"; return had === "require" })()`)
	b.Click("form", "Save")
	b.WaitFor("the page with it", `document.querySelector("#placing-cpu option[selected]")?.value === "prefer"`)
	b.Pictures("pool-placing")
	wished := a.guest.For(t).Tab()
	launch(wished, "cpu", "Wished")
	waitJupyterLab(wished, guestHandle)
	if machine, why := p.whereIs(t, a, "Wished"); machine != "quiet" || !strings.Contains(why, "where one has room") {
		t.Errorf("it runs on %s: %s", machine, why)
	}
	if got := p.api(t, a, "PUT", "/placing", `{"cpu": "any"}`, http.StatusOK); got != `{"cpu":"any","gpus":"pack"}`+"\n" {
		t.Errorf("%q", got)
	}
	t.Log(a.MustGpulab(a.ctx, "nodes", "remove", "quiet", "--yes"))
	a.within(t, 90*time.Second, "gpulab is off the machine", func() bool { return quiet.Run(a.ctx, "test", "-e", "/etc/gpulab/node.json").Code != 0 })
}

// gpusOf are the UUIDs of a machine's GPUs. Which one a notebook gets is the
// kubelet's choice, which differs each time.
func (p *pool) gpusOf(t *testing.T, a *appliance, node string) []string {
	t.Helper()
	var uuids []string
	for _, s := range p.gpus(t, a) {
		if s.Node == node {
			for _, g := range s.GPUs {
				uuids = append(uuids, g.UUID)
			}
		}
	}
	if len(uuids) == 0 {
		t.Fatalf("%s has no GPU", node)
	}
	return uuids
}

// thief speaks to the head with the node's key and certificate.
func (p *pool) thief(t *testing.T, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile(p.node.Path("/var/lib/gpulab/tls/" + name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	pair, err := tls.X509KeyPair(read("node.crt"), read("node.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read("nodes-ca.crt"))
	transport := &http.Transport{DialContext: dial, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: nodes.HeadName,
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// stolen: who has taken a node's certificate speaks for nobody from elsewhere
// while the node is heard, and from there for that node, and for no other;
// nobody speaks without one.
func (p *pool) stolen(t *testing.T, a *appliance) {
	taken := p.thief(t, a.Dial)
	for _, path := range []string{"/v1/stream", "/v1/token", "/v1/leave"} {
		resp, err := taken.Post("https://"+nodesDoor+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusConflict || !strings.Contains(string(answer), "copy of its disk") {
			t.Errorf("%s from elsewhere, while the machine is there: %s %s", path, resp.Status, answer)
		}
	}
	thief := p.thief(t, p.node.DialHost)
	const report = `{"snapshot":{"node":%q,"time":"2026-01-01T00:00:00Z","gpus":[{"uuid":%q,"index":0}]}}` + "\n"
	version := p.nodes(t, a).Nodes[0].Version
	for _, lie := range []struct{ node, gpu, refused string }{
		{p.head, "GPU-lie", fmt.Sprintf(`spoke for \"%s\"`, p.head)},
		{"gpu-nine", "GPU-lie", `spoke for \"gpu-nine\"`},
		{nodeName, p.gpusOf(t, a, p.head)[0], ", which is " + p.head + "'s"},
	} {
		// The machine itself comes back at any time, and ends this stream early.
		a.eventually(t, "it is told that a lie was refused: "+lie.refused, func() bool {
			ctx, cancel := context.WithTimeout(a.ctx, 20*time.Second)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+nodesDoor+"/v1/stream", strings.NewReader(fmt.Sprintf(report, lie.node, lie.gpu)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Gpulab-Version", version)
			resp, err := thief.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body) // until the head ends it
			resp.Body.Close()
			return strings.Contains(a.MustGpulab(a.ctx, "audit", "list", "--action", "node.refused", "--json"), lie.refused)
		})
	}
	for _, s := range p.gpus(t, a) {
		for _, g := range s.GPUs {
			if g.UUID == "GPU-lie" || s.Node == "gpu-nine" || s.Node == nodeName && g.UUID == p.gpusOf(t, a, p.head)[0] {
				t.Errorf("the head believed a lie: %+v", s)
			}
		}
	}
	if got := a.MustGpulab(a.ctx, "audit", "list", "--action", "node.refused", "--json"); !strings.Contains(got, "has its key") {
		t.Errorf("the audit log says:\n%s", got)
	}
	stranger := a.HTTPClient(nil)
	stranger.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true, ServerName: nodes.HeadName}
	stranger.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	for _, path := range []string{"/v1/token", "/v1/stream", "/v1/leave", "/v1/certificate"} {
		resp, err := stranger.Post("https://"+nodesDoor+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s answers somebody without a certificate with %s", path, resp.Status)
		}
	}
}

// neighbour is a version one release after that in bin.
const neighbour = "0.2.0"

// anotherVersion: a machine with the release after the head's works as before,
// and is marked; one of the release after that is told what to install where.
func (p *pool) anotherVersion(t *testing.T, a *appliance) {
	thief := p.thief(t, p.node.DialHost)
	a.eventually(t, "the head says what is to be installed", func() bool {
		r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, "https://"+nodesDoor+"/v1/stream", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Gpulab-Version", "0.3.7")
		resp, err := thief.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUpgradeRequired || !bytes.Contains(answer, []byte("of version 0.3.7 on the head")) {
			t.Errorf("a machine two releases away gets %s %s", resp.Status, answer)
		}
		out := a.MustGpulab(a.ctx, "nodes") // before the machine itself is back
		return strings.Contains(out, "not ready") && strings.Contains(out, "0.3.7 ≠") && strings.Contains(out, "of version 0.3.7 on the head")
	})

	program, there := lab.Newer(t, neighbour), "/opt/lab/gpulab"
	p.node.MustRun(a.ctx, "mkdir", "-p", filepath.Dir(there))
	p.node.MustRun(a.ctx, "ln", "-s", filepath.Join(filepath.Dir(p.node.Binary()), "images"), filepath.Join(filepath.Dir(there), "images"))
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.node.Path(there), data, 0o755); err != nil {
		t.Fatal(err)
	}
	p.node.MustRun(a.ctx, there, "join")
	a.eventually(t, "the machine with the next release is ready, and marked", func() bool {
		n := p.nodes(t, a).Nodes[1]
		return n.State == "ready" && n.Version == neighbour && n.OtherVersion
	})
	if out := a.MustGpulab(a.ctx, "nodes"); !strings.Contains(out, neighbour+" ≠") || !strings.Contains(out, "upgrade all, the head first") {
		t.Errorf("the other version is not marked:\n%s", out)
	}
	if got := p.kernels[nodeName].in(t).run(t, "print(precious)"); got != "49" {
		t.Errorf("the kernel on the node says %q with the next release there", got)
	}
	if out := p.node.MustRun(a.ctx, there, "status"); !strings.Contains(out, "connected for") || !strings.Contains(out, "runs gpulab ") {
		t.Errorf("status on the machine:\n%s", out)
	}
	t.Log(p.node.MustGpulab(a.ctx, "join"))
	a.eventually(t, "the machine is back at the head's version", func() bool {
		n := p.nodes(t, a).Nodes[1]
		return n.State == "ready" && !n.OtherVersion
	})
	p.node.MustRun(a.ctx, "rm", "-rf", filepath.Dir(there))
	p.samePod(t, a)
}

// badNetwork: with every fifth packet lost, and late where the kernel can do
// that, the machine is heard all the time.
func (p *pool) badNetwork(t *testing.T, a *appliance) {
	netem := []string{"tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "200ms", "50ms", "loss", "20%", "reorder", "25%"}
	if p.node.Run(a.ctx, netem[0], netem[1:]...).Code == 0 {
		defer p.node.MustRun(a.ctx, "tc", "qdisc", "del", "dev", "eth0", "root")
	} else {
		t.Log("this kernel has no sch_netem: packets are lost both ways, but none is late")
		p.node.MustRun(a.ctx, "nft", `add table ip bad
add chain ip bad in { type filter hook input priority 0; }
add chain ip bad out { type filter hook output priority 0; }
add rule ip bad in iifname eth0 numgen random mod 100 < 20 drop
add rule ip bad out oifname eth0 numgen random mod 100 < 20 drop`)
		defer p.node.MustRun(a.ctx, "nft", "delete", "table", "ip", "bad")
	}
	longest := time.Duration(0)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		for _, n := range p.nodes(t, a).Nodes {
			if n.Name != nodeName {
				continue
			}
			longest = max(longest, time.Since(n.LastContact))
			if n.State == "lost" {
				t.Fatalf("the head calls the machine lost: %s", n.Detail)
			}
		}
	}
	t.Logf("longest silence: %s", longest.Round(100*time.Millisecond))
}

// agentKilled: gpulab on the node is killed; the notebook there goes on, and the
// next start takes it over.
func (p *pool) agentKilled(t *testing.T, a *appliance) {
	if n := p.node.Kill(a.ctx, "KILL", "gpulab"); n != 1 {
		t.Errorf("%d programs called gpulab ran on the node", n)
	}
	if got := p.kernels[nodeName].in(t).run(t, "print(precious)"); got != "49" {
		t.Errorf("the kernel on the node says %q while gpulab is dead there", got)
	}
	began := time.Now()
	t.Log(p.node.MustGpulab(a.ctx, "join"))
	t.Logf("back after %s", time.Since(began).Round(100*time.Millisecond))
	a.eventually(t, "the node is ready again", func() bool { return p.state(t, a) == "ready" })
	if got := p.kernels[nodeName].in(t).run(t, "print(precious)"); got != "49" {
		t.Errorf("the kernel on the node says %q after gpulab is back there", got)
	}
	p.samePod(t, a)
}

// renumber gives a host another address in place of one, as DHCP does.
func renumber(a *appliance, on *lab.Lab, from, to string) {
	on.MustRun(a.ctx, "sh", "-ec", `ip address add `+to+`/24 dev eth0
		echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries
		ip address del `+from+`/24 dev eth0
		ip route replace default via `+lab.VisitorAddress)
}

// nodeIP is where Kubernetes thinks the second machine is.
func (p *pool) nodeIP(a *appliance) string {
	return a.Gpulab(a.ctx, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.addresses[?(@.type=='InternalIP')].address}`).Stdout
}

// machineMoves: the second machine gets another address; its notebook goes on
// and is reached there, and others may not reach the machine at the new one.
func (p *pool) machineMoves(t *testing.T, a *appliance) {
	const there = "10.99.0.22"
	began := time.Now()
	renumber(a, p.node, nodeAddress, there)
	a.within(t, time.Minute, "the head has the machine's new address", func() bool {
		for _, n := range p.nodes(t, a).Nodes {
			if n.Name == nodeName {
				return n.Address == there && n.State == "ready"
			}
		}
		return false
	})
	a.within(t, time.Minute, "Kubernetes has it", func() bool { return p.nodeIP(a) == there })
	t.Logf("followed after %s", time.Since(began).Round(100*time.Millisecond))
	a.within(t, time.Minute, "notebooks may not reach the new address", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "kubectl", "get", "networkpolicies", "-n", "user-"+adminHandle, "-o", "yaml"), there+"/32")
	})
	p.samePod(t, a)
	a.within(t, time.Minute, "the notebook answers", func() bool {
		answer, err := p.kernels[nodeName].in(t).try("print(precious)")
		return err == nil && strings.TrimSpace(answer.Output) == "49"
	})
	if out := p.node.MustGpulab(a.ctx, "status"); !strings.Contains(out, "connected for") {
		t.Errorf("status on the machine:\n%s", out)
	}
	renumber(a, p.node, there, nodeAddress)
	a.within(t, time.Minute, "the machine is back at its first address", func() bool {
		return p.nodeIP(a) == nodeAddress && p.state(t, a) == "ready"
	})
}

func (p *pool) samePod(t *testing.T, a *appliance) {
	t.Helper()
	pod := p.pods[nodeName]
	got := a.MustGpulab(a.ctx, "kubectl", "get", "pod", "-n", pod.Namespace, pod.Name, "-o", `jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount} {.status.phase}`)
	if got != pod.UID+" 0 Running" {
		t.Errorf("the node's pod is %q, and was %s", got, pod.UID)
	}
}

// lost: a cable is pulled for a minute, which is noticed soon, and put back.
func (p *pool) lost(t *testing.T, a *appliance) {
	a.MustRunVisitor(a.ctx, "ip", "link", "set", "to2", "down")
	began := time.Now()
	a.within(t, 15*time.Second, "the head says that the machine is lost", func() bool { return p.state(t, a) == "lost" })
	t.Logf("a lost machine was noticed after %s", time.Since(began).Round(100*time.Millisecond))
	t.Log(a.MustGpulab(a.ctx, "nodes"))
	b := a.browser.For(t).Tab()
	b.Open(pages + "/gpus")
	b.WaitText("#machines", nodeName+" has not been heard since")
	b.Pictures("pool-lost")
	if state, seen, _ := p.looks(t, a, "head"); state != "fail" || !strings.Contains(seen, "does not answer at "+nodesDoor) {
		t.Errorf("the doctor says of the head: %s, %s", state, seen)
	}
	a.within(t, 20*time.Second, "the doctor says that no readings go to the head", func() bool {
		state, seen, command := p.looks(t, a, "stream")
		return state == "fail" && strings.Contains(seen, "No readings go to the head") && command == "gpulab doctor head"
	})
	if out := p.node.Gpulab(a.ctx, "status").Stdout; !strings.Contains(out, "notebooks here go on") {
		t.Errorf("status on a machine that is away:\n%s", out)
	}
	time.Sleep(time.Until(began.Add(time.Minute)))
	a.MustRunVisitor(a.ctx, "ip", "link", "set", "to2", "up")
	began = time.Now()
	a.within(t, 90*time.Second, "the machine is back", func() bool { return p.state(t, a) == "ready" })
	t.Logf("it was back after %s", time.Since(began).Round(100*time.Millisecond))
	p.samePod(t, a)
	a.within(t, time.Minute, "the notebook answers again", func() bool {
		answer, err := p.kernels[nodeName].in(t).try("print(precious)")
		return err == nil && strings.TrimSpace(answer.Output) == "49"
	})
}

// removed: nothing of gpulab is left on the machine, its homes are, and its
// certificate is worth nothing.
func (p *pool) removed(t *testing.T, a *appliance) {
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "remove", nodeName), 1, adminHandle+"/", "--yes")
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "remove", "nobody"), 1, `no machine named "nobody"`)
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "remove", p.head), 1, "is the head")
	taken := p.thief(t, a.Dial)
	t.Log(a.MustGpulab(a.ctx, "nodes", "remove", nodeName, "--yes"))
	resp, err := taken.Post("https://"+nodesDoor+"/v1/token", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a removed machine's certificate gets %s", resp.Status)
	}
	a.within(t, 90*time.Second, "gpulab is off the machine", func() bool {
		return p.node.Run(a.ctx, "test", "-e", "/etc/gpulab/node.json").Code != 0 && len(p.node.Processes(a.ctx, "gpulab")) == 0
	})
	after := p.node.Snapshot(a.ctx)
	if left := p.before.Added(after); len(left) > 0 {
		t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
	}
	if missing := after.Added(p.before); len(missing) > 0 {
		t.Errorf("missing on the machine:\n%s", strings.Join(missing, "\n"))
	}
	a.eventually(t, "the pool is the head alone", func() bool {
		return len(p.nodes(t, a).Nodes) == 1 && len(p.gpus(t, a)) == 1 &&
			a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", "name") == "node/"+p.head+"\n"
	})
	if got := p.kernels[p.head].in(t).run(t, `print(open("from-node.txt").read(), precious)`); got != "as well 42" {
		t.Errorf("the notebook on the head says %q", got)
	}
	a.MustGpulab(a.ctx, "reset", "--yes")
	if entries, err := filepath.Glob(p.shared + "/homes/*/from-node.txt"); err != nil || len(entries) != 1 {
		t.Errorf("homes on the shared storage after reset: %v, %v", entries, err)
	}
}

const localConfig = `
lab: Pool lab
gpus: simulated
simulatedGPUs: 1
`

func (p *pool) setUpLocal(t *testing.T, a *appliance) {
	a.WriteFile("/etc/gpulab/config.yaml", localConfig)
	testSetUp(t, a)
	p.second(t, a)
	hideImages(a, p.node)
	p.before = p.node.Snapshot(a.ctx)
}

func (p *pool) joinLocal(t *testing.T, a *appliance) {
	checkFailure(t, p.node.Gpulab(a.ctx, "join"), exitUsage, "no lab was found on the local network", "gpulab invite-node")
	if got := a.MustGpulab(a.ctx, "invite-node"); !strings.Contains(got, "notebooks start on") || !strings.Contains(got, "storage.shared") {
		t.Errorf("the invitation does not say where notebooks will run:\n%s", got)
	}
	began := time.Now()
	got := p.node.MustGpulab(a.ctx, "join", p.invite(t, a).Code, "--simulated-gpus", "2")
	if !strings.Contains(got, "own disk, so notebooks start there only") {
		t.Errorf("join does not say where notebooks will run:\n%s", got)
	}
	t.Logf("from the pasted line to the pool, with all images from the head: %s\n%s", time.Since(began).Round(100*time.Millisecond), got)
	if list := p.nodes(t, a); len(list.Nodes) != 2 || list.Nodes[1].GPUs != 2 || !strings.Contains(list.Note, "because homes are on its own disk") {
		t.Errorf("%+v", list)
	}
	b := a.guest.For(t)
	b.Open(pages + "/")
	b.WaitText("main", "only: homes are on its own disk")
}

// notebooksStay: two GPUs are free on the node, and the second notebook waits
// for the head's one.
func (p *pool) notebooksStay(t *testing.T, a *appliance) {
	a.eventually(t, "the node offers its GPUs", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`) == "2"
	})
	b := a.browser.For(t).Tab()
	launch(b, "gpu", "First")
	waitJupyterLab(b, adminHandle)
	second := a.browser.For(t).Tab()
	launch(second, "gpu", "Second")
	second.WaitText("#launch-state", "only, because its home is nowhere else, and no GPU is free there")
	third := a.browser.For(t).Tab()
	launch(third, "cpu", "Third")
	waitJupyterLab(third, adminHandle)
	on := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "-o", "jsonpath={.items[*].spec.nodeName}")
	if len(strings.Fields(on)) != 2 || strings.Contains(on, nodeName) {
		t.Errorf("the notebooks are on %q", on)
	}
}

// leave: a machine takes itself out, and the head knows.
func (p *pool) leave(t *testing.T, a *appliance) {
	checkFailure(t, p.node.Gpulab(a.ctx, "leave"), exitUsage, "--yes")
	t.Log(p.node.MustGpulab(a.ctx, "leave", "--yes"))
	if left := p.before.Added(p.node.Snapshot(a.ctx)); len(left) > 0 {
		t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
	}
	if list := p.nodes(t, a); len(list.Nodes) != 1 || list.Note != "" {
		t.Errorf("%+v", list)
	}
	// And it may come again.
	t.Log(p.node.MustGpulab(a.ctx, "join", p.invite(t, a).Code))
	if got := p.state(t, a); got != "ready" {
		t.Errorf("after another join the machine is %q", got)
	}
	// And be removed on the page.
	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	b.Click("#machine-"+nodeName, "Remove "+nodeName)
	b.WaitText("#confirm", "No notebook runs there. Homes stay.")
	b.Pictures("pool-remove")
	b.ClickOn("#confirm [data-yes]")
	b.WaitText("#pool", "This lab is one machine.")
	a.within(t, 90*time.Second, "gpulab is off the machine", func() bool {
		return p.node.Run(a.ctx, "test", "-e", "/etc/gpulab/node.json").Code != 0
	})
}

const exportConfig = `
lab: Pool lab
gpus: simulated
simulatedGPUs: 1
storage:
  export: nfs
`

const exportsFile = "/etc/exports.d/gpulab.exports"

// standIn puts a program in the place of one of NFS's, and makes the kernel look
// as if it knew the file system.
func standIn(a *appliance, on *lab.Lab, program, filesystem, script string) {
	on.MustRun(a.ctx, "sh", "-ec", `cp /proc/filesystems /run/filesystems; echo "nodev `+filesystem+`" >>/run/filesystems
		mount --bind /run/filesystems /proc/filesystems`)
	on.WriteFile("/usr/sbin/"+program, "#!/bin/sh\n"+script)
	on.MustRun(a.ctx, "chmod", "755", "/usr/sbin/"+program)
}

// setUpExport: without an NFS server nothing begins, and init and the doctor say
// what brings one. The homes are on a disk of their own, and stay there.
func (p *pool) setUpExport(t *testing.T, a *appliance) {
	var err error
	if p.shared, err = os.MkdirTemp(filepath.Dir(a.Binary()), "shared-"); err != nil {
		t.Fatal(err)
	}
	a.lifeOf.Cleanup(func() { _ = os.RemoveAll(p.shared) })
	a.WriteFile("/etc/gpulab/config.yaml", exportConfig)
	before := a.Snapshot(a.ctx)
	checkFailure(t, a.Gpulab(a.ctx, initArgs...), exitPreflight, "This machine has no NFS server.", "`apt-get install nfs-kernel-server`")
	if state, _, command := a.doctor(t, "nfs").of(t, "nfs"); state != "fail" || command != "apt-get install nfs-kernel-server" {
		t.Errorf("the doctor says %s, %s", state, command)
	}
	if added := before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
		t.Errorf("init was refused, and left\n%s", strings.Join(added, "\n"))
	}
	standIn(a, a.Lab, "exportfs", "nfsd", `echo "$@" >>/run/exportfs.calls`)
	for _, part := range []string{"homes", "folders"} {
		a.MustRun(a.ctx, "mkdir", "-p", p.shared+"/"+part, "/var/lib/gpulab/"+part)
		a.MustRun(a.ctx, "chmod", "711", p.shared, p.shared+"/"+part)
		a.MustRun(a.ctx, "mount", "--bind", p.shared+"/"+part, "/var/lib/gpulab/"+part)
	}
	testSetUp(t, a)
	if a.Run(a.ctx, "test", "-e", exportsFile).Code == 0 {
		t.Error("homes are exported to nobody")
	}
	p.second(t, a)
	p.before = p.node.Snapshot(a.ctx)
}

// joinExport: a machine that cannot mount is told what brings that, and changes
// nothing; one that can has the homes before it is in the pool.
func (p *pool) joinExport(t *testing.T, a *appliance) {
	p.code = p.invite(t, a).Code
	refused(t, a, p.node, p.code, "`apt-get install nfs-common`")
	added := slices.DeleteFunc(p.before.Added(p.node.Snapshot(a.ctx)), func(path string) bool {
		return strings.Contains(path, " /run/gpulab") // the lock against a second join
	})
	if len(added) > 0 {
		t.Errorf("join was refused, and left\n%s", strings.Join(added, "\n"))
	}
	standIn(a, p.node, "mount.nfs4", "nfs4", `echo "$@" >>/run/mount.calls; exec mount --bind `+p.shared+`/"${2##*/}" "$2"`)
	p.before = p.node.Snapshot(a.ctx)
	t.Log(p.node.MustGpulab(a.ctx, "join", p.code, "--simulated-gpus", "2"))
	if got := p.node.MustRun(a.ctx, "cat", "/run/mount.calls"); strings.Count(got, "\n") != 2 ||
		!strings.HasPrefix(got, lab.Address+":/var/lib/gpulab/homes /var/lib/gpulab/homes -o ") || !strings.Contains(got, "nfsvers=4.2") || !strings.Contains(got, "hard") {
		t.Errorf("mounted with\n%s", got)
	}
	got := a.MustRun(a.ctx, "cat", exportsFile)
	if !strings.Contains(got, "/var/lib/gpulab/homes "+nodeAddress+"(rw,") || !strings.Contains(got, "/var/lib/gpulab/folders "+nodeAddress+"(rw,") || strings.Count(got, "(") != 2 {
		t.Errorf("exported:\n%s", got)
	}
	if calls := a.MustRun(a.ctx, "cat", "/run/exportfs.calls"); calls != "-ra\n" {
		t.Errorf("exportfs was called with %q", calls)
	}
	if list := p.nodes(t, a); list.Note != "" {
		t.Errorf("notebooks start on the head only: %s", list.Note)
	}
	if state, seen, _ := p.looks(t, a, "sharedstorage"); state != "ok" || !strings.Contains(seen, "are mounted here") {
		t.Errorf("%s: %s", state, seen)
	}
	if out := a.MustGpulab(a.ctx, "status"); !strings.Contains(out, "1 machine mounts them") {
		t.Errorf("status:\n%s", out)
	}
}

// twoAtOnce: the machine that has two GPUs is kept for a job that needs two at once,
// and one behind it in the line runs where that is no help.
func (p *pool) twoAtOnce(t *testing.T, a *appliance) {
	l := newLaptopFor(t, a, a.browser.For(t).Tab(), adminHandle, "launch")
	a.eventually(t, "Kueue knows of all GPUs", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "cohorts", "lab", "-o", `jsonpath={.spec.resourceGroups[*].flavors[*].resources[*].nominalQuota}`) == "3"
	})
	l.script(t, "long.sh", "until [ -e enough ]; do sleep 0.2; done\n")
	job := func(name, gpus string) string { return l.submit(t, "--name", name, "--gpus", gpus, "long.sh") }
	where := func() map[string]string {
		var list struct {
			Items []struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct{ NodeName string }
				Status   struct{ Phase string }
			}
		}
		if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-n", "user-"+adminHandle, "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		on := map[string]string{}
		for _, i := range list.Items {
			if i.Status.Phase == "Running" {
				on[i.Metadata.Labels["gpulab.dev/launch"]] = i.Spec.NodeName
			}
		}
		return on
	}
	runs := func(number, on string) {
		t.Helper()
		a.eventually(t, "job "+number+" runs on "+on, func() bool { return where()[number] == on })
	}
	one := job("one", "1")
	runs(one, p.head)
	two, three := job("two", "1"), job("three", "1")
	runs(two, nodeName)
	runs(three, nodeName)
	both := job("both", "2")
	b := a.browser.For(t).Tab()
	b.Open(pages + "/jobs/" + both)
	b.WaitText("#job-state", "All 3 GPUs are in use. It is next in line.")
	time.Sleep(1100 * time.Millisecond) // Kueue tells who came first by the second
	behind := job("behind", "1")
	l.gpulab(t, 0, []string{"cancel", one})
	runs(behind, p.head)
	b.WaitText("#job-state", "Its turn has come. It waits until a machine has 2 GPUs free at once. What gets free on "+nodeName+" is kept for it.")
	l.gpulab(t, 0, []string{"cancel", two})
	b.WaitText("#job-state", "One of "+nodeName+" is kept for it; what gets free there comes to it.")
	b.Pictures("job-keeps-a-machine")
	last := job("last", "1")
	waits := a.browser.For(t).Tab()
	waits.Open(pages + "/jobs/" + last)
	waits.WaitText("#job-state", "All 3 GPUs are in use, or kept for a launch before it that needs several at once.")
	l.gpulab(t, 0, []string{"cancel", three})
	runs(both, nodeName)
	a.MustRun(a.ctx, "touch", a.homeOf(t, adminHandle)+"/enough")
	b.WaitText("#job-state", "It has succeeded")
	waits.WaitText("#job-state", "It has succeeded")
	a.MustRun(a.ctx, "rm", a.homeOf(t, adminHandle)+"/enough")
}

// leaveExport: a machine that leaves has the homes no more, and they are whole.
func (p *pool) leaveExport(t *testing.T, a *appliance) {
	t.Log(p.node.MustGpulab(a.ctx, "leave", "--yes"))
	a.eventually(t, "homes are exported to nobody", func() bool { return a.Run(a.ctx, "test", "-e", exportsFile).Code != 0 })
	if calls := a.MustRun(a.ctx, "cat", "/run/exportfs.calls"); calls != "-ra\n-ra\n" {
		t.Errorf("exportfs was called with %q", calls)
	}
	left := slices.DeleteFunc(p.before.Added(p.node.Snapshot(a.ctx)), func(path string) bool { return strings.HasSuffix(path, "/run/mount.calls") })
	if len(left) > 0 {
		t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
	}
	if entries, err := filepath.Glob(p.shared + "/homes/*/from-node.txt"); err != nil || len(entries) != 1 {
		t.Errorf("homes after a machine has left: %v, %v", entries, err)
	}
	if got := p.kernels[p.head].in(t).run(t, `print(open("from-node.txt").read())`); got != "as well" {
		t.Errorf("the notebook on the head says %q", got)
	}
}

// found: the machine finds the head by itself, and is let in by a number that
// both show.
func (p *pool) found(t *testing.T, a *appliance) {
	result := p.node.Gpulab(a.ctx, "join")
	checkFailure(t, result, exitUsage, "--head NAME")
	if !strings.Contains(result.Stdout, "Pool lab") || !strings.Contains(result.Stdout, nodesDoor) {
		t.Errorf("the lab is not among those found:\n%s", result.Stdout)
	}
	checkFailure(t, p.node.Gpulab(a.ctx, "join", "--head", "Other lab"), exitUsage, `no head on the local network is called "Other lab"`)
	// Multicast is for the local network, and for no pod.
	for iface, wanted := range map[string]bool{"eth0": true, "cni0": false, "flannel.1": false} {
		if got := a.MustRun(a.ctx, "ip", "maddr", "show", "dev", iface); strings.Contains(got, "224.0.0.251") != wanted {
			t.Errorf("%s listens to mDNS: %v\n%s", iface, !wanted, got)
		}
	}

	// The page shows it by itself.
	b := a.browser.For(t).Tab()
	b.Open(pages + "/machines")
	spaced := func(number string) string { return number[:3] + " " + number[3:] }
	unwanted := p.asks(t, a)
	b.WaitText("#machine-requests", spaced(unwanted.number))
	b.WaitText("#machine-requests", nodeName)
	b.WaitText("#machine-requests", "at "+nodeAddress)
	b.Pictures("pool-request")
	b.Click("#machine-requests", "Refuse "+nodeName+" with "+spaced(unwanted.number))
	if out, err := unwanted.end(); err == nil || !strings.Contains(out, "did not let this machine in; nothing was changed") {
		t.Errorf("refused on the page: %v\n%s", err, out)
	}
	b.WaitFor("the page without the request", `!document.querySelector("#machine-requests li")`)

	refused := p.asks(t, a)
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "accept", "12345"), 1, "no machine asks with that number")
	p.api(t, a, "POST", "/machine-requests/000000/accept", "", http.StatusNotFound)
	a.MustGpulab(a.ctx, "nodes", "refuse", refused.number)
	if out, err := refused.end(); err == nil || !strings.Contains(out, "did not let this machine in; nothing was changed") {
		t.Errorf("refused: %v\n%s", err, out)
	}
	if p.node.Run(a.ctx, "test", "-e", "/etc/gpulab/node.json").Code == 0 {
		t.Error("a machine that was refused has joined by half")
	}

	accepted := p.asks(t, a)
	if got := a.MustGpulab(a.ctx, "nodes", "requests"); !strings.Contains(got, accepted.number) || !strings.Contains(got, nodeAddress) || strings.Contains(got, refused.number) {
		t.Errorf("the head shows:\n%s", got)
	}
	if got := p.api(t, a, "GET", "/machines", "", http.StatusOK); !strings.Contains(got, `"number":"`+accepted.number+`"`) {
		t.Errorf("the HTTP API says\n%s", got)
	}
	b.Click("#machine-requests", "Accept "+nodeName+" with "+spaced(accepted.number))
	b.WaitText("#confirm", "Is "+spaced(accepted.number)+" on the screen of "+nodeName+"?")
	b.Pictures("pool-accept")
	b.ClickOn("#confirm [data-yes]")
	b.WaitFor("the page without the request", `!document.querySelector("#machine-requests li")`)
	checkFailure(t, a.Gpulab(a.ctx, "nodes", "accept", accepted.number), 1, "no machine asks with that number")
	out, err := accepted.end()
	if err != nil || !strings.Contains(out, nodeName+" is in the pool of Pool lab after") {
		t.Fatalf("accepted: %v\n%s", err, out)
	}
	t.Log(out)
	if got := p.state(t, a); got != "ready" {
		t.Errorf("the machine is %q", got)
	}
	for action, times := range map[string]int{"node.accept": 1, "node.decline": 2} {
		if got := a.MustGpulab(a.ctx, "audit", "list", "--action", action, "--json"); strings.Count(got, nodeName+" at "+nodeAddress) != times {
			t.Errorf("the audit log says of %s:\n%s", action, got)
		}
	}
	if got := strings.TrimSpace(a.MustGpulab(a.ctx, "nodes", "requests", "--json")); got != "[]" {
		t.Errorf("requests are left: %s", got)
	}
}

// asking is a join that waits for the head's people.
type asking struct {
	number string // on its screen
	end    func() (output string, err error)
}

func (p *pool) asks(t *testing.T, a *appliance) asking {
	t.Helper()
	cmd := p.node.Command(a.ctx, p.node.Binary(), "join", "--head", "Pool lab")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewReader(read); ; {
		line, err := lines.ReadString('\n')
		out.WriteString(line)
		if err != nil {
			_ = cmd.Wait()
			t.Fatalf("join has shown no number:\n%s", out.String())
		}
		if digits := strings.ReplaceAll(strings.TrimSpace(line), " ", ""); len(digits) == 6 && strings.Trim(digits, "0123456789") == "" {
			return asking{digits, func() (string, error) {
				rest, _ := io.ReadAll(lines)
				out.Write(rest)
				return out.String(), cmd.Wait()
			}}
		}
	}
}

// The head's addresses after its first.
const (
	secondHome = "10.99.0.31"
	thirdHome  = "10.99.0.32"
)

// followed waits until the second machine is in the pool of a head that is elsewhere.
func (p *pool) followed(t *testing.T, a *appliance, at string) {
	t.Helper()
	began := time.Now()
	a.within(t, 2*time.Minute, "the machine speaks with the head at "+at, func() bool {
		out := p.node.Gpulab(a.ctx, "status").Stdout
		return strings.Contains(out, " at "+at+", connected for") && p.state(t, a) == "ready"
	})
	a.within(t, time.Minute, "Kubernetes on the machine speaks with the head at "+at, func() bool {
		return strings.Contains(p.node.MustRun(a.ctx, "cat", "/var/lib/gpulab/k3s.yaml"), "https://"+at+":6443") &&
			a.Gpulab(a.ctx, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`).Stdout == "True"
	})
	t.Logf("followed after %s", time.Since(began).Round(100*time.Millisecond))
	if out := p.node.MustGpulab(a.ctx, "status"); !strings.Contains(out, "https://"+at) {
		t.Errorf("status says that the pages are elsewhere:\n%s", out)
	}
	if out := p.node.MustGpulab(a.ctx, "join"); !strings.Contains(out, "nothing changed") {
		t.Errorf("join on a machine whose head has moved:\n%s", out)
	}
	if state, seen, _ := p.looks(t, a, "head"); state != "ok" || !strings.Contains(seen, at+":8444") {
		t.Errorf("%s: %s", state, seen)
	}
}

// headMoves: the head gets a second address, of which machines learn, and loses
// the first.
func (p *pool) headMoves(t *testing.T, a *appliance) {
	a.MustRun(a.ctx, "ip", "address", "add", secondHome+"/24", "dev", "eth0")
	a.within(t, time.Minute, "the machine knows of the head's second address", func() bool {
		return strings.Contains(p.node.MustRun(a.ctx, "cat", "/etc/gpulab/node.json"), secondHome+":8444")
	})
	if i := p.invite(t, a); !slices.Contains(i.Addresses, nodesDoor) || !slices.Contains(i.Addresses, secondHome+":8444") {
		t.Errorf("a code carries %v", i.Addresses)
	}
	a.MustRun(a.ctx, "sh", "-ec", `echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries
		ip address del `+lab.Address+`/24 dev eth0
		ip route replace default via `+lab.VisitorAddress)
	p.followed(t, a, secondHome)
}

// headFound: while the machine is away, the head gets an address that the machine
// has never heard of; its name leads there.
func (p *pool) headFound(t *testing.T, a *appliance) {
	a.MustRunVisitor(a.ctx, "ip", "link", "set", "to2", "down")
	renumber(a, a.Lab, secondHome, thirdHome)
	name := strings.TrimSpace(a.MustRun(a.ctx, "hostname"))
	p.node.MustRun(a.ctx, "sh", "-ec", "echo "+thirdHome+" "+strings.ToLower(name)+" >>/etc/hosts")
	a.eventually(t, "the head has another address", func() bool { return strings.Contains(a.Gpulab(a.ctx, "status").Stdout, "https://"+thirdHome) })
	a.MustRunVisitor(a.ctx, "ip", "link", "set", "to2", "up")
	p.followed(t, a, thirdHome)
}
