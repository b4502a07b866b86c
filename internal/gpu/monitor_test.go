package gpu_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// watch runs a monitor over a simulated driver until the test ends.
func watch(t *testing.T, cfg gpu.MonitorConfig) *gpu.Monitor {
	t.Helper()
	cfg.Node = "head"
	if cfg.ProbePath == "" {
		cfg.ProbePath = simtest.Probe(t)
	}
	if cfg.Interval == 0 {
		cfg.Interval = 200 * time.Millisecond
	}
	m := gpu.NewMonitor(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

// latest waits for a snapshot that satisfies ok, which returns what is missing.
func latest(t *testing.T, m *gpu.Monitor, limit time.Duration, ok func(gpu.Snapshot) string) gpu.Snapshot {
	t.Helper()
	var s gpu.Snapshot
	simtest.Eventually(t, limit, func() string {
		var have bool
		if s, have = m.Latest(); !have {
			return "no snapshot"
		}
		return ok(s)
	})
	return s
}

func healthy(s gpu.Snapshot) string {
	if s.Error != "" || len(s.GPUs) == 0 || s.GPUs[0].Power == nil || time.Since(s.Time) > 2*time.Second {
		return fmt.Sprintf("not healthy: %+v", s)
	}
	return ""
}

// ben holds every GPU.
type ben struct{}

func (ben) Of(uuid string) []gpu.Holder {
	return []gpu.Holder{{PodRef: gpu.PodRef{User: "ben"}, Container: "on " + uuid}}
}

func TestMonitorPublishes(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	var mu sync.Mutex
	var published []gpu.Snapshot
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root), Interval: time.Second, Holders: ben{}, Publish: func(s gpu.Snapshot) {
		mu.Lock()
		defer mu.Unlock()
		published = append(published, s)
	}})
	pid := simtest.GPUProcess(t, root, "0", false)
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if len(s.GPUs) != 2 || len(s.GPUs[0].Processes) != 1 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	p := s.GPUs[0].Processes[0]
	if p.PID != pid || !strings.HasPrefix(p.Name, "python3") || p.UnixUser != "root" || p.Pod != (gpu.PodRef{}) {
		t.Errorf("process %+v", p)
	}
	if want := (ben{}).Of(s.GPUs[1].UUID); !slices.Equal(s.GPUs[1].Holders, want) {
		t.Errorf("holders %+v, want %+v", s.GPUs[1].Holders, want)
	}
	if s.Node != "head" || !s.Simulated {
		t.Errorf("snapshot of %q, simulated: %v", s.Node, s.Simulated)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i < len(published); i++ {
		if gap := published[i].Time.Sub(published[i-1].Time); gap < 500*time.Millisecond || gap > 2*time.Second {
			t.Errorf("%v between two snapshots, want about a second", gap)
		}
	}
	powers := make(map[float64]bool)
	for _, s := range published {
		powers[*s.GPUs[1].Power] = true
	}
	if len(published) > 2 && len(powers) < 2 {
		t.Errorf("an idle GPU's power stood still over %d snapshots", len(published))
	}
}

func TestMonitorOutlivesItsProbe(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root)})
	before := latest(t, m, 9*time.Second, healthy)
	pid := m.Probe().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if again := m.Probe(); again.PID == pid || !again.Running {
			return "no new probe"
		}
		if !s.Time.After(before.Time.Add(time.Second)) {
			return "no new readings"
		}
		return healthy(s)
	})
}

// A stopped probe: old readings keep the time they were taken.
func TestMonitorSaysLastSeen(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root)})
	latest(t, m, 9*time.Second, healthy)
	pid := m.Probe().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if !strings.Contains(s.Error, "has been silent for") {
			return fmt.Sprintf("error %q", s.Error)
		}
		return ""
	})
	if age := time.Since(s.Time); age < 2*time.Second || len(s.GPUs) != 1 || s.GPUs[0].Power == nil {
		t.Errorf("the readings are %v old: %+v", age, s)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	latest(t, m, 9*time.Second, healthy)
}

