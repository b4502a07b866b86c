package gpu

import (
	"slices"
	"testing"
	"time"
)

func TestLending(t *testing.T) {
	zoe := []Process{{PID: 7, UnixUser: "zoe"}}
	inPod := []Process{{PID: 8, UnixUser: "20001", Pod: PodRef{UID: "x", User: "ada"}}}
	held := []Holder{{PodRef: PodRef{User: "ada"}}}
	type moment struct {
		after    time.Duration // since the moment before
		gpu      GPU
		withheld bool
	}
	for name, moments := range map[string][]moment{
		"somebody who stays": {
			{0, GPU{}, false},
			{0, GPU{Reading: Reading{Processes: zoe}}, false},
			{2 * time.Second, GPU{Reading: Reading{Processes: zoe}}, false},
			{time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
			{time.Second, GPU{}, true},
			{8 * time.Second, GPU{}, true},
			{time.Second, GPU{}, false},
		},
		"nvidia-smi": {
			{0, GPU{}, false},
			{0, GPU{Reading: Reading{Processes: zoe}}, false},
			{time.Second, GPU{}, false},
			{3 * time.Second, GPU{Reading: Reading{Processes: zoe}}, false},
			{time.Second, GPU{}, false},
		},
		"started over and over": {
			{0, GPU{}, false},
			{0, GPU{Reading: Reading{Processes: zoe}}, false},
			{3 * time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
			{5 * time.Second, GPU{}, true},
			{4 * time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
			{9 * time.Second, GPU{}, true},
		},
		"there before us": {
			{0, GPU{Reading: Reading{Processes: zoe}}, true},
			{time.Second, GPU{}, true},
			{9 * time.Second, GPU{}, false},
			{time.Second, GPU{Reading: Reading{Processes: zoe}}, false},
		},
		"not readable at first": {
			{0, GPU{Reading: Reading{Error: "it hangs"}}, false},
			{time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
		},
		"a pod's own": {
			{0, GPU{Reading: Reading{Processes: inPod}}, false},
			{time.Minute, GPU{Reading: Reading{Processes: inPod}}, false},
		},
		"lent out already": {
			{0, GPU{}, false},
			{0, GPU{Reading: Reading{Processes: zoe}, Holders: held}, false},
			{time.Minute, GPU{Reading: Reading{Processes: zoe}, Holders: held}, false},
			{time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
		},
		"a GPU that cannot be read": {
			{0, GPU{}, false},
			{0, GPU{Reading: Reading{Processes: zoe}}, false},
			{4 * time.Second, GPU{Reading: Reading{Processes: zoe}}, true},
			{time.Minute, GPU{Reading: Reading{Error: "it hangs"}}, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLending(func(uuid string) bool { return uuid == "GPU-shared" })
			now := time.Unix(1e9, 0)
			for i, m := range moments {
				now = now.Add(m.after)
				for _, uuid := range []string{"GPU-a", "GPU-shared"} {
					m.gpu.UUID = uuid
					s := Snapshot{GPUs: []GPU{m.gpu}}
					want := m.withheld && uuid == "GPU-a"
					if got := l.Decide(now, &s); slices.Contains(got, uuid) != want || (s.GPUs[0].Withheld != "") != want {
						t.Errorf("moment %d: %s withheld %v, says %q", i, uuid, got, s.GPUs[0].Withheld)
					}
				}
			}
		})
	}
}

func TestLendingSaysWho(t *testing.T) {
	l := NewLending(func(string) bool { return false })
	s := func() *Snapshot {
		return &Snapshot{GPUs: []GPU{{Device: Device{UUID: "GPU-a"}, Reading: Reading{Processes: []Process{
			{PID: 1, UnixUser: "zoe"}, {PID: 2, UnixUser: "zoe"}, {PID: 3, UnixUser: "ben"},
		}}}}}
	}
	l.Decide(time.Unix(0, 0), s())
	later := s()
	l.Decide(time.Unix(60, 0), later)
	if got := later.GPUs[0].Withheld; got != "zoe, ben use it outside gpulab; it is lent out again when nobody does." {
		t.Errorf("it says %q", got)
	}
}
