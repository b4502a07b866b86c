//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// testDrift: what somebody deletes or edits in the cluster comes back by itself.
func testDrift(t *testing.T, a *appliance) {
	pods := a.notebookPods(t)
	kubectl := func(args ...string) string {
		return a.MustGpulab(a.ctx, append([]string{"kubectl"}, args...)...)
	}
	kubectl("-n", "gpulab-system", "delete", "deployment", "hub")
	kubectl("-n", "kube-system", "scale", "deployment", "coredns", "--replicas=0")
	kubectl("delete", "runtimeclass", "nvidia")
	kubectl("-n", "gpulab-system", "delete", "endpointslice", "gpulab")
	kubectl("-n", "gpulab-system", "patch", "networkpolicy", "hub", "--type=json", `--patch=[{"op": "add", "path": "/spec/ingress/0/ports/0/endPort", "value": 32767}]`)
	kubectl("-n", "user-"+guestHandle, "delete", "networkpolicies", "--all")
	kubectl("-n", "user-"+guestHandle, "delete", "resourcequotas,limitranges", "--all")
	kubectl("label", "namespace", "user-"+guestHandle, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
	began := time.Now()
	var lacking string
	defer func() {
		if lacking != "" {
			t.Log("what was not as it was: " + lacking)
		}
	}()
	a.eventually(t, "everything is as it was", func() bool {
		for _, look := range []struct {
			want string
			args []string
		}{
			{"True", []string{"-n", "gpulab-system", "get", "deployment", "hub", "-o", "jsonpath={.status.conditions[?(@.type=='Available')].status}"}},
			{"1", []string{"-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.spec.replicas}"}},
			{"nvidia", []string{"get", "runtimeclass", "nvidia", "-o", "jsonpath={.metadata.name}"}},
			{lab.Address, []string{"-n", "gpulab-system", "get", "endpointslice", "gpulab", "-o", "jsonpath={.endpoints[*].addresses[*]}"}},
			{"", []string{"-n", "gpulab-system", "get", "networkpolicy", "hub", "-o", "jsonpath={.spec.ingress[*].ports[*].endPort}"}},
			{"default-deny notebook service", []string{"-n", "user-" + guestHandle, "get", "networkpolicies", "-o", "jsonpath={.items[*].metadata.name}"}},
			{"gpulab gpulab", []string{"-n", "user-" + guestHandle, "get", "resourcequotas,limitranges", "-o", "jsonpath={.items[*].metadata.name}"}},
			{"restricted", []string{"get", "namespace", "user-" + guestHandle, "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`}},
		} {
			if got := a.Gpulab(a.ctx, append([]string{"kubectl"}, look.args...)...); got.Stdout != look.want {
				lacking = fmt.Sprintf("%q, want %q: kubectl %s", got.Stdout, look.want, strings.Join(look.args, " "))
				return false
			}
		}
		lacking = ""
		return true
	})
	t.Logf("mended after %s", time.Since(began).Round(100*time.Millisecond))
	a.waitReady(t)
	a.checkKept(t, pods)
}

// testFailedRelease: a version whose hub does not start is taken back, says so
// in one sentence, and costs nobody their notebook.
func testFailedRelease(t *testing.T, a *appliance) {
	pods := a.notebookPods(t)
	image := func() string {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "deployment", "hub", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	}
	before := image()
	const config, broken = "/etc/gpulab/config.yaml", "/srv/broken"
	a.brokenImages(t, broken)
	a.MustRun(a.ctx, "sed", "-i.good", `s|^imagesDir:.*|imagesDir: `+broken+`|`, config)
	result := a.Gpulab(a.ctx, initArgs...)
	checkFailure(t, result, 1, "chart jupyterhub", "hub")
	if got := strings.TrimSpace(result.Stderr); strings.Count(got, "\n") != 0 {
		t.Errorf("the failure is more than one sentence:\n%s", got)
	}
	t.Logf("refused after %s: %s", result.Took.Round(time.Second), strings.TrimSpace(result.Stderr))
	if now := image(); now != before {
		t.Errorf("the hub's image is %s, want the last one that worked, %s", now, before)
	}
	a.eventually(t, "the hub that worked runs again", func() bool {
		return a.Gpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "deployment", "hub", "-o", "jsonpath={.status.readyReplicas}").Stdout == "1"
	})
	a.checkKept(t, pods)
	if a.status(t).Ready {
		t.Error("status says that the lab is ready, although a release has failed")
	}
	a.MustRun(a.ctx, "mv", config+".good", config)
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init with the images that work: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.checkKept(t, pods)
	a.MustRun(a.ctx, "rm", "-r", broken)
}

// brokenImages makes a folder of images whose hub is a program that is not one.
func (a *appliance) brokenImages(t *testing.T, folder string) {
	t.Helper()
	good := filepath.Join(filepath.Dir(a.Binary()), "images")
	data, err := os.ReadFile(filepath.Join(good, "images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Images []map[string]any `json:"images"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	byName := map[any]map[string]any{}
	for _, image := range list.Images {
		byName[image["name"]] = image
	}
	byName["hub"]["ref"] = "gpulab.local/hub:broken"
	byName["hub"]["digest"], byName["hub"]["size"] = byName["pause"]["digest"], byName["pause"]["size"]
	if data, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	a.MustRun(a.ctx, "sh", "-c", fmt.Sprintf("mkdir %[2]s && ln -s $(readlink -f %[1]s)/* %[2]s/ && rm %[2]s/images.json", good, folder))
	a.WriteFile(folder+"/images.json", string(data))
}

// otherAddress is what the machine gets in the place of lab.Address.
const otherAddress = "10.99.0.2"

// otherResolver is the name server that comes with it.
const otherResolver = "10.99.0.253"

// testAnotherAddress: the network gives the machine another address. The lab
// answers there, with a certificate for it; notebooks go on.
func testAnotherAddress(t *testing.T, a *appliance) {
	pods, program, kubernetes := a.notebookPods(t), a.Processes(a.ctx, "gpulab"), a.Processes(a.ctx, "k3s")
	neighbour := a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "pod", "jupyter-"+guestHandle+"--play", "-o", "jsonpath={.status.podIP}")
	endWatch := a.watchWalls(t, adminHandle, neighbour+":8888", "10.43.0.1:443", "10.42.0.1:10250", lab.Address+":6443",
		otherAddress+":443", otherAddress+":6443", otherAddress+":10250")
	dns := func() string {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[*].metadata.uid}")
	}
	resolver := dns()
	defer a.MustRun(a.ctx, "sh", "-c", "echo nameserver "+lab.VisitorAddress+" >/etc/resolv.conf")
	a.MustRun(a.ctx, "sh", "-ec", `echo nameserver `+otherResolver+` >/etc/resolv.conf
		ip address add `+otherAddress+`/24 dev eth0
		echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries
		ip address del `+lab.Address+`/24 dev eth0
		ip route replace default via `+lab.VisitorAddress)
	began := time.Now()
	client := a.HTTPClient(a.ca)
	a.eventually(t, "the pages answer at the new address", func() bool {
		response, err := client.Get("https://" + otherAddress + "/login")
		if err == nil {
			response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	})
	t.Logf("the pages answer at the new address after %s", time.Since(began).Round(100*time.Millisecond))
	a.eventually(t, "the node has the new address", func() bool {
		return a.Gpulab(a.ctx, "kubectl", "get", "nodes", "-o", "jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}").Stdout == otherAddress
	})
	t.Logf("the node has it after %s", time.Since(began).Round(100*time.Millisecond))
	a.waitReady(t)
	a.eventually(t, "the cluster asks the new network's name server", func() bool {
		return strings.Contains(a.Gpulab(a.ctx, "kubectl", "-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}").Stdout, "forward . "+otherResolver+" {\n")
	})
	if now := dns(); now != resolver {
		t.Errorf("the cluster's name server was %s and is %s", resolver, now)
	}
	if got := a.status(t).URL; got != "https://"+otherAddress {
		t.Errorf("status says that the lab is at %s", got)
	}
	if now := a.Processes(a.ctx, "gpulab"); fmt.Sprint(now) != fmt.Sprint(program) {
		t.Errorf("gpulab was %v and is %v", program, now)
	}
	if now := a.Processes(a.ctx, "k3s"); len(now) != 1 || now[0] == kubernetes[0] {
		t.Errorf("Kubernetes was %v and is %v, want another", kubernetes, now)
	}
	if now := a.notebookPods(t); now != pods {
		t.Fatalf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
	}
	// In a window of its own: for a browser this is another site.
	b := a.browser.Private().For(t)
	signInBrowser(b, "https://"+otherAddress, guestHandle, guestPassword)
	b.WaitText("#mine", "Play")
	b.Open("https://" + otherAddress + ":8443/user/" + guestHandle + "/play/lab")
	b.WaitJupyterLab("https://"+otherAddress, guestHandle)
	moved := &kernel{a.second.Through(b), b}
	if got := moved.run(t, "print(precious)"); got != "42" {
		t.Errorf("at the new address, the kernel's variable is %q", got)
	}
	// And back, as somebody who chooses between two addresses does.
	a.MustRun(a.ctx, "ip", "address", "add", lab.Address+"/24", "dev", "eth0")
	result := a.Gpulab(a.ctx, append(initArgs, "--address", lab.Address)...)
	if result.Code != 0 {
		t.Fatalf("init --address: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("init with another address took %s", result.Took.Round(100*time.Millisecond))
	if got := a.status(t).URL; got != pages {
		t.Errorf("status says that the lab is at %s", got)
	}
	a.checkKept(t, pods)
	a.MustRun(a.ctx, "ip", "address", "del", otherAddress+"/24", "dev", "eth0")
	a.waitReady(t)
	endWatch()
}

// testGPUModes: from simulated GPUs to none and back is one command each; what
// was simulated is known as such for ever.
func testGPUModes(t *testing.T, a *appliance) {
	t.Run("real GPUs without a card", func(t *testing.T) {
		config, program := a.MustRun(a.ctx, "cat", "/etc/gpulab/config.yaml"), a.Processes(a.ctx, "gpulab")
		result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "real")
		checkFailure(t, result, exitPreflight, "no NVIDIA card")
		if now := a.MustRun(a.ctx, "cat", "/etc/gpulab/config.yaml"); now != config {
			t.Errorf("the configuration is another now:\n%s", now)
		}
		if now := a.Processes(a.ctx, "gpulab"); fmt.Sprint(now) != fmt.Sprint(program) || len(a.gpus(t)) != 2 {
			t.Errorf("gpulab was %v and is %v, with %d GPUs", program, now, len(a.gpus(t)))
		}
	})
	if result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "none"); result.Code != 0 {
		t.Fatalf("init --gpus none: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	if got := a.gpus(t); len(got) != 0 {
		t.Errorf("without GPUs there are still %v", got)
	}
	if got := a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "--show-labels"); strings.Contains(got, "nvidia.com/") {
		t.Errorf("the node is still labelled for GPUs: %s", got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/")
	b.WaitText("#mine", "its GPU was simulated")
	if got := a.second.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the notebook without a GPU says %q", got)
	}
	b.WaitText(".launches", "this lab has no GPU now")
	b.WaitText("#machines", "This machine has no GPU that gpulab can use")

	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 || !strings.Contains(result.Stdout, "2 GPUs are simulated") {
		t.Fatalf("init --gpus simulated: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	launch(b, "gpu", "Again")
	waitJupyterLab(b, adminHandle)
	again := newKernel(b)
	if got := again.run(t, gpuCell); !strings.HasPrefix(got, "1 ") {
		t.Errorf("the new GPU notebook sees %q", got)
	}
	const marked = `import sqlite3
for row in sqlite3.connect("file:/var/lib/gpulab/gpulab.db?mode=ro", uri=True).execute(
    "SELECT title, simulated FROM launches WHERE title IN ('Work', 'Play', 'Again') ORDER BY id"):
    print(*row)`
	if got := a.MustRun(a.ctx, "python3", "-c", marked); got != "Work 1\nPlay 0\nAgain 1\n" {
		t.Errorf("launches and whether their GPUs were simulated:\n%s", got)
	}
}
