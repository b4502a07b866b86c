//go:build cgo

package main

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

// missing returns the fields of a struct that are nil or empty.
func missing(v any, except ...string) []string {
	var names []string
	value := reflect.ValueOf(v)
	for i := range value.NumField() {
		name := value.Type().Field(i).Name
		if value.Field(i).IsZero() && !slices.Contains(except, name) {
			names = append(names, name)
		}
	}
	return names
}

// Everything the types name is read.
func TestEveryReading(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	simtest.Play(t, root, `
gpu 0 throttle temperature brake
gpu 0 recovery drain-and-reset
gpu 0 ecc corrected 12
gpu 0 ecc uncorrected 1
gpu 0 remapped uncorrected 2 pending failed
gpu 0 remapped corrected 3 pending failed
gpu 0 xid 94
gpu 0 process 4194000 sm 60 memory 2GiB
gpu 0 process 4194001 sm 20 memory 300MiB graphics
gpu 1 retired 7 pending
gpu 1 persistence off
gpu 1 mig 1g.6gb 2g.12gb
gpu 1 process 4194002 sm 10 memory 7GiB
gpu 1 process 4194003 sm 10 memory 2GiB instance 1
`)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 0, func(g gpu.GPU) string {
		if g.Health.Recovery == "" || g.PCIeReceived == nil || *g.PCIeReceived < 1e8 || len(g.Processes) != 2 {
			return dump(g)
		}
		return ""
	})
	p.gpuReads(t, 1, func(g gpu.GPU) string {
		if !g.MIG || len(g.Instances) != 2 || *g.Instances[1].MemoryUsed == 0 || len(g.Processes) != 2 || g.Processes[1].Instance == "" {
			return dump(g)
		}
		return ""
	})

	g := p.gpu(0)
	if names := missing(g.Device, "Index", "MIG", "Slots"); names != nil {
		t.Errorf("unknown about the GPU: %q", names)
	}
	if names := missing(g.Reading, "Instances", "Asleep", "XID", "ProcessesUnknown", "Error"); names != nil {
		t.Errorf("unread: %q", names)
	}
	if names := missing(g.Health, "RetiredPages", "RetirePending"); names != nil {
		t.Errorf("unread of its health: %q", names)
	}
	if *g.SMClockMax != 2520 || *g.MemoryClockMax != 10501 || *g.PCIeGenerationMax != 4 || *g.PCIeWidthMax != 16 || !*g.ECC || !*g.Persistence {
		t.Errorf("device %s", dump(g))
	}
	if *g.Utilization != 80 || *g.SMClock != 1260 || *g.Fan < 30 || *g.MemoryTemperature <= *g.Temperature || *g.PCIeGeneration != 4 || *g.PCIeWidth != 16 {
		t.Errorf("reading %s", dump(g))
	}
	// 28 MB/s for each percent of use, as the simulation has it.
	if *g.PCIeReceived > 2.5e9 || *g.PCIeSent >= *g.PCIeReceived {
		t.Errorf("PCIe %v and %v bytes per second", *g.PCIeReceived, *g.PCIeSent)
	}
	if !slices.Equal(g.Throttle, []string{gpu.ThrottlePowerBrake, gpu.ThrottleThermal}) {
		t.Errorf("throttled by %q", g.Throttle)
	}
	h := g.Health
	if *h.ECCCorrected != 12 || *h.ECCUncorrected != 1 || *h.RemappedCorrectable != 3 || *h.RemappedUncorrectable != 2 || h.Recovery != gpu.RecoveryDrainAndReset {
		t.Errorf("health %s", dump(g))
	}
	if c, d := g.Processes[0], g.Processes[1]; c.Graphics || *c.SMUtilization != 60 || *c.MemoryUsed != 2<<30 || !d.Graphics || *d.SMUtilization != 20 {
		t.Errorf("processes %+v, %+v", c, d)
	}

	g = p.gpu(1)
	if *g.Persistence || *g.Health.RetiredPages != 7 || !g.Health.RetirePending || g.Health.RemappedCorrectable != nil || g.Health.Recovery != "" || g.Throttle == nil || len(g.Throttle) > 0 {
		t.Errorf("the older card: %s", dump(g))
	}
	first, second := g.Instances[0], g.Instances[1]
	if first.Profile != "1g.6gb" || second.Profile != "2g.12gb" || second.Index != 1 || first.UUID == second.UUID || !strings.HasPrefix(first.UUID, "MIG-") ||
		*first.MemoryTotal != 6<<30 || *first.MemoryUsed != 6<<30 || *second.MemoryUsed != 3<<30 {
		t.Errorf("instances %s", dump(g))
	}
	if *first.ID == *second.ID || *second.ID == second.Index || first.Slices != 1 || second.Slices != 2 || second.SlicesOf != 7 {
		t.Errorf("the instances' numbers and sizes: %s", dump(g))
	}
	// The driver tells no shares of time on such a card, but who is in which part.
	if any, in := g.Processes[0], g.Processes[1]; any.Instance != "" || in.Instance != second.UUID || *in.MemoryUsed != 2<<30 || in.SMUtilization != nil || g.Utilization != nil {
		t.Errorf("processes %s", dump(g))
	}
}

