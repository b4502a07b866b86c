//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// TestIsolation is a lab whose people do not behave: what nobody gets.
//
//test:gate
func TestIsolation(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, slices.Concat([]chapter{
		{"two notebooks", testTwoNotebooks, true},
	}, attacks))
}

// TestKubernetes uses the lab's Kubernetes without gpulab.
//
//test:about internal/embedk8s internal/charts internal/deviceplugin
func TestKubernetes(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, []chapter{
		{"tutorial pods", testTutorialPods, false},
		{"watches miss nothing", testWatches, false},
	})
}

// TestDoctor breaks a lab in many ways, and asks the doctor each time.
//
//test:about internal/doctor
func TestDoctor(t *testing.T) {
	t.Parallel()
	testDoctor(t, ready(t, ""))
}

// TestUnitTestsBeside runs the unit tests on the machine of a lab that goes on.
//
//test:about internal/embedk8s internal/backup
func TestUnitTestsBeside(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, []chapter{
		{"two notebooks", testTwoNotebooks, true},
		{"the unit tests on the lab's own machine", testUnitTestsBeside, true},
	})
}

// TestFaults is the life of a lab whose parts fail: what notebooks live through.
//
//test:about internal/embedk8s internal/charts internal/supervise internal/webca
func TestFaults(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, []chapter{
		{"two notebooks", testTwoNotebooks, true},
		{"hub restarted, notebook hangs", testHubRestartWhileNotebookHangs, true},
		{"hub ended, Kubernetes down", testHubEndsWhileKubernetesIsDown, true},
		{"hub restarted after Kubernetes", testHubRestartAfterKubernetes, true},
		{"what was changed by hand", testDrift, false},
		{"a release that fails", testFailedRelease, true},
		{"certificates that ran out", testCertificates, true},
		{"another address", testAnotherAddress, true},
		{"from simulated GPUs and back", testGPUModes, false},
	})
}

// TestRuntimeDeleted is a lab under which somebody deletes the folders of k3s.
//
//test:about internal/embedk8s
func TestRuntimeDeleted(t *testing.T) {
	t.Parallel()
	testRuntimeDeleted(t, ready(t, ""))
}

// testSetUp: a lab with an administrator and one member, both signed in.
func testSetUp(t *testing.T, a *appliance) {
	result := a.init(t)
	checkSummary(t, a, result)
	a.browser = a.Browser(a.ca)
	b := a.browser.For(t)
	b.Open(a.link)
	createAccount(b, "Ada Lovelace", adminHandle, adminPassword)
	a.guest = a.welcome(t, guestHandle, "Ben", guestPassword)
}

// welcome makes an account and signs its owner in, in a browser of their own.
func (a *appliance) welcome(t *testing.T, handle, name, password string) *lab.Browser {
	t.Helper()
	invitation := a.MustGpulab(a.ctx, "user", "add", handle, "--name", name)
	b := a.browser.Private().For(t)
	choosePassword(b, invitation, password)
	return b
}

// tutorialPod is the pod of many a tutorial, but for the image: a test host
// reaches no registry.
const tutorialPod = `
apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
  restartPolicy: Never%s
  containers:
    - name: cuda
      image: %s
      imagePullPolicy: IfNotPresent
      command: [nvidia-smi, -L]
      resources:
        limits:
          nvidia.com/gpu: 1
`

// testTutorialPods: plain Kubernetes, beside gpulab, gets its GPUs too.
func testTutorialPods(t *testing.T, a *appliance) {
	image := a.notebookImage(t)
	pods := map[string]string{"plain": "", "with-class": "\n  runtimeClassName: nvidia"}
	seen := map[string]string{}
	for name, class := range pods {
		a.apply(t, fmt.Sprintf(tutorialPod, name, class, image))
	}
	for name := range pods {
		a.MustGpulab(a.ctx, "kubectl", "wait", "--timeout=60s", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name)
		printed := a.MustGpulab(a.ctx, "kubectl", "logs", name)
		if strings.Count(printed, "\n") != 1 || !strings.Contains(printed, "GPU 0: Simulated") || seen[printed] != "" {
			t.Errorf("pod %s printed\n%s", name, printed)
		}
		seen[printed] = name
		a.MustGpulab(a.ctx, "kubectl", "delete", "pod", name, "--grace-period=0", "--wait=false")
	}
}

// notebookImage is the notebooks' image.
func (a *appliance) notebookImage(t *testing.T) string {
	t.Helper()
	return a.image(t, "notebook").Ref
}

