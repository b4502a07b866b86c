package gpu

import (
	"math"
	"testing"
)

// split is a GPU in MIG mode: ada has the first instance, ben the other two.
func split() *GPU {
	gib := func(n uint64) *uint64 { v := n << 30; return &v }
	return &GPU{
		Device: Device{UUID: "GPU-a", MIG: true, MemoryTotal: gib(40)},
		Reading: Reading{Instances: []Instance{
			{UUID: "MIG-1", Index: 0, Profile: "3g.20gb", Slices: 3, SlicesOf: 7, MemoryTotal: gib(20), MemoryUsed: gib(9)},
			{UUID: "MIG-2", Index: 1, Profile: "2g.10gb", Slices: 2, SlicesOf: 7, MemoryTotal: gib(10), MemoryUsed: gib(4)},
			{UUID: "MIG-3", Index: 2, Profile: "1g.5gb", Slices: 1, SlicesOf: 7, MemoryTotal: gib(5), MemoryUsed: gib(1)},
		}},
		Holders: []Holder{
			{PodRef: PodRef{User: "ada"}, Instance: "MIG-1"},
			{PodRef: PodRef{User: "ben"}, Instance: "MIG-2"}, {PodRef: PodRef{User: "ben"}, Instance: "MIG-3"}, {PodRef: PodRef{User: "ben"}, Instance: "MIG-3"},
		},
	}
}

func TestPartOfAGPU(t *testing.T) {
	g := split()
	unsized := split()
	for i := range unsized.Instances {
		unsized.Instances[i].Slices, unsized.Instances[i].SlicesOf = 0, 0
	}
	bare := split()
	bare.MemoryTotal = nil
	for i := range bare.Instances {
		bare.Instances[i].SlicesOf = 0
	}
	for name, c := range map[string]struct {
		g         *GPU
		instances []string
		want      float64
	}{
		"the whole":             {g, nil, 1},
		"one":                   {g, []string{"MIG-1"}, 3.0 / 7},
		"two, one of them once": {g, []string{"MIG-2", "MIG-3", "MIG-3"}, 3.0 / 7},
		"all":                   {g, []string{"MIG-1", "MIG-2", "MIG-3"}, 6.0 / 7},
		"by memory":             {unsized, []string{"MIG-2"}, 0.25},
		"by number":             {bare, []string{"MIG-2"}, 1.0 / 3},
		"not known yet":         {g, []string{"MIG-9"}, 0.25},
		"not more than it is":   {&GPU{}, []string{"MIG-1", "MIG-2"}, 1},
	} {
		if got := c.g.PartOf(c.instances); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestOwnMemory(t *testing.T) {
	of := func(user string) func(*Holder) bool { return func(h *Holder) bool { return h.User == user } }
	g := split()
	if m := g.OwnMemory(of("ada")); m == nil || *m != 9<<30 {
		t.Errorf("ada's one instance: %v", m)
	}
	if m := g.OwnMemory(of("ben")); m == nil || *m != 5<<30 {
		t.Errorf("ben's two: %v", m)
	}
	if m := g.OwnMemory(of("eve")); m != nil {
		t.Errorf("eve's none: %v", *m)
	}
	g.Holders = append(g.Holders, Holder{PodRef: PodRef{User: "eve"}, Instance: "MIG-1"})
	if m := g.OwnMemory(of("ada")); m != nil {
		t.Errorf("one that another has too: %v", *m)
	}
	g.Instances[2].MemoryUsed = nil
	if m := g.OwnMemory(of("ben")); m != nil {
		t.Errorf("one that is not known: %v", *m)
	}
	whole := GPU{Holders: []Holder{{PodRef: PodRef{User: "ada"}}}}
	if m := whole.OwnMemory(of("ada")); m != nil {
		t.Errorf("a whole GPU: %v", *m)
	}
	if text := split().Crowded("ada"); text != "" {
		t.Errorf("who shares no memory is told %q", text)
	}
}
