//go:build cgo

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

// running is a probe that writes samples.
type running struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu      sync.Mutex
	last    gpu.Snapshot
	count   int
	events  []gpu.XIDEvent
	dropped int
	longest int // bytes of a line
}

// start runs the probe on a library at ten samples a second.
func start(t *testing.T, library string, args ...string) *running {
	t.Helper()
	p := &running{ended: make(chan struct{})}
	p.cmd = exec.Command(simtest.Probe(t), append([]string{"-lib", library, "-interval", "100ms", "-patience", "1s", "-slow", "200ms"}, args...)...)
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	p.cmd.Stderr = os.Stderr
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.take(t, lines.Bytes())
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	return p
}

func (p *running) take(t *testing.T, line []byte) {
	var s gpu.Snapshot
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		t.Errorf("%v in %s", err, line)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = s
	p.count++
	p.events = append(p.events, s.Events...)
	p.dropped += s.EventsDropped
	p.longest = max(p.longest, len(line))
}

func (p *running) snapshot() (gpu.Snapshot, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.count
}

func (p *running) gpu(index int) gpu.GPU {
	s, _ := p.snapshot()
	return s.GPUs[index]
}

func dump(g gpu.GPU) string {
	text, _ := json.Marshal(g)
	return string(text)
}

// gpuReads waits until the numbered GPU satisfies ok, which returns what is
// missing.
func (p *running) gpuReads(t *testing.T, index int, ok func(gpu.GPU) string) {
	t.Helper()
	simtest.Eventually(t, 6*time.Second, func() string {
		s, _ := p.snapshot()
		if len(s.GPUs) <= index {
			return fmt.Sprintf("%d GPUs", len(s.GPUs))
		}
		return ok(s.GPUs[index])
	})
}

func well(g gpu.GPU) string {
	if g.Error != "" || g.Utilization == nil || g.Power == nil || g.UUID == "" {
		return fmt.Sprintf("GPU %d is not well: %+v", g.Index, g)
	}
	return ""
}

func fails(sentence string) func(gpu.GPU) string {
	return func(g gpu.GPU) string {
		if !strings.Contains(g.Error, sentence) || g.Utilization != nil {
			return fmt.Sprintf("GPU %d says %q and reads %v, want %q and nothing", g.Index, g.Error, g.Utilization, sentence)
		}
		return ""
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	pid := simtest.GPUProcess(t, root, "1", true)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 1, func(g gpu.GPU) string {
		if len(g.Processes) != 1 || g.Processes[0].PID != pid {
			return fmt.Sprintf("processes %+v, want %d", g.Processes, pid)
		}
		one := g.Processes[0]
		if one.MemoryUsed == nil || *one.MemoryUsed < 100<<20 || one.SMUtilization == nil || *one.SMUtilization < 10 {
			return fmt.Sprintf("the process reads %+v", one)
		}
		if *g.Utilization < 10 || *g.MemoryUsed < 100<<20 {
			return fmt.Sprintf("the GPU reads %v %%, %v bytes", *g.Utilization, *g.MemoryUsed)
		}
		return ""
	})
	s, _ := p.snapshot()
	if !s.Simulated || s.DriverVersion != "580.95.05" || s.CUDAVersion != "13.0" || time.Since(s.Time) > time.Minute {
		t.Errorf("snapshot %+v", s)
	}
	g := s.GPUs[0]
	if !g.Simulated || g.Name != "Simulated GPU 24GB" || !strings.HasPrefix(g.UUID, "GPU-51390000-") || g.PCIBusID != "00000000:21:00.0" ||
		g.ComputeCapability != "8.9" || *g.MemoryTotal != 24<<30 || *g.PowerLimit != 300 || g.MIG {
		t.Errorf("device %+v", g.Device)
	}
	if *g.Utilization != 0 || *g.Power < 10 || *g.Power > 40 || *g.Energy <= 0 || *g.SMClock != 210 || len(g.Processes) != 0 {
		t.Errorf("idle GPU %+v", g.Reading)
	}
}

func TestLostGPUHarmsNoOther(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 0, well)
	simtest.Inject(t, root, "gpu 0 lost")
	p.gpuReads(t, 0, fails("fallen off the bus"))
	p.gpuReads(t, 1, well)
	if s, _ := p.snapshot(); s.GPUs[0].UUID == "" {
		t.Error("the lost GPU has lost its name")
	}
	simtest.Inject(t, root, "gpu 0 ok")
	p.gpuReads(t, 0, well)
}

