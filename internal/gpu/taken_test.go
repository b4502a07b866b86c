package gpu

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestTakenBy(t *testing.T) {
	sm := func(v float64) *float64 { return &v }
	gib := func(n uint64) *uint64 { v := n << 30; return &v }
	process := func(user string, share *float64, memory *uint64) Process {
		return Process{UnixUser: user, SMUtilization: share, MemoryUsed: memory}
	}
	for name, c := range map[string]struct {
		processes []Process
		want      string // who: processes, percent, GiB, GiB known
	}{
		"nobody":               {nil, ""},
		"one, twice":           {[]Process{process("ada", sm(60), gib(4)), process("ada", sm(50), gib(1))}, "ada: 2 110 5 5"},
		"in order of coming":   {[]Process{process("zoe", sm(1), gib(1)), process("ada", sm(2), gib(2)), process("zoe", sm(3), gib(3))}, "zoe: 2 4 4 4, ada: 1 2 2 2"},
		"idle":                 {[]Process{process("ada", sm(0), gib(0))}, "ada: 1 0 0 0"},
		"one is not known":     {[]Process{process("ada", sm(1), gib(1)), process("ada", nil, nil), process("ben", sm(2), gib(2))}, "ada: 2 ? ? 1, ben: 1 2 2 2"},
		"none is known":        {[]Process{process("ada", nil, nil)}, "ada: 1 ? ? ?"},
		"figures that are not": {[]Process{process("ada", sm(math.NaN()), gib(1<<22)), process("ben", sm(101), gib(1)), process("eve", sm(-1), gib(1))}, "ada: 1 ? ? ?, ben: 1 ? 1 1, eve: 1 ? 1 1"},
		"left out":             {[]Process{process("desktop", sm(1), gib(1)), process("ada", sm(2), gib(2))}, "ada: 1 2 2 2"},
	} {
		var got []string
		for _, one := range TakenBy(&GPU{Reading: Reading{Processes: c.processes}}, func(p *Process) (string, bool) { return p.UnixUser, p.UnixUser != "desktop" }) {
			word := func(v *float64, unit float64) string {
				if v == nil {
					return "?"
				}
				return fmt.Sprint(*v / unit)
			}
			got = append(got, fmt.Sprintf("%s: %d %s %s %s", one.By, one.Processes, word(one.SM(), 1), word(one.Memory(), 1<<30), word(one.KnownMemory(), 1<<30)))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %s\nwant %s", name, strings.Join(got, ", "), c.want)
		}
	}
}
