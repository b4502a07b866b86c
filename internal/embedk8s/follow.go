package embedk8s

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// PodFiles is where Kubernetes keeps what pods write beside their volumes' own places: a
// notebook's /scratch and /tmp.
const PodFiles = kubeletDir + "/pods"

// follower is a folder outside the data folder that grows with what people do. Where the
// data folder is on another disk, a part of it is mounted there.
type follower struct {
	dir, part string
	mode      fs.FileMode // as Kubernetes makes it
	// below has to be on the system's disk, with mounts that others see: a disk of its own
	// there is somebody's decision, and what is not shared is hidden by the kubelet's mount.
	below string
}

var followers = []follower{
	{PodFiles, "scratch", 0o750, kubeletDir},
	{PodLogs, "pod-logs", 0o755, ""},
}

// FollowData puts what pods write and print onto the disk of the data folder, before k3s is
// started. What has something in it already stays where it is: a lab that exists goes on.
func (c *Cluster) FollowData() error {
	var errs []error
	for _, f := range followers {
		errs = append(errs, ground{"/"}.follow(f, resolved(c.cfg.DataDir)))
	}
	return errors.Join(errs...)
}

func (m ground) follow(f follower, dataDir string) error {
	dir, from := filepath.Join(m.root, f.dir), filepath.Join(dataDir, f.part)
	if err := os.MkdirAll(dir, f.mode); err != nil {
		return err
	}
	var here, there unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &here), unix.Stat(dataDir, &there)); err != nil {
		return fmt.Errorf("compare the disks of %s and %s: %w", dir, dataDir, err)
	}
	if here.Dev == there.Dev {
		return nil // one disk, or it is mounted already
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 || !mayFollow(mounts, dir, filepath.Join(m.root, f.below), f.below != "") {
		return err
	}
	if err := os.MkdirAll(from, f.mode); err != nil {
		return err
	}
	if err := unix.Mount(from, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show %s at %s: %w", from, dir, err)
	}
	// In a group of its own: what Kubernetes mounts for pods is not to appear in the data
	// folder, too.
	for _, how := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", dir, "", how, ""); err != nil {
			return errors.Join(fmt.Errorf("keep mounts at %s to themselves: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	return nil
}

// mayFollow tells whether nothing is mounted at a folder, and, where shared says so,
// nothing at the one above it either, on a mount that is shared.
func mayFollow(mounts []*mountinfo.Info, dir, below string, shared bool) bool {
	var holds *mountinfo.Info // the mount that the folder above is on
	for _, mount := range mounts {
		if mount.Mountpoint == dir || shared && mount.Mountpoint == below {
			return false
		}
		inside := mount.Mountpoint == "/" || strings.HasPrefix(below, mount.Mountpoint+"/")
		if inside && (holds == nil || len(mount.Mountpoint) >= len(holds.Mountpoint)) {
			holds = mount
		}
	}
	return !shared || holds != nil && strings.Contains(holds.Optional, "shared:")
}

// unfollow takes the mounts of FollowData away, and what is left of pods in the data folder.
func (m ground) unfollow(dataDir string) error {
	var errs []error
	for _, f := range followers {
		dir, from := filepath.Join(m.root, f.dir), filepath.Join(dataDir, f.part)
		one, err1 := os.Stat(dir)
		two, err2 := os.Stat(from)
		if err1 == nil && err2 == nil && os.SameFile(one, two) {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
				continue
			}
		}
		errs = append(errs, removeContents(from))
	}
	return errors.Join(errs...)
}
