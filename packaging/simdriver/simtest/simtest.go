// Package simtest gives tests the real parts of the NVIDIA layer without a
// card: the simulated driver, built and installed in a folder of the test's
// own, and the probe. Only tests may import it.
package simtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/packaging/simdriver"
)

// once builds something one time for all tests of a binary.
type once struct {
	sync.Once
	dir string
	err error
}

var driver, probe once

// Driver returns a folder with the files of the simulated driver.
func Driver(t testing.TB) string {
	t.Helper()
	driver.Do(func() {
		driver.dir, driver.err = os.MkdirTemp("", "gpulab-simdriver-")
		if driver.err == nil {
			driver.err = errors.Join(run("make", "-C", filepath.Join(repository(), "packaging/simdriver"), "OUT="+driver.dir),
				note("packaging/simdriver"))
		}
	})
	if driver.err != nil {
		t.Fatal(driver.err)
	}
	return driver.dir
}

// Probe returns the path of gpulab-probe.
func Probe(t testing.TB) string {
	t.Helper()
	probe.Do(func() {
		if probe.dir, probe.err = os.MkdirTemp("", "gpulab-probe-"); probe.err == nil {
			// Some compilers bind at start by default, and NVML's symbols are not there then.
			probe.err = errors.Join(run("go", "build", "-C", repository(), "-o", probe.dir, "-ldflags=-extldflags=-Wl,-z,lazy", "./cmd/gpulab-probe"),
				note("cmd/gpulab-probe", "internal/gpu", "internal/supervise", "internal/units", "go.mod", "go.sum"))
		}
	})
	if probe.err != nil {
		t.Fatal(probe.err)
	}
	return filepath.Join(probe.dir, "gpulab-probe")
}

// note opens the files that something is built from. Go keeps the result of a test by the files that the test itself
// opens, and knows nothing of what compilers read.
func note(paths ...string) error {
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(repository(), path), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			return file.Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Cleanup removes what Driver and Probe built. Call it at the end of TestMain.
func Cleanup() {
	for _, dir := range []string{driver.dir, probe.dir} {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
}

// Main runs a package's tests and cleans up.
func Main(m *testing.M) {
	code := m.Run()
	Cleanup()
	os.Exit(code)
}

// Root installs the driver in a folder of the test's own.
func Root(t testing.TB, gpus int) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := simdriver.Install(t.Context(), Driver(t), root, gpus); err != nil {
		t.Fatal(err)
	}
	return root
}

// Start installs the driver and runs it until the test ends.
func Start(t testing.TB, gpus int) string {
	t.Helper()
	root := Root(t, gpus)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- simdriver.Run(ctx, root) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return root
}

// Inject adds a fault to the simulation.
func Inject(t testing.TB, root, fault string) {
	t.Helper()
	if err := simdriver.Inject(root, fault); err != nil {
		t.Fatal(err)
	}
}

// Play makes text the simulation's script, which begins now.
func Play(t testing.TB, root, text string) {
	t.Helper()
	if err := simdriver.Play(root, text); err != nil {
		t.Fatal(err)
	}
}

// GPUProcess starts a program that uses the given GPUs ("0", "0,1", a UUID)
// until the test ends, and returns its PID. It only holds the GPU, or keeps a
// processor busy too.
func GPUProcess(t testing.TB, root, gpus string, busy bool) int {
	t.Helper()
	if busy {
		return start(t, root, gpus, "while True: pass")
	}
	return start(t, root, gpus, "time.sleep(600)")
}

// GPULoad starts a program that takes exactly the load it asks for, such as
// "sm=70 memory=4GiB", until the test ends, and returns its PID.
func GPULoad(t testing.TB, root, gpus, load string) int {
	t.Helper()
	return start(t, root, gpus, "time.sleep(600)", "GPULAB_SIMULATED_LOAD="+load)
}

// GPULoadIn is GPULoad in a control group.
func GPULoadIn(t testing.TB, root, group, gpus, load string) int {
	t.Helper()
	return start(t, root, gpus, "time.sleep(600)", "GPULAB_SIMULATED_LOAD="+load, "GPULAB_TEST_GROUP="+group)
}

// Cgroups mounts control groups of version 2 until the test ends, whichever
// version the machine uses, and returns the folder.
func Cgroups(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		t.Skipf("version 2 of control groups cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Group makes a control group below the folder of Cgroups, and removes it, and
// those above it that were not there, when the test ends. It must be empty then.
func Group(t testing.TB, cgroups, path string) string {
	t.Helper()
	dir := filepath.Join(cgroups, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for d := dir; d != cgroups; d = filepath.Dir(d) {
			// Another one may still be below it, which then removes it.
			if err := os.Remove(d); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
				t.Error(err)
			}
		}
	})
	return dir
}

func start(t testing.TB, root, gpus, code string, env ...string) int {
	t.Helper()
	code = "import ctypes,os,sys,time\n" +
		"if 'GPULAB_TEST_GROUP' in os.environ: open(os.environ['GPULAB_TEST_GROUP']+'/cgroup.procs','w').write('0')\n" +
		"ctypes.CDLL(sys.argv[1]); print('ready', flush=True)\n" + code
	cuda := filepath.Join(filepath.Dir(simdriver.Library(root)), "libcuda.so.1")
	cmd := exec.Command("python3", "-c", code, cuda)
	cmd.Env = append(append(os.Environ(), "CUDA_VISIBLE_DEVICES="+gpus), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatalf("the GPU process did not start: %v", err)
	}
	return cmd.Process.Pid
}

// Eventually polls until ok returns "", and fails the test with its last
// answer when that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, ok func() (missing string)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", limit, missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// run executes a build command and puts its last lines into the error.
func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w\n%s", cmd, err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	return nil
}

// repository is the root of the checkout: a test runs in its package's folder.
func repository() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err) // the folder that the test runs in is gone
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "packaging/simdriver/Makefile")); err == nil {
			return dir
		}
	}
	panic("no repository of gpulab's above the test's folder")
}
