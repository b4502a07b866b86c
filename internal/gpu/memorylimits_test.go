package gpu_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

// benOnTwo is Ben with a notebook on each of two GPUs.
type benOnTwo struct{ uuids *atomic.Pointer[[]string] }

func benPod(n int) gpu.PodRef {
	return gpu.PodRef{UID: fmt.Sprintf("1b4e28ba-2fa1-41d2-883f-0016d3cca42%d", n), User: "ben", Notebook: fmt.Sprintf("n%d", n)}
}

func (b benOnTwo) Of(uuid string) []gpu.Holder {
	if uuids := b.uuids.Load(); uuids != nil {
		for i, is := range *uuids {
			if is == uuid {
				return []gpu.Holder{{PodRef: benPod(i)}}
			}
		}
	}
	return nil
}

func (b benOnTwo) ByUID(uid string) (gpu.PodRef, bool) {
	for i := range 2 {
		if pod := benPod(i); pod.UID == uid {
			return pod, true
		}
	}
	return gpu.PodRef{}, false
}

func (b benOnTwo) ByName(string, string) (gpu.PodRef, time.Time, bool) {
	return gpu.PodRef{}, time.Time{}, false
}

// A person's programs get as much memory of GPUs as their limit allows, over all
// of their notebooks; what they have got they keep.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	cgroups := simtest.Cgroups(t)
	first := simtest.Group(t, cgroups, "kubepods/burstable/pod"+benPod(0).UID+"/3f2a")
	second := simtest.Group(t, cgroups, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_41d2_883f_0016d3cca421.slice/cri-containerd-77.scope")
	root := simtest.Start(t, 2)
	who := benOnTwo{new(atomic.Pointer[[]string])}
	m := watch(t, gpu.MonitorConfig{Library: simdriver.Library(root), Cgroups: cgroups, Holders: who, Pods: who})
	s := latest(t, m, time.Minute, func(s gpu.Snapshot) string {
		if healthy(s) != "" || len(s.GPUs) != 2 || s.GPUs[1].MemoryLimits != gpu.MemoryLimitsEnforced {
			return fmt.Sprintf("not able to keep limits: %+v", s)
		}
		return ""
	})
	who.uuids.Store(&[]string{s.GPUs[0].UUID, s.GPUs[1].UUID})

	var limit atomic.Pointer[uint64]
	set := func(gibibytes uint64) { limit.Store(new(gibibytes << 30)) }
	set(4)
	l := gpu.NewMemoryLimiter(gpu.MemoryLimiterConfig{ProbePath: simtest.Probe(t), Library: simdriver.Library(root), Cgroups: cgroups,
		Limit: func(_ context.Context, handle string) (*uint64, error) {
			if handle != "ben" {
				t.Errorf("asked for the limit of %q", handle)
			}
			return limit.Load(), nil
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		_ = l.Run(ctx, m.Latest)
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	inForce := func(want int) {
		t.Helper()
		simtest.Eventually(t, time.Minute, func() string {
			files, _ := filepath.Glob(filepath.Join(root, "run/simgpu/limits/*"))
			if len(files) != want {
				return fmt.Sprintf("the driver knows the limits %q, want %d", files, want)
			}
			return ""
		})
	}
	taken := func(want ...uint64) {
		t.Helper()
		latest(t, m, time.Minute, func(s gpu.Snapshot) string {
			for i, gibibytes := range want {
				var got uint64
				for _, p := range s.GPUs[i].Processes {
					if p.Pod.User != "ben" {
						return fmt.Sprintf("a process of GPU %d is not Ben's: %+v", i, p)
					}
					got += *p.MemoryUsed
				}
				if got != gibibytes<<30 {
					return fmt.Sprintf("of GPU %d %d bytes are taken, want %d GiB", i, got, gibibytes)
				}
			}
			return ""
		})
	}

	inForce(2)
	simtest.GPULoadIn(t, root, first, "0", "sm=10 memory=8GiB")
	taken(4, 0)
	if s, _ := m.Latest(); !l.Enforced(s) {
		t.Error("the limits are in force, and Enforced says they are not")
	}
	simtest.GPULoadIn(t, root, second, "1", "sm=10 memory=2GiB")
	taken(4, 0)
	set(16)
	taken(8, 2)
	set(6)
	simtest.Eventually(t, time.Minute, func() string {
		files, _ := filepath.Glob(filepath.Join(root, "run/simgpu/limits", s.GPUs[1].UUID+"-*"))
		if len(files) != 1 {
			return fmt.Sprintf("limits of GPU 1: %q", files)
		}
		text, err := os.ReadFile(files[0])
		if words := strings.Fields(string(text)); err != nil || len(words) < 2 || words[1] != "0" {
			return fmt.Sprintf("of GPU 1 something may still be taken: %q, %v", text, err)
		}
		return ""
	})
	simtest.GPULoadIn(t, root, second, "1", "sm=10 memory=1GiB")
	time.Sleep(3 * time.Second) // time to get what it may not have
	taken(8, 2)
	limit.Store(nil)
	taken(8, 3)
	inForce(0)

	// One that does not answer does not keep the other's limits from changing.
	simtest.Inject(t, root, "gpu 1 hang")
	latest(t, m, time.Minute, func(s gpu.Snapshot) string {
		if s.GPUs[1].Error == "" {
			return "GPU 1 answers"
		}
		return ""
	})
	set(9)
	inForce(1)
	simtest.GPULoadIn(t, root, first, "0", "sm=10 memory=8GiB")
	taken(9)
	simtest.Inject(t, root, "gpu 1 ok")
	inForce(2)
	simtest.Inject(t, root, "gpu 1 limits off")
	latest(t, m, time.Minute, func(s gpu.Snapshot) string {
		if s.GPUs[1].MemoryLimits != gpu.MemoryLimitsUnsupported || l.Enforced(s) {
			return fmt.Sprintf("GPU 1, which cannot keep limits, is %q", s.GPUs[1].MemoryLimits)
		}
		return ""
	})
}

// A probe that cannot be asked is said once, and asked again later.
func TestMemoryLimitsThatCannotBeSet(t *testing.T) {
	t.Parallel()
	cgroups := t.TempDir()
	pod := benPod(0)
	if err := os.MkdirAll(filepath.Join(cgroups, "kubepods/pod"+pod.UID, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(t.TempDir(), "asked")
	probe := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(probe, []byte("#!/bin/sh\necho >>"+asked+"\necho '[\"No permission\"]'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := gpu.NewMemoryLimiter(gpu.MemoryLimiterConfig{ProbePath: probe, Cgroups: cgroups,
		Limit: func(context.Context, string) (*uint64, error) { return new(uint64(1 << 30)), nil }})
	s := gpu.Snapshot{GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-1", MemoryTotal: new(uint64(8 << 30)), MemoryLimits: gpu.MemoryLimitsEnforced}, Holders: []gpu.Holder{{PodRef: pod}}}}}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := l.Run(ctx, func() (gpu.Snapshot, bool) { return s, true }); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(asked); err != nil || string(text) != "\n" {
		t.Errorf("in 4 s a driver that refuses was asked %q (%v), want once", text, err)
	}
	if l.Enforced(s) {
		t.Error("refused limits are called enforced")
	}
}
