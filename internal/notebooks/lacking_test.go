package notebooks

import (
	"slices"
	"testing"
)

// A launch is placed on machines that have its image, and one that could run on
// others alone says for what it waits; it is never said that it cannot start.
func TestLackingImage(t *testing.T) {
	s := &Service{cfg: Config{Getting: func(machine string) string {
		return map[string]string{"b": "notebook, 43 % of 1.2 GiB"}[machine]
	}}}
	free := Amount{GPUs: 1, MilliCPU: 4000, Memory: 8 << 30}
	room := Room{Nodes: []NodeRoom{{Name: "a", Total: free, Free: free}, {Name: "b", Total: free, Free: free}}}
	need := Need{Amount: Amount{GPUs: 1}, Lacking: []string{"b"}}
	if p := choose(room, need, Placing{}); !slices.Equal(p.Machines, []string{"a"}) || p.Why != "No other machine had room for it." {
		t.Errorf("%+v", p)
	}
	if words, all := s.withoutImage(need, room); words != "Its image is not on b yet (notebook, 43 % of 1.2 GiB)." || all {
		t.Errorf("%q, %v", words, all)
	}
	need.Lacking = []string{"a", "b"}
	if words, all := s.withoutImage(need, room); words != "Its image is not on a yet, not on b yet (notebook, 43 % of 1.2 GiB)." || !all {
		t.Errorf("%q, %v", words, all)
	}
	v := admit(room, nil, []candidate{{need: need, granted: true}})[0]
	if v.admit || v.never {
		t.Errorf("%+v", v)
	}
	need.Lacking = nil
	if words, all := s.withoutImage(need, room); words != "" || all {
		t.Errorf("%q, %v", words, all)
	}
	// Who waits for a machine to have an image holds up nobody.
	waits := candidate{need: Need{Amount: Amount{MilliCPU: 1000}, Lacking: []string{"a", "b"}}}
	others := candidate{need: Need{Amount: Amount{MilliCPU: 1000}}}
	if got := admit(room, nil, []candidate{waits, others}); got[0].admit || !got[1].admit {
		t.Errorf("%+v", got)
	}
}
