package simdriver_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

func TestMain(m *testing.M) { simtest.Main(m) }

// smi runs the driver's nvidia-smi and returns its output and exit code.
func smi(t *testing.T, root string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(root, "usr/bin/nvidia-smi"), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(simdriver.Library(root)))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func openELF(t *testing.T, pattern string) *elf.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(simtest.Driver(t), pattern))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: %v, %v", pattern, paths, err)
	}
	f, err := elf.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Programs link or look up any function of NVIDIA's header.
func TestLibraryExportsTheWholeHeader(t *testing.T) {
	t.Parallel()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "gen/nvml/nvml.h"))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := openELF(t, "libnvidia-ml.so.*").DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	for _, s := range symbols {
		exported[s.Name] = s.Section != elf.SHN_UNDEF
	}
	declared := regexp.MustCompile(`DECLDIR\s+(?:char\*\s+)?(nvml\w+)\s*\(`).FindAllStringSubmatch(string(header), -1)
	if len(declared) < 400 {
		t.Fatalf("only %d functions found in the header", len(declared))
	}
	for _, d := range declared {
		if !exported[d[1]] {
			t.Errorf("%s is declared but not exported", d[1])
		}
	}
}

// The libraries are loaded in other people's containers, however old.
func TestGlibcFloor(t *testing.T) {
	t.Parallel()
	for pattern, floor := range map[string]string{
		"libnvidia-ml.so.*": "2.17", "libcuda.so.*": "2.17",
		// The start-up code of every program is newer.
		"nvidia-smi": "2.34",
	} {
		symbols, err := openELF(t, pattern).ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			version, ok := strings.CutPrefix(s.Version, "GLIBC_")
			if ok && newer(version, floor) {
				t.Errorf("%s: %s asks for glibc %s, want at most %s", pattern, s.Name, version, floor)
			}
		}
	}
}

// newer compares versions like 2.17 and 2.2.5.
func newer(a, b string) bool {
	var x, y [3]int
	_, _ = fmt.Sscanf(strings.ReplaceAll(a+".0", ".", " "), "%d %d %d", &x[0], &x[1], &x[2])
	_, _ = fmt.Sscanf(strings.ReplaceAll(b+".0", ".", " "), "%d %d %d", &y[0], &y[1], &y[2])
	for i := range x {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return false
}

func TestSMITable(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 2)
	out, code := smi(t, root)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	for _, line := range lines[1:] {
		if line != "" && len(line) != len(lines[1]) {
			t.Errorf("%d characters wide, want %d: %s", len(line), len(lines[1]), line)
		}
	}
	for _, want := range []string{"(simulated)", "Driver Version: ", "CUDA Version: 13.0", "24576MiB", " On |", "|  30%  33C ", "No running processes"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
	if strings.Count(out, "Simulated GPU 24GB") != 2 {
		t.Errorf("not two GPUs:\n%s", out)
	}
}

func TestSMIListAndQuery(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 2)
	list, _ := smi(t, root, "-L")
	match := regexp.MustCompile(`^GPU 0: Simulated GPU 24GB \(UUID: (GPU-51390000-[0-9a-f-]{27})\)\nGPU 1: `).FindStringSubmatch(list)
	if match == nil {
		t.Fatalf("-L printed %q", list)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--query-gpu=index,name,memory.total", "--format=csv"}, "index, name, memory.total [MiB]\n0, Simulated GPU 24GB, 24576 MiB\n1, Simulated GPU 24GB, 24576 MiB\n", 0},
		{[]string{"--query-gpu=uuid", "--format=csv,noheader", "-i", "0"}, match[1] + "\n", 0},
		{[]string{"--query-gpu", "memory.total,utilization.gpu", "--format", "csv,noheader,nounits", "--id=" + match[1]}, "24576, 0\n", 0},
		{[]string{"--query-gpu=mig.mode.current", "--format=csv,noheader", "-i", "1"}, "[N/A]\n", 0},
		{[]string{"--query-gpu=persistence_mode,ecc.errors.uncorrected.volatile.total,pcie.link.width.current", "--format=csv", "-i", "0"}, "persistence_mode, ecc.errors.uncorrected.volatile.total, pcie.link.width.current\nEnabled, 0, 16\n", 0},
		{[]string{"--query-compute-apps=pid,used_memory", "--format=csv"}, "pid, used_memory [MiB]\n", 0},
		{[]string{"--query-gpu=nonsense", "--format=csv"}, "Field \"nonsense\" is not a valid field to query.\n", 2},
		{[]string{"--query-gpu=name"}, "\"--format=\" is missing: a query needs --format=csv.\n", 2},
		{[]string{"-i", "7"}, "No devices were found\n", 6},
		{[]string{"--frobnicate"}, "Invalid combination of input arguments: --frobnicate is not known here. Please run 'nvidia-smi -h' for help.\n", 2},
	} {
		if out, code := smi(t, root, c.args...); out != c.want || code != c.code {
			t.Errorf("nvidia-smi %q: %q, exit code %d; want %q, %d", c.args, out, code, c.want, c.code)
		}
	}
}

