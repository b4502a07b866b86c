package embedk8s

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryKills(t *testing.T) {
	const uid, other = "25a39373-04da-4295-9e94-e73482d902c9", "35a39373-04da-4295-9e94-e73482d902c9"
	for name, files := range map[string]map[string]string{
		"version 1": {
			"memory/kubepods/burstable/pod" + uid + "/aa/memory.oom_control":   "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
			"memory/kubepods/burstable/pod" + uid + "/bb/memory.oom_control":   "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
			"memory/kubepods/burstable/pod" + uid + "/aa/memory.stat":          "oom_kill 9\n",
			"memory/kubepods/burstable/pod" + other + "/aa/memory.oom_control": "oom_kill 7\n",
		},
		"version 2 below systemd": {
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod25a39373_04da_4295_9e94_e73482d902c9.slice/cri-containerd-aa.scope/memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n",
		},
		"guaranteed": {
			"kubepods/pod" + uid + "/aa/memory.events": "oom 1\noom_kill 2\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			all := memoryKills(root)
			if n, ok := all[uid]; n != 2 || !ok {
				t.Errorf("%d, %t; want 2", n, ok)
			}
			if n, ok := all["45a39373-04da-4295-9e94-e73482d902c9"]; n != 0 || ok {
				t.Errorf("of a pod that is not here: %d, %t", n, ok)
			}
		})
	}
}
