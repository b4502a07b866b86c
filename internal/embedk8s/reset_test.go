package embedk8s

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestFolderMountedOverItself(t *testing.T) {
	const root = "65 43 254:0 /machines/a / rw - ext4 /dev/vda rw\n"
	for name, c := range map[string]struct {
		mounts string
		want   bool
	}{
		"not mounted":      {root, false},
		"over itself":      {root + "45 65 254:0 /machines/a/var/lib/kubelet /var/lib/kubelet rw shared:2 - ext4 /dev/vda rw\n", true},
		"twice":            {root + "45 65 254:0 /machines/a/var/lib/kubelet /var/lib/kubelet rw - ext4 /dev/vda rw\n46 45 254:0 /machines/a/var/lib/kubelet /var/lib/kubelet rw - ext4 /dev/vda rw\n", true},
		"another folder":   {root + "45 65 254:0 /machines/a/srv/kubelet /var/lib/kubelet rw - ext4 /dev/vda rw\n", false},
		"a disk":           {root + "45 65 254:16 / /var/lib/kubelet rw - ext4 /dev/vdb rw\n", false},
		"a disk, the same": {root + "45 65 254:16 /machines/a/var/lib/kubelet /var/lib/kubelet rw - ext4 /dev/vdb rw\n", false},
		"below a disk":     {root + "44 65 254:16 / /var rw - ext4 /dev/vdb rw\n45 44 254:16 /lib/kubelet /var/lib/kubelet rw - ext4 /dev/vdb rw\n", true},
	} {
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(c.mounts), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := overItself(mounts, "/var/lib/kubelet"); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// Mounts of somebody else in the data directory stay where the lab goes on.
func TestGoes(t *testing.T) {
	const data = "/var/lib/gpulab"
	for path, want := range map[string][2]bool{ // whether it goes, also where the node is kept
		"/run/k3s/containerd/x/rootfs":                  {true, true},
		"/var/lib/kubelet/pods/1/volumes/token":         {true, true},
		"/run/netns/cni-1":                              {true, true},
		data + "/k3s/agent/containerd/io.x/snapshots/1": {true, true},
		data + "/homes":                                 {true, false},
		data + "/homes/7/more":                          {true, false},
		data + "/k3s/agent/containerd":                  {true, false},
		data:                                            {false, false},
		"/var/lib/gpulab-other/x":                       {false, false},
		"/home":                                         {false, false},
	} {
		if all, some := goes(path, data, false), goes(path, data, true); all != want[0] || some != want[1] {
			t.Errorf("%s goes: %v; where the node is kept: %v", path, all, some)
		}
	}
}

// What is mounted in the folder, such as everybody's homes on another machine, is nobody's to delete, however the folder
// is written and whatever links lead to it.
func TestRemoveFiles(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	base := t.TempDir()
	real, link := filepath.Join(base, "disk", "lab"), filepath.Join(base, "lab")
	homes := filepath.Join(real, "homes")
	if err := os.MkdirAll(homes, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", homes, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	defer func() {
		if mounted {
			_ = syscall.Unmount(homes, 0)
		}
	}()
	work := filepath.Join(homes, "work")
	if err := os.WriteFile(work, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{real, real + "/", link, link + "/"} {
		if err := RemoveFiles(dir); err == nil || !strings.Contains(err.Error(), "umount "+homes) {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := os.Stat(work); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
	}
	// As Reset unmounts it.
	if err := unmountAll(func(path string) bool { return goes(path, resolved(link+"/"), false) && strings.HasPrefix(path, base) }); err != nil {
		t.Fatal(err)
	}
	mounted = false
	if err := RemoveFiles(link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{real, link} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if err := RemoveFiles("//"); err == nil {
		t.Error("everything may go")
	}
}
