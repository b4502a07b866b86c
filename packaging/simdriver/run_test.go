package simdriver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

// ask queries numbers of one GPU.
func ask(t *testing.T, root string, gpu int, fields string) []float64 {
	t.Helper()
	out, code := smi(t, root, "--query-gpu="+fields, "--format=csv,noheader,nounits", "-i", strconv.Itoa(gpu))
	if code != 0 {
		t.Fatalf("nvidia-smi: exit code %d: %s", code, out)
	}
	var numbers []float64
	for cell := range strings.SplitSeq(strings.TrimSpace(out), ", ") {
		n, err := strconv.ParseFloat(cell, 64)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func TestBusyProcessWorksItsGPUOnly(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	idle := ask(t, root, 0, "power.draw,memory.used")
	simtest.GPUProcess(t, root, "1", true)
	simtest.Eventually(t, 9*time.Second, func() string {
		now := ask(t, root, 1, "utilization.gpu,memory.used,power.draw,clocks.sm")
		if now[0] < 20 || now[1] < 200 || now[2] < idle[0]+20 || now[3] < 2000 {
			return fmt.Sprintf("GPU 1 reads %v", now)
		}
		return ""
	})
	if other := ask(t, root, 0, "utilization.gpu,memory.used,power.draw"); other[0] != 0 || other[1] != 0 || other[2] > 30 {
		t.Errorf("the other GPU reads %v", other)
	}
}

// Two load generators share a GPU: nvidia-smi shows what each asked for.
func TestLoadGenerators(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	first := simtest.GPULoad(t, root, "0", "sm=70 memory=4GiB")
	second := simtest.GPULoad(t, root, "0", "sm=25 memory=512MiB")
	want := map[string]bool{fmt.Sprintf("%d, 4096", first): true, fmt.Sprintf("%d, 512", second): true}
	simtest.Eventually(t, 5*time.Second, func() string {
		apps := must(smi(t, root, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"))
		lines := strings.Split(strings.TrimSpace(apps), "\n")
		now := ask(t, root, 0, "utilization.gpu,memory.used")
		if len(lines) != 2 || !want[lines[0]] || !want[lines[1]] || now[0] != 95 || now[1] != 4608 {
			return fmt.Sprintf("processes %q, GPU %v", lines, now)
		}
		return ""
	})
}

// A GPU that a process leaves is free at once.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	pid := simtest.GPUProcess(t, root, "0", false)
	apps := func() string { return must(smi(t, root, "--query-compute-apps=pid", "--format=csv,noheader")) }
	simtest.Eventually(t, 5*time.Second, func() string {
		if got := apps(); got != fmt.Sprintf("%d\n", pid) {
			return "the processes are " + got
		}
		return ""
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	simtest.Eventually(t, 5*time.Second, func() string {
		if got := apps(); got != "" || ask(t, root, 0, "memory.used")[0] != 0 {
			return "the ended process still uses the GPU: " + got
		}
		return ""
	})
}

// A process that runs already opens the library later: nothing but the size of
// its address space tells.
func TestRunningProcessLoadsTheLibrary(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	cuda := filepath.Join(filepath.Dir(simdriver.Library(root)), "libcuda.so.1")
	cmd := exec.Command("python3", "-uc", "import ctypes,sys; print('up'); input(); c=ctypes.CDLL(sys.argv[1]); print(c.cuInit(0)); input()", cuda)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	time.Sleep(2 * time.Second) // it has been scanned as a stranger
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
	simtest.Eventually(t, 5*time.Second, func() string {
		if out := must(smi(t, root, "--query-compute-apps=pid", "--format=csv,noheader")); out != fmt.Sprintf("%d\n", cmd.Process.Pid) {
			return "the processes are " + out
		}
		return ""
	})
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	simtest.Eventually(t, 5*time.Second, func() string {
		if ask(t, root, 0, "power.draw")[0] == 21 {
			return "it does not run"
		}
		return ""
	})
	if err := simdriver.Run(t.Context(), root); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second Run: %v", err)
	}
}

func TestRunWithoutInstall(t *testing.T) {
	t.Parallel()
	if err := simdriver.Run(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("got %v", err)
	}
}
