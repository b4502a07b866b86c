package embedk8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// MemoryKills counts the processes of pods that the kernel has ended because a pod's
// memory limit was reached, by UID of those on this machine. One process ends, rather
// than its container (see kubeletConfig), and Kubernetes does not say so.
func MemoryKills() map[string]int { return memoryKills(cgroupRoot) }

// podFolder is the control group of a pod: kubepods/burstable/podUID/CONTAINER, or the
// same as slices of systemd's, which writes the UID with underscores.
var podFolder = regexp.MustCompile(`^(?:kubepods-.*)?` +
	`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?$`)

// podGroups lists the control groups of pods below one that holds pods, with the pods' UIDs.
func podGroups(base string) map[string]string {
	groups := map[string]string{}
	for _, level := range []string{"*pod*", "*/*pod*"} {
		found, _ := filepath.Glob(filepath.Join(base, level))
		for _, group := range found {
			if pod := podFolder.FindStringSubmatch(filepath.Base(group)); pod != nil {
				groups[group] = strings.ReplaceAll(pod[1], "_", "-")
			}
		}
	}
	return groups
}

func memoryKills(root string) map[string]int {
	all := map[string]int{}
	for _, base := range []string{root + "/memory", root} { // version 1, version 2
		for _, level := range []string{"kubepods*", "kubepods*/*"} {
			files, _ := filepath.Glob(filepath.Join(base, level, "*pod*", "*", "memory.*"))
			for _, file := range files {
				pod := podFolder.FindStringSubmatch(filepath.Base(filepath.Dir(filepath.Dir(file))))
				if n, ok := readKills(file); ok && pod != nil {
					all[strings.ReplaceAll(pod[1], "_", "-")] += n
				}
			}
		}
	}
	return all
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
