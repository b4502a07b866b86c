package notebooks

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

func TestLaunchRunsAndStops(t *testing.T) {
	h := newHouse(t, 2)
	l := h.launch(h.alice, "gpu", "")
	if l.Name != "gpu" || l.URL != "/user/alice/gpu/" || l.Title != "GPU notebook" || l.State != Waiting {
		t.Errorf("new launch: %+v", l)
	}
	l = h.is(l.ID, Running)
	if l.Node != "node1" || l.Pod == "" || len(l.GPUUUIDs) != 1 || l.Ready.IsZero() || l.Started.IsZero() {
		t.Errorf("running launch: %+v", l)
	}
	for _, s := range l.Detail {
		if s.State != stepDone {
			t.Errorf("step %s is %s", s.Name, s.State)
		}
	}
	e := h.hub.servers[podKey{"alice", "gpu"}]
	if e.options["profile"] != "gpu" || e.options["uid"] != float64(h.alice.UID) || e.options["launch"] == "" {
		t.Errorf("the hub was told %v", e.options)
	}
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	l = h.is(l.ID, Ended)
	if l.EndCode != EndStopped || l.Reason == "" || len(h.lab.Notebooks()) != 0 || h.proxy.HasServer("alice", "gpu") {
		t.Errorf("after the stop: %+v, pods %v", l, h.lab.Notebooks())
	}
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	again := h.running(h.alice, "gpu", "")
	if again.Name != l.Name || again.ID == l.ID {
		t.Errorf("relaunch: %+v", again)
	}
}

func TestWaitsForAGPUAndSaysWhy(t *testing.T) {
	h := newHouse(t, 2)
	first, second := h.running(h.alice, "gpu", ""), h.running(h.alice, "gpu", "")
	if second.Name != "gpu-2" {
		t.Errorf("second name: %q", second.Name)
	}
	third := h.launch(h.bob, "gpu", "")
	third = h.until(third.ID, "explained", func(l Launch) bool { return l.Position == 1 })
	for _, want := range []string{"Both GPUs are in use.", "next in line"} {
		if !strings.Contains(third.Reason, want) {
			t.Errorf("reason %q lacks %q", third.Reason, want)
		}
	}
	// Everybody who waits reads it: it names nobody's notebooks.
	if strings.Contains(third.Reason, "gpu-2") {
		t.Errorf("reason: %q", third.Reason)
	}
	if len(third.Holders) != 2 || third.Never || third.Detail[0].State != stepActive {
		t.Errorf("waiting launch: %+v", third)
	}
	fourth := h.launch(h.bob, "gpu", "later")
	fourth = h.until(fourth.ID, "second in line", func(l Launch) bool { return l.Position == 2 })
	if !strings.Contains(fourth.Reason, "One launch is ahead of it") {
		t.Errorf("reason: %q", fourth.Reason)
	}
	// A CPU notebook does not wait behind them.
	h.running(h.bob, "cpu", "")
	if err := h.service.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	h.is(third.ID, Running)
	if l := h.get(fourth.ID); l.State != Waiting {
		t.Errorf("the later one is %s", l.State)
	}
	if err := h.service.Cancel(t.Context(), fourth.ID); err != nil {
		t.Fatal(err)
	}
	if l := h.is(fourth.ID, Ended); l.EndCode != EndCancelled || h.hub.called("POST /users/bob/servers/later") != 0 {
		t.Errorf("cancelled: %+v", l)
	}
}

// A pod that gets its place while gpulab looks around takes its GPU once: nobody
// is sent for one that is gone.
func TestPlacedBetweenTwoLooks(t *testing.T) {
	h := newHouse(t, 1)
	h.lab.edit(func() {
		h.lab.slow = true
		h.lab.between = func() {
			for _, p := range h.lab.pods {
				p.Node, p.Scheduled, p.Unschedulable, p.Ready = "node1", true, "", !p.Started.IsZero()
			}
		}
	})
	first := h.launch(h.alice, "gpu", "")
	h.until(first.ID, "admitted", func(l Launch) bool { return l.State != Waiting })
	second := h.launch(h.bob, "gpu", "")
	h.is(first.ID, Running)
	h.until(second.ID, "next in line", func(l Launch) bool { return l.Position == 1 })
	if n := h.hub.called("POST /users/bob/servers/gpu"); n != 0 {
		t.Errorf("the hub was asked %d times for a notebook that there is no GPU for", n)
	}
}

