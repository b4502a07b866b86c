package embedk8s

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A container's first process is asked to end and has time for it; one that does
// not listen is killed, and so is what it started. Processes elsewhere stay.
func TestEndPods(t *testing.T) {
	root := podGroup(t)
	dir := t.TempDir()
	start := func(name, group, script string) *exec.Cmd {
		t.Helper()
		inside := fmt.Sprintf("echo $$ >%s/cgroup.procs && exec unshare --pid --fork --kill-child sh -c '%s'", group, script)
		cmd := exec.Command("sh", "-c", inside)
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		waitForFile(t, filepath.Join(dir, name+"-runs"))
		return cmd
	}
	pods := filepath.Join(root, "kubepods/burstable/pod1")
	saves := start("saves", filepath.Join(pods, "a"), `trap "sleep 0.3; touch saved; exit" TERM; touch saves-runs; while :; do sleep 0.05; done`)
	deaf := start("deaf", filepath.Join(pods, "b"), `trap "" TERM; sleep 60 & touch deaf-runs; while :; do sleep 0.05; done`)
	other := start("other", filepath.Join(root, "other"), `trap "touch ended" TERM; touch other-runs; while :; do sleep 0.05; done`)

	shim := deafShim(t, dir)
	began := time.Now()
	asked, killed := EndPods(t.Context(), dir, "/"+filepath.Base(root), time.Second)
	if took := time.Since(began); took < time.Second || took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if asked != 2 || killed < 3 {
		t.Errorf("%d asked, %d killed", asked, killed)
	}
	for _, cmd := range []*exec.Cmd{saves, deaf} {
		_ = cmd.Wait()
	}
	if _, err := os.Stat(filepath.Join(dir, "saved")); err != nil {
		t.Errorf("it had no time to save: %v", err)
	}
	if left := podProcesses("/" + filepath.Base(root)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that is in no pod is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ended")); err == nil {
		t.Error("a process that is in no pod was asked to end")
	}
	if err := shim.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a shim that ignores SIGTERM: %v", err)
	}
	// Nothing left, nothing to wait for.
	began = time.Now()
	if asked, killed := EndPods(t.Context(), dir, "/"+filepath.Base(root), time.Minute); asked+killed > 0 ||
		time.Since(began) > 5*time.Second {
		t.Errorf("again: %d asked, %d killed in %s", asked, killed, time.Since(began))
	}
}

// deafShim starts a program of the k3s in dataDir that is called as containerd's shim is, and that ignores SIGTERM.
func deafShim(t *testing.T, dataDir string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(dataDir, "bin", "x", "containerd-shim-runc-v2")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/sh")
	if err == nil {
		err = os.WriteFile(program, shell, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	shim := exec.Command(program, "-c", `trap "" TERM; touch shim-runs; while :; do sleep 0.05; done`)
	shim.Dir = dataDir
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shim.Process.Kill() })
	waitForFile(t, filepath.Join(dataDir, "shim-runs"))
	return shim
}

// podGroup makes a control group of this test's own, with two containers and one
// that is none.
func podGroup(t *testing.T) string {
	t.Helper()
	base := "/sys/fs/cgroup"
	if _, err := os.Stat(base + "/cgroup.controllers"); err != nil {
		base += "/pids" // version 1: any hierarchy will do
	}
	root := filepath.Join(base, fmt.Sprintf("gpulab-endpods-%d", os.Getpid()))
	for _, dir := range []string{"kubepods/burstable/pod1/a", "kubepods/burstable/pod1/b", "other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Skipf("LEFT OUT: pods are ended in control groups, which only root may make: %v", err)
		}
	}
	t.Cleanup(func() {
		for range 50 {
			if exec.Command("find", root, "-depth", "-type", "d", "-delete").Run() == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("%s is left", root)
	})
	return root
}

func waitForFile(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not come", strings.TrimSuffix(filepath.Base(path), "-runs"))
		}
	}
}
