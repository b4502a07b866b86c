package doctor

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestInodes(t *testing.T) {
	h := machine(t, nil)
	disk := healthyDisk
	h.statfs = func(string) (unix.Statfs_t, error) { return disk, nil }
	finds(t, h, "inodes", Options{}, OK)
	disk.Files, disk.Ffree = 6_000_000, 150_000
	finds(t, h, "inodes", Options{}, Warn, "150000 more files", "du --inodes")
	disk.Ffree = 300
	finds(t, h, "inodes", Options{}, Fail, "no space left on device")
	// A small file system that is almost empty.
	disk.Files, disk.Ffree = 120_000, 110_000
	finds(t, h, "inodes", Options{}, OK)
	disk.Files, disk.Ffree = 0, 0 // btrfs makes them as it needs them
	if found := look(t, h, "inodes", Options{}); len(found) != 0 {
		t.Errorf("got %v", found)
	}
}