// While the image of notebooks is being imported, launches wait and say so,
// those too that a restart of gpulab met between admission and the hub.
func TestHeldLaunchesWait(t *testing.T) {
	h := newHouse(t, 2)
	h.tenants.set(errors.New("the disk is busy"))
	admitted := h.launch(h.bob, "cpu", "")
	h.until(admitted.ID, "admitted", func(l Launch) bool { return l.State == Starting && l.Reason != "" })
	why := "The software is being prepared."
	h.hold.Store(&why)
	h.tenants.set(nil)
	h.reopen(nil)
	h.until(admitted.ID, "held", func(l Launch) bool { return l.State == Starting && l.Reason == why })
	late := h.launch(h.alice, "cpu", "")
	h.until(late.ID, "held", func(l Launch) bool { return l.State == Waiting && l.Reason == why })
	time.Sleep(100 * time.Millisecond)
	if n := h.hub.called("POST /users/"); n != 0 {
		t.Errorf("the hub was asked %d times for notebooks whose image is missing", n)
	}
	h.hold.Store(nil)
	h.service.Wake()
	h.is(admitted.ID, Running)
	h.is(late.ID, Running)
}

// While the disk is nearly full no launch is taken, and those that wait say why. What runs goes on, and can be stopped.
func TestClosed(t *testing.T) {
	h := newHouse(t, 1)
	runs := h.running(h.alice, "gpu", "")
	waits := h.launch(h.bob, "gpu", "")
	why := "The lab's disk is 97 % full."
	h.closed.Store(&why)
	h.service.Wake()
	h.until(waits.ID, "told", func(l Launch) bool { return l.State == Waiting && l.Reason == why && !l.Never })
	var refused *ObstacleError
	if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "cpu"}); !errors.As(err, &refused) || refused.Text != why {
		t.Errorf("launching gave %v", err)
	}
	if got := h.service.Obstacle("cpu"); got != why {
		t.Errorf("the card says %q", got)
	}
	h.is(runs.ID, Running)
	if err := h.service.Stop(t.Context(), runs.ID); err != nil {
		t.Error(err)
	}
	h.is(runs.ID, Ended)
	h.until(waits.ID, "still waiting", func(l Launch) bool { return l.State == Waiting && l.Reason == why })
	h.closed.Store(nil)
	h.service.Wake()
	h.is(waits.ID, Running)
	if got := h.service.Obstacle("cpu"); got != "" {
		t.Errorf("the card still says %q", got)
	}
}

// What no machine of the lab could ever take is refused with what there is.
func TestMoreThanThereIsIsRefused(t *testing.T) {
	h := newHouse(t, 2)
	var refused *ObstacleError
	if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "gpu9"}); !errors.As(err, &refused) || refused.Text != "It asks for 9 GPUs, but no machine of this lab has more than 2." {
		t.Errorf("launching gave %v", err)
	}
	// A machine that is only away comes back.
	h.lab.edit(func() { h.lab.closed = 1 })
	l := h.launch(h.alice, "gpu9", "")
	h.until(l.ID, "hopeful", func(l Launch) bool { return !l.Never && strings.Contains(l.Reason, "away") })
	h.running(h.bob, "gpu", "") // it holds nobody up
	h.lab.edit(func() { h.lab.closed = 0 })
	l = h.until(l.ID, "explained", func(l Launch) bool { return l.Never })
	if !strings.Contains(l.Reason, "no machine of this lab has more than 2") || !strings.Contains(l.Reason, "never") || l.State != Waiting {
		t.Errorf("reason: %q", l.Reason)
	}
	h.lab.edit(func() {
		h.lab.nodes = append(h.lab.nodes, NodeRoom{Name: "big", Total: Amount{GPUs: 9, MilliCPU: 8000, Memory: 1 << 40}})
	})
	h.is(l.ID, Running)
}

// While the line does not answer, nobody skips it; it is said why, what runs and
// what needs no GPU goes on.
func TestNobodySkipsALineThatIsAway(t *testing.T) {
	h := newHouse(t, 2)
	runs := h.running(h.alice, "gpu", "")
	h.line.setTrouble("Kueue does not answer.")
	waits := h.launch(h.bob, "gpu", "")
	h.until(waits.ID, "told", func(l Launch) bool { return l.Reason == "Kueue does not answer." })
	h.running(h.bob, "cpu", "")
	if l := h.get(waits.ID); l.State != Waiting {
		t.Errorf("it is %s", l.State)
	}
	h.is(runs.ID, Running)
	h.line.setTrouble("")
	h.is(waits.ID, Running)
}

