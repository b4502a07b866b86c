//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestQueueFaults is a lab where people wait for GPUs while gpulab is killed, and while somebody deletes what the
// line is made of. Who waits keeps the place, and no GPU is given to two.
//
//test:about internal/queue internal/notebooks
func TestQueueFaults(t *testing.T) {
	t.Parallel()
	a := ready(t, queueConfig)
	q := newLine(t, a)
	atOnce(t,
		func() { q.computers[adminHandle].start(t, "gpu", "First") },
		func() { q.computers["cleo"].start(t, "gpu", "Fresh") })
	a.live(t, []chapter{
		{"gpulab is killed", q.gpulabKilled, true},
		{"what is deleted by hand comes back", q.byHand, true},
		{"a deleted pod makes room", q.podDeleted, true},
		{"nothing is left", q.nothingLeft, false},
	})
}

// gpulabKilled: who waits keeps the place, and gets the GPU that becomes free.
func (q *line) gpulabKilled(t *testing.T, a *appliance) {
	ada := a.browser.For(t).Tab()
	launch(ada, "gpu", "More")
	ada.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	a.MustGpulab(a.ctx, initArgs...)
	ada.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	q.computers["cleo"].stop(t, "Fresh")
	began := time.Now()
	waitJupyterLab(ada, adminHandle)
	t.Logf("from the stop to the next one's JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))
}

// byHand: what of the line somebody deletes is made again, and what runs counts
// at once: a third is not let in.
func (q *line) byHand(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "kubectl", "delete", "workloads", "-n", "user-"+adminHandle, "--all", "--wait=false")
	ben := a.guest.For(a.lifeOf).Tab().For(t) // for the next chapter, too
	q.third = ben
	launch(ben, "gpu", "Third")
	ben.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	a.eventually(t, "what runs is booked again", func() bool {
		got := a.workloads(t)
		return strings.Count(got, "user-"+adminHandle) == 2 && strings.Count(got, "True") == 2
	})
	a.MustGpulab(a.ctx, "kubectl", "delete", "localqueues", "-n", "user-"+guestHandle, "--all", "--wait=false")
	a.MustGpulab(a.ctx, "kubectl", "patch", "cohort", "lab", "--type=json", "-p", `[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":"5"}]`)
	a.eventually(t, "the quota is that of the pool again", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "cohort", "lab", "-o", "jsonpath={.spec.resourceGroups[0].flavors[0].resources[0].nominalQuota}") == "2"
	})
	a.MustGpulab(a.ctx, "kubectl", "delete", "workloads", "-n", "user-"+guestHandle, "--all", "--wait=false")
	a.eventually(t, "who waits is in line again", func() bool { return strings.Contains(a.workloads(t), "user-"+guestHandle) })
	ben.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
}

// podDeleted: what holds a GPU ends, whatever ended it, and the next one gets it.
func (q *line) podDeleted(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+adminHandle, "delete", "pods", "-l", "gpulab.dev/notebook=first", "--wait=false")
	waitJupyterLab(q.third.For(t), guestHandle)
	a.eventually(t, "two have a GPU, as before", func() bool {
		got := a.workloads(t)
		return strings.Count(got, "launch-") == 2 && strings.Count(got, "True") == 2 && strings.Contains(got, "user-"+guestHandle)
	})
	if got := a.running(t, "First"); got != 0 {
		t.Error("the notebook without its pod runs")
	}
}
