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

// PodFiles is where Kubernetes keeps the temporary files of pods: a notebook's /scratch and
// /tmp.
const PodFiles = kubeletDir + "/pods"

// follower is a folder outside the data folder that grows with people's work. If the data
// folder is on another disk, the folder part of it is mounted at dir.
type follower struct {
	dir, part string
	mode      fs.FileMode // the one that Kubernetes gives it
	// below must be on the system's disk, and on a shared mount. A disk that is mounted there
	// is somebody's decision. On a mount that is not shared, the kubelet's own would hide ours.
	below string
}

var followers = []follower{
	{PodLogs, "k3s/pod-logs", 0o755, ""},
	{PodFiles, "k3s/pods", 0o750, kubeletDir},
}

// FollowData puts what pods write and print onto the disk of the data folder, before k3s
// starts. A folder that has files in it already stays where it is, so that existing labs go on.
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
	// Give it a propagation group of its own, so that what Kubernetes mounts for pods does not
	// also appear in the data folder.
	for _, how := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", dir, "", how, ""); err != nil {
			return errors.Join(fmt.Errorf("keep mounts at %s to themselves: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	return nil
}

// mayFollow reports whether nothing is mounted at dir. If shared is set, nothing may be
// mounted at below either, and below must be on a shared mount.
func mayFollow(mounts []*mountinfo.Info, dir, below string, shared bool) bool {
	var holds *mountinfo.Info // the mount that below is on
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

// unfollow undoes the mounts of FollowData, and removes what pods have left in the data folder.
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
