package diskspace

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// networks are the file systems on which SQLite's locks and shared memory do not hold what they promise.
var networks = map[int64]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.CIFS_SUPER_MAGIC:  "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.V9FS_MAGIC:        "9p",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x19830326:             "BeeGFS",
	0x01161970:             "GFS2",
}

// UnfitError says why databases cannot be in a folder.
type UnfitError struct {
	Path string
	// Type is the file system's, such as "NFS"; "" for one that only can be read.
	Type string
}

func (e *UnfitError) Error() string {
	if e.Type == "" {
		return fmt.Sprintf("nothing can be written to %s: its file system is mounted read-only. The kernel does that "+
			"after errors of a disk (`dmesg | tail` shows them); "+
			"mend it and mount it again with `mount -o remount,rw`", e.Path)
	}
	return fmt.Sprintf("%s is on a file system of the type %s, where databases get damaged: they need a disk of this "+
		"machine. "+
		"Name a folder on one as dataDir in the configuration; homes alone may be mounted from elsewhere, at homes in "+
		"that folder", e.Path, e.Type)
}

// Suits returns an *UnfitError where databases cannot be in a folder, which need not exist yet.
func Suits(path string) error {
	stat, device, err := statfs(path)
	if err != nil {
		return err
	}
	return suits(path, &stat, func() string { return mountType(device) })
}

func suits(path string, stat *unix.Statfs_t, mounted func() string) error {
	kind := networks[int64(uint32(stat.Type))]
	if stat.Type == unix.FUSE_SUPER_MAGIC {
		// Programs that serve a file system: over the network or not, few of them share memory between processes.
		// Those on a disk of this machine (fuseblk) do.
		if kind = mounted(); kind == "fuseblk" {
			kind = ""
		} else if kind == "" {
			kind = "FUSE"
		}
	}
	if kind != "" {
		return &UnfitError{Path: path, Type: kind}
	}
	if stat.Flags&unix.ST_RDONLY != 0 {
		return &UnfitError{Path: path}
	}
	return nil
}

// mountType is the type that the kernel's table of mounts has for a device, "" where it has none.
func mountType(device uint64) string {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		ours := m.Major == int(unix.Major(device)) && m.Minor == int(unix.Minor(device))
		return !ours, ours
	})
	if err != nil || len(mounts) == 0 {
		return ""
	}
	return mounts[0].FSType
}