func TestTwoGPUsAreNotOvertaken(t *testing.T) {
	h := newHouse(t, 2)
	one := h.running(h.alice, "gpu", "")
	two := h.launch(h.bob, "gpu2", "")
	h.until(two.ID, "first in line", func(l Launch) bool { return l.Position == 1 })
	late := h.launch(h.alice, "gpu", "late")
	h.until(late.ID, "second in line", func(l Launch) bool { return l.Position == 2 })
	if err := h.service.Stop(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	h.is(two.ID, Running)
	if l := h.get(late.ID); l.State != Waiting {
		t.Errorf("the later one is %s", l.State)
	}
}

// Two launches at once for one GPU: the second must not be let in before the
// first one's pod can be seen.
func TestAdmittedLaunchCounts(t *testing.T) {
	h := newHouse(t, 1)
	h.hub.set(func() { h.hub.down = true })
	a := h.launch(h.alice, "gpu", "")
	h.until(a.ID, "held up", func(l Launch) bool { return l.State == Starting && strings.Contains(l.Reason, "does not answer") })
	b := h.launch(h.bob, "gpu", "")
	h.until(b.ID, "waiting", func(l Launch) bool { return l.State == Waiting && l.Position == 1 })
	h.hub.set(func() { h.hub.down = false })
	h.is(a.ID, Running)
	if l := h.get(b.ID); l.State != Waiting {
		t.Errorf("the second is %s", l.State)
	}
}

func TestWaitingSurvivesARestart(t *testing.T) {
	h := newHouse(t, 1)
	first := h.running(h.alice, "gpu", "")
	second := h.launch(h.bob, "gpu", "")
	h.until(second.ID, "waiting", func(l Launch) bool { return l.Position == 1 })
	h.reopen(nil)
	if l := h.is(first.ID, Running); l.Pod == "" {
		t.Errorf("adopted: %+v", l)
	}
	h.until(second.ID, "waiting again", func(l Launch) bool { return l.State == Waiting && l.Position == 1 })
	if err := h.service.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	h.is(second.ID, Running)
}

func TestStartIsTakenUpAfterARestart(t *testing.T) {
	h := newHouse(t, 1)
	h.hub.set(func() { h.hub.outcome = "slow" })
	l := h.launch(h.alice, "gpu", "")
	if !eventually(func() bool { return len(h.lab.Notebooks()) == 1 }) {
		t.Fatal("no pod")
	}
	h.is(l.ID, Starting)
	h.end()
	k := podKey{"alice", "gpu"}
	h.lab.ready(h.podOf(l))
	h.hub.addRoute(k)
	h.hub.set(func() { h.hub.servers[k].pending, h.hub.servers[k].ready = "", true })
	h.open(nil)
	h.is(l.ID, Running)
	if n := len(h.lab.Notebooks()); n != 1 {
		t.Errorf("%d pods", n)
	}
}

func TestHubTrouble(t *testing.T) {
	t.Run("down", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.down = true })
		l := h.launch(h.alice, "gpu", "")
		h.until(l.ID, "explained", func(l Launch) bool {
			return l.State == Starting && strings.Contains(l.Reason, "JupyterHub does not answer")
		})
		h.hub.set(func() { h.hub.down = false })
		h.is(l.ID, Running)
	})
	t.Run("too many at once", func(t *testing.T) {
		h := newHouse(t, 1)
		refused := 0
		h.hub.set(func() {
			h.hub.refuse = func(w http.ResponseWriter) bool {
				refused++
				if refused > 1 {
					return false
				}
				w.Header().Set("Retry-After", "1")
				hubFault(w, http.StatusTooManyRequests, "Too many users trying to log in right now.")
				return true
			}
		})
		began := time.Now()
		l := h.launch(h.alice, "gpu", "")
		h.until(l.ID, "explained", func(l Launch) bool { return strings.Contains(l.Reason, "many notebooks at once") })
		h.is(l.ID, Running)
		if d := time.Since(began); d < time.Second {
			t.Errorf("Retry-After was not kept: %s", d)
		}
	})
	t.Run("refuses for good", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() {
			h.hub.refuse = func(w http.ResponseWriter) bool {
				hubFault(w, http.StatusBadRequest, "No such profile: gpu")
				return true
			}
		})
		l := h.is(h.launch(h.alice, "gpu", "").ID, Ended)
		if l.EndCode != EndFailed || !strings.Contains(l.Reason, "No such profile: gpu") {
			t.Errorf("%+v", l)
		}
	})
	t.Run("fails inside", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() {
			h.hub.refuse = func(w http.ResponseWriter) bool { hubFault(w, http.StatusInternalServerError, "oops"); return true }
		})
		l := h.is(h.launch(h.alice, "gpu", "").ID, Ended)
		if l.EndCode != EndFailed || h.hub.called("POST /users/alice/servers/gpu") != maxServerFault {
			t.Errorf("%+v after %d tries", l, h.hub.called("POST /users/alice/servers/gpu"))
		}
	})
	t.Run("spawn fails", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.outcome = "refused" })
		l := h.is(h.launch(h.alice, "gpu", "").ID, Ended)
		if tries := h.hub.called("POST /users/alice/servers/gpu"); l.EndCode != EndFailed || !strings.Contains(l.Reason, "The pod could not be created") || tries != maxGivenUp {
			t.Errorf("%+v after %d tries", l, tries)
		}
	})
	t.Run("spawn fails for a moment", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.outcome = "refused" })
		l := h.launch(h.alice, "gpu", "")
		h.until(l.ID, "explained", func(l Launch) bool {
			return l.State == Starting && strings.Contains(l.Reason, "tried again") && strings.Contains(l.Reason, "The pod could not be created")
		})
		h.hub.set(func() { h.hub.outcome = "" })
		h.is(l.ID, Running)
	})
	t.Run("route is missing", func(t *testing.T) {
		h := newHouse(t, 1)
		l := h.running(h.alice, "gpu", "")
		apiCall(h.proxy.RoutesAPI(), http.MethodDelete, "/api/routes/user/alice/gpu", testToken, "")
		if !eventually(func() bool { return h.proxy.HasServer("alice", "gpu") }) {
			t.Error("the route was not asked for again")
		}
		h.is(l.ID, Running)
	})
}

