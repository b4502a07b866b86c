package embedk8s

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// EndPods ends every pod on this machine in order: the first process of each
// container is asked to end, as a container runtime would, and what is left
// after grace is killed. It returns how many containers were asked and how many
// processes were killed. Nothing may run that would start the pods again.
//
// It ends the shims of the k3s in dataDir, too. A shim that has not noticed that its container is gone ignores SIGTERM,
// and systemd would wait 90 seconds for it.
func EndPods(ctx context.Context, dataDir, cgroupRoot string, grace time.Duration) (asked, killed int) {
	asked, killed = endContainers(ctx, cgroupRoot, grace)
	programs := filepath.Join(resolved(dataDir), "bin") + "/"
	endProcesses(ctx, func(p proc) bool {
		return strings.HasPrefix(p.exe, programs) && strings.HasPrefix(p.name(), "containerd-shim")
	}, time.Second)
	return asked, killed
}

func endContainers(ctx context.Context, cgroupRoot string, grace time.Duration) (asked, killed int) {
	for _, pid := range podProcesses(cgroupRoot) {
		if firstOfContainer(pid) && syscall.Kill(pid, syscall.SIGTERM) == nil {
			asked++
		}
	}
	for end := time.Now().Add(grace); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if len(podProcesses(cgroupRoot)) == 0 {
			return asked, 0
		}
	}
	killed = len(podProcesses(cgroupRoot))
	killCgroups(ctx, cgroupRoot)
	return asked, killed
}

// podProcesses lists the processes in pods, each once: with version 1 control
// groups it is in one group of every hierarchy.
func podProcesses(cgroupRoot string) []int {
	var pids []int
	for _, root := range podCgroups(cgroupRoot) {
		pids = append(pids, groupProcesses(root)...)
	}
	slices.Sort(pids)
	return slices.Compact(pids) // each hierarchy has named them
}

// groupProcesses lists the processes of a control group and of all below it.
func groupProcesses(group string) (pids []int) {
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // a group may vanish while we look
		}
		data, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// Containers lists one process of each container in the machine's pods, by the container's control group. It is process
// 1 if the container has a PID namespace of its own.
func Containers(cgroupRoot string) map[string]int {
	found := map[string]int{}
	for _, base := range podCgroups(cgroupRoot) {
		for pod := range podGroups(base) {
			lists, _ := filepath.Glob(filepath.Join(pod, "*", "cgroup.procs"))
			for _, list := range lists {
				container := filepath.Dir(list)
				pids := groupProcesses(container)
				if i := slices.IndexFunc(pids, firstOfContainer); i >= 0 {
					found[container] = pids[i]
				} else if len(pids) > 0 {
					found[container] = pids[0]
				}
			}
		}
		if len(found) > 0 {
			break // the other hierarchies of version 1 have the same
		}
	}
	return found
}

// firstOfContainer tells whether a process is number 1 in a PID namespace right
// below gpulab's. The others of the container are that one's to end.
func firstOfContainer(pid int) bool {
	numbers := namespaceNumbers(strconv.Itoa(pid))
	return len(numbers) == len(namespaceNumbers("self"))+1 && numbers[len(numbers)-1] == "1"
}

// namespaceNumbers lists the PIDs of a process, one for each PID namespace that it is in.
func namespaceNumbers(process string) []string {
	status, err := os.ReadFile(filepath.Join("/proc", process, "status"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(status)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return strings.Fields(numbers)
		}
	}
	return nil
}
