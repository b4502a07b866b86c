package embedk8s

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// MaxFileLocks is how many locks on files (fcntl, flock) the processes of one pod may hold together. The kernel charges
// the 192 bytes of each to nobody, so no limit on memory bounds them.
const MaxFileLocks = 100_000

// locksPause is how long nobody is looked for after a look that found no pod beyond its bound.
const locksPause = time.Minute

// boundFileLocks ends processes of pods that hold more than [MaxFileLocks] together. What holds the most ends first.
func (b *PodBounds) boundFileLocks(now time.Time) error {
	limit := cmp.Or(b.maxFileLocks, MaxFileLocks)
	if now.Before(b.locksAfter) {
		return nil
	}
	many, err := manyLocks(limit)
	if err != nil || !many {
		return err
	}
	guilty := false
	for uid, pids := range processesByPod(b.bases()) {
		holders := lockHolders(pids)
		total := 0
		for _, h := range holders {
			total += h.locks
		}
		if total <= limit {
			continue
		}
		guilty = true
		slog.Warn("processes of a pod are ended: it holds more locks on files than a pod may", "locks", total, "most", limit,
			"pod", uid, "namespace", b.namespaceOf(uid))
		for _, h := range holders {
			if err := unix.Kill(h.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("a process that holds %d locks on files cannot be ended: %w", h.locks, err)
			}
			if total -= h.locks; total <= limit/2 {
				break
			}
		}
	}
	if !guilty {
		b.locksAfter = now.Add(locksPause)
	}
	return nil
}

func (b *PodBounds) namespaceOf(uid string) string {
	for _, p := range b.pods {
		if p.uid == uid {
			return p.namespace
		}
	}
	return ""
}

// manyLocks reports whether the machine has more locks on files than this many. It reads no further.
func manyLocks(than int) (bool, error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines, err := countLines(f, nil, than+1)
	return lines > than, err
}

// countLines counts the lines that begin with a prefix, up to a number.
func countLines(r io.Reader, prefix []byte, most int) (lines int, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	for lines < most {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 && bytes.HasPrefix(line, prefix) {
			lines++
		}
		switch {
		case errors.Is(err, io.EOF):
			return lines, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return lines, err
		}
	}
	return lines, nil
}

// processesByPod are the processes of the pods that run, by the pods' UIDs.
func processesByPod(bases []string) map[string][]int {
	found := map[string][]int{}
	for _, base := range bases {
		for group, uid := range podGroups(base) {
			found[uid] = append(found[uid], groupProcesses(group)...)
		}
	}
	for uid, pids := range found {
		slices.Sort(pids)
		found[uid] = slices.Compact(pids) // each hierarchy has named them
	}
	return found
}

// lockHolder is a process and how many locks it holds through its open files.
type lockHolder struct{ pid, locks int }

// lockHolders counts the locks of each process, the most first.
func lockHolders(pids []int) (holders []lockHolder) {
	for _, pid := range pids {
		locks := 0
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
		for _, path := range files {
			f, err := os.Open(path)
			if err != nil {
				continue // closed since
			}
			n, _ := countLines(f, []byte("lock:"), 10*MaxFileLocks)
			_ = f.Close()
			locks += n
		}
		if locks > 0 {
			holders = append(holders, lockHolder{pid, locks})
		}
	}
	slices.SortFunc(holders, func(a, b lockHolder) int { return cmp.Or(b.locks-a.locks, a.pid-b.pid) })
	return holders
}