func TestStartFailsEarlyWithTheReason(t *testing.T) {
	for _, c := range []struct{ outcome, code, want string }{
		{"image", EndFailed, "registry has none of this name"},
		{"crash", EndFailed, "exit code 1"},
		{"unready", EndFailed, "did not answer"},
	} {
		t.Run(c.outcome, func(t *testing.T) {
			h := newHouse(t, 1)
			h.hub.set(func() { h.hub.outcome = c.outcome })
			l := h.is(h.launch(h.alice, "gpu", "").ID, Ended)
			if l.EndCode != c.code || !strings.Contains(l.Reason, c.want) {
				t.Errorf("%s: %s", l.EndCode, l.Reason)
			}
			if !eventually(func() bool { return len(h.lab.Notebooks()) == 0 }) {
				t.Error("its pod was left behind")
			}
		})
	}
	t.Run("unschedulable", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.gpus["gpu"] = 5 })
		l := h.is(h.launch(h.alice, "gpu", "").ID, Ended)
		if !strings.Contains(l.Reason, "No machine can take it") {
			t.Errorf("%s", l.Reason)
		}
	})
	t.Run("slow, with the cluster's words", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.outcome = "slow" })
		h.lab.edit(func() { h.lab.warnings = []string{"FailedMount: hostPath type check failed"} })
		l := h.launch(h.alice, "gpu", "")
		h.until(l.ID, "explained", func(l Launch) bool { return strings.Contains(l.Reason, "home folder is not there yet") })
	})
}

func TestEndsWithTheReason(t *testing.T) {
	for _, c := range []struct {
		name   string
		happen func(h *house, uid string)
		code   string
		want   string
	}{
		{"out of memory", func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) {
				p.Finished, p.Ready, p.Exited, p.ExitCode, p.ExitReason, p.MemoryLimit = true, false, true, 137, "OOMKilled", 8<<30
			})
		}, EndOutOfMemory, "more memory than its limit of 8 GiB"},
		{"shut down from inside", func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) { p.Finished, p.Ready, p.Exited = true, false, true })
		}, EndExited, "shut down from inside"},
		{"evicted", func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) {
				p.Finished, p.Ready, p.StatusReason, p.StatusMessage = true, false, "Evicted", "low on disk"
			})
		}, EndEvicted, "low on disk"},
		{"evicted, and its program was faster", func(h *house, uid string) {
			h.lab.edit(func() {
				h.lab.warnings = []string{`Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "20Gi". `}
			})
			h.lab.pod(uid, func(p *PodInfo) { p.Finished, p.Ready, p.Exited = true, false, true })
		}, EndEvicted, "more than its 20 GiB outside of its home"},
		{"deleted from outside", func(h *house, uid string) {
			h.lab.linger = time.Second
			h.lab.remove(uid)
		}, EndInterrupted, "deleted from outside"},
		{"vanished", func(h *house, uid string) {
			h.lab.edit(func() { delete(h.lab.pods, uid) })
		}, EndInterrupted, "its pod is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, 1)
			l := h.running(h.alice, "gpu", "")
			c.happen(h, h.podOf(l))
			l = h.is(l.ID, Ended)
			if l.EndCode != c.code || !strings.Contains(l.Reason, c.want) {
				t.Errorf("%s: %s", l.EndCode, l.Reason)
			}
			h.running(h.bob, "gpu", "")
		})
	}
}