func TestSMIWithoutLibrary(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(filepath.Join(simtest.Driver(t), "nvidia-smi"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + t.TempDir()}
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 12 || !strings.Contains(string(out), "couldn't find libnvidia-ml.so") {
		t.Errorf("exit code %d, %q", code, out)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	list := func(want string, code int) func() string {
		return func() string {
			out, got := smi(t, root, "-L")
			if !strings.Contains(out, want) || got != code {
				return fmt.Sprintf("nvidia-smi -L says %q with exit code %d, want %q and %d", out, got, want, code)
			}
			return ""
		}
	}
	simtest.Inject(t, root, "gpu 0 lost")
	simtest.Eventually(t, 5*time.Second, list("GPU 0: GPU is lost\nGPU 1: Simulated", 15))
	simtest.Inject(t, root, "gpu 0 ok")
	simtest.Inject(t, root, "init 18")
	simtest.Eventually(t, 5*time.Second, list("Failed to initialize NVML: Driver/library version mismatch", 18))
	simtest.Inject(t, root, "init 0")
	simtest.Eventually(t, 5*time.Second, list("GPU 0: Simulated GPU 24GB", 0))
}

func TestInjectRefusesNonsense(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 1)
	for _, line := range []string{"", "gpu", "gpu 0", "gpu x lost", "gpu 0 explode", "gpu 0 xid", "gpu 0 xid many", "lost", "init", "gpu 0 init 18", "init 18 19", "at 5s gpu 0 lost", "gpu 0 use 10..20 over 5s", "gpu 0 use 10 for 5s"} {
		if err := simdriver.Inject(root, line); err == nil {
			t.Errorf("%q was taken for a fault", line)
		}
	}
}

// A pod has the libraries and the firmware file, but no run/simgpu; and what
// it sees there follows the host.
func TestPodView(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 2)
	pod := t.TempDir()
	for _, step := range [][]string{
		{"mkdir", "-p", pod + "/usr/lib", pod + "/usr/bin", pod + "/dev", pod + "/lib"},
		{"cp", "-a", filepath.Dir(simdriver.Library(root)), pod + "/usr/lib/"},
		{"cp", "-a", root + "/usr/bin/nvidia-smi", pod + "/usr/bin/"},
		{"cp", "-al", root + "/lib/firmware", pod + "/lib/"},
		{"cp", "-a", root + "/dev/nvidiactl", root + "/dev/nvidia1", pod + "/dev/"},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", step, err, out)
		}
	}
	hostList, _ := smi(t, root, "-L")
	podList, code := smi(t, pod, "-L")
	second := strings.Replace(strings.Split(hostList, "\n")[1], "GPU 1:", "GPU 0:", 1) + "\n"
	if podList != second || code != 0 {
		t.Errorf("the pod with GPU 1 sees %q, want %q", podList, second)
	}
	power := func() string {
		out, _ := smi(t, pod, "--query-gpu=power.draw", "--format=csv,noheader")
		return out
	}
	before := power()
	simtest.Eventually(t, 5*time.Second, func() string {
		if power() == before {
			return "the pod's view of the GPU stands still"
		}
		return ""
	})
}

// In another PID namespace the host's process numbers name strangers.
func TestProcessesAreHiddenInOtherPIDNamespaces(t *testing.T) {
	t.Parallel()
	root := simtest.Start(t, 1)
	pid := simtest.GPUProcess(t, root, "0", false)
	query := []string{"--query-compute-apps=pid", "--format=csv,noheader"}
	simtest.Eventually(t, 5*time.Second, func() string {
		if out, _ := smi(t, root, query...); out != fmt.Sprintf("%d\n", pid) {
			return fmt.Sprintf("the host sees the processes %q, want %d", out, pid)
		}
		return ""
	})
	cmd := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", filepath.Join(root, "usr/bin/nvidia-smi")}, query...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(simdriver.Library(root)))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("in a PID namespace: %q, %v", out, err)
	}
}
