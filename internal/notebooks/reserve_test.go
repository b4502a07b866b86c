package notebooks

import (
	"fmt"
	"testing"
)

// What is kept for whom, and what the line gives away besides.
func TestReserve(t *testing.T) {
	waits := func(launch int64, gpus int, granted bool, machines ...string) Seeker {
		return Seeker{Launch: launch, GPUs: gpus, Machines: machines, Granted: granted}
	}
	kinds := map[string]string{"a": "A", "b": "A", "c": "A", "x": "X"}
	for name, c := range map[string]struct {
		free    map[string]int
		seekers []Seeker
		kept    string // LAUNCH@MACHINE:GPUS
		extra   string
	}{
		"nobody waits":                    {free: map[string]int{"a": 2}},
		"it has room":                     {map[string]int{"a": 2, "b": 1}, []Seeker{waits(1, 2, true, "a")}, "", ""},
		"its GPUs are on two machines":    {map[string]int{"a": 1, "b": 1}, []Seeker{waits(1, 2, true, "a", "b")}, "1@a:1", "A+1"},
		"where most are free":             {map[string]int{"a": 1, "b": 2}, []Seeker{waits(1, 4, true, "a", "b")}, "1@b:2", "A+2"},
		"not where it may not be":         {map[string]int{"a": 0, "b": 2}, []Seeker{waits(1, 2, true, "a")}, "1@a:0", "A+2"},
		"one machine for two":             {map[string]int{"a": 1, "b": 0}, []Seeker{waits(1, 2, true, "a"), waits(2, 2, true, "a")}, "1@a:1 2@a:0", "A+3"},
		"what is kept is no one else's":   {map[string]int{"a": 1, "b": 0}, []Seeker{waits(1, 2, true, "a"), waits(2, 1, true, "a", "b")}, "1@a:1", "A+2"},
		"one GPU is no machine":           {map[string]int{"a": 0}, []Seeker{waits(1, 1, true, "a")}, "", "A+1"},
		"the next one, and enough":        {map[string]int{"a": 1, "b": 1}, []Seeker{waits(1, 2, false, "a", "b")}, "1@a:1", ""},
		"the next one, and too few":       {map[string]int{"a": 1, "b": 1}, []Seeker{waits(1, 4, false, "a")}, "1@a:1", "A+2"},
		"all that is free is its own":     {map[string]int{"a": 1, "b": 0}, []Seeker{waits(1, 2, false, "a", "b")}, "1@a:1", ""},
		"nothing is free":                 {map[string]int{"a": 0, "b": 0}, []Seeker{waits(1, 2, false, "a", "b")}, "1@a:0", ""},
		"another kind":                    {map[string]int{"a": 0, "x": 1}, []Seeker{waits(1, 2, false, "a")}, "1@a:0", ""},
		"two lines, one at a time":        {map[string]int{"a": 1, "b": 1, "c": 0}, []Seeker{waits(1, 3, false, "c"), waits(2, 4, false, "a")}, "1@c:0 2@a:1", "A+1"},
		"less than nothing is free":       {map[string]int{"a": -1, "b": 1}, []Seeker{waits(1, 2, true, "a")}, "1@a:0", "A+2"},
		"no machine is there now":         {map[string]int{"a": 1}, []Seeker{waits(1, 2, true)}, "", ""},
		"who is let in takes a free one":  {map[string]int{"a": 2}, []Seeker{waits(1, 1, true, "a"), waits(2, 2, true, "a")}, "2@a:1", "A+1"},
		"the fewest to spare are taken":   {map[string]int{"a": 3, "b": 1}, []Seeker{waits(1, 1, true, "a", "b"), waits(2, 3, true, "a")}, "", ""},
		"by the machine's kind":           {map[string]int{"x": 1}, []Seeker{waits(1, 2, true, "x")}, "1@x:1", "X+1"},
		"of two lines the second is kept": {map[string]int{"a": 1, "x": 1}, []Seeker{waits(1, 2, false, "a"), waits(2, 2, false, "x")}, "1@a:1 2@x:1", ""},
	} {
		kept, extra := Reserve(c.free, kinds, c.seekers)
		got := ""
		for _, s := range c.seekers {
			if k, ok := kept[s.Launch]; ok {
				got += fmt.Sprintf(" %d@%s:%d", s.Launch, k.Machine, k.GPUs)
			}
		}
		more := ""
		for _, kind := range []string{"A", "X"} {
			if n := extra[kind]; n != 0 {
				more += fmt.Sprintf(" %s+%d", kind, n)
			}
		}
		if got != prefixed(c.kept) || more != prefixed(c.extra) {
			t.Errorf("%s: kept%s, besides%s; want %q, %q", name, got, more, c.kept, c.extra)
		}
	}
}

func prefixed(words string) string {
	if words == "" {
		return ""
	}
	return " " + words
}

// Who needs two GPUs at once gets them, and nothing is left lying meanwhile: the
// machine that has two is kept for it, and those behind it have what is free elsewhere.
func TestAMachineIsKept(t *testing.T) {
	h := newHouse(t, 1, 2)
	small, a, b := h.running(h.alice, "gpu", "small"), h.running(h.alice, "gpu", "a"), h.running(h.alice, "gpu", "b")
	if small.Node != "node1" || a.Node != "node2" || b.Node != "node2" {
		t.Fatalf("they are on %s, %s and %s", small.Node, a.Node, b.Node)
	}
	two := h.launch(h.bob, "gpu2", "")
	h.until(two.ID, "first in line", func(l Launch) bool { return l.Position == 1 })
	first, second := h.launch(h.bob, "gpu", "first"), h.launch(h.bob, "gpu", "second")
	h.until(second.ID, "third in line", func(l Launch) bool { return l.Position == 3 })
	stop := func(l Launch) {
		t.Helper()
		if err := h.service.Stop(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	// What gets free on the small machine does not help it.
	stop(small)
	if got := h.is(first.ID, Running); got.Node != "node1" {
		t.Errorf("the one behind it is on %s", got.Node)
	}
	h.until(two.ID, "told", func(l Launch) bool {
		return l.Reason == "Its turn has come. It waits until a machine has 2 GPUs free at once. What gets free on node2 is kept for it."
	})
	// What gets free on the large one is its own.
	stop(a)
	h.until(two.ID, "told what it has", func(l Launch) bool {
		return l.Reason == "Its turn has come. It waits until a machine has 2 GPUs free at once. One of node2 is kept for it; what gets free there comes to it."
	})
	h.until(second.ID, "told why", func(l Launch) bool {
		return l.State == Waiting && l.Reason == "All 3 GPUs are in use, or kept for a launch before it that needs several at once. It is next in line."
	})
	stop(b)
	if got := h.is(two.ID, Running); got.Node != "node2" {
		t.Errorf("it is on %s", got.Node)
	}
	stop(first)
	h.is(second.ID, Running)
}