func TestTooManyFilesEndALaunch(t *testing.T) {
	h := newHouse(t, 2)
	greedy, modest := h.running(h.alice, "gpu", ""), h.running(h.bob, "gpu", "")
	most := mostFiles(20 << 30)
	if most != 655_360 || mostFiles(1<<30) != 100_000 {
		t.Errorf("%d files in 20 GiB, %d in 1 GiB", most, mostFiles(1<<30))
	}
	usage := map[string]PodUsage{h.podOf(greedy): {Files: most + 1}, h.podOf(modest): {Files: most}, "somebody's": {Files: 1 << 40}}
	for range 2 { // the second time it is ending already
		if err := h.service.BoundFiles(t.Context(), usage); err != nil {
			t.Fatal(err)
		}
	}
	l := h.is(greedy.ID, Ended)
	if l.EndCode != EndEvicted || !strings.Contains(l.Reason, "655361 files and folders outside of its home") {
		t.Errorf("%s: %s", l.EndCode, l.Reason)
	}
	h.is(modest.ID, Running)
}

func TestPodThatComesBackIsKept(t *testing.T) {
	h := newHouse(t, 1)
	h.reopen(func(p *patience) { p.missing = 2 * time.Second })
	l := h.running(h.alice, "gpu", "")
	uid := h.podOf(l)
	var kept *PodInfo
	h.lab.edit(func() { kept = h.lab.pods[uid]; delete(h.lab.pods, uid) })
	h.until(l.ID, "noticed", func(l Launch) bool { return strings.Contains(l.Reason, "looking again") })
	h.lab.edit(func() { h.lab.pods[uid] = kept })
	h.until(l.ID, "well again", func(l Launch) bool { return l.State == Running && l.Reason == "" })
}

func TestStopWhileTheHubIsDown(t *testing.T) {
	h := newHouse(t, 1)
	l := h.running(h.alice, "gpu", "")
	h.hub.set(func() { h.hub.down = true })
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	h.until(l.ID, "explained", func(l Launch) bool {
		return l.State == Stopping && strings.Contains(l.Reason, "free already") && len(h.lab.Notebooks()) == 0
	})
	h.hub.set(func() { h.hub.down = false })
	h.is(l.ID, Ended)
}

func TestStopWhileTheClusterIsAwayToo(t *testing.T) {
	h := newHouse(t, 1)
	l := h.running(h.alice, "gpu", "")
	h.hub.set(func() { h.hub.down = true })
	h.lab.edit(func() { h.lab.noDelete = true })
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	h.until(l.ID, "explained", func(l Launch) bool { return strings.Contains(l.Reason, "cluster does not answer") })
	h.reopen(nil)
	h.lab.edit(func() { h.lab.noDelete = false })
	h.hub.set(func() { h.hub.down = false })
	if l := h.is(l.ID, Ended); l.EndCode != EndStopped {
		t.Errorf("%+v", l)
	}
}

