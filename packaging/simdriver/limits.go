package simdriver

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// memoryLimit is how much of a GPU's memory the processes of a control group
// may take together.
type memoryLimit struct {
	hard uint64 // bytes
	pids []int
}

// readLimits returns the limits by the GPU's UUID, with who is in their groups
// now. A group that is gone takes its limit along, as the driver has it.
func readLimits(dir string) (map[string][]memoryLimit, error) {
	files, err := filepath.Glob(filepath.Join(dir, "GPU-*"))
	if err != nil {
		return nil, err
	}
	limits := make(map[string][]memoryLimit)
	for _, file := range files {
		text, err := os.ReadFile(file)
		words := strings.SplitN(strings.TrimSuffix(string(text), "\n"), " ", 3) // soft, hard, group
		if err != nil || len(words) != 3 || strings.Contains(filepath.Base(file), ".") {
			continue // cleared, or just being written
		}
		procs, err := os.ReadFile(filepath.Join(words[2], "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(file)
			continue
		}
		var l memoryLimit
		if err == nil {
			l.hard, err = strconv.ParseUint(words[1], 10, 64)
		}
		if err != nil {
			return limits, err
		}
		for line := range strings.Lines(string(procs)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				l.pids = append(l.pids, pid)
			}
		}
		name := filepath.Base(file)
		uuid := name[:strings.LastIndexByte(name, '-')]
		limits[uuid] = append(limits[uuid], l)
	}
	return limits, nil
}

// room is how much memory the limits leave a process beside the others of its
// group, which have taken so much.
func room(limits []memoryLimit, pid int, taken map[int]uint64) uint64 {
	most := uint64(math.MaxUint64)
	for _, l := range limits {
		if !slices.Contains(l.pids, pid) {
			continue
		}
		left := l.hard
		for _, other := range l.pids {
			if other != pid {
				left -= min(left, taken[other])
			}
		}
		most = min(most, left)
	}
	return most
}
