package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFilesystem(t *testing.T) {
	h := machine(t, map[string]string{
		"/var/lib/gpulab/gpulab.db": "x",
		"/proc/self/mounts":         "/dev/sda1 / ext4 rw 0 0\n/dev/sdb1 /var/lib ext4 rw 0 0\nnas:/lab /var/lib/gpu nfs rw 0 0\n",
	})
	disk := healthyDisk
	h.statfs = func(string) (unix.Statfs_t, error) { return disk, nil }
	finds(t, h, "filesystem", Options{}, OK)

	for kind, name := range map[int64]string{
		unix.NFS_SUPER_MAGIC: "NFS", 0xff534d42: "CIFS", unix.FUSE_SUPER_MAGIC: "FUSE",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.ECRYPTFS_SUPER_MAGIC: "eCryptfs",
	} {
		disk.Type = kind
		finds(t, h, "filesystem", Options{}, Fail, "lies on "+name+".", "dataDir")
	}
	disk.Type = unix.TMPFS_MAGIC
	finds(t, h, "filesystem", Options{}, Warn, "next reboot")

	disk = healthyDisk
	disk.Flags = unix.ST_RDONLY
	finds(t, h, "filesystem", Options{}, Fail, "`mount -o remount,rw /var/lib`")
	disk.Flags = unix.ST_NOEXEC
	finds(t, h, "filesystem", Options{}, Fail, "`mount -o remount,exec /var/lib`")
	disk.Flags, disk.Blocks = 0, 3<<20
	finds(t, h, "filesystem", Options{}, Warn, "12 GiB in all")
	h.statfs = func(string) (unix.Statfs_t, error) { return disk, errors.New("input/output error") }
	finds(t, h, "filesystem", Options{}, Fail, "input/output error")
}

// TestFilesystemMounted looks at file systems that are really mounted.
func TestFilesystemMounted(t *testing.T) {
	needRoot(t)
	for _, test := range []struct{ options, state, says string }{
		{"size=30g", Warn, "tmpfs"},
		{"size=30g,noexec", Fail, "remount,exec"},
		{"size=30g,ro", Fail, "remount,rw"},
	} {
		folder := t.TempDir()
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, ""); err != nil {
			t.Skipf("nothing can be mounted here: %v", err)
		}
		defer unix.Unmount(folder, unix.MNT_DETACH)
		flags := uintptr(unix.MS_REMOUNT)
		switch test.options {
		case "size=30g,noexec":
			flags |= unix.MS_NOEXEC
		case "size=30g,ro":
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("tmpfs", folder, "tmpfs", flags, "size=30g"); err != nil {
			t.Fatal(err)
		}
		h := thisHost()
		finds(t, h, "filesystem", Options{DataDir: filepath.Join(folder, "gpulab")}, test.state, test.says)
		if at := h.mountOf(folder); at != folder {
			t.Errorf("%s is mounted at %s", folder, at)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
