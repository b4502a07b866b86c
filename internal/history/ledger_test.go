package history

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// Two people share a card 70 to 30 for an hour, from a quarter to: the ledger
// says so, in both hours it touches.
func TestTwoShareACard(t *testing.T) {
	l := newLab(t)
	l.wall = noon.Add(45 * time.Minute)
	const gib = 1 << 30
	counter := 1e6
	l.Add(snap(idle()))
	l.seconds(3600, func(int) gpu.Snapshot {
		counter += 300
		g := heldBy(idle(), "ada", "ben")
		g.Utilization, g.Energy, g.MemoryUsed = ptr(100.0), ptr(counter), ptr(uint64(11*gib))
		g.Processes = []gpu.Process{process("ada", ptr(70.0), ptr(uint64(6*gib))), process("ben", ptr(30.0), ptr(uint64(4*gib)))}
		return snap(g)
	})
	for handle, want := range map[string]float64{"ada": 0.7, "ben": 0.3} {
		u := l.of(KindUser, handle)
		near(t, handle+"'s held time", u.Held, 3600, 1e-6)
		near(t, handle+"'s busy time", u.Busy, 3600, 1e-6)
		near(t, handle+"'s idle time", u.Idle, 0, 1e-6)
		nearPtr(t, handle+"'s compute", u.Compute, want*3600, 1e-6)
		// The first reading of the counter is no difference yet: power counts then.
		nearPtr(t, handle+"'s energy", u.Energy, want*(3599*300+20), 1e-3)
	}
	nearPtr(t, "ada's memory", l.of(KindUser, "ada").Memory, 6*gib, 1)
	nearPtr(t, "nobody's memory", l.of(KindUnattributed, "").Memory, gib, 1)
	card := l.card()
	near(t, "the card's held time", card.Held, 3600, 1e-6)
	near(t, "the card's busy time", card.Busy, 3600, 1e-6)
	nearPtr(t, "the card's memory", card.Memory, 11*gib, 1)
	hours := l.usage(Filter{User: "ada"}, ByHour)
	if len(hours) != 2 || !hours[0].Hour.Equal(noon) || !hours[1].Hour.Equal(noon.Add(time.Hour)) {
		t.Fatalf("ada's hours: %+v", hours)
	}
	near(t, "the first hour", hours[0].Held, 900, 1e-6)
	near(t, "the second hour", hours[1].Held, 2700, 1e-6)
}

// A machine that is not heard holds nothing for anybody: who has its GPUs is not known.
func TestLostMachineHoldsNothing(t *testing.T) {
	l := newLab(t)
	l.Add(snap(heldBy(idle(), "ada")))
	l.seconds(60, func(int) gpu.Snapshot { return snap(heldBy(idle(), "ada")) })
	l.seconds(3600, func(int) gpu.Snapshot {
		s := snap(heldBy(idle(), "ada"))
		s.Error, s.Lost = "It has not been heard.", true
		return s
	})
	l.seconds(60, func(int) gpu.Snapshot { return snap(heldBy(idle(), "ada")) })
	near(t, "ada's held time", l.of(KindUser, "ada").Held, 120, 1e-6)
}

// A stretch that reaches over the full hour belongs to both.
func TestFullHour(t *testing.T) {
	l := newLab(t)
	l.wall = noon.Add(-700 * time.Millisecond)
	l.Add(snap(heldBy(idle(), "ada")))
	l.pass(2 * time.Second)
	l.Add(snap(heldBy(idle(), "ada")))
	l.flush()
	hours := l.usage(Filter{}, ByHour)
	if len(hours) != 2 {
		t.Fatalf("%+v", hours)
	}
	near(t, "before noon", hours[0].Held, 0.7, 1e-9)
	near(t, "after noon", hours[1].Held, 1.3, 1e-9)
}