func TestMonitorSaysWhatIsWrongWithTheDriver(t *testing.T) {
	t.Parallel()
	m := watch(t, gpu.MonitorConfig{Library: "/nowhere/libnvidia-ml.so.1"})
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if s.Error != "The NVIDIA driver is not installed: /nowhere/libnvidia-ml.so.1 could not be loaded." {
			return fmt.Sprintf("error %q", s.Error)
		}
		return ""
	})
	if !s.Time.IsZero() || s.Node != "head" {
		t.Errorf("snapshot %+v", s)
	}
}

// The driver is updated under a running lab, and the machine not rebooted.
func TestMonitorAfterADriverUpdate(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	log := filepath.Join(t.TempDir(), "probe.log")
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root), LogFile: log})
	latest(t, m, 9*time.Second, healthy)
	simtest.Inject(t, root, "init 18")
	time.Sleep(1200 * time.Millisecond)
	m.Restart()
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if s.Error != "The NVIDIA driver was updated but the old one is still running: reboot the machine." {
			return fmt.Sprintf("error %q", s.Error)
		}
		return ""
	})
	if len(s.GPUs) != 1 || s.GPUs[0].UUID == "" {
		t.Errorf("the GPUs are forgotten: %+v", s.GPUs)
	}
	simtest.Inject(t, root, "init 0")
	latest(t, m, 20*time.Second, healthy)
	if said, err := os.ReadFile(log); err != nil || !strings.Contains(string(said), "reboot the machine") {
		t.Errorf("the log says %q, %v", said, err)
	}
}

// A GPU that is lost when the probe starts cannot say its name.
func TestMonitorRemembersALostGPU(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root)})
	before := latest(t, m, 9*time.Second, healthy)
	simtest.Inject(t, root, "gpu 1 lost")
	time.Sleep(1200 * time.Millisecond)
	m.Restart()
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if len(s.GPUs) != 2 || s.GPUs[1].Error == "" || s.Error != "" || !s.Time.After(before.Time) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	if s.GPUs[1].UUID != before.GPUs[1].UUID || s.GPUs[1].Name == "" || s.GPUs[0].Error != "" {
		t.Errorf("before %+v, after %+v", before.GPUs, s.GPUs)
	}
}

// scripted is a probe that is a shell script.
func scripted(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpulab-probe")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// line is a sample with one GPU.
func line(at time.Time, watts int) string {
	return fmt.Sprintf(`{"time":%q,"gpus":[{"uuid":"GPU-1","index":0,"power":%d}]}`, at.Format(time.RFC3339Nano), watts)
}

func TestMonitorSurvivesNonsense(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "open")
	m := watch(t, gpu.MonitorConfig{ProbePath: scripted(t, `
echo "Segmentation fault? Not yet."
printf '\000\377\n\n{}\nnull\n[]\n{"time":1}\n{"gpus":[{"index":"none"}]}\n'
head -c 10000000 /dev/zero | tr '\000' x; echo
while [ ! -e `+gate+` ]; do sleep 0.1; done
while sleep 0.1; do echo '`+line(time.Now(), 42)+`'; done`)})
	latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if s.Error != "The GPU probe writes what is no sample, last a line of 4194304 bytes." || !s.Time.IsZero() {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	pid := m.Probe().PID
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if s.Error != "" {
			return "still: " + s.Error
		}
		return ""
	})
	if len(s.GPUs) != 1 || *s.GPUs[0].Power != 42 || m.Probe().PID != pid {
		t.Errorf("afterwards: %+v", s)
	}
}

