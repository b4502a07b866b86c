package notebooks

import (
	"fmt"
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