// TestWhoIsBusy: what counts as busy, idle and unknown, and who gets the energy.
func TestWhoIsBusy(t *testing.T) {
	mem := ptr(uint64(1 << 20))
	for name, tc := range map[string]struct {
		gpu  func(g *gpu.GPU)
		want map[string]string // who → busy, idle or unknown in that second, and joules
	}{
		"free": {func(*gpu.GPU) {}, map[string]string{"unattributed/": "none 20"}},
		"held and not used": {func(g *gpu.GPU) { *g = heldBy(*g, "ada") },
			map[string]string{"user/ada": "idle 20"}},
		"a process that does nothing": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Processes = []gpu.Process{process("ada", ptr(0.0), mem)}
		}, map[string]string{"user/ada": "idle 20"}},
		"the least use": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Processes = []gpu.Process{process("ada", ptr(1.0), mem)}
		}, map[string]string{"user/ada": "busy 20"}},
		"alone, and the driver tells nothing of processes": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Utilization = ptr(50.0)
		}, map[string]string{"user/ada": "busy 20"}},
		"alone, and the driver tells no shares": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Utilization, g.Processes = ptr(50.0), []gpu.Process{process("ada", nil, nil)}
		}, map[string]string{"user/ada": "busy 20"}},
		"two beside a desktop, and who computes is not told": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada", "ben")
			g.Utilization, g.ProcessesUnknown = ptr(50.0), true
			g.Processes = []gpu.Process{{PID: 1, UnixUser: "gdm", Graphics: true, SMUtilization: ptr(2.0), MemoryUsed: mem}}
		}, map[string]string{"user/ada": "unknown –", "user/ben": "unknown –", "unattributed/": "none 20"}},
		"two, and the driver tells no shares": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada", "ben")
			g.Utilization, g.Processes = ptr(50.0), []gpu.Process{process("ada", nil, nil), process("ben", nil, nil)}
		}, map[string]string{"user/ada": "unknown –", "user/ben": "unknown –", "unattributed/": "none 20"}},
		"two, no shares, but the card does nothing": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada", "ben")
			g.Processes = []gpu.Process{process("ada", nil, nil), process("ben", nil, nil)}
		}, map[string]string{"user/ada": "idle 10", "user/ben": "idle 10"}},
		"two, and one of them works": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada", "ben")
			g.Utilization, g.Processes = ptr(50.0), []gpu.Process{process("ben", ptr(50.0), mem)}
		}, map[string]string{"user/ada": "idle 0", "user/ben": "busy 20"}},
		"somebody outside of gpulab": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Utilization, g.Processes = ptr(90.0), []gpu.Process{{PID: 7, UnixUser: "carol", SMUtilization: ptr(90.0), MemoryUsed: mem}}
		}, map[string]string{"user/ada": "idle 0", "unix/carol": "busy 20"}},
		"somebody nobody knows": {func(g *gpu.GPU) {
			g.Utilization, g.Processes = ptr(90.0), []gpu.Process{{PID: 7, SMUtilization: ptr(90.0)}}
		}, map[string]string{"unattributed/": "busy 20"}},
		"a pod the cluster does not know": {func(g *gpu.GPU) {
			g.Processes = []gpu.Process{{PID: 7, SMUtilization: ptr(90.0), UnixUser: "root", Pod: gpu.PodRef{UID: "1234"}}}
		}, map[string]string{"unattributed/": "busy 20"}},
		"a pod that is nobody's": {func(g *gpu.GPU) {
			g.Holders = []gpu.Holder{{PodRef: gpu.PodRef{Namespace: "gpulab", Name: "gpu-check"}}}
		}, map[string]string{"pod/gpulab/gpu-check": "idle 20"}},
		"a desktop": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Utilization, g.Processes = ptr(3.0), []gpu.Process{{PID: 7, UnixUser: "root", Graphics: true, SMUtilization: ptr(3.0), MemoryUsed: mem}}
		}, map[string]string{"user/ada": "idle 20"}},
		"a game": {func(g *gpu.GPU) {
			g.Utilization, g.Processes = ptr(80.0), []gpu.Process{{PID: 7, UnixUser: "carol", Graphics: true, SMUtilization: ptr(80.0)}}
		}, map[string]string{"unix/carol": "busy 20"}},
		"nothing can be told": {func(g *gpu.GPU) { *g = heldBy(*g, "ada"); g.Reading = gpu.Reading{} },
			map[string]string{"user/ada": "unknown –"}},
		"asleep": {func(g *gpu.GPU) { *g = heldBy(*g, "ada"); g.Reading = gpu.Reading{Asleep: true} },
			map[string]string{"user/ada": "idle –"}},
		"the card cannot be read": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Reading = gpu.Reading{Error: "GPU 0 has fallen off the bus."}
		}, map[string]string{"user/ada": "unknown –"}},
		"impossible figures": {func(g *gpu.GPU) {
			*g = heldBy(*g, "ada")
			g.Utilization, g.Power, g.MemoryUsed = ptr(4e9), ptr(-1.0), ptr(^uint64(0))
		}, map[string]string{"user/ada": "unknown –"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			g := idle()
			tc.gpu(&g)
			l.Add(snap(g))
			l.second(snap(g))
			l.flush()
			got := map[string]string{}
			for _, u := range l.usage(Filter{}, ByUser) {
				word := "none"
				switch {
				case u.Busy == 1 && u.Idle == 0 && u.Unknown == 0:
					word = "busy"
				case u.Busy == 0 && u.Idle == 1 && u.Unknown == 0:
					word = "idle"
				case u.Busy == 0 && u.Idle == 0 && u.Unknown == 1:
					word = "unknown"
				case u.Held != 0:
					t.Errorf("held %v, busy %v, idle %v, unknown %v", u.Held, u.Busy, u.Idle, u.Unknown)
				}
				if (u.Unknown == 1) != (u.Compute == nil) && u.Held == 1 {
					t.Errorf("%s: compute %v", u.Name, u.Compute)
				}
				joules := "–"
				if u.Energy != nil {
					joules = fmt.Sprint(*u.Energy)
				}
				if word == "none" && joules == "–" {
					continue // its memory alone
				}
				got[string(u.Kind)+"/"+u.Name] = word + " " + joules
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// The rows of people add up to the card's, whatever happens on it.
func TestSumsAddUp(t *testing.T) {
	l := newLab(t)
	counter := 5000.0
	l.seconds(1000, func(i int) gpu.Snapshot {
		counter += float64(50 + i%300)
		g := idle()
		g.MemoryUsed, g.Utilization = ptr(uint64(8<<30)), ptr(float64(i%100))
		if i%7 != 0 {
			g.Energy = ptr(counter)
		}
		switch i / 100 % 5 {
		case 1:
			g = heldBy(g, "ada")
		case 2:
			g = heldBy(g, "ada", "ben")
			g.Processes = []gpu.Process{process("ada", ptr(float64(i%60)), ptr(uint64(1<<30))), process("ben", ptr(10.0), ptr(uint64(2<<30)))}
		case 3:
			g = heldBy(g, "ada", "ben")
			g.Processes = []gpu.Process{process("ada", nil, nil), process("ben", nil, ptr(uint64(2<<30)))}
		case 4:
			g.Processes = []gpu.Process{{PID: 3, UnixUser: "carol", SMUtilization: ptr(10.0)}}
		}
		if i%250 == 249 { // a gap: its energy is nobody's
			l.pass(time.Minute)
		}
		return snap(g)
	})
	var energy, memory float64
	for _, u := range l.usage(Filter{}, ByUser) {
		energy += *u.Energy
		if u.Busy+u.Idle+u.Unknown-u.Held > 1e-6 {
			t.Errorf("%+v does not add up", u)
		}
	}
	// Mean memory cannot be added, so byte seconds are.
	row := l.store.DB().QueryRow("SELECT sum(memory) FROM usage WHERE kind <> 'card'")
	if err := row.Scan(&memory); err != nil {
		t.Fatal(err)
	}
	card := l.card()
	nearPtr(t, "the card's energy", card.Energy, energy, 1e-6*energy)
	var cardMemory float64
	if err := l.store.DB().QueryRow("SELECT sum(memory) FROM usage WHERE kind = 'card'").Scan(&cardMemory); err != nil {
		t.Fatal(err)
	}
	near(t, "the card's memory", cardMemory/memory, 1, 1e-9)
	actual, simulated, err := l.Totals(t.Context(), Filter{})
	if err != nil || simulated.Held != 0 || actual.Held != card.Held || actual.Held > actual.Watched {
		t.Errorf("totals: %+v %+v %v", actual, simulated, err)
	}
}

// Time in which nobody looked is not counted: not a gap, nor a suspended
// machine, nor a clock that was set. A holder who is known while the card
// cannot be read holds it, and whether it was used is unknown.
func TestTimeThatDoesNotCount(t *testing.T) {
	held := snap(heldBy(idle(), "ada"))
	down := held
	down.Error = "The GPU probe has been silent for 4 s."
	for name, tc := range map[string]struct {
		between             func(l *lab)
		held, idle, unknown float64
		energy              float64
	}{
		"five seconds":        {func(l *lab) { l.pass(4 * time.Second) }, 25, 25, 0, 500},
		"a gap":               {func(l *lab) { l.pass(4*time.Second + time.Millisecond) }, 20, 20, 0, 400},
		"an hour without":     {func(l *lab) { l.pass(time.Hour) }, 20, 20, 0, 400},
		"suspended":           {func(l *lab) { l.wall = l.wall.Add(8 * time.Hour) }, 21, 21, 0, 420},
		"clock set forward":   {func(l *lab) { l.wall = l.wall.AddDate(1, 0, 0) }, 21, 21, 0, 420},
		"clock set back":      {func(l *lab) { l.wall = l.wall.Add(-3 * time.Hour) }, 21, 21, 0, 420},
		"clock before 1970":   {func(l *lab) { l.wall = time.Unix(-100_000, 0) }, 21, 21, 0, 420},
		"the probe is down":   {func(l *lab) { l.seconds(10, func(int) gpu.Snapshot { return down }) }, 31, 21, 10, 420},
		"the same time again": {func(l *lab) { l.Add(held) }, 21, 21, 0, 420},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.Add(held)
			l.seconds(10, func(int) gpu.Snapshot { return held })
			tc.between(l)
			l.seconds(11, func(int) gpu.Snapshot { return held })
			u := l.of(KindUser, "ada")
			near(t, "held", u.Held, tc.held, 1e-6)
			near(t, "idle", u.Idle, tc.idle, 1e-6)
			near(t, "unknown", u.Unknown, tc.unknown, 1e-6)
			nearPtr(t, "energy", u.Energy, tc.energy, 1e-6)
		})
	}
}

// While a counter cannot be read its energy goes on; nobody is known to have
// spent it. A counter that begins anew, or jumps, is not believed.
func TestEnergyCounter(t *testing.T) {
	with := func(joules float64) gpu.Snapshot {
		g := heldBy(idle(), "ada")
		g.Energy = &joules
		return snap(g)
	}
	l := newLab(t)
	l.Add(with(1000))
	l.second(with(1100)) // 100 J are ada's
	broken := snap(heldBy(gpu.GPU{Device: idle().Device, Reading: gpu.Reading{Error: "GPU 0 has hung."}}, "ada"))
	for range 10 {
		l.second(broken)
	}
	l.second(with(2000)) // 900 J over 11 s: nobody's
	l.second(with(2050)) // 50 J are ada's
	l.second(with(3))    // begun anew: 20 W for 1 s
	l.second(with(1e12)) // a jump: the same
	l.flush()
	nearPtr(t, "ada's energy", l.of(KindUser, "ada").Energy, 190, 1e-9)
	nearPtr(t, "nobody's energy", l.of(KindUnattributed, "").Energy, 900, 1e-9)
	nearPtr(t, "the card's energy", l.card().Energy, 1090, 1e-9)
}

func TestSimulatedHoursStayApart(t *testing.T) {
	l := newLab(t)
	for _, simulated := range []bool{true, false} {
		g := heldBy(idle(), "ada")
		g.Simulated = simulated
		l.Add(snap(g))
		l.pass(time.Minute)
		l.Add(snap(g))
		n := 10
		if simulated {
			n = 30
		}
		l.seconds(n, func(int) gpu.Snapshot { return snap(g) })
	}
	for _, by := range []By{ByUser, ByGPU, ByTotal} {
		f := Filter{}
		if by != ByUser {
			f.User = "ada"
		}
		got := map[bool]float64{}
		for _, u := range l.usage(f, by) {
			got[u.Simulated] += u.Held
		}
		// One second lies between the simulated card's last snapshot and the real one's first.
		if len(got) != 2 || got[true] != 30 || got[false] != 10 {
			t.Errorf("by %s: %v", by, got)
		}
	}
}

// One person with two notebooks on a shared card holds it once.
func TestTwoNotebooksOfOnePerson(t *testing.T) {
	l := newLab(t)
	g := heldBy(idle(), "ada", "ada")
	g.Processes = []gpu.Process{process("ada", ptr(30.0), ptr(uint64(1000))), process("ada", ptr(20.0), ptr(uint64(500)))}
	l.Add(snap(g))
	l.second(snap(g))
	l.flush()
	u := l.of(KindUser, "ada")
	near(t, "held", u.Held, 1, 1e-9)
	nearPtr(t, "compute", u.Compute, 0.5, 1e-9)
	nearPtr(t, "memory", u.Memory, 1500, 1e-9)
}

func TestStrangeNames(t *testing.T) {
	l := newLab(t)
	g := idle()
	g.Name = "Card \x1b]0;x\x07 '; DROP TABLE usage; --"
	g.Holders = []gpu.Holder{{PodRef: gpu.PodRef{Namespace: "a\nb", Name: "c\x00d"}}}
	g.Processes = []gpu.Process{{PID: 1, UnixUser: "Robert'); DROP TABLE usage;--\xff", SMUtilization: ptr(5.0)}}
	double := g // the same UUID again counts once
	s := snap(g, double, gpu.GPU{})
	s.Node = "bö\x1bx"
	l.Add(s)
	l.second(s)
	l.flush()
	near(t, "the pod", l.of(KindPod, "ab/cd").Held, 1, 1e-9)
	near(t, "the Unix user", l.of(KindUnix, "Robert'); DROP TABLE usage;--\uFFFD").Held, 1, 1e-9)
	if c := l.card(); c.GPU != "Card ]0;x '; DROP TABLE usage; --" || c.Node != "böx" || c.Watched != 1 {
		t.Errorf("%+v", c)
	}
}

func TestUsageFilters(t *testing.T) {
	l := newLab(t)
	a, b := heldBy(idle(), "ada"), heldBy(idle(), "ben")
	b.UUID, b.Index = "GPU-b", 1
	l.Add(snap(a, b))
	l.seconds(10, func(int) gpu.Snapshot { return snap(a, b) })
	l.pass(2 * time.Hour)
	l.Add(snap(a))
	l.seconds(5, func(int) gpu.Snapshot { return snap(a) })
	for name, tc := range map[string]struct {
		f    Filter
		by   By
		rows int
		held float64
	}{
		"all people":       {Filter{}, ByUser, 3, 25}, // and nobody's energy of the gap
		"all cards":        {Filter{}, ByGPU, 2, 25},
		"all hours":        {Filter{}, ByHour, 2, 25},
		"a person":         {Filter{User: "ada"}, ByUser, 1, 15},
		"a person's cards": {Filter{User: "ben"}, ByGPU, 1, 10},
		"a UUID":           {Filter{GPU: "GPU-b"}, ByUser, 2, 10},
		"a number":         {Filter{GPU: "1"}, ByGPU, 1, 10},
		"from":             {Filter{From: noon.Add(90 * time.Minute)}, ByGPU, 1, 5},
		"within an hour":   {Filter{From: noon.Add(59 * time.Minute), To: noon.Add(60 * time.Minute)}, ByGPU, 2, 20},
		"to":               {Filter{To: noon.Add(time.Hour)}, ByTotal, 1, 20},
		"nothing":          {Filter{From: noon.AddDate(1, 0, 0)}, ByUser, 0, 0},
		"nobody":           {Filter{User: "x' OR 1=1 --"}, ByUser, 0, 0},
	} {
		rows := l.usage(tc.f, tc.by)
		var held float64
		for _, u := range rows {
			held += u.Held
		}
		if len(rows) != tc.rows || held != tc.held {
			t.Errorf("%s: %d rows, %v s: %+v", name, len(rows), held, rows)
		}
	}
	other := heldBy(idle(), "ben")
	other.UUID, other.Index = "GPU-c", 1
	elsewhere := snap(other)
	elsewhere.Node = "second"
	l.Add(elsewhere)
	l.seconds(10, func(int) gpu.Snapshot { return elsewhere })
	for card, held := range map[string]float64{"second/1": 10, snap().Node + "/1": 10, "0": 15} {
		if rows := l.usage(Filter{GPU: card}, ByTotal); len(rows) != 1 || rows[0].Held != held {
			t.Errorf("GPU %s: %+v", card, rows)
		}
	}
	moved := snap(other)
	moved.Node = "third"
	l.Add(moved)
	l.seconds(10, func(int) gpu.Snapshot { return moved })
	if rows := l.usage(Filter{GPU: "GPU-c"}, ByTotal); len(rows) != 1 || rows[0].Held != 20 {
		t.Errorf("a card that was moved: %+v", rows)
	}
	if _, err := l.Usage(t.Context(), Filter{GPU: "1"}, ByUser); err == nil || !strings.Contains(err.Error(), snap().Node+"/1, second/1, third/1") {
		t.Errorf("a number that two machines have: %v", err)
	}
	for name, ask := range map[string]func() error{
		"an unknown machine":  func() error { _, err := l.Usage(t.Context(), Filter{GPU: "fourth/1"}, ByUser); return err },
		"a UUID of a machine": func() error { _, err := l.Usage(t.Context(), Filter{GPU: "second/GPU-c"}, ByUser); return err },
		"an unknown card":     func() error { _, err := l.Usage(t.Context(), Filter{GPU: "GPU-z"}, ByUser); return err },
		"an unknown number":   func() error { _, err := l.Usage(t.Context(), Filter{GPU: "9"}, ByUser); return err },
		"an unknown grouping": func() error { _, err := l.Usage(t.Context(), Filter{}, "week"); return err },
		"an empty window":     func() error { _, err := l.Usage(t.Context(), Filter{From: noon, To: noon}, ByUser); return err },
	} {
		var asked *WrongError
		if err := ask(); !errors.As(err, &asked) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of a card in MIG mode who has an instance holds its part, with its memory.
func TestInstancesOfACard(t *testing.T) {
	l := newLab(t)
	const gib = 1 << 30
	split := func() gpu.GPU {
		g := heldBy(idle(), "ada", "ben")
		g.MIG, g.Utilization, g.MemoryUsed = true, nil, ptr(uint64(8*gib))
		g.Instances = []gpu.Instance{
			{UUID: "MIG-1", Slices: 3, SlicesOf: 7, MemoryUsed: ptr(uint64(5 * gib))},
			{UUID: "MIG-2", Index: 1, Slices: 1, SlicesOf: 7, MemoryUsed: ptr(uint64(2 * gib))},
		}
		g.Holders[0].Instance, g.Holders[1].Instance = "MIG-1", "MIG-2"
		// The driver tells no shares of time; of ada's process not even the memory.
		g.Processes = []gpu.Process{process("ada", nil, nil), process("ben", nil, ptr(uint64(gib)))}
		g.Processes[0].Instance, g.Processes[1].Instance = "MIG-1", "MIG-2"
		return g
	}
	l.Add(snap(split()))
	l.seconds(700, func(int) gpu.Snapshot { return snap(split()) })
	ada, ben, card := l.of(KindUser, "ada"), l.of(KindUser, "ben"), l.card()
	near(t, "ada's held time", ada.Held, 300, 1e-6)
	near(t, "ben's held time", ben.Held, 100, 1e-6)
	near(t, "the card's held time", card.Held, 400, 1e-6)
	near(t, "ada's unknown time", ada.Unknown, 300, 1e-6)
	nearPtr(t, "ada's memory", ada.Memory, 5*gib, 1)
	nearPtr(t, "ben's memory", ben.Memory, gib, 1)
	nearPtr(t, "nobody's memory", l.of(KindUnattributed, "").Memory, 2*gib, 1)

	// Without a process they are idle, and a card that cannot be read is held as before.
	l.seconds(700, func(int) gpu.Snapshot {
		g := split()
		g.Processes = nil
		return snap(g)
	})
	ada = l.of(KindUser, "ada")
	near(t, "ada's held time", ada.Held, 600, 1e-6)
	near(t, "ada's idle time", ada.Idle, 300, 1e-6)
	l.seconds(700, func(int) gpu.Snapshot {
		g := split()
		g.Reading = gpu.Reading{Error: "GPU 0 hangs.", Instances: g.Instances}
		return snap(g)
	})
	ada = l.of(KindUser, "ada")
	near(t, "ada's held time", ada.Held, 900, 1e-6)
	near(t, "ada's unknown time", ada.Unknown, 600, 1e-6)
}
