//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// stillThere checks that a kernel has lived through it all: its variable, its
// pod, and the place of the one that waits.
func (a *appliance) stillThere(t *testing.T, pods string) {
	t.Helper()
	if got := a.first.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the kernel's variable is %q", got)
	}
	if now := a.notebookPods(t); now != pods {
		t.Errorf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
	}
	b := a.browser.For(t).Tab()
	b.Open(a.waiting)
	b.WaitText("#launch-state", "Waiting for 1 GPU")
}

// notebookPods lists the notebooks' pods by UID with their restarts.
func (a *appliance) notebookPods(t *testing.T) string {
	t.Helper()
	return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/component=notebook",
		"--sort-by=.metadata.name", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.metadata.name} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
}

// testKillProbe: the readings come back by themselves.
func testKillProbe(t *testing.T, a *appliance) {
	pods := a.notebookPods(t)
	killed := a.Processes(a.ctx, "gpulab-probe")
	if a.Kill(a.ctx, "KILL", "gpulab-probe") != 1 {
		t.Fatalf("there are %d probes, want one", len(killed))
	}
	a.eventually(t, "another probe runs and reads two GPUs", func() bool {
		now := a.Processes(a.ctx, "gpulab-probe")
		return len(now) == 1 && now[0] != killed[0] && len(a.gpus(t)) == 2
	})
	a.waitReady(t)
	a.stillThere(t, pods)
}

// testKillGpulab: a killed service, started again, takes over what runs.
func testKillGpulab(t *testing.T, a *appliance) {
	pods, kubernetes := a.notebookPods(t), a.Processes(a.ctx, "k3s")
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init after kill -9: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("ready again after %s", result.Took)
	if now := a.Processes(a.ctx, "k3s"); len(now) != 1 {
		t.Errorf("Kubernetes was %v and is %v", kubernetes, now)
	}
	a.waitReady(t)
	a.stillThere(t, pods)
}

// testKillKubernetes: k3s and containerd killed under running notebooks.
func testKillKubernetes(t *testing.T, a *appliance) {
	pods, kubernetes := a.notebookPods(t), a.Processes(a.ctx, "k3s")
	if a.Kill(a.ctx, "KILL", "k3s") != 1 {
		t.Fatal("k3s does not run")
	}
	a.Kill(a.ctx, "KILL", "containerd")
	// The notebook answers meanwhile: gpulab needs no cluster to pass on what
	// it has let through before.
	if got := a.first.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("without Kubernetes the kernel's variable is %q", got)
	}
	a.eventually(t, "Kubernetes runs again", func() bool {
		now := a.Processes(a.ctx, "k3s")
		return len(now) == 1 && fmt.Sprint(now) != fmt.Sprint(kubernetes)
	})
	a.eventually(t, "the node is ready", func() bool {
		result := a.Gpulab(a.ctx, "kubectl", "get", "nodes")
		return result.Code == 0 && strings.Contains(result.Stdout, " Ready")
	})
	a.waitReady(t)
	a.stillThere(t, pods)
}

// testRuntimeDeleted: with the runtime's folders gone under a running k3s, gpulab says so and restarts k3s, and a
// notebook starts afterwards.
func testRuntimeDeleted(t *testing.T, a *appliance) {
	a.waitReady(t)
	kubernetes := a.Processes(a.ctx, "k3s")
	a.MustRun(a.ctx, "sh", "-c", `
		for mount in $(awk '$5 ~ "^/run/k3s/" { print $5 }' /proc/self/mountinfo | sort -r); do umount -l "$mount"; done
		rm -rf /run/k3s /run/flannel`)
	named := ""
	// A k3s that has just been started gets two minutes before anything is missed.
	a.within(t, 4*lab.Patience, "k3s was restarted", func() bool {
		if named == "" {
			if out := a.Gpulab(a.ctx, "doctor", "components").Stdout; strings.Contains(out, "which containers need, is gone") {
				named = out
			}
		}
		now := a.Processes(a.ctx, "k3s")
		return len(now) == 1 && fmt.Sprint(now) != fmt.Sprint(kubernetes)
	})
	if named == "" {
		t.Error("the doctor never named the folder that was gone")
	}
	a.waitReady(t)
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 || strings.Contains(result.Stdout+result.Stderr, "not ready") {
		t.Errorf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	// The kubelet makes every pod of the lab anew; that takes two minutes.
	b := a.browser.For(t).Patient(4 * lab.Patience)
	launch(b, "cpu", "After the loss")
	waitJupyterLab(b, adminHandle)
	if got := newKernel(b).run(t, "print(6*7)"); got != "42" {
		t.Errorf("the new notebook says %q", got)
	}
}