// Two programs share a GPU; each reads what it takes, and the GPU the sum,
// though the driver sees one of them at a time.
func TestSharesOfTwo(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	first := simtest.GPULoad(t, root, "0", "sm=70 memory=4GiB")
	second := simtest.GPULoad(t, root, "0", "sm=30 memory=2GiB")
	want := map[int]string{first: "70 % 4 GiB", second: "30 % 2 GiB"}
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 0, func(g gpu.GPU) string {
		got := make(map[int]string)
		for _, one := range g.Processes {
			if one.SMUtilization != nil && one.MemoryUsed != nil {
				got[one.PID] = fmt.Sprintf("%g %% %g GiB", *one.SMUtilization, float64(*one.MemoryUsed)/(1<<30))
			}
		}
		if !reflect.DeepEqual(got, want) || *g.Utilization != 100 || *g.MemoryUsed != 6<<30 {
			return fmt.Sprintf("%v %%, %v, want %v", *g.Utilization, got, want)
		}
		return ""
	})
}

// A driver that does not say who is on a GPU is no driver that says nobody is.
func TestProcessesUnknown(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	simtest.Play(t, root, "gpu 0 process 4194000 sm 60 memory 2GiB\ngpu 0 lists off\n")
	p := start(t, simdriver.Library(root))
	listed := func(want bool) func(gpu.GPU) string {
		return func(g gpu.GPU) string {
			if g.ProcessesUnknown == want || (len(g.Processes) == 1) != want || g.Error != "" || g.Utilization == nil {
				return dump(g)
			}
			return ""
		}
	}
	p.gpuReads(t, 0, listed(false))
	simtest.Play(t, root, "gpu 0 process 4194000 sm 60 memory 2GiB\n")
	p.gpuReads(t, 0, listed(true))
}

// Many GPUs, each with many users.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 8)
	var script strings.Builder
	for g := range 8 {
		for n := range 60 {
			fmt.Fprintf(&script, "gpu %d process %d sm 1 memory 256MiB\n", g, 4190000+100*g+n)
		}
	}
	simtest.Play(t, root, script.String())
	p := start(t, simdriver.Library(root))
	for i := range 8 {
		p.gpuReads(t, i, func(g gpu.GPU) string {
			if len(g.Processes) != 60 || *g.Utilization != 60 || g.Processes[59].PID != 4190059+100*i {
				return fmt.Sprintf("GPU %d has %d processes and %v %%", i, len(g.Processes), *g.Utilization)
			}
			return ""
		})
	}
}

// A storm of errors is told in brief, and hides no other.
func TestXIDStorm(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 1, well)
	time.Sleep(300 * time.Millisecond) // events from before the registration are not told
	simtest.Play(t, root, "gpu 1 xid 31 times 10000\ngpu 1 xid 79\ngpu 0 xid 48\n")
	p.gpuReads(t, 1, func(g gpu.GPU) string {
		if g.XID == nil || *g.XID != 79 {
			return "the last XID is not 79"
		}
		return ""
	})
	simtest.Eventually(t, 5*time.Second, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.events)+p.dropped != 10002 {
			return fmt.Sprintf("%d events told and %d counted, want 10002 together", len(p.events), p.dropped)
		}
		return ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[string]int)
	for _, e := range p.events {
		seen[strconv.Itoa(e.Index)+" "+strconv.FormatUint(e.XID, 10)]++
	}
	// The storm may have fallen into a few samples.
	if seen["1 79"] != 1 || seen["0 48"] != 1 || seen["1 31"] < maxOfAKind || seen["1 31"] > 20*maxOfAKind || p.longest > 64<<10 {
		t.Errorf("events %v, the longest line has %d bytes", seen, p.longest)
	}
}

