package doctor

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/units"
)

// unfit are file systems by their number in statfs(2) on which a lab cannot
// live.
var unfit = map[int64]struct{ name, why string }{
	unix.NFS_SUPER_MAGIC:  {"NFS", networkDrive},
	unix.SMB_SUPER_MAGIC:  {"SMB", networkDrive},
	unix.SMB2_SUPER_MAGIC: {"SMB", networkDrive},
	0xff534d42:            {"CIFS", networkDrive},
	unix.CEPH_SUPER_MAGIC: {"CephFS", networkDrive},
	unix.V9FS_MAGIC:       {"9p", networkDrive},
	unix.FUSE_SUPER_MAGIC: {"FUSE", "Containers cannot be laid over it, and databases may be damaged on it."},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", "Containers cannot be laid over what is an overlay itself, as in a " +
		"container or a live system."},
	unix.ECRYPTFS_SUPER_MAGIC: {"eCryptfs", "Containers cannot be laid over it."},
	unix.MSDOS_SUPER_MAGIC:    {"FAT", "It knows neither owners nor links."},
	unix.EXFAT_SUPER_MAGIC:    {"exFAT", "It knows neither owners nor links."},
	unix.SQUASHFS_MAGIC:       {"squashfs", "Nothing can be written there."},
}

const networkDrive = "Databases are damaged on a network drive: its locks do not hold when the network fails."

const smallDisk = 20 * gib // a lab of two people fills less soon

// probeFilesystem looks at what the data folder lies on.
func probeFilesystem(h host, opts Options) []Finding {
	folder := h.existingParent(opts.DataDir)
	stat, err := h.statfs(h.path(folder))
	if err != nil {
		return []Finding{{
			Probe: "filesystem", State: Fail,
			Seen:  fmt.Sprintf("The file system of %s cannot be read: %v.", folder, err),
			Means: "gpulab keeps its databases and everybody's homes there.",
			Mend:  "Look with `findmnt --target " + folder + "` and `dmesg | tail -50`.",
		}}
	}
	elsewhere := "Put it on a local disk with ext4, xfs or btrfs: name a folder there as dataDir in " +
		"/etc/gpulab/config.yaml; `findmnt -t ext4,xfs,btrfs` lists them."
	flags := stat.Flags
	if bad, found := unfit[int64(uint32(stat.Type))]; found {
		return []Finding{{Probe: "filesystem", State: Fail, Seen: fmt.Sprintf("%s lies on %s.", opts.DataDir, bad.name),
			Means: bad.why, Mend: elsewhere}}
	}
	mount := h.mountOf(folder)
	switch {
	case flags&unix.ST_RDONLY != 0:
		return []Finding{{
			Probe: "filesystem", State: Fail,
			Seen:  fmt.Sprintf("The file system of %s is read-only.", opts.DataDir),
			Means: "Nothing can be saved. Linux does that by itself when a disk has errors.",
			Mend: fmt.Sprintf("Look for errors with `dmesg | grep -iE 'error|remount'`; when the disk is well, run `mount "+
				"-o remount,rw %s`.", mount),
		}}
	case flags&unix.ST_NOEXEC != 0:
		return []Finding{{
			Probe: "filesystem", State: Fail,
			Seen:  fmt.Sprintf("The file system of %s is mounted noexec.", opts.DataDir),
			Means: "gpulab's programs lie there and cannot be started.",
			Mend:  fmt.Sprintf("Run `mount -o remount,exec %s`, and take noexec out of /etc/fstab.", mount),
		}}
	case int64(uint32(stat.Type)) == unix.TMPFS_MAGIC || int64(uint32(stat.Type)) == unix.RAMFS_MAGIC:
		return []Finding{{
			Probe: "filesystem", State: Warn,
			Seen:  fmt.Sprintf("%s lies in memory (tmpfs).", opts.DataDir),
			Means: "Accounts and homes are gone with the next reboot.",
			Mend:  elsewhere,
		}}
	}
	if total := stat.Blocks * uint64(stat.Bsize); total < smallDisk {
		return []Finding{{
			Probe: "filesystem", State: Warn,
			Seen:  fmt.Sprintf("The file system of %s has %s in all.", opts.DataDir, units.Bytes(total)),
			Means: "Images and a few homes soon fill it.",
			Mend:  elsewhere,
		}}
	}
	return []Finding{{Probe: "filesystem", State: OK, Seen: fmt.Sprintf("%s lies on a local file system that can be "+
		"written.", filepath.Clean(opts.DataDir))}}
}
