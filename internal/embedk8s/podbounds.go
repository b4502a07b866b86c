package embedk8s

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PodLogs is where containerd writes what containers print.
const PodLogs = "/var/log/pods"

// MaxContainerLog is how much of what one container printed stays on disk, in bytes: its restarts and rotated files
// included. It is more than the kubelet keeps of a container that prints at a usual pace.
const MaxContainerLog = 40 << 20

// Pace of a PodBounds.
const (
	boundsEvery    = time.Second
	boundsSoon     = 100 * time.Millisecond // while a log grows fast
	fastLog        = 1 << 20                // bytes of one container between two looks
	shareEvery     = 10 * time.Second
	boundsComplain = time.Minute
)

// PodBounds keeps the pods of this machine within bounds that the kubelet does not keep, or not fast enough: how much a
// container prints, which share of the processors one person's pods get together, and how many locks on files a pod
// holds. It needs no Kubernetes that answers. The zero value is for the machine itself.
type PodBounds struct {
	// CgroupRoot is the kubelet's, see the function of that name.
	CgroupRoot string

	logs    string // default PodLogs
	cgroups func() []string
	sizes   map[string]int64 // of the log folder of each container, when looked at last
	shared  time.Time        // when shares were set last
	pods    []loggedPod      // of that time

	maxFileLocks int // default MaxFileLocks
	locksAfter   time.Time

	complained time.Time
}

// loggedPod is a pod as the name of its log folder tells it.
type loggedPod struct{ namespace, uid string }

// Run keeps the bounds until ctx ends.
func (b *PodBounds) Run(ctx context.Context) error {
	for {
		fast, err := b.look(time.Now())
		if err != nil && time.Since(b.complained) > boundsComplain {
			slog.Warn("some bounds of pods cannot be kept", "err", err)
			b.complained = time.Now()
		}
		pause := boundsEvery
		if fast {
			pause = boundsSoon
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// look keeps the bounds once. fast says that a log grows so fast that the next look should come soon.
func (b *PodBounds) look(now time.Time) (fast bool, err error) {
	logs := cmp.Or(b.logs, PodLogs)
	folders, err := os.ReadDir(logs)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	errs := []error{err}
	var pods []loggedPod
	sizes := map[string]int64{}
	for _, folder := range folders {
		parts := strings.Split(folder.Name(), "_") // NAMESPACE_NAME_UID
		if !folder.IsDir() || len(parts) != 3 {
			continue
		}
		pods = append(pods, loggedPod{parts[0], parts[2]})
		containers, err := os.ReadDir(filepath.Join(logs, folder.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, container := range containers {
			if !container.IsDir() {
				continue
			}
			dir := filepath.Join(logs, folder.Name(), container.Name())
			size, err := boundLog(dir, now)
			errs = append(errs, err)
			sizes[dir] = size
			before := b.sizes[dir]
			if size < before {
				before = 0 // it was cut or rotated away
			}
			fast = fast || size-before > fastLog
		}
	}
	b.sizes = sizes
	if !slices.Equal(pods, b.pods) || now.Sub(b.shared) >= shareEvery {
		errs = append(errs, b.share(pods))
		b.pods, b.shared = pods, now
	}
	errs = append(errs, b.boundFileLocks(now))
	return fast, errors.Join(errs...)
}

// boundLog empties files of a container's log folder, those first that were written to least recently, until the rest
// is within the bound. It returns how large the folder was before, in bytes. Files stay where they are: the kubelet
// and containerd name, rotate and delete them, and containerd, which appends, goes on in an empty file.
func boundLog(dir string, now time.Time) (size int64, err error) {
	type file struct {
		path string
		size int64
		mod  time.Time
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var files []file
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // rotated or deleted since
		}
		f := file{filepath.Join(dir, e.Name()), info.Size(), info.ModTime()}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			f.size = min(f.size, stat.Blocks*512) // one with holes takes less
		}
		files = append(files, f)
		size += f.size
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(a.mod.Compare(b.mod), strings.Compare(b.path, a.path))
	})
	rest := size
	for _, f := range files {
		if rest <= MaxContainerLog {
			break
		}
		if cut := emptyLog(f.path, f.size, now); cut != nil && !errors.Is(cut, fs.ErrNotExist) {
			err = errors.Join(err, cut)
		}
		rest -= f.size
	}
	return size, err
}

// emptyLog leaves one line in a log, in the form of the container runtime interface. What is compressed gets none.
func emptyLog(path string, size int64, now time.Time) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	err = f.Truncate(0)
	if err == nil && strings.HasSuffix(path, ".log") {
		_, err = fmt.Fprintf(f, "%s stdout F [gpulab left out %d bytes here: the output came too fast to be kept]\n",
			now.UTC().Format(time.RFC3339Nano), size)
	}
	return errors.Join(err, f.Close())
}

// personPrefix begins the namespaces of people.
const personPrefix = "user-"

// share gives all pods of one person on this machine together the weight that one of them has, so that whoever starts
// many gets no more of busy processors than whoever starts one. A pod's own weight is that of its container, which
// follows from what its launch card requests.
func (b *PodBounds) share(pods []loggedPod) error {
	of := map[string]string{} // namespace by UID, of people
	for _, p := range pods {
		if strings.HasPrefix(p.namespace, personPrefix) {
			of[p.uid] = p.namespace
		}
	}
	var errs []error
	for _, base := range b.bases() {
		errs = append(errs, shareBelow(base, of))
	}
	return errors.Join(errs...)
}

// bases are the control groups that hold pods, one in each hierarchy.
func (b *PodBounds) bases() []string {
	if b.cgroups != nil {
		return b.cgroups()
	}
	return podCgroups(b.CgroupRoot)
}

// shareBelow does it in one hierarchy of control groups.
func shareBelow(base string, of map[string]string) error {
	file, least := "cpu.shares", 2 // version 1
	if _, err := os.Stat(filepath.Join(base, file)); err != nil {
		file, least = "cpu.weight", 1 // version 2
		if _, err := os.Stat(filepath.Join(base, file)); err != nil {
			return nil //nolint:nilerr // a hierarchy for something else
		}
	}
	groups := map[string][]string{} // of pods that run, by namespace
	for group, uid := range podGroups(base) {
		if namespace, known := of[uid]; known {
			groups[namespace] = append(groups[namespace], group)
		}
	}
	var errs []error
	for _, list := range groups {
		for _, group := range list {
			own := 0
			containers, _ := filepath.Glob(filepath.Join(group, "*", file))
			for _, container := range containers {
				if n, err := readNumber(container); err == nil {
					own = max(own, n)
				}
			}
			if own == 0 {
				continue // its container has not begun
			}
			want := max(least, (own+len(list)/2)/len(list))
			path := filepath.Join(group, file)
			have, err := readNumber(path)
			if err == nil && have != want {
				err = os.WriteFile(path, []byte(strconv.Itoa(want)), 0)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // it has ended
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func readNumber(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(data)))
}
