package simdriver_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
)

// inodes returns every file below root with its inode number.
func inodes(t *testing.T, root string) map[string]uint64 {
	t.Helper()
	found := make(map[string]uint64)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		found[strings.TrimPrefix(path, root)] = info.Sys().(*syscall.Stat_t).Ino
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Running pods have the files mounted: a second Install must not replace them.
func TestInstallTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 2)
	before, list := inodes(t, root), must(smi(t, root, "-L"))
	if err := simdriver.Install(t.Context(), simtest.Driver(t), root, 2); err != nil {
		t.Fatal(err)
	}
	after := inodes(t, root)
	for path, inode := range before {
		if after[path] != inode {
			t.Errorf("%s was replaced", path)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, before %d", len(after), len(before))
	}
	if again := must(smi(t, root, "-L")); again != list {
		t.Errorf("the GPUs changed from %s to %s", list, again)
	}
}

func must(out string, _ int) string { return out }

func TestInstallAnotherNumberOfGPUs(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 2)
	two := must(smi(t, root, "-L"))
	for _, n := range []int{3, 1} {
		if err := simdriver.Install(t.Context(), simtest.Driver(t), root, n); err != nil {
			t.Fatal(err)
		}
		list := must(smi(t, root, "-L"))
		if strings.Count(list, "\n") != n || strings.Split(list, "\n")[0] != strings.Split(two, "\n")[0] {
			t.Errorf("with %d GPUs: %s", n, list)
		}
	}
}

func TestInstallNewVersion(t *testing.T) {
	t.Parallel()
	root, from := simtest.Root(t, 1), t.TempDir()
	list := must(smi(t, root, "-L"))
	for old, renamed := range map[string]string{"libnvidia-ml.so": "libnvidia-ml.so.999.1.2", "libcuda.so": "libcuda.so.999.1.2", "nvidia-smi": "nvidia-smi"} {
		files, _ := filepath.Glob(filepath.Join(simtest.Driver(t), old+"*"))
		content, err := os.ReadFile(files[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(from, renamed), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	state, _ := os.Stat(simdriver.StateFile(root))
	if err := simdriver.Install(t.Context(), from, root, 1); err != nil {
		t.Fatal(err)
	}
	if out := must(smi(t, root, "--query-gpu=driver_version", "--format=csv,noheader")); out != "999.1.2\n" {
		t.Errorf("the driver's version is %q", out)
	}
	if again := must(smi(t, root, "-L")); again != list {
		t.Errorf("the GPU changed from %s to %s", list, again)
	}
	if now, _ := os.Stat(simdriver.StateFile(root)); !os.SameFile(state, now) {
		t.Error("the state file was replaced under the running pods")
	}
	left, _ := filepath.Glob(filepath.Join(root, "*/*/*/*580*"))
	firmware, _ := filepath.Glob(filepath.Join(root, "lib/firmware/nvidia/*"))
	if len(left) > 0 || len(firmware) != 1 {
		t.Errorf("left over: %v, %v", left, firmware)
	}
}

// countdown is a context that ends at its nth use.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// Interrupted anywhere, the root looks like a driver that is not loaded, and
// the next Install finishes the work.
func TestInstallInterrupted(t *testing.T) {
	t.Parallel()
	for steps := range 4 {
		root := filepath.Join(t.TempDir(), "root")
		err := simdriver.Install(&countdown{t.Context(), steps}, simtest.Driver(t), root, 1)
		if !errors.Is(err, context.Canceled) || simdriver.Installed(root) {
			t.Fatalf("interrupted after %d steps: error %v, installed: %v", steps, err, simdriver.Installed(root))
		}
		if err := simdriver.Install(t.Context(), simtest.Driver(t), root, 1); err != nil {
			t.Errorf("after an interruption: %v", err)
		}
		if out, code := smi(t, root, "-L"); code != 0 {
			t.Errorf("after an interruption: %s", out)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	for _, n := range []int{-1, 0, simdriver.MaxGPUs + 1} {
		if err := simdriver.Install(t.Context(), simtest.Driver(t), root, n); err == nil {
			t.Errorf("%d GPUs were installed", n)
		}
	}
	if err := simdriver.Install(t.Context(), t.TempDir(), root, 1); err == nil || !strings.Contains(err.Error(), "build the simulated driver first") {
		t.Errorf("from an empty folder: %v", err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	root := simtest.Root(t, 1)
	for range 2 {
		if err := simdriver.Remove(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
	strange := t.TempDir()
	if err := os.WriteFile(filepath.Join(strange, "thesis"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := simdriver.Remove(t.Context(), strange); err == nil {
		t.Error("a folder that is not ours was removed")
	}
}
