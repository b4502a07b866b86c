package main

import (
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
)

type listed []notebooks.PodInfo

func (l listed) Notebooks() []notebooks.PodInfo { return l }

// Whose a pod is, is what the head knows, whatever a machine says of it; and a
// pod that runs elsewhere is nobody's.
func TestPodsOfAnother(t *testing.T) {
	started := time.Now().Add(-time.Hour).Truncate(time.Second)
	kube := listed{
		{UID: "uid-here", Namespace: "user-ada", Name: "jupyter-ada", Handle: "ada", Server: "gpu", Node: "b", Started: started},
		{UID: "uid-there", Namespace: "user-bob", Name: "jupyter-bob", Handle: "bob", Server: "gpu", Node: "head", Started: started},
	}
	lie := gpu.PodRef{User: "bob", Notebook: "mine"}
	there, here := lie, lie
	there.UID, there.Namespace, there.Name = "uid-there", "user-bob", "jupyter-bob"
	here.UID, here.Namespace, here.Name = "uid-here", "user-ada", "jupyter-ada"
	s := gpu.Snapshot{Node: "b", GPUs: []gpu.GPU{{
		Reading: gpu.Reading{Processes: []gpu.Process{{PID: 1, Pod: there}, {PID: 2, Pod: here}, {PID: 3, Pod: lie}}},
		Holders: []gpu.Holder{{PodRef: there}, {PodRef: here, Since: time.Now()}},
	}}}
	nameOwners(&s, ownersOn(kube, "b"))
	p, h := s.GPUs[0].Processes, s.GPUs[0].Holders
	if p[0].Pod.User != "" || p[2].Pod.User != "" || h[0].User != "" || h[0].Notebook != "" {
		t.Errorf("believed: %+v, %+v", p, h)
	}
	if p[1].Pod.User != "ada" || h[1].User != "ada" || h[1].Notebook == "mine" || !h[1].Since.Equal(started) {
		t.Errorf("not what the head knows: %+v, %+v", p[1], h[1])
	}
}

func TestClockSentence(t *testing.T) {
	for ahead, want := range map[time.Duration]string{
		2 * time.Hour:  "The clock of b is 2h0m0s ahead of the head's; set both right (`timedatectl set-ntp true`).",
		-3 * time.Hour: "The clock of b is 3h0m0s behind the head's; set both right (`timedatectl set-ntp true`).",
	} {
		if got := clockSentence("b", ahead); got != want {
			t.Errorf("%q", got)
		}
	}
}
