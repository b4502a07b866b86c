package embedk8s

import "testing"

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
		if got := overItself(c.mounts, "/var/lib/kubelet"); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
