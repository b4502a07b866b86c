package notebooks

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpulab/gpulab/internal/queue"
)

// A machine that is not for everybody, or alone has what a profile needs, counts
// apart from its like, and only from its like.
func TestKindsOfGPUs(t *testing.T) {
	machine := func(name, model string, gpus int, gibibytes int64) NodeRoom {
		return NodeRoom{Name: name, Total: Amount{GPUs: gpus}, Free: Amount{GPUs: gpus}, GPUModel: model, GPUMemory: gibibytes << 30}
	}
	cluster := &fixedRoom{room: Room{
		Nodes:    []NodeRoom{machine("a", "A100", 1, 80), machine("b", "T4", 2, 15), machine("c", "T4", 4, 15), machine("none", "", 0, 0)},
		Cordoned: []NodeRoom{machine("d", "T4", 8, 15)},
		Holders:  []Holder{{Node: "c", Handle: "system", GPUs: 1}},
	}}
	s := &Service{cfg: Config{Cluster: cluster, Limited: func() []string { return []string{"a", "b"} }}}
	room := s.room()
	active := []Launch{{ID: 1, State: Running, GPUs: 3, Node: "d"}, {ID: 2, State: Waiting, GPUs: 1}}
	got := stock(active, room)
	if want := []queue.Stock{{Kind: "T4 on b", GPUs: 2}, {Kind: "T4", GPUs: 6}, {Kind: "A100", GPUs: 1}}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the stock is %v, want %v", got, want)
	}
	for want, need := range map[string]Need{
		"[T4 on b T4 A100]": {Amount: Amount{GPUs: 1}},
		"[T4 A100]":         {Amount: Amount{GPUs: 1}, Barred: []string{"b"}},
		"[T4]":              {Amount: Amount{GPUs: 3}},
		"[T4 on b]":         {Amount: Amount{GPUs: 1}, Only: "b"},
		"[]":                {Amount: Amount{GPUs: 9}},
	} {
		if got := fmt.Sprint(kindsFor(got, room, need)); got != want {
			t.Errorf("%+v: %s, want %s", need, got, want)
		}
	}
	// What the line has given is where it starts.
	if p := choose(room, Need{Amount: Amount{GPUs: 1}, Granted: "T4"}, Placing{}); fmt.Sprint(p.Machines, p.Prefer) != "[c d] [c]" {
		t.Errorf("it goes to %v, best to %v", p.Machines, p.Prefer)
	}
	if p := choose(room, Need{Amount: Amount{GPUs: 1}, Granted: "T4 on b"}, Placing{}); fmt.Sprint(p.Machines, p.Prefer) != "[b] [b]" {
		t.Errorf("it goes to %v, best to %v", p.Machines, p.Prefer)
	}
}

// Whoever waits stays in the line, aside, while no machine has the GPUs: as just after a start of Kubernetes, which
// knows of none before the device plugin has told it.
func TestStaysInLineWithoutGPUs(t *testing.T) {
	h := newHouse(t, 1)
	h.running(h.alice, "gpu", "")
	l := h.launch(h.bob, "gpu", "")
	h.until(l.ID, "in line", func(l Launch) bool { return l.Position == 1 })
	aside := func(want bool) {
		t.Helper()
		if !eventually(func() bool {
			h.line.mu.Lock()
			defer h.line.mu.Unlock()
			return slices.ContainsFunc(h.line.state.Claims, func(c queue.Claim) bool { return c.Launch == l.ID && c.Aside == want })
		}) {
			t.Errorf("it is not in the line, aside: %t", want)
		}
	}
	aside(false)
	h.lab.edit(func() { h.lab.nodes[0].Total.GPUs = 0 })
	aside(true)
	h.lab.edit(func() { h.lab.nodes[0].Total.GPUs = 1 })
	aside(false)
	obstacle := map[string]string{"gpu": "its image needs another driver"}
	h.obstacles.Store(&obstacle)
	aside(true)
	h.obstacles.Store(&map[string]string{})
	aside(false)
}

// Whose turn has come keeps it while no open machine has the kind of GPU that was given.
func TestKeepsTurn(t *testing.T) {
	line := newSmallLine()
	line.admitted[1] = "A100"
	s := &Service{cfg: Config{Line: line}}
	open := func(kind string) Room { return Room{Nodes: []NodeRoom{{Kind: kind}}} }
	for _, c := range []struct {
		launch int64
		room   Room
		want   bool
	}{{1, Room{}, true}, {1, open("T4"), true}, {1, open("A100"), false}, {2, Room{}, false}} {
		if got := s.keepsTurn(Launch{ID: c.launch}, c.room); got != c.want {
			t.Errorf("launch %d, with %v open: %t", c.launch, c.room.Nodes, got)
		}
	}
}

type fixedRoom struct {
	Cluster
	room Room
}

func (f *fixedRoom) Room() Room { return f.room }

// Who waits for one model of GPU stands before nobody who takes another.
func TestAhead(t *testing.T) {
	profiles := []Profile{{Slug: "a100", GPUs: 1, GPUModel: "A100"}, {Slug: "t4", GPUs: 1, GPUModel: "T4"}, {Slug: "any", GPUs: 1}}
	waits := func(slug string) Launch { return Launch{Profile: slug, GPUs: 1, State: Waiting} }
	active := []Launch{waits("a100"), waits("a100"), waits("any"), waits("gone"), {Profile: "t4", GPUs: 1, State: Running}}
	for slug, want := range map[int]int{0: 4, 1: 2, 2: 4} {
		if got := Ahead(active, profiles, profiles[slug]); got != want {
			t.Errorf("before %s there are %d, want %d", profiles[slug].Slug, got, want)
		}
	}
}