func TestStopWhileStarting(t *testing.T) {
	h := newHouse(t, 1)
	h.hub.set(func() { h.hub.outcome = "slow" })
	l := h.launch(h.alice, "gpu", "")
	if !eventually(func() bool { return len(h.lab.Notebooks()) == 1 }) {
		t.Fatal("no pod")
	}
	if err := h.service.Cancel(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	l = h.is(l.ID, Ended)
	if l.EndCode != EndCancelled || len(h.lab.Notebooks()) != 0 {
		t.Errorf("%+v", l)
	}
}

// A pod that the hub leaves behind must not keep its GPU.
func TestPodLeftByTheHubIsDeleted(t *testing.T) {
	h := newHouse(t, 1)
	l := h.running(h.alice, "gpu", "")
	h.hub.set(func() { delete(h.hub.servers, podKey{"alice", "gpu"}) })
	if err := h.service.Stop(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	h.is(l.ID, Ended)
	if len(h.lab.deleted) != 1 {
		t.Errorf("deleted: %v", h.lab.deleted)
	}
}

func TestOrphans(t *testing.T) {
	h := newHouse(t, 2)
	known := h.running(h.alice, "gpu", "")
	orphan := h.lab.add("carol", "gpu", 99, 1)
	h.lab.ready(orphan)
	if !eventually(func() bool { return len(h.lab.Notebooks()) == 1 }) {
		t.Fatal("the orphan was kept")
	}
	h.is(known.ID, Running)

	// While the rows cannot be read nobody is an orphan.
	if err := h.db.Close(); err != nil {
		t.Fatal(err)
	}
	another := h.lab.add("carol", "gpu", 99, 1)
	time.Sleep(3 * h.service.patience.orphan)
	if n := len(h.lab.Notebooks()); n != 2 {
		t.Errorf("%d pods; %s must stay", n, another)
	}
}

// A job's pod that came after its launch had ended goes although another launch has the name.
func TestOrphanOfAJob(t *testing.T) {
	h := newHouse(t, 2)
	job := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	job = h.is(job.ID, Running)
	stray := h.lab.add(job.Handle, job.Name, job.ID+1000, 1)
	if !eventually(func() bool {
		return !slices.ContainsFunc(h.lab.Notebooks(), func(p PodInfo) bool { return p.UID == stray })
	}) {
		t.Error("it was kept")
	}
	if p := h.podOf(h.is(job.ID, Running)); p == stray {
		t.Error("it is taken for the job's own")
	}
}

func TestEarlierPodOfTheSameName(t *testing.T) {
	h := newHouse(t, 1)
	h.reopen(func(p *patience) { p.orphan = time.Minute })
	old := h.lab.add("alice", "gpu", 77, 0)
	h.lab.ready(old)
	l := h.running(h.alice, "gpu", "")
	if h.podOf(l) == old || len(h.lab.Notebooks()) != 1 {
		t.Errorf("pods: %+v", h.lab.Notebooks())
	}
}

func TestInsteadOfAWaitingLaunch(t *testing.T) {
	h := newHouse(t, 1)
	running, waiting := h.running(h.alice, "gpu", ""), h.launch(h.bob, "gpu", "")
	h.is(waiting.ID, Waiting)
	if _, err := h.service.Launch(t.Context(), h.bob, Request{Profile: "huge", Instead: waiting.ID}); !errors.Is(err, ErrProfileUnknown) {
		t.Errorf("got %v, want %v", err, ErrProfileUnknown)
	}
	h.is(waiting.ID, Waiting)
	if _, err := h.service.Launch(t.Context(), h.bob, Request{Profile: "cpu", Instead: waiting.ID}); err != nil {
		t.Fatal(err)
	}
	if l := h.is(waiting.ID, Ended); l.EndCode != EndCancelled {
		t.Errorf("the waiting one ended as %q", l.EndCode)
	}
	// A page left open for an hour ends no work. What stays counts against a quota, as
	// what is another's does.
	others := h.launch(h.bob, "gpu", "")
	h.is(others.ID, Waiting)
	var without []int64
	h.service.cfg.Quota = func(_ context.Context, _ users.User, _ Profile, launch int64) error {
		without = append(without, launch)
		return nil
	}
	mine := h.launch(h.alice, "gpu", "")
	for _, instead := range []int64{running.ID, others.ID, mine.ID} {
		if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "cpu", Instead: instead}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int64{0, 0, 0, mine.ID}; !slices.Equal(without, want) {
		t.Errorf("quotas leave out %v, want %v", without, want)
	}
	h.is(running.ID, Running)
	h.is(others.ID, Waiting)
	// One that begins while quotas are asked stays, and nothing is entered beside it uncounted.
	late := h.launch(h.alice, "gpu", "")
	h.service.cfg.Quota = func(ctx context.Context, _ users.User, _ Profile, launch int64) error {
		if launch != late.ID {
			t.Errorf("quotas leave out %d, want %d", launch, late.ID)
		}
		_, err := h.db.ExecContext(ctx, "UPDATE launches SET state = 'running' WHERE id = ?", late.ID)
		return err
	}
	var begun *ObstacleError
	if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "cpu", Instead: late.ID}); !errors.As(err, &begun) {
		t.Errorf("instead of one that has begun meanwhile: %v", err)
	}
}

