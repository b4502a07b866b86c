package lxcfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// container starts a process with files of its own, made with the hook's script for an LXCFS that is mounted at dir.
func container(t *testing.T, dir string) (pid int) {
	t.Helper()
	hook := strings.ReplaceAll(Hook().Args[2], Dir, dir)
	script := `mount --make-rprivate /; mount -t tmpfs tmpfs "$1"; cd "$1"; mkdir proc sys bin usr lib lib64 dev old
for d in bin usr lib lib64 dev; do [ ! -e /$d ] || mount --rbind /$d $d; done
mount -t proc proc proc; mount -t sysfs sysfs sys
set +e; ` + hook + `; set -e
pivot_root . old; cd /; umount -l /old; echo ready; exec sleep 300`
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh", t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestKeeper(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts LXCFS")
	}
	if _, err := exec.LookPath(Program); err != nil {
		t.Fatal("run packaging/prerequisites.sh run: ", err)
	}
	dir := filepath.Join(t.TempDir(), "lxcfs")
	containers := map[string]int{"early": container(t, dir)}
	k := &Keeper{Containers: func() map[string]int { return containers }, LogFile: filepath.Join(t.TempDir(), "log"), dir: dir}
	t.Cleanup(func() {
		if err := stop(dir); err != nil {
			t.Error(err)
		}
	})
	look := func() {
		t.Helper()
		if err := k.look(time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	// mounts lists LXCFS's mounts in a container, and checks that each of them can be read.
	mounts := func(container string) (paths []string) {
		t.Helper()
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", containers[container]))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); strings.Contains(line, " - "+filesystem+" ") {
				paths = append(paths, fields[4])
				if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", containers[container], fields[4])); err != nil {
					t.Errorf("%s: %v", container, err)
				}
			}
		}
		slices.Sort(paths)
		return paths
	}
	all := slices.Sorted(slices.Values(files()))
	check := func(when string, want []string) {
		t.Helper()
		for name := range containers {
			if got := mounts(name); !slices.Equal(got, want) {
				t.Errorf("%s: the %s container shows %v of LXCFS, want %v", when, name, got, want)
			}
		}
	}
	kill := func() {
		t.Helper()
		pid := process(dir)
		if pid == 0 {
			t.Fatal("LXCFS does not run")
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for unix.Kill(pid, 0) == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	check("before LXCFS runs", nil)
	look()
	check("a container older than LXCFS", all)
	containers["new"] = container(t, dir)
	check("a container that was made while LXCFS ran", all)
	look()
	check("nothing is mounted twice", all)
	kill()
	look()
	check("LXCFS was killed", all)
	if err := k.End(); err != nil || process(dir) != 0 {
		t.Errorf("it was ended: %v", err)
	}
	check("it was ended", nil)
	look()
	check("it runs again", all)
	kill()
	t.Setenv("PATH", "")
	look()
	check("LXCFS is missing", nil)
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(own), dir) {
		t.Errorf("LXCFS is still mounted: %v\n%s", err, own)
	}
}
