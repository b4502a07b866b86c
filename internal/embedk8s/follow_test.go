package embedk8s

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// What pods write goes to the data folder's disk, if that is another one. What they have
// written elsewhere stays there. A reset removes all of it.
func TestFollow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	data := filepath.Join(root, "srv/lab")
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	m, f := ground{root}, followers[0]
	dir := filepath.Join(root, f.dir)
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	follow := func() {
		t.Helper()
		if err := m.follow(f, data); err != nil {
			t.Fatal(err)
		}
	}
	follow()
	if _, err := os.Stat(filepath.Join(data, f.part)); err == nil {
		t.Error("on one disk, it has moved")
	}
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, ""); err != nil {
		t.Skip("nothing can be mounted here: ", err)
	}
	t.Cleanup(func() { _, _ = unix.Unmount(dir, unix.MNT_DETACH), unix.Unmount(data, unix.MNT_DETACH) })
	write(filepath.Join(dir, "before"))
	follow()
	if _, err := os.Stat(filepath.Join(dir, "before")); err != nil {
		t.Error("what was there is hidden")
	}
	if err := os.Remove(filepath.Join(dir, "before")); err != nil {
		t.Fatal(err)
	}
	follow()
	follow() // as after a restart of gpulab
	write(filepath.Join(dir, "log"))
	if _, err := os.Stat(filepath.Join(data, f.part, "log")); err != nil {
		t.Errorf("a log is not on the disk of the data folder: %v", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(mounts) != 1 {
		t.Errorf("mounted %d times, %v", len(mounts), err)
	}
	if err := m.unfollow(data); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(data, f.part)); err == nil {
		t.Error("after a reset it is still there")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after a reset, %s has %v, %v", dir, entries, err)
	}
}

// gpulab mounts nothing where somebody has mounted a disk for the kubelet, nor where the
// kubelet would hide what is mounted below its folder.
func TestMayFollow(t *testing.T) {
	at := func(point, optional string) *mountinfo.Info {
		return &mountinfo.Info{Mountpoint: point, Optional: optional}
	}
	for name, c := range map[string]struct {
		mounts []*mountinfo.Info
		want   bool
	}{
		"one disk":            {[]*mountinfo.Info{at("/", "shared:1")}, true},
		"not shared":          {[]*mountinfo.Info{at("/", "")}, false},
		"a disk for it":       {[]*mountinfo.Info{at("/", "shared:1"), at("/var/lib/kubelet", "shared:2")}, false},
		"there already":       {[]*mountinfo.Info{at("/", "shared:1"), at("/var/lib/kubelet/pods", "shared:2")}, false},
		"another for /var":    {[]*mountinfo.Info{at("/", ""), at("/var", "shared:1")}, true},
		"another, not shared": {[]*mountinfo.Info{at("/", "shared:1"), at("/var", "")}, false},
	} {
		if got := mayFollow(c.mounts, PodFiles, kubeletDir, true); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