// listedImage is one image that comes with gpulab.
type listedImage struct{ Name, Ref, Digest string }

// image finds one by its short name.
func (a *appliance) image(t *testing.T, name string) listedImage {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(a.Binary()), "images/images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Images []listedImage }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, image := range list.Images {
		if image.Name == name {
			return image
		}
	}
	t.Fatalf("there is no image %s", name)
	return listedImage{}
}

// apply gives a manifest to kubectl.
func (a *appliance) apply(t *testing.T, manifest string) {
	t.Helper()
	cmd := a.Command(a.ctx, a.Binary(), "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
}

// testTwoNotebooks: one for each person, with something in it to lose.
func testTwoNotebooks(t *testing.T, a *appliance) {
	launch(a.browser.For(t), "gpu", "Work")
	launch(a.guest.For(t), "cpu", "Play")
	waitJupyterLab(a.browser.For(t), adminHandle)
	waitJupyterLab(a.guest.For(t), guestHandle)
	a.first, a.second = newKernel(a.browser.For(t)), newKernel(a.guest.For(t))
	for _, k := range []*kernel{a.first, a.second} {
		k.in(t).run(t, "precious = 6 * 7")
	}
}

// checkKept checks that both notebooks have lived through it all.
func (a *appliance) checkKept(t *testing.T, pods string) {
	t.Helper()
	if now := a.notebookPods(t); now != pods {
		t.Fatalf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
	}
	for _, k := range []*kernel{a.first, a.second} {
		if got := k.in(t).run(t, "print(precious)"); got != "42" {
			t.Errorf("the kernel's variable is %q", got)
		}
	}
}

// testUnitTestsBeside runs the unit tests that restore, roll back and reset on the machine of a running lab. They work on
// data folders of their own, and must leave the lab's Kubernetes alone.
func testUnitTestsBeside(t *testing.T, a *appliance) {
	build := exec.CommandContext(a.ctx, "go", "test", "-c", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", filepath.Join(t.TempDir(), "gpulab.test"), "./cmd/gpulab")
	build.Dir = a.Repository()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the unit tests: %v\n%s", err, out)
	}
	program, err := os.ReadFile(build.Args[5])
	if err != nil {
		t.Fatal(err)
	}
	const there = "/srv/gpulab.test"
	if err := os.WriteFile(a.Path(there), program, 0o755); err != nil {
		t.Fatal(err)
	}
	pods, before := a.notebookPods(t), a.Snapshot(a.ctx)
	t.Log(a.MustRun(a.ctx, "env", "GPULAB_TEST_IN_HOST=yes", there, "-test.v", "-test.run", "^(TestRestore|TestBackup|TestRollback|TestReset|TestLeave)"))
	after := a.Snapshot(a.ctx)
	for _, change := range []struct {
		what  string
		lines []string
	}{{"gone", after.Added(before)}, {"left", before.Added(after)}} {
		for _, line := range change.lines {
			switch kind, _, _ := strings.Cut(line, ":"); kind {
			case "mounts", "interfaces", "addresses", "routes", "iptables", "ip6tables", "ipsets", "namespaces":
				t.Errorf("%s: %s", change.what, line)
			}
		}
	}
	a.MustRun(a.ctx, "rm", there)
	a.checkKept(t, pods)
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Afterwards")
	waitJupyterLab(b, guestHandle)
	newKernel(b).run(t, "print(6 * 7)")
	stopNotebook(t, b, "Afterwards")
	a.eventually(t, "its pod is gone", func() bool { return a.notebookPods(t) == pods })
}

// podOf is the namespace and name of the person's one notebook pod.
func (a *appliance) podOf(t *testing.T, handle string) (namespace, name string) {
	t.Helper()
	namespace = "user-" + handle
	name = a.MustGpulab(a.ctx, "kubectl", "-n", namespace, "get", "pods", "-l", "app.kubernetes.io/component=notebook", "-o", "jsonpath={.items[*].metadata.name}")
	if name == "" || strings.Contains(name, " ") {
		t.Fatalf("the notebook pods of %s: %q, want one", handle, name)
	}
	return namespace, name
}

// serverProcess is the process on the host of the person's notebook server.
func (a *appliance) serverProcess(t *testing.T, handle string) string {
	t.Helper()
	namespace, name := a.podOf(t, handle)
	uid := a.MustGpulab(a.ctx, "kubectl", "-n", namespace, "get", "pod", name, "-o", "jsonpath={.metadata.uid}")
	// The pod's UID is in the paths of its control groups, with _ for - where systemd makes them.
	pids := strings.Fields(a.MustRun(a.ctx, "sh", "-c", `for p in $(pgrep -f jupyterhub-singleuser); do
		tr _ - </proc/$p/cgroup | grep -q "pod$0" && echo $p; done; true`, uid))
	if len(pids) == 0 {
		t.Fatalf("the notebook server of %s has no process", handle)
	}
	return strings.Join(pids, " ")
}

// hubPod is the hub's pod: its UID and its restarts, a line each while there
// are two of them.
func (a *appliance) hubPod(t *testing.T) string {
	t.Helper()
	return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-l", "app.kubernetes.io/component=hub",
		"-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
}

// waitOtherHub waits until another hub than before is ready and the one before
// has gone, so that the hub's log is the new one's.
func (a *appliance) waitOtherHub(t *testing.T, before string) {
	t.Helper()
	a.eventually(t, "another hub answers", func() bool {
		now := a.Gpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-l", "app.kubernetes.io/component=hub",
			"-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount} {.status.conditions[?(@.type=='Ready')].status}{"\n"}{end}`)
		hubs := strings.Split(strings.TrimSpace(now.Stdout), "\n")
		return now.Code == 0 && len(hubs) == 1 && strings.HasSuffix(hubs[0], " True") && !strings.HasPrefix(hubs[0], strings.TrimSpace(before))
	})
}

// testHubRestartWhileNotebookHangs: a hub that starts asks every server; one
// that does not answer keeps its pod.
func testHubRestartWhileNotebookHangs(t *testing.T, a *appliance) {
	pods, hub := a.notebookPods(t), a.hubPod(t)
	server := a.serverProcess(t, adminHandle)
	a.MustRun(a.ctx, "sh", "-c", "kill -STOP "+server)
	resume := func() { a.Run(a.ctx, "sh", "-c", "kill -CONT "+server) }
	t.Cleanup(resume)
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "delete", "pod", "-l", "app.kubernetes.io/component=hub", "--wait=false")
	a.waitOtherHub(t, hub)
	a.eventually(t, "the new hub has looked at the servers", func() bool {
		log := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "logs", "deploy/hub")
		if strings.Contains(log, adminHandle+" still running") {
			t.Fatalf("a server that hangs has answered the hub:\n%s", log)
		}
		return strings.Contains(log, guestHandle+" still running")
	})
	if got := a.second.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the notebook that does not hang says %q", got)
	}
	if now := a.notebookPods(t); now != pods {
		t.Fatalf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
	}
	resume()
	a.checkKept(t, pods)
	a.waitReady(t)
}