func TestHangingGPUHarmsNoOther(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 0, well)
	simtest.Inject(t, root, "gpu 0 hang")
	p.gpuReads(t, 0, fails("has not answered for"))
	_, before := p.snapshot()
	simtest.Eventually(t, 5*time.Second, func() string {
		if s, n := p.snapshot(); n < before+10 || well(s.GPUs[1]) != "" {
			return fmt.Sprintf("%d samples since, %s", n-before, well(s.GPUs[1]))
		}
		return ""
	})
	simtest.Inject(t, root, "gpu 0 ok")
	p.gpuReads(t, 0, well)
}

func TestStartBesideSickGPUs(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 3)
	simtest.Inject(t, root, "gpu 0 hang")
	simtest.Inject(t, root, "gpu 1 lost")
	simtest.Eventually(t, 5*time.Second, func() string {
		text, _ := os.ReadFile(simdriver.StateFile(root))
		if !bytes.Contains(text, []byte("hang=1")) || !bytes.Contains(text, []byte("lost=1")) {
			return "the faults are not in force"
		}
		return ""
	})
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 0, fails("has not answered for"))
	p.gpuReads(t, 1, fails("fallen off the bus"))
	p.gpuReads(t, 2, well)
}

func TestXIDEvents(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	p := start(t, simdriver.Library(root))
	p.gpuReads(t, 1, well)
	time.Sleep(300 * time.Millisecond) // events from before the registration are not told
	simtest.Inject(t, root, "gpu 1 xid 48")
	simtest.Inject(t, root, "gpu 1 xid 79")
	p.gpuReads(t, 1, func(g gpu.GPU) string {
		if g.XID == nil || *g.XID != 79 {
			return "the last XID is not 79"
		}
		return ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.events) != 2 || p.events[0].XID != 48 || p.events[1].XID != 79 || p.events[0].Index != 1 || p.events[0].UUID != p.last.GPUs[1].UUID {
		t.Errorf("events %+v", p.events)
	}
	if p.last.GPUs[0].XID != nil {
		t.Error("the other GPU was told of it")
	}
}

// older returns a library that lacks functions: their names are overwritten.
func older(t *testing.T, root string, without ...string) string {
	t.Helper()
	library, err := filepath.EvalSymlinks(simdriver.Library(root))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range without {
		if !bytes.Contains(content, []byte("\x00"+name+"\x00")) {
			t.Fatalf("%s is not there to be removed", name)
		}
		content = bytes.ReplaceAll(content, []byte("\x00"+name+"\x00"), []byte("\x00"+strings.Replace(name, "nvml", "gone", 1)+"\x00"))
	}
	old := filepath.Join(filepath.Dir(library), "libnvidia-ml-old.so")
	if err := os.WriteFile(old, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return old
}

// A driver too old for every function that is looked up before it is called.
func TestOlderDriver(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	pid := simtest.GPUProcess(t, root, "0", false)
	p := start(t, older(t, root, optionalSymbols...))
	p.gpuReads(t, 0, func(g gpu.GPU) string {
		if w := well(g); w != "" {
			return w
		}
		if g.MemoryUsed == nil || len(g.Processes) != 1 || g.Processes[0].PID != pid {
			return fmt.Sprintf("memory %v, processes %+v", g.MemoryUsed, g.Processes)
		}
		return ""
	})
	g := p.gpu(0)
	want := gpu.GPU{
		Device: gpu.Device{UUID: g.UUID, Name: g.Name, PCIBusID: g.PCIBusID, MemoryTotal: g.MemoryTotal, MemoryLimits: gpu.MemoryLimitsOldDriver, Simulated: true},
		Reading: gpu.Reading{
			Utilization: g.Utilization, MemoryUtilization: g.MemoryUtilization, MemoryUsed: g.MemoryUsed, Power: g.Power,
			Temperature: g.Temperature, SMClock: g.SMClock, MemoryClock: g.MemoryClock,
			Processes: []gpu.Process{{PID: pid, MemoryUsed: g.Processes[0].MemoryUsed}},
		},
	}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("what nobody could know: %s\nwant %s", dump(g), dump(want))
	}
}

// Drivers before 535 have the reasons for low clocks under another name.
func TestOlderNameOfThrottleReasons(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	simtest.Inject(t, root, "gpu 0 throttle temperature")
	p := start(t, older(t, root, "nvmlDeviceGetCurrentClocksEventReasons"))
	p.gpuReads(t, 0, func(g gpu.GPU) string {
		if !slices.Equal(g.Throttle, []string{gpu.ThrottleThermal}) {
			return fmt.Sprintf("throttled by %q", g.Throttle)
		}
		return ""
	})
}

func TestNoDriver(t *testing.T) {
	t.Parallel()
	mismatch := simtest.Start(t, 1)
	simtest.Inject(t, mismatch, "init 18")
	strange := simtest.Start(t, 1)
	simtest.Inject(t, strange, "init 999")
	unloaded := simtest.Root(t, 1)
	if err := os.Remove(filepath.Join(unloaded, "dev/nvidiactl")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // the faults come into force
	for _, c := range []struct{ library, want string }{
		{"/nowhere/libnvidia-ml.so.1", "gpulab-probe: the NVIDIA driver is not installed: /nowhere/libnvidia-ml.so.1 could not be loaded\n"},
		{simdriver.Library(unloaded), "gpulab-probe: the NVIDIA driver is installed but not loaded: no card, or a kernel module that does not fit\n"},
		{simdriver.Library(mismatch), "gpulab-probe: the NVIDIA driver was updated but the old one is still running: reboot the machine\n"},
		{simdriver.Library(strange), "gpulab-probe: the NVIDIA driver cannot be asked: Unknown Error (NVML error 999)\n"},
	} {
		var stdout, stderr strings.Builder
		cmd := exec.Command(simtest.Probe(t), "-lib", c.library)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != exitDriver || stderr.String() != c.want || stdout.Len() > 0 {
			t.Errorf("exit code %d, %q, %q; want %q", code, stderr.String(), stdout.String(), c.want)
		}
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	for name, end := range map[string]func(*running) error{
		"with its standard input": func(p *running) error { return p.stdin.Close() },
		"at SIGTERM":              func(p *running) error { return p.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		p := start(t, simdriver.Library(root))
		p.gpuReads(t, 0, well)
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			t.Fatalf("it does not end %s", name)
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("ended %s it has exit code %d", name, code)
		}
	}
}

func TestEndsWhenNobodyReads(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(simtest.Probe(t), "-lib", simdriver.Library(root), "-interval", "100ms")
	cmd.Stdout = w
	if err := errors.Join(cmd.Start(), w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	if !timer.Stop() {
		t.Error("it goes on writing to nobody")
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 2)
	out, err := exec.Command(simtest.Probe(t), "-once", "-lib", simdriver.Library(root)).Output()
	var s gpu.Snapshot
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || len(s.GPUs) != 2 || well(s.GPUs[1]) != "" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nonsense"}, {"-interval", "1ms"}, {"-slow", "1ms"}, {"argument"}, {"-patience", "0s"}} {
		cmd := exec.Command(simtest.Probe(t), args...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || len(out) == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, out)
		}
	}
}

// Limits of memory need a driver that has them, and version 2 of control groups.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	root, cgroups := simtest.Start(t, 2), simtest.Cgroups(t)
	library := simdriver.Library(root)
	able := func(want string, args ...string) {
		t.Helper()
		p := start(t, library, args...)
		p.gpuReads(t, 0, func(g gpu.GPU) string {
			if g.MemoryLimits != want {
				return fmt.Sprintf("%q is said of its memory limits, want %q", g.MemoryLimits, want)
			}
			return ""
		})
	}
	able(gpu.MemoryLimitsEnforced, "-cgroups", cgroups)
	able(gpu.MemoryLimitsOldCgroups, "-cgroups", t.TempDir())

	p := start(t, library, "-cgroups", cgroups)
	p.gpuReads(t, 1, well)
	set := func(input string) (string, error) {
		cmd := exec.Command(simtest.Probe(t), "-lib", library, "-limits")
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	group := simtest.Group(t, cgroups, "some")
	limit := func(uuid, group string, bytes uint64) string {
		return fmt.Sprintf(`{"uuid":%q,"cgroup":%q,"bytes":%d}`, uuid, group, bytes)
	}
	uuid := p.gpu(0).UUID
	out, err := set("[" + strings.Join([]string{limit(uuid, group, 1<<30), limit(uuid, group, gpu.NoMemoryLimit), limit(uuid, group, 1<<50),
		limit(uuid, "/nowhere", 1<<30), limit("GPU-nobodys", group, 1<<30)}, ",") + "]")
	var problems []string
	if err == nil {
		err = json.Unmarshal([]byte(out), &problems)
	}
	if err != nil || len(problems) != 5 || problems[0]+problems[1] != "" || slices.Contains(problems[2:], "") {
		t.Errorf("%q, %v", problems, err)
	}
	if out, err := set("nonsense"); err == nil {
		t.Errorf("nonsense is answered by %q", out)
	}
}
