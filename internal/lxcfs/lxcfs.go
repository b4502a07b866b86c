// Package lxcfs shows the programs of a container how much memory and how many processors that container has. Without
// it, the files of /proc and /sys that free, top and many libraries read describe the whole machine.
//
// [LXCFS] serves such files. [Hook] mounts them while a container is made. [Keeper] runs LXCFS, and mounts its files
// in containers that run already. When LXCFS ends, the kernel's own files show until it runs again. LXCFS keeps
// running while gpulab is restarted.
//
// [LXCFS]: https://linuxcontainers.org/lxcfs/introduction/
package lxcfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/supervise"
)

// Dir is where gpulab mounts LXCFS. Debian's own service mounts another at /var/lib/lxcfs.
const Dir = "/run/gpulab-lxcfs"

// LogName is the file below the data folder that receives what LXCFS prints.
const LogName = "log/lxcfs.log"

// Program is LXCFS's command. Debian's package has the same name.
const Program = "lxcfs"

// filesystem is the type under which the kernel lists LXCFS's mounts.
const filesystem = "fuse.lxcfs"

// files lists the files of LXCFS that containers see. /proc/uptime is left out because ps would show wrong start times:
// the kernel counts them from the machine's start. /proc/stat is left out because with cgroup v2 LXCFS shows the
// machine's: https://github.com/lxc/lxcfs/issues/593
func files() []string {
	return []string{"/proc/meminfo", "/proc/swaps", "/proc/cpuinfo", "/sys/devices/system/cpu/online"}
}

// Hook mounts LXCFS's files in a container that is being made. It runs in the root of the container's file system, but
// with the machine's programs. Without LXCFS it mounts nothing, and the container starts without it.
func Hook() specs.Hook {
	script := fmt.Sprintf(`for f in %s; do mount -n --bind "%s$f" ".$f"; done 2>/dev/null; true`,
		strings.Join(files(), " "), Dir)
	return specs.Hook{
		Path: "/bin/sh",
		Args: []string{"sh", "-c", script},
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}

// Mounted reports whether LXCFS is mounted for containers.
func Mounted() bool {
	dev, err := device(Dir)
	return err == nil && dev != ""
}

// device is the device number of the LXCFS that is mounted at a folder, "" for none. It does not ask LXCFS, so it
// returns even when LXCFS hangs.
func device(dir string) (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(mounts) == 0 || mounts[0].FSType != filesystem {
		return "", err
	}
	return deviceOf(mounts[0]), nil
}

func deviceOf(m *mountinfo.Info) string { return fmt.Sprintf("%d:%d", m.Major, m.Minor) }

// niceness is the priority of LXCFS, from -20 (first) to 19 (last).
const niceness = 10

// pidFile is LXCFS's own record of its process.
func pidFile(dir string) string { return dir + ".pid" }

// process is the PID of the LXCFS that serves a folder, 0 for none.
func process(dir string) int {
	data, err := os.ReadFile(pidFile(dir))
	if err != nil {
		return 0
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil || pid <= 1 {
		return 0
	}
	args := arguments(fmt.Sprintf("/proc/%d/cmdline", pid))
	if filepath.Base(args[0]) != Program || args[len(args)-1] != dir {
		return 0 // by now, another program has this number
	}
	return pid
}

// Stop ends gpulab's LXCFS and removes its mount. Remove its files from running containers first, with [Keeper.End].
func Stop() error { return stop(Dir) }

func stop(dir string) error {
	for range 100 {
		pid := process(dir)
		if pid == 0 || errors.Is(unix.Kill(pid, unix.SIGKILL), unix.ESRCH) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := unmount(dir); err != nil {
		return err
	}
	for _, path := range []string{pidFile(dir), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// LXCFS makes these folders for all of its processes, and mounts control groups there in a namespace of its own.
	// Removing the folders would unmount those of another LXCFS.
	if !running() {
		for _, path := range []string{"/run/lxcfs/controllers", "/run/lxcfs/root", "/run/lxcfs"} {
			_ = os.Remove(path) // only if it is empty
		}
	}
	return nil
}

// running reports whether any LXCFS runs, the one of Debian's service for example.
func running() bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(all, func(path string) bool { return filepath.Base(arguments(path)[0]) == Program })
}

// arguments reads a process's cmdline. One that has ended has a single empty argument.
func arguments(path string) []string {
	command, _ := os.ReadFile(path)
	return strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")
}

// unmount removes what is mounted at a folder, even if its file system has ended or hangs. Programs that wait for it
// get an error.
func unmount(dir string) error {
	for {
		if dev, err := device(dir); err != nil || dev == "" {
			return err
		}
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}

// start runs LXCFS and returns when it is mounted. LXCFS keeps running when gpulab ends.
func start(program, dir, logFile string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_ = os.Remove(pidFile(dir))
	log, err := supervise.OpenLog(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "--enable-cfs", "--pidfile="+pidFile(dir), dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	// A pod that reads without end takes little from Kubernetes and gpulab, whose control group LXCFS is in.
	_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, niceness)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState says how it ended
		close(ended)
	}()
	for deadline := time.After(10 * time.Second); ; {
		if dev, err := device(dir); err != nil || dev != "" {
			return err
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended before it mounted anything (%v); see %s", program, cmd.ProcessState, logFile)
		case <-deadline:
			_ = cmd.Process.Kill()
			return fmt.Errorf("%s mounted nothing within 10 s; see %s", program, logFile)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
