package gpu

import "testing"

func TestCrowded(t *testing.T) {
	gib := func(n float64) *uint64 { v := uint64(n * (1 << 30)); return &v }
	ada, ben := PodRef{UID: "a", User: "ada"}, PodRef{UID: "b", User: "ben"}
	full := func(used float64, processes ...Process) *GPU {
		return &GPU{Device: Device{Index: 1, MemoryTotal: gib(24)}, Reading: Reading{MemoryUsed: gib(used), Processes: processes},
			Holders: []Holder{{PodRef: ada}, {PodRef: ben}}}
	}
	both := []Process{{Pod: ada, MemoryUsed: gib(14)}, {Pod: ben, MemoryUsed: gib(7)}, {Pod: ben, MemoryUsed: gib(1)}}
	for name, c := range map[string]struct {
		g    *GPU
		who  string
		want string
	}{
		"nearly full":         {full(22.5, both...), "ben", "The memory of GPU 1 is nearly full: 22.5 GiB of 24 GiB (you 8 GiB, ada 14 GiB). A program that asks for more fails."},
		"room left":           {full(21, both...), "ben", ""},
		"somebody else":       {full(22.5, both...), "lea", ""},
		"alone on it":         {&GPU{Device: Device{MemoryTotal: gib(24)}, Reading: Reading{MemoryUsed: gib(24)}, Holders: []Holder{{PodRef: ada}}}, "ada", ""},
		"beside the cluster":  {&GPU{Device: Device{MemoryTotal: gib(24)}, Reading: Reading{MemoryUsed: gib(23), Processes: []Process{{UnixUser: "zoe", MemoryUsed: gib(20)}}}, Holders: []Holder{{PodRef: ada}}}, "ada", "The memory of GPU 0 is nearly full: 23 GiB of 24 GiB (you not known how much, zoe (outside gpulab) 20 GiB). A program that asks for more fails."},
		"not known how full":  {&GPU{Holders: []Holder{{PodRef: ada}, {PodRef: ben}}}, "ada", ""},
		"driver tells no one": {full(24, Process{Pod: ada}, Process{Pod: ben}), "ada", "The memory of GPU 1 is nearly full: 24 GiB of 24 GiB (you not known how much, ben not known how much). A program that asks for more fails."},
	} {
		if got := c.g.Crowded(c.who); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
		if got := c.g.CrowdedBriefly(c.who, len(c.want)); got != c.want {
			t.Errorf("%s, briefly:\n%s\nwant\n%s", name, got, c.want)
		}
	}
	lea, long := PodRef{UID: "l", User: "lea"}, PodRef{UID: "x", User: "somebody-with-a-long-name-of-30"}
	three := append(both, Process{Pod: lea, MemoryUsed: gib(0.2)})
	crowd := append(three, Process{Pod: long, MemoryUsed: gib(1)}, Process{Pod: PodRef{User: "max"}}, Process{Pod: PodRef{User: "eva"}, MemoryUsed: gib(0.1)})
	for _, c := range []struct {
		g    *GPU
		most int
		want string
	}{
		{full(22.5, three...), 120, "The memory of GPU 1 is nearly full, 22.5 GiB of 24 GiB: you 8 GiB, ada 14 GiB, lea 205 MiB."},
		{full(22.5, crowd...), 130, "The memory of GPU 1 is nearly full, 22.5 GiB of 24 GiB: you 8 GiB, ada 14 GiB, somebody-with-a-long-name-of-30 1 GiB and 3 more."},
		{full(22.5, crowd...), 100, "The memory of GPU 1 is nearly full, 22.5 GiB of 24 GiB: you 8 GiB, ada 14 GiB and 4 more."},
	} {
		if got := c.g.CrowdedBriefly("ben", c.most); got != c.want {
			t.Errorf("briefly:\n%s\nwant\n%s", got, c.want)
		}
	}
}
