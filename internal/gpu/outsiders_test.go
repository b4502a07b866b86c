package gpu

import (
	"slices"
	"testing"
)

func TestOutsiders(t *testing.T) {
	little, much := uint64(600<<20), uint64(6<<30)
	g := GPU{Reading: Reading{Processes: []Process{
		{PID: 1, UnixUser: "gdm", Graphics: true, MemoryUsed: &little},
		{PID: 2, UnixUser: "zoe", Graphics: true, MemoryUsed: &much},
		{PID: 3, UnixUser: "ben", MemoryUsed: &little},
		{PID: 4, UnixUser: "ben", Graphics: true}, // how much is not known
		{PID: 5, UnixUser: "20001", Pod: PodRef{UID: "x"}, MemoryUsed: &much},
		{PID: 6, MemoryUsed: &much}, // it has ended by now
		{PID: 7, UnixUser: "root", Name: "nvidia-cuda-mps", MemoryUsed: &little},
		{PID: 8, UnixUser: "zoe", Name: "nvidia-cuda-mps", MemoryUsed: &little},
		{PID: 9, UnixUser: "zoe", Name: "nvidia-cuda-mps", MemoryUsed: &much}, // anybody may call a program so
	}}}
	var pids []int
	for _, p := range g.Outsiders() {
		pids = append(pids, p.PID)
	}
	if !slices.Equal(pids, []int{2, 3, 4, 9}) {
		t.Errorf("outsiders %v, want 2, 3, 4 and 9", pids)
	}
}