// testHubEndsWhileKubernetesIsDown: nothing of gpulab runs for a while but the
// notebooks, and the hub has ended as well when the rest comes back.
func testHubEndsWhileKubernetesIsDown(t *testing.T, a *appliance) {
	pods, hub := a.notebookPods(t), a.hubPod(t)
	for _, name := range []string{"gpulab", "k3s", "containerd"} {
		if a.Kill(a.ctx, "KILL", name) == 0 && name != "containerd" { // which k3s may have taken with it
			t.Fatalf("%s does not run", name)
		}
	}
	a.MustRun(a.ctx, "pkill", "-TERM", "-f", "/opt/hub/bin/jupyterhub")
	a.eventually(t, "the hub has ended", func() bool { return a.Run(a.ctx, "pgrep", "-f", "/opt/hub/bin/jupyterhub").Code != 0 })
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.waitOtherHub(t, hub)
	a.checkKept(t, pods)
}

// testHubRestartAfterKubernetes: both are new, one after the other.
func testHubRestartAfterKubernetes(t *testing.T, a *appliance) {
	pods := a.notebookPods(t)
	if a.Kill(a.ctx, "KILL", "k3s") != 1 {
		t.Fatal("k3s does not run")
	}
	a.waitReady(t)
	hub := a.hubPod(t)
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "delete", "pod", "-l", "app.kubernetes.io/component=hub", "--wait=false")
	a.waitOtherHub(t, hub)
	a.checkKept(t, pods)
	a.waitReady(t)
}

// stopNotebook stops one as its owner does, and waits until it is gone.
func stopNotebook(t *testing.T, owner *lab.Browser, title string) {
	t.Helper()
	b := owner.For(t).Tab()
	b.Open(pages + "/")
	b.Click("#mine", "Stop "+title)
	b.Click("dialog[open]", "Stop")
	waitGone(b, title)
}
