package notebooks

import (
	"fmt"
	"testing"
)

// What is kept for whom, and what the line gives away besides.
func TestReserve(t *testing.T) {
	kinds := map[string]string{"a": "A", "b": "A", "c": "A", "soon": "A", "x": "X", "y": "X"}
	granted := func(launch int64, gpus int, machines ...string) Seeker {
		return Seeker{Launch: launch, GPUs: gpus, Machines: machines, Granted: true}
	}
	first := func(launch int64, gpus int, machines ...string) Seeker {
		return Seeker{Launch: launch, GPUs: gpus, Machines: machines, First: true}
	}
	behind := func(launch int64, gpus int, machines ...string) Seeker {
		return Seeker{Launch: launch, GPUs: gpus, Machines: machines}
	}
	keeps := func(s Seeker, machine string) Seeker {
		s.Keeps = machine
		return s
	}
	yields := first(1, 2, "a")
	yields.Yields = true
	for name, c := range map[string]struct {
		free    map[string]int
		seekers []Seeker
		kept    string // LAUNCH@MACHINE:GPUS
		extra   string
	}{
		"nobody waits":                   {free: map[string]int{"a": 2}},
		"it has room":                    {map[string]int{"a": 2, "b": 1}, []Seeker{granted(1, 2, "a")}, "", ""},
		"its GPUs are on two machines":   {map[string]int{"a": 1, "b": 1}, []Seeker{granted(1, 2, "a", "b"), first(2, 1, "a", "b")}, "1@a:1", "A+1"},
		"nobody could use the rest":      {map[string]int{"a": 1, "b": 1}, []Seeker{granted(1, 2, "a", "b"), first(2, 2, "a", "b")}, "1@a:1", ""},
		"where most are free":            {map[string]int{"a": 1, "b": 2, "c": 1}, []Seeker{granted(1, 4, "a", "b"), first(2, 1, "c")}, "1@b:2", "A+2"},
		"not where it may not be":        {map[string]int{"a": 0, "b": 2}, []Seeker{granted(1, 2, "a"), first(2, 1, "a", "b")}, "1@a:0", "A+2"},
		"one machine for two":            {map[string]int{"a": 1, "b": 1}, []Seeker{granted(1, 2, "a"), granted(2, 2, "a"), first(3, 1, "b")}, "1@a:1 2@a:0", "A+3"},
		"what is kept is no one else's":  {map[string]int{"a": 1, "b": 0}, []Seeker{granted(1, 2, "a"), granted(2, 1, "a", "b"), first(3, 1, "a", "b")}, "1@a:1", ""},
		"one GPU is no machine":          {map[string]int{"a": 0, "b": 1}, []Seeker{granted(1, 1, "a"), first(2, 1, "b")}, "", "A+1"},
		"it stays the same machine":      {map[string]int{"a": 1, "b": 1, "c": 1}, []Seeker{keeps(granted(1, 2, "a", "b"), "b"), first(2, 1, "c")}, "1@b:1", "A+1"},
		"even where fewer are free":      {map[string]int{"a": 3, "b": 1}, []Seeker{keeps(granted(1, 4, "a", "b"), "b"), first(2, 1, "a")}, "1@b:1", "A+3"},
		"another one has them all":       {map[string]int{"a": 2, "b": 1}, []Seeker{keeps(granted(1, 2, "a", "b"), "b"), first(2, 1, "b")}, "", ""},
		"another one is about to":        {map[string]int{"a": 1, "soon": 0, "b": 1}, []Seeker{keeps(granted(1, 2, "a", "soon"), "a"), first(2, 1, "b")}, "1@soon:0", "A+2"},
		"one for each":                   {map[string]int{"a": 0, "b": 0, "c": 1}, []Seeker{granted(1, 2, "a", "b"), granted(2, 2, "a", "b"), first(3, 1, "c")}, "1@a:0 2@b:0", "A+4"},
		"not where another starts":       {map[string]int{"a": 2, "b": 0, "c": 1}, []Seeker{granted(1, 2, "a", "b"), keeps(granted(2, 2, "a", "b"), "a"), first(3, 1, "c")}, "2@b:0", "A+2"},
		"what is soon is for one":        {map[string]int{"soon": 0, "b": 1, "c": 1}, []Seeker{granted(1, 2, "soon", "b"), keeps(granted(2, 2, "soon", "b"), "b"), first(3, 1, "c")}, "1@soon:0 2@b:1", "A+3"},
		"enough of one of two kinds":     {map[string]int{"a": 1, "b": 1, "x": 1}, []Seeker{first(1, 2, "a", "b", "x"), behind(2, 1, "a", "b", "x")}, "", ""},
		"it is gone":                     {map[string]int{"a": 1, "b": 1}, []Seeker{keeps(granted(1, 2, "a"), "gone"), first(2, 1, "b")}, "1@a:1", "A+1"},
		"the next one, and enough":       {map[string]int{"a": 1, "b": 1}, []Seeker{first(1, 2, "a", "b"), behind(2, 1, "a", "b")}, "", ""},
		"the next one, and too few":      {map[string]int{"a": 1, "b": 1}, []Seeker{first(1, 4, "a"), behind(2, 1, "a", "b")}, "", "A+2"},
		"nobody is behind it":            {map[string]int{"a": 1, "b": 1}, []Seeker{first(1, 4, "a")}, "", ""},
		"those behind need as many":      {map[string]int{"a": 1, "b": 1}, []Seeker{first(1, 4, "a"), behind(2, 4, "a")}, "", ""},
		"all that is free is its own":    {map[string]int{"a": 1, "b": 0}, []Seeker{first(1, 2, "a", "b"), behind(2, 1, "a", "b")}, "", ""},
		"nothing is free":                {map[string]int{"a": 0, "b": 0}, []Seeker{first(1, 2, "a", "b"), behind(2, 1, "a", "b")}, "", ""},
		"it would give way":              {map[string]int{"a": 1, "b": 1}, []Seeker{yields, behind(2, 1, "b")}, "", ""},
		"another line":                   {map[string]int{"a": 0, "x": 1}, []Seeker{first(1, 2, "a"), first(2, 1, "x")}, "", ""},
		"a line of two kinds":            {map[string]int{"a": 1, "x": 1}, []Seeker{first(1, 2, "a", "x"), behind(2, 1, "a", "x")}, "", "A+1"},
		"less than nothing is free":      {map[string]int{"a": -1, "b": 1}, []Seeker{granted(1, 2, "a"), first(2, 1, "b")}, "1@a:0", "A+2"},
		"no machine is there now":        {map[string]int{"a": 1}, []Seeker{granted(1, 2), first(2, 1, "a")}, "", ""},
		"who is let in takes a free one": {map[string]int{"a": 2}, []Seeker{granted(1, 1, "a"), granted(2, 2, "a")}, "2@a:1", ""},
		"the fewest to spare are taken":  {map[string]int{"a": 3, "b": 1}, []Seeker{granted(1, 1, "a", "b"), granted(2, 3, "a")}, "", ""},
		"by the machine's kind":          {map[string]int{"x": 1, "y": 1}, []Seeker{granted(1, 2, "x"), first(2, 1, "y")}, "1@x:1", "X+1"},
	} {
		kept, extra := Reserve(Stand{Free: c.free, Soon: map[string]int{"soon": 2}, Kind: kinds}, c.seekers)
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
	second := h.launch(h.bob, "gpu", "second") // it came first, and has used more
	h.line.setLast(second.ID)
	two := h.launch(h.bob, "gpu2", "")
	h.until(two.ID, "first in line", func(l Launch) bool { return l.Position == 1 })
	first := h.launch(h.bob, "gpu", "first")
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
	// One that came earlier gets the free one, and not what is kept.
	stop(first)
	if got := h.is(second.ID, Running); got.Node != "node1" {
		t.Errorf("the last one is on %s", got.Node)
	}
	stop(b)
	if got := h.is(two.ID, Running); got.Node != "node2" {
		t.Errorf("it is on %s", got.Node)
	}
}

// Who waits for a GPU that is kept for another holds back nobody who needs none, and
// is not sent to machines that are full.
func TestKeptIsNoShortageOfMemory(t *testing.T) {
	few, kept := NodeRoom{Name: "a", Total: Amount{GPUs: 2, MilliCPU: 8000, Memory: 64 << 30}, HasGPUs: true}, NodeRoom{Name: "b", Total: Amount{GPUs: 4, MilliCPU: 8000, Memory: 64 << 30}, HasGPUs: true, Kept: 1}
	few.Free, kept.Free = Amount{GPUs: 1, MilliCPU: 8000, Memory: 1 << 30}, Amount{GPUs: 1, MilliCPU: 8000, Memory: 64 << 30}
	room, need := Room{Nodes: []NodeRoom{few, kept}}, Need{Amount: Amount{GPUs: 1, Memory: 32 << 30}}
	got := admit(room, nil, []candidate{{need: need, granted: true}, {need: Need{Amount: Amount{Memory: 1 << 20}}}})
	if got[0].short != shortGPU || got[0].admit || !got[1].admit {
		t.Errorf("%+v", got)
	}
	if p := choose(room, need, Placing{}); p.Machines != nil || p.Prefer != nil {
		t.Errorf("it goes to %v, best to %v", p.Machines, p.Prefer)
	}
	need.Memory = 1 << 20
	for _, rules := range []Placing{{}, {GPUs: GPUsSpread}} {
		if p := choose(room, need, rules); fmt.Sprint(p.Machines, p.Prefer) != "[a] [a]" {
			t.Errorf("it goes to %v, best to %v", p.Machines, p.Prefer)
		}
	}
}