// The clock is set back by an hour under a running probe: nothing is silent,
// and every sample is passed on as it is.
func TestMonitorWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var mu sync.Mutex
	var powers []float64
	watch(t, gpu.MonitorConfig{
		ProbePath: scripted(t, "for l in '"+line(now, 1)+"' '"+line(now.Add(time.Second), 2)+"' '"+line(now.Add(-time.Hour), 3)+"' '"+line(now.Add(-time.Hour+time.Second), 4)+`'; do echo "$l"; sleep 0.2; done; sleep 60`),
		Publish: func(s gpu.Snapshot) {
			mu.Lock()
			defer mu.Unlock()
			if s.Error == "" {
				powers = append(powers, *s.GPUs[0].Power)
			}
		},
	})
	simtest.Eventually(t, 5*time.Second, func() string {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(powers, []float64{1, 2, 3, 4}) {
			return fmt.Sprintf("published %v", powers)
		}
		return ""
	})
}

// The first of two GPUs is taken out, so that the second gets its number.
func TestMonitorFollowsAGPUThatIsTakenOut(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	// The probe looks whether there are other GPUs every 10 s.
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root)})
	before := latest(t, m, 9*time.Second, healthy)
	simtest.Inject(t, root, "gpu 0 removed")
	s := latest(t, m, 25*time.Second, func(s gpu.Snapshot) string {
		if s.Error != "" || len(s.GPUs) != 2 || s.GPUs[0].UUID != before.GPUs[1].UUID || s.GPUs[0].Error != "" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	if gone := s.GPUs[1]; gone.UUID != before.GPUs[0].UUID || gone.Error != "GPU 0 is no longer reported by the driver." || gone.Power != nil {
		t.Errorf("the GPU that was taken out: %+v", gone)
	}
	simtest.Inject(t, root, "gpu 0 ok")
	latest(t, m, 25*time.Second, func(s gpu.Snapshot) string {
		if len(s.GPUs) != 2 || s.GPUs[0].UUID != before.GPUs[0].UUID || s.GPUs[0].Error != "" || s.GPUs[1].Error != "" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

// partHolders has given each MIG instance to somebody of its own.
type partHolders struct{ whole string }

func (h partHolders) Of(uuid string) []gpu.Holder {
	if uuid == h.whole {
		return nil
	}
	return []gpu.Holder{{PodRef: gpu.PodRef{Name: "pod-of-" + uuid}}}
}

// Who has an instance of a GPU in MIG mode is a holder of the GPU, also while it
// cannot be read.
func TestMonitorFindsHoldersOfInstances(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	simtest.Inject(t, root, "gpu 0 mig 3g.12gb 1g.6gb")
	simtest.Inject(t, root, "gpu 0 process 4194003 sm 10 memory 2GiB instance 1")
	var whole string
	find := func(s gpu.Snapshot) string {
		if s.Error != "" || len(s.GPUs) != 1 || len(s.GPUs[0].Instances) != 2 || len(s.GPUs[0].Processes) != 1 {
			return fmt.Sprintf("%+v", s)
		}
		whole = s.GPUs[0].UUID
		return ""
	}
	plain := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root)})
	latest(t, plain, 20*time.Second, find)
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root), Holders: partHolders{whole}})
	g := latest(t, m, 20*time.Second, func(s gpu.Snapshot) string {
		if w := find(s); w != "" || len(s.GPUs[0].Holders) != 2 {
			return w + " holders are missing"
		}
		return ""
	}).GPUs[0]
	for i, in := range g.Instances {
		if h := g.Holders[i]; h.Instance != in.UUID || h.Name != "pod-of-"+in.UUID {
			t.Errorf("instance %d is held by %+v", i, h)
		}
	}
	if p := g.Processes[0]; p.Instance != g.Instances[1].UUID || *g.Instances[1].MemoryUsed != 2<<30 {
		t.Errorf("the process is in %q: %+v", p.Instance, g.Instances)
	}
	if part := g.PartOf([]string{g.Instances[0].UUID}); part != 3.0/7 {
		t.Errorf("a 3g of seven is %v of the GPU", part)
	}
	simtest.Inject(t, root, "gpu 0 lost")
	latest(t, m, 9*time.Second, func(s gpu.Snapshot) string {
		if lost := s.GPUs[0]; lost.Error == "" || len(lost.Holders) != 2 || lost.Instances[0].MemoryUsed != nil {
			return fmt.Sprintf("%+v", lost)
		}
		return ""
	})
}