// What cannot work on the lab's GPUs is refused with the reason, or waits until
// it can, and nobody waits behind it.
func TestObstacle(t *testing.T) {
	h := newHouse(t, 1)
	const why = "The image X needs CUDA 99.0 or newer."
	first := h.running(h.alice, "gpu", "")
	h.lab.edit(func() { h.lab.closed = 1 }) // it has GPUs enough
	early := h.launch(h.bob, "gpu2", "")
	h.until(early.ID, "explained", func(l Launch) bool { return l.Reason != "" })
	h.obstacles.Store(&map[string]string{"gpu2": why, "cpu": "it has no GPU"})
	h.until(early.ID, "blocked", func(l Launch) bool { return l.Never && l.Reason == why && l.Position == 0 })
	if got := h.service.Obstacle("gpu2"); got != why {
		t.Errorf("pages learn %q", got)
	}

	waiting := h.launch(h.bob, "gpu", "")
	_, err := h.service.Launch(t.Context(), h.bob, Request{Profile: "gpu2", Instead: waiting.ID})
	var refused *ObstacleError
	if !errors.As(err, &refused) || refused.Text != why {
		t.Errorf("a launch that cannot work: %v", err)
	}
	h.is(waiting.ID, Waiting) // its place in the queue was not given up
	h.running(h.bob, "cpu", "")
	if err := h.service.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	h.is(waiting.ID, Running)

	h.obstacles.Store(nil)
	h.lab.edit(func() {
		h.lab.nodes = append(h.lab.nodes, NodeRoom{Name: "big", Total: Amount{GPUs: 2, MilliCPU: 8000, Memory: 1 << 40}})
	})
	h.is(early.ID, Running)
	if got := h.service.Obstacle("gpu2"); got != "" {
		t.Errorf("pages still say %q", got)
	}
}

// A machine whose GPUs an image cannot use is passed over by what is started from it, and by nothing else.
func TestUnfitMachine(t *testing.T) {
	h := newHouse(t, 1)
	h.lab.edit(func() {
		h.lab.nodes = append(h.lab.nodes, NodeRoom{Name: "old", Total: Amount{GPUs: 4, MilliCPU: 8000, Memory: 1 << 40}})
	})
	h.unfit.Store(&map[string][]string{"gpu": {"old"}})
	first := h.running(h.alice, "gpu", "")
	if l := h.get(first.ID); l.Node == "old" || !strings.Contains(l.WhyHere(), "Its image cannot use the GPUs of old.") {
		t.Errorf("it runs on %s: %q", l.Node, l.WhyHere())
	}
	waits := h.launch(h.bob, "gpu", "")
	h.until(waits.ID, "explained", func(l Launch) bool {
		return l.State == Waiting && l.Position == 1 && strings.Contains(l.Reason, "Its image cannot use the GPUs of old.")
	})
	// Who can use it does not wait behind those who cannot.
	if l := h.get(h.running(h.bob, "gpu2", "").ID); l.Node != "old" {
		t.Errorf("another image runs on %s", l.Node)
	}
	if why := h.service.Obstacle("gpu"); why != "" {
		t.Errorf("one machine will do, and pages say %q", why)
	}
	if err := h.service.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	h.is(waits.ID, Running)

	// With what it asks for on unfit machines alone it is refused at once, with the reason.
	h.unfit.Store(&map[string][]string{"gpu": {"old"}, "gpu2": {"old"}})
	_, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "gpu2"})
	var refused *ObstacleError
	if !errors.As(err, &refused) || refused.Text != "The image Y does not run on old." {
		t.Errorf("%v", err)
	}
}

func TestLimitsAndBadRequests(t *testing.T) {
	h := newHouse(t, 1)
	for _, c := range []struct {
		request Request
		want    error
	}{
		{Request{Profile: "huge"}, ErrProfileUnknown},
		{Request{Profile: "cpu", Title: strings.Repeat("x", 81)}, ErrTitleInvalid},
		{Request{Profile: "cpu", Title: "a\nb"}, ErrTitleInvalid},
		{Request{Profile: "cpu", Title: "\xff"}, ErrTitleInvalid},
		{Request{Profile: "cpu", Title: "invoice\u202egnp.exe"}, ErrTitleInvalid},
	} {
		if _, err := h.service.Launch(t.Context(), h.alice, c.request); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v, want %v", c.request, err, c.want)
		}
	}
	for range DefaultMaxActive {
		h.launch(h.alice, "cpu", "")
	}
	if _, err := h.service.Launch(t.Context(), h.alice, Request{}); !errors.Is(err, ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
	h.launch(h.bob, "cpu", "")
	if _, err := h.service.Get(t.Context(), 4711); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown launch: %v", err)
	}
	if err := h.service.Stop(t.Context(), 4711); !errors.Is(err, ErrNotFound) {
		t.Errorf("stop of an unknown launch: %v", err)
	}
}

