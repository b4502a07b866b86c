package embedk8s

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// MemoryKills counts the processes of a pod that the kernel has ended because
// the pod's memory limit was reached; false if the pod is not on this machine.
// Where a whole container ends of it, Kubernetes says so itself; with version 1
// control groups one process does, and nobody hears of it.
func MemoryKills(podUID string) (int, bool) { return memoryKills(cgroupRoot, podUID) }

func memoryKills(root, podUID string) (kills int, found bool) {
	// kubepods/burstable/podUID/CONTAINER, or the same as slices of systemd's,
	// which writes the UID with underscores.
	names := []string{"pod" + podUID, "*pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice"}
	for _, base := range []string{root + "/memory", root} { // version 1, version 2
		for _, level := range []string{"kubepods*", "kubepods*/*"} {
			for _, name := range names {
				files, _ := filepath.Glob(filepath.Join(base, level, name, "*", "memory.*"))
				for _, file := range files {
					n, ok := readKills(file)
					kills, found = kills+n, found || ok
				}
			}
		}
	}
	return kills, found
}

// readKills reads the line "oom_kill N" of a container's file of that kind.
func readKills(file string) (int, bool) {
	switch filepath.Base(file) {
	case "memory.oom_control", "memory.events":
	default:
		return 0, false
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(count))
			return n, err == nil
		}
	}
	return 0, false
}
