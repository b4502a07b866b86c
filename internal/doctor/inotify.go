package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// inotifyNeeded is how many inotify instances Kubernetes opens (23 for k3s with
// its kubelet and containerd, counted), with some room for what starts later.
const inotifyNeeded = 32

// probeInotify compares root's inotify instances, of which the kernel allows a
// fixed number, with what Kubernetes opens: without, it ends with "too many
// open files", which leads nobody to the cause.
func probeInotify(h host, opts Options) []Finding {
	if !h.isRoot() {
		return []Finding{{Probe: "inotify", State: Unseen, Seen: "Only root can see how many files root's programs watch."}}
	}
	limit, err := strconv.Atoi(h.read("/proc/sys/fs/inotify/max_user_instances"))
	if err != nil {
		return nil
	}
	used := h.inotifyInstances(opts.DataDir)
	seen := fmt.Sprintf("Root's programs use %d of %d inotify instances.", used, limit)
	if limit-used >= inotifyNeeded {
		return []Finding{{Probe: "inotify", State: OK, Seen: seen}}
	}
	return []Finding{{
		Probe: "inotify", State: Fail, Seen: seen,
		Means: fmt.Sprintf("Kubernetes needs %d and would end with \"too many open files\".", inotifyNeeded),
		Mend: fmt.Sprintf("Run `echo fs.inotify.max_user_instances=%d > /etc/sysctl.d/60-inotify.conf && sysctl --system`.",
			max(1024, 2*limit)),
	}}
}

// inotifyInstances counts what our user's programs, root's, have open, gpulab's
// own apart.
func (h host) inotifyInstances(dataDir string) int {
	folders, _ := filepath.Glob(h.path("/proc/[0-9]*"))
	count := 0
	for _, folder := range folders {
		info, err := os.Stat(folder)
		if err != nil {
			continue // it ended meanwhile
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != h.euid {
			continue
		}
		exe, _ := os.Readlink(filepath.Join(folder, "exe"))
		if (process{exe: strings.TrimSuffix(exe, " (deleted)")}).ours(dataDir) {
			continue
		}
		entries, _ := os.ReadDir(filepath.Join(folder, "fd"))
		for _, entry := range entries {
			if target, err := os.Readlink(filepath.Join(folder, "fd", entry.Name())); err == nil &&
				target == "anon_inode:inotify" {
				count++
			}
		}
	}
	return count
}
