package notebooks

import (
	"strings"
	"testing"
	"time"
)

// reboot ends gpulab, lets the machine do what it does, and starts both again.
func (h *house) reboot(happen func()) {
	h.t.Helper()
	h.end()
	h.booted = time.Now()
	happen()
	h.open(nil)
}

// TestReboot: what ran when the machine went down ends as interrupted by that,
// with the time; what was starting starts again, what waited goes on waiting.
func TestReboot(t *testing.T) {
	for name, happens := range map[string]func(h *house, uid string){
		"its program was ended": func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) { p.Finished, p.Ready, p.Exited, p.ExitCode = true, false, true, 143 })
		},
		"its program ended in order": func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) { p.Finished, p.Ready, p.Exited = true, false, true })
		},
		"the power was cut": func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) { p.Ready, p.Exited, p.ExitCode, p.ExitReason = false, true, 255, "Unknown" })
		},
		"the machine does not know its GPUs yet": func(h *house, uid string) {
			h.lab.pod(uid, func(p *PodInfo) {
				p.Finished, p.Ready, p.StatusReason, p.StatusMessage = true, false, "UnexpectedAdmissionError", "no healthy devices present"
			})
		},
		"its pod is gone": func(h *house, uid string) { h.lab.edit(func() { delete(h.lab.pods, uid) }) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, 1)
			l := h.running(h.alice, "gpu", "Thesis")
			waiting := h.launch(h.bob, "gpu", "")
			h.until(waiting.ID, "waiting", func(l Launch) bool { return l.Position == 1 })
			h.reboot(func() { happens(h, h.podOf(l)) })
			l = h.is(l.ID, Ended)
			if want := "by a restart of the machine at " + h.booted.Local().Format("15:04"); l.EndCode != EndInterrupted || !strings.Contains(l.Reason, want) {
				t.Errorf("%s: %s; want %q", l.EndCode, l.Reason, want)
			}
			h.is(waiting.ID, Running)
		})
	}
	t.Run("what was starting", func(t *testing.T) {
		h := newHouse(t, 1)
		h.hub.set(func() { h.hub.outcome = "slow" })
		l := h.launch(h.alice, "gpu", "")
		if !eventually(func() bool { return len(h.lab.Notebooks()) == 1 }) {
			t.Fatal("no pod")
		}
		uid := h.podOf(h.is(l.ID, Starting))
		h.reboot(func() {
			h.lab.pod(uid, func(p *PodInfo) { p.Finished, p.Exited, p.ExitCode = true, true, 137 })
			h.hub.set(func() { h.hub.outcome = ""; delete(h.hub.servers, podKey{"alice", "gpu"}) })
		})
		l = h.is(l.ID, Running)
		if now := h.podOf(l); now == uid {
			t.Error("it runs in the pod that ended")
		}
	})
	t.Run("on another machine", func(t *testing.T) {
		h := newHouse(t, 1, 1)
		one, other := h.running(h.alice, "gpu", ""), h.running(h.bob, "gpu", "")
		if one.Node == "node1" {
			one, other = other, one
		}
		h.reboot(func() {
			for _, l := range []Launch{one, other} {
				h.lab.pod(h.podOf(l), func(p *PodInfo) { p.Finished, p.Ready, p.Exited = true, false, true })
			}
		})
		if l := h.is(one.ID, Ended); l.Node != "node2" || l.EndCode != EndExited || strings.Contains(l.Reason, "restart") {
			t.Errorf("on %s: %s: %s", l.Node, l.EndCode, l.Reason)
		}
		if l := h.is(other.ID, Ended); l.Node != "node1" || l.EndCode != EndInterrupted {
			t.Errorf("on %s: %s: %s", l.Node, l.EndCode, l.Reason)
		}
	})
	t.Run("its own end", func(t *testing.T) {
		h := newHouse(t, 1)
		l := h.running(h.alice, "gpu", "")
		h.reboot(func() {})
		h.until(l.ID, "found again", func(l Launch) bool { return l.State == Running })
		h.end()
		h.booted = h.booted.Add(-time.Hour) // and later, on a machine that did not go down
		h.open(nil)
		h.lab.pod(h.podOf(l), func(p *PodInfo) { p.Finished, p.Ready, p.Exited = true, false, true })
		if l = h.is(l.ID, Ended); l.EndCode != EndExited {
			t.Errorf("%s: %s", l.EndCode, l.Reason)
		}
	})
}
