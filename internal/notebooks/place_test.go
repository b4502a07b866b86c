package notebooks

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	machine := func(name string, gpus, free int) NodeRoom {
		return NodeRoom{Name: name, HasGPUs: gpus > 0, Total: Amount{GPUs: gpus, MilliCPU: 4000, Memory: 8 << 30}, Free: Amount{GPUs: free, MilliCPU: 4000, Memory: 8 << 30}}
	}
	full := machine("full", 0, 0)
	full.Free.Memory = 0
	all := []NodeRoom{machine("a", 4, 4), machine("b", 4, 2), machine("c", 0, 0)}
	need := func(gpus int) Need { return Need{Amount: Amount{GPUs: gpus, MilliCPU: 100, Memory: 1 << 30}} }
	without := need(0)
	without.NoGPUs = true
	only := need(1)
	only.Only = "a"
	for _, c := range []struct {
		name  string
		room  Room
		need  Need
		rules Placing
		want  Placement
	}{
		{"packed", Room{Nodes: all}, need(2), Placing{}, Placement{Prefer: []string{"b"}, Why: "Of the machines with room for it, it had the fewest free GPUs: others stay whole for notebooks that need several."}},
		{"spread", Room{Nodes: all}, need(2), Placing{GPUs: GPUsSpread}, Placement{Prefer: []string{"a"}, Why: "Of the machines with room for it, it had the most free GPUs."}},
		{"one left", Room{Nodes: all}, need(3), Placing{GPUs: GPUsSpread}, Placement{Prefer: []string{"a"}, Why: "No other machine had room for it."}},
		{"no choice by the home", Room{Nodes: all}, only, Placing{}, Placement{Why: "Its home is on no other machine."}},
		{"CPU anywhere", Room{Nodes: all}, need(0), Placing{}, Placement{}},
		{"CPU apart", Room{Nodes: all}, need(0), Placing{CPU: CPUPrefer}, Placement{Prefer: []string{"c"}, Why: "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules."}},
		{"CPU apart, and no room there", Room{Nodes: append([]NodeRoom{full}, all[:2]...)}, need(0), Placing{CPU: CPUPrefer}, Placement{Why: "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules, and none had."}},
		{"CPU apart, and nowhere to go", Room{Nodes: all[:2]}, need(0), Placing{CPU: CPUPrefer}, Placement{Why: "CPU notebooks run on machines without GPUs where one has room, by the lab’s rules, and none was ready."}},
		{"CPU apart, always", Room{Nodes: all, Cordoned: []NodeRoom{machine("d", 0, 0), machine("e", 1, 1)}}, without, Placing{CPU: CPURequire}, Placement{Machines: []string{"c", "d"}, Why: "CPU notebooks run on machines without GPUs only, by the lab’s rules."}},
		{"a lab of one machine", Room{Nodes: all[:1]}, need(1), Placing{}, Placement{}},
	} {
		if got := choose(c.room, c.need, c.rules); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestWhyHere(t *testing.T) {
	l := Launch{Placement: Placement{Prefer: []string{"a"}, Why: "Because."}}
	for node, want := range map[string]string{"": "", "a": "Because.", "b": "Another machine was meant, and had no room any more when it started."} {
		if l.Node = node; l.WhyHere() != want {
			t.Errorf("on %q: %s", node, l.WhyHere())
		}
	}
}

// CPU notebooks that are to keep off machines with GPUs wait for one without, hold
// nobody up meanwhile, and then run there and say why.
func TestCPUNotebooksApart(t *testing.T) {
	h := newHouse(t, 1)
	h.placing.Store(&Placing{CPU: CPURequire})
	var refused *ObstacleError
	if _, err := h.service.Launch(t.Context(), h.alice, Request{Profile: "cpu"}); !errors.As(err, &refused) || !strings.Contains(refused.Text, "this lab has no such machine") {
		t.Errorf("a launch without a machine to go to: %v", err)
	}
	h.lab.edit(func() { h.lab.closed = 1 }) // it may be one
	l := h.launch(h.alice, "cpu", "")
	h.until(l.ID, "told why it waits", func(l Launch) bool {
		return !l.Never && strings.Contains(l.Reason, "none of these is ready")
	})
	h.running(h.bob, "gpu", "")
	h.lab.edit(func() {
		h.lab.nodes = append(h.lab.nodes, NodeRoom{Name: "quiet", Total: Amount{MilliCPU: 8000, Memory: 1 << 40}})
		h.lab.closed = 0
	})
	l = h.is(l.ID, Running)
	if got := fmt.Sprint(l.Placement.Machines, l.Placement.Why); got != "[quiet]CPU notebooks run on machines without GPUs only, by the lab’s rules." {
		t.Errorf("placed %s", got)
	}
	if got := fmt.Sprint(h.hub.optionsOf(l)["machines"]); got != "[quiet]" {
		t.Errorf("the hub was told of %s", got)
	}

	// Where that is a wish only, it goes without.
	h.placing.Store(&Placing{CPU: CPUPrefer})
	h.lab.edit(func() {
		h.lab.nodes = append(h.lab.nodes[:1], NodeRoom{Name: "other", HasGPUs: true, Total: h.lab.nodes[0].Total})
	})
	l = h.running(h.bob, "cpu", "")
	if why := l.WhyHere(); !strings.Contains(why, "none was ready") || h.hub.optionsOf(l)["machines"] != nil || h.hub.optionsOf(l)["prefer"] != nil {
		t.Errorf("%q, the hub was told %v", why, h.hub.optionsOf(l))
	}
}

// Who may not use a machine never lands there, and reads why they wait.
func TestMachinesForSome(t *testing.T) {
	h := newHouse(t, 1, 1)
	h.barred.Store(&map[int64][]string{h.bob.ID: {"node1"}})
	l := h.running(h.bob, "gpu", "")
	if got := fmt.Sprint(h.hub.optionsOf(l)["machines"]); got != "[node2]" {
		t.Errorf("the hub was told of %s", got)
	}
	second := h.launch(h.bob, "gpu", "second")
	h.until(second.ID, "told who has the other", func(l Launch) bool {
		return l.State == Waiting && !l.Never && strings.HasSuffix(l.Reason, "node1 is for guests only.")
	})
	// Who is before in another line holds up nobody: that GPU is not for them.
	if got := fmt.Sprint(h.hub.optionsOf(h.running(h.alice, "gpu", ""))["machines"]); got != "[node1]" {
		t.Errorf("somebody else is kept to %s", got)
	}
	h.barred.Store(&map[int64][]string{h.bob.ID: {"node1", "node2"}})
	h.service.Wake()
	h.until(second.ID, "told that none is theirs", func(l Launch) bool {
		return l.Never && strings.HasPrefix(l.Reason, "No machine that could take it is for you. node1 is for guests only, node2 is for guests only.")
	})
	h.is(l.ID, Running) // what runs goes on
}
