package lxcfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/supervise"
)

// Pace of a Keeper.
const (
	every    = time.Second
	patience = 5 * time.Second  // for an answer of LXCFS
	complain = 10 * time.Minute // between two messages about the same fault
	retry    = 30 * time.Second // after LXCFS could not be started
)

// Keeper keeps LXCFS running, and its files mounted in all containers of the machine.
type Keeper struct {
	// Containers lists the first process of each container that runs, by a name that no other container gets.
	Containers func() map[string]int
	// LogFile receives what LXCFS prints.
	LogFile string

	dir      string            // default Dir
	shown    map[string]string // device number of the LXCFS that a container shows, by container
	after    time.Time         // no start before
	said     string
	saidWhen time.Time
}

// Run works until ctx ends. LXCFS keeps running.
func (k *Keeper) Run(ctx context.Context) error {
	go k.endHung(ctx)
	go supervise.KeepLogSmall(k.LogFile, ctx.Done())
	for {
		if err := k.look(time.Now()); err != nil {
			k.say(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// End removes LXCFS's files from all containers and ends LXCFS: before gpulab goes, or a version that does not know
// LXCFS.
func (k *Keeper) End() error { return errors.Join(k.show(""), stop(k.mount())) }

// say logs a fault, and the same one again after ten minutes at the earliest.
func (k *Keeper) say(err error) {
	if err.Error() != k.said || time.Since(k.saidWhen) > complain {
		slog.Warn("containers see the whole machine's memory and processors", "err", err)
		k.said, k.saidWhen = err.Error(), time.Now()
	}
}

func (k *Keeper) mount() string { return cmp.Or(k.dir, Dir) }

// endHung ends an LXCFS that does not answer. Otherwise, programs that read its files would wait forever.
func (k *Keeper) endHung(ctx context.Context) {
	for {
		answered := make(chan struct{})
		go func() {
			for _, file := range files() {
				_, _ = os.ReadFile(filepath.Join(k.mount(), file))
			}
			close(answered)
		}()
		select {
		case <-answered:
		case <-time.After(patience):
			pid := process(k.mount())
			slog.Warn("LXCFS does not answer; ending it", "pid", pid)
			if pid != 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			// Programs that wait for an answer now get an error, also if the process was not found.
			_ = unix.Unmount(k.mount(), unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			select {
			case <-answered:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// look brings the machine to what is wanted, once.
func (k *Keeper) look(now time.Time) error {
	dev, err := device(k.mount())
	if err != nil {
		return err
	}
	var failed error
	if dev != "" && errors.Is(alive(k.mount()), unix.ENOTCONN) {
		slog.Warn("LXCFS ended; starting it again")
		dev = ""
	}
	if dev == "" {
		// Show the kernel's own files: programs cannot read those of an LXCFS that has ended.
		failed = k.show("")
		dev, err = k.begin(now)
		failed = errors.Join(failed, err)
	}
	if dev == "" {
		return failed
	}
	return errors.Join(failed, k.show(dev))
}

// alive asks LXCFS for something that the kernel does not cache.
func alive(dir string) error {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs)
}

// begin starts LXCFS if it is installed and containers run.
func (k *Keeper) begin(now time.Time) (dev string, err error) {
	if err := unmount(k.mount()); err != nil {
		return "", err
	}
	program, err := exec.LookPath(Program)
	if err != nil || now.Before(k.after) || len(k.Containers()) == 0 {
		return "", nil //nolint:nilerr // the doctor says that it is missing
	}
	if err := start(program, k.mount(), k.LogFile); err != nil {
		k.after = now.Add(retry)
		return "", err
	}
	return device(k.mount())
}

// show mounts the files of the LXCFS with this device number in all containers. With "" it only unmounts LXCFS's files.
func (k *Keeper) show(dev string) error {
	var errs []error
	shown := map[string]string{}
	for container, pid := range k.Containers() {
		if had, known := k.shown[container]; known && had == dev {
			shown[container] = dev
			continue
		}
		switch done, err := k.showIn(pid, dev); {
		// ErrNotExist and ESRCH: the container has ended.
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH):
			errs = append(errs, fmt.Errorf("container %s: %w", filepath.Base(container), err))
		case done:
			shown[container] = dev
		}
	}
	k.shown = shown
	return errors.Join(errs...)
}

// showIn does the same for the container of one process. done is false while that container is still being made.
func (k *Keeper) showIn(pid int, dev string) (done bool, err error) {
	made, err := hasOwnFiles(pid)
	if err != nil || !made {
		return false, err
	}
	list, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false, err
	}
	defer list.Close()
	there, err := mountinfo.GetMountsFromReader(list, mountinfo.FSTypeFilter(filesystem))
	if err != nil {
		return false, err
	}
	has := map[string]bool{}
	var work []func() error
	for _, m := range there {
		if deviceOf(m) == dev {
			has[m.Mountpoint] = true
			continue
		}
		work = append(work, func() error { return unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}
	if dev != "" {
		for _, file := range files() {
			if has[file] {
				continue
			}
			tree, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(k.mount(), file),
				unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if errors.Is(err, unix.ENOENT) {
				continue // this LXCFS has no such file
			}
			if err != nil {
				return false, err
			}
			defer unix.Close(tree)
			work = append(work, func() error {
				err := unix.MoveMount(tree, "", unix.AT_FDCWD, file, unix.MOVE_MOUNT_F_EMPTY_PATH)
				if errors.Is(err, unix.ENOENT) {
					return nil // a container without /sys
				}
				return err
			})
		}
	}
	if len(work) == 0 {
		return true, nil
	}
	if err := within(pid, work); err != nil {
		return false, err
	}
	return true, nil
}

// hasOwnFiles reports whether a process has changed to its container's files. Until then, its mounts may be the
// machine's.
func hasOwnFiles(pid int) (bool, error) {
	for _, name := range []string{"ns/mnt", "root/."} {
		own, err := os.Stat(filepath.Join("/proc/self", name))
		if err != nil {
			return false, err
		}
		its, err := os.Stat(filepath.Join(fmt.Sprintf("/proc/%d", pid), name))
		if err != nil || os.SameFile(own, its) {
			return false, err
		}
	}
	return true, nil
}

// within runs work in the mount namespace of another process.
func within(pid int, work []func() error) error {
	mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer mounts.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// This is the main thread, whose mounts /proc/self shows. Hold it, so that another thread does the work.
			defer runtime.UnlockOSThread()
			result <- within(pid, work)
			return
		}
		// The thread stays locked, so Go ends it together with this goroutine.
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("setns: %w", err)
			}
			for _, do := range work {
				if err := do(); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	return <-result
}