func TestEventLogIsBounded(t *testing.T) {
	var l eventLog
	now := time.Now()
	for xid := range uint64(1000) {
		for range 10 {
			l.add(gpu.XIDEvent{XID: xid}, false, now)
		}
	}
	events, dropped := l.take(now)
	if len(events) != maxEvents || dropped != 10000-maxEvents || events[maxOfAKind].XID != 1 {
		t.Errorf("%d events, %d dropped", len(events), dropped)
	}
	if events, dropped = l.take(now); events != nil || dropped != 0 {
		t.Errorf("they are told again: %d, %d", len(events), dropped)
	}
}

// The driver counts other GPUs: the probe ends, to be started again.
func TestGPUDisappearsAndAppears(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 1, well)
	ended := func(p *running) {
		t.Helper()
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			t.Fatal("the probe goes on")
		}
		if code := p.cmd.ProcessState.ExitCode(); code != exitOthers {
			t.Errorf("exit code %d", code)
		}
	}
	simtest.Inject(t, root, "gpu 0 removed")
	ended(p)
	again := start(t, simdriver.Library(root))
	again.gpuReads(t, 0, well)
	if s, _ := again.snapshot(); len(s.GPUs) != 1 || s.GPUs[0].UUID != p.last.GPUs[1].UUID {
		t.Errorf("GPUs %+v", s.GPUs)
	}
	simtest.Inject(t, root, "gpu 0 ok")
	ended(again)
}

func TestThrottleWords(t *testing.T) {
	for bits, want := range map[uint64][]string{
		0:          nil,
		1:          nil, // idle
		4 | 1:      {gpu.ThrottlePowerCap},
		8:          {gpu.ThrottleHardware},
		8 | 0x40:   {gpu.ThrottleThermal}, // the hardware's, with its reason
		8 | 0x80:   {gpu.ThrottlePowerBrake},
		0x20:       {gpu.ThrottleThermal},
		0x200:      {gpu.ThrottleHardware},
		2 | 0x100:  {gpu.ThrottleApplications, gpu.ThrottleDisplay},
		0x10 | 4:   {gpu.ThrottlePowerCap, gpu.ThrottleSync},
		0x10000000: nil, // not invented yet
	} {
		if got := throttleWords(bits); got == nil || !slices.Equal(got, want) {
			t.Errorf("%#x: %q, want %q", bits, got, want)
		}
	}
}

func TestRecoveryWords(t *testing.T) {
	for action, want := range []string{"", gpu.RecoveryReset, gpu.RecoveryReboot, gpu.RecoveryDrain, gpu.RecoveryDrainAndReset, "action 5", gpu.RecoveryBusReset, gpu.RecoveryReboot} {
		if got := recoveryWord(uint64(action)); got != want {
			t.Errorf("%d: %q, want %q", action, got, want)
		}
	}
}

// One process has its share of the time since the last reading, several of some
// seconds; after the clock was set back, the newest sample is in the future.
func TestSharesSince(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name      string
		newest    time.Duration
		processes int
		want      time.Duration
	}{
		{"one", -time.Second, 1, -time.Second},
		{"one that was not read for long", -time.Minute, 1, -sharesOver},
		{"two", -time.Second, 2, -sharesOver},
		{"the clock was set back", time.Hour, 1, -sharesOver},
	} {
		newest, want := uint64(now.Add(c.newest).UnixMicro()), uint64(now.Add(c.want).UnixMicro())
		if got := sharesSince(newest, c.processes, now); got != want {
			t.Errorf("%s: since %d µs, want %d", c.name, got, want)
		}
	}
}

func TestSlicesOfAProfile(t *testing.T) {
	for profile, want := range map[string]int{"1g.5gb": 1, "7g.80gb": 7, "3g.20gb+me": 3, "1c.3g.20gb": 1, "": 0, "g.5gb": 0, "whole": 0} {
		if got := slicesOf(profile); got != want {
			t.Errorf("%q: %d, want %d", profile, got, want)
		}
	}
}