func TestStopUser(t *testing.T) {
	h := newHouse(t, 2)
	a, b := h.running(h.alice, "gpu", ""), h.running(h.bob, "gpu", "")
	if err := h.service.StopUser(t.Context(), h.alice.ID, "The account was suspended."); err != nil {
		t.Fatal(err)
	}
	if l := h.is(a.ID, Ended); l.Reason != "The account was suspended." {
		t.Errorf("%+v", l)
	}
	h.is(b.ID, Running)
}

func TestNothingHappensBeforeTheWatchIsThere(t *testing.T) {
	h := newHouse(t, 1)
	l := h.running(h.alice, "gpu", "")
	h.end()
	h.lab.edit(func() { h.lab.unsynced = true })
	pods := h.lab.pods
	h.lab.edit(func() { h.lab.pods = map[string]*PodInfo{} })
	h.open(nil)
	w := h.launch(h.bob, "gpu", "")
	h.until(w.ID, "explained", func(l Launch) bool { return strings.Contains(l.Reason, "cluster is not answering yet") })
	time.Sleep(2 * h.service.patience.missing)
	h.is(l.ID, Running)
	h.lab.edit(func() { h.lab.unsynced, h.lab.pods = false, pods })
	h.until(w.ID, "waiting", func(l Launch) bool { return l.Position == 1 })
	h.is(l.ID, Running)
}

func TestMemoryThatRanOutIsTold(t *testing.T) {
	h := newHouse(t, 0)
	l := h.running(h.alice, "cpu", "")
	h.lab.pod(h.podOf(l), func(p *PodInfo) { p.MemoryLimit = 4 << 30 })
	h.kills.Add(1)
	h.until(l.ID, "told", func(l Launch) bool { return l.State == Running && strings.Contains(l.Reason, "limit of 4 GiB") })
	// News for a while only, and told again when it happens again.
	h.until(l.ID, "quiet", func(l Launch) bool { return l.State == Running && l.Reason == "" })
	h.kills.Add(1)
	h.until(l.ID, "told again", func(l Launch) bool { return strings.Contains(l.Reason, "Memory ran out") })
}

func TestSimulatedGPUsAreMarkedAndEnd(t *testing.T) {
	h := newHouse(t, 1)
	h.simulated = true
	h.reopen(nil)
	holds := h.running(h.alice, "gpu", "")
	plain := h.running(h.bob, "cpu", "")
	waits := h.launch(h.bob, "gpu", "")
	if !holds.Simulated || plain.Simulated || waits.Simulated {
		t.Errorf("marked as simulated: with GPU %t, without %t, waiting %t", holds.Simulated, plain.Simulated, waits.Simulated)
	}
	h.simulated = false
	h.reopen(nil)
	ended := h.is(holds.ID, Ended)
	if !ended.Simulated || ended.EndCode != EndInterrupted || !strings.Contains(ended.Reason, "simulated") {
		t.Errorf("simulated %t, ended by %q: %s", ended.Simulated, ended.EndCode, ended.Reason)
	}
	if l := h.is(waits.ID, Running); l.Simulated {
		t.Error("a launch that waited until the GPUs were real is marked as simulated")
	}
	h.is(plain.ID, Running)
}

func TestSubscribers(t *testing.T) {
	h := newHouse(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	changes := h.service.Subscribe(ctx)
	l := h.launch(h.alice, "gpu", "")
	for h.get(l.ID).State != Running {
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatal("no change was told")
		}
	}
	cancel()
	if !eventually(func() bool {
		h.service.mu.Lock()
		defer h.service.mu.Unlock()
		return len(h.service.subscribers) == 0
	}) {
		t.Error("the subscriber was kept")
	}
}

func TestListShowsActiveFirst(t *testing.T) {
	h := newHouse(t, 1)
	a := h.running(h.alice, "gpu", "")
	b := h.running(h.alice, "cpu", "")
	if err := h.service.Stop(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	h.is(b.ID, Ended)
	list, err := h.service.List(t.Context(), h.alice.ID)
	if err != nil || len(list) != 2 || list[0].ID != a.ID {
		t.Errorf("%v %+v", err, list)
	}
	active, err := h.service.Active(t.Context())
	if err != nil || len(active) != 1 {
		t.Errorf("%v %+v", err, active)
	}
}
