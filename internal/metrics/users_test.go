package metrics

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Of a GPU in MIG mode everybody has an instance of their own, with its memory.
func TestSharesOfInstances(t *testing.T) {
	ben, anna := holder("ben", "a"), holder("anna", "x")
	ben.Instance, anna.Instance = "MIG-1", "MIG-2"
	g := card(0, []gpu.Holder{ben, anna}, process("anna", nil, nil), process("ben", nil, 1<<30))
	g.Utilization = nil
	g.Instances = []gpu.Instance{
		{UUID: "MIG-1", Slices: 3, SlicesOf: 7, MemoryUsed: new(uint64(5 << 30))}, {UUID: "MIG-2", Slices: 1, SlicesOf: 7, MemoryUsed: new(uint64(2 << 30))},
	}
	got := shares(&g)
	if len(got) != 2 || got[0].name != "anna" || *got[0].held != 1.0/7 || *got[0].memory != 2<<30 || *got[1].held != 3.0/7 || *got[1].memory != 1<<30 {
		t.Errorf("%+v", got)
	}
	if got[0].utilization != nil || got[1].utilization != nil {
		t.Error("a share of the time is made up")
	}
}

// A driver that keeps to itself who computes says nothing of who has no program on a GPU.
func TestSharesUntold(t *testing.T) {
	draws := process("unix:gdm", 2.0, 1<<28)
	draws.Graphics = true
	g := card(0, []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, draws)
	g.Utilization, g.ProcessesUnknown = new(90.0), true
	for _, s := range shares(&g) {
		if !s.outside && (s.utilization != nil || s.memory != nil) {
			t.Errorf("%s is said to have %v of the time and %v of the memory", s.name, s.utilization, s.memory)
		}
	}
}

func TestShares(t *testing.T) {
	const (
		unknown = "?"
		gib     = 1 << 30
	)
	nobody := gpu.Holder{PodRef: gpu.PodRef{UID: "test", Namespace: "gpulab", Name: "gpu-check"}}
	draws := process("unix:gdm", 2.0, gib/4)
	draws.Graphics = true
	for _, c := range []struct {
		name      string
		holders   []gpu.Holder
		processes []gpu.Process
		use       *float64
		want      []string // who held use memory
	}{
		{"free", nil, nil, new(0.0), nil},
		{"free, and busy with a desktop", nil, []gpu.Process{process("unix:gdm", 4.0, gib)}, new(4.0), []string{"(gdm) ? 0.04 1"}},
		{"one user, measured", []gpu.Holder{holder("anna", "x")}, []gpu.Process{process("anna", 30.0, gib), process("anna", 20.0, gib)}, new(55.0), []string{"anna 1 0.5 2"}},
		{"one user, no figures for processes", []gpu.Holder{holder("anna", "x")}, []gpu.Process{process("anna", nil, nil)}, new(55.0), []string{"anna 1 0.55 1.5"}},
		{"one user, one figure missing", []gpu.Holder{holder("anna", "x")}, []gpu.Process{process("anna", 30.0, gib), process("anna", nil, nil)}, new(55.0), []string{"anna 1 0.55 1.5"}},
		{"one user, nothing runs", []gpu.Holder{holder("anna", "x")}, nil, new(0.0), []string{"anna 1 0 ?"}},
		{"one user, nothing is known", []gpu.Holder{holder("anna", "x")}, nil, nil, []string{"anna 1 ? ?"}},
		{"one user, and another process that is not measured", []gpu.Holder{holder("anna", "x")}, []gpu.Process{process("anna", nil, gib), process("unix:root", nil, gib)}, new(55.0), []string{"anna 1 ? 1", "(root) ? ? 1"}},
		{"one user, not measured, on a card that draws a desktop", []gpu.Holder{holder("anna", "x")}, []gpu.Process{process("anna", nil, gib), draws}, new(55.0), []string{"anna 1 0.53 1", "(gdm) ? 0.02 0.25"}},
		{"one user beside a pod that is nobody's", []gpu.Holder{holder("anna", "x"), nobody}, nil, new(55.0), []string{"anna 0.5 ? ?"}},
		{"one user in two notebooks", []gpu.Holder{holder("anna", "x"), holder("anna", "y")}, []gpu.Process{process("anna", 30.0, gib), process("anna", 20.0, gib)}, new(50.0), []string{"anna 1 0.5 2"}},
		{"three notebooks of two users", []gpu.Holder{holder("anna", "x"), holder("anna", "y"), holder("ben", "z")}, []gpu.Process{process("ben", 9.0, gib)}, new(9.0), []string{"anna 0.6666666666666666 0 0", "ben 0.3333333333333333 0.09 1"}},
		{"two users, one without a process", []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, []gpu.Process{process("anna", 70.0, gib)}, new(70.0), []string{"anna 0.5 0.7 1", "ben 0.5 0 0"}},
		{"two users, one figure missing", []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, []gpu.Process{process("anna", 70.0, gib), process("ben", nil, gib)}, new(90.0), []string{"anna 0.5 0.7 1", "ben 0.5 ? 1"}},
		{"two users, busy without a process", []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, nil, new(90.0), []string{"anna 0.5 ? ?", "ben 0.5 ? ?"}},
		{"two users, idle", []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, nil, new(0.0), []string{"anna 0.5 0 ?", "ben 0.5 0 ?"}},
		{"programs side by side", []gpu.Holder{holder("anna", "x"), holder("ben", "y")}, []gpu.Process{process("anna", 100.0, gib), process("ben", 60.0, gib)}, new(100.0), []string{"anna 0.5 0.625 1", "ben 0.5 0.375 1"}},
		{"a pod whose holding is not known yet", nil, []gpu.Process{process("anna", 10.0, gib)}, new(10.0), []string{"anna ? 0.1 1"}},
	} {
		g := card(0, c.holders, c.processes...)
		g.Utilization = c.use
		var got []string
		held, busy := 0.0, 0.0
		for _, s := range shares(&g) {
			who := s.name
			if s.outside {
				who = "(" + who + ")"
			}
			word := func(x *float64, unit float64) string {
				if x == nil {
					return unknown
				}
				return fmt.Sprint(*x / unit)
			}
			got = append(got, strings.Join([]string{who, word(s.held, 1), word(s.utilization, 1), word(s.memory, gib)}, " "))
			for sum, x := range map[*float64]*float64{&held: s.held, &busy: s.utilization} {
				if x != nil {
					*sum += *x
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if held > 1+1e-9 || busy > 1+1e-9 || math.IsNaN(busy) {
			t.Errorf("%s: more than the GPU is told: held %v, busy %v", c.name, held, busy)
		}
	}
}
