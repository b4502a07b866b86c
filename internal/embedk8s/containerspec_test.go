package embedk8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
)

func TestContainerSpec(t *testing.T) {
	read := func(t *testing.T, hard uint64) oci.Spec {
		t.Helper()
		text, err := containerSpec(func(int) (uint64, error) { return hard, nil })
		if err != nil {
			t.Fatal(err)
		}
		var spec oci.Spec
		if err := json.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	limits := func(s oci.Spec) map[string]uint64 {
		got := map[string]uint64{}
		for _, l := range s.Process.Rlimits {
			if l.Soft != l.Hard {
				t.Errorf("%s may be raised from %d to %d", l.Type, l.Soft, l.Hard)
			}
			got[l.Type] = l.Hard
		}
		return got
	}
	t.Run("bounds", func(t *testing.T) {
		spec := read(t, 1<<62)
		got := limits(spec)
		if len(got) != 3 || got["RLIMIT_CORE"] != 0 || got["RLIMIT_MSGQUEUE"] != 100<<10 || got["RLIMIT_SIGPENDING"] != 1024 {
			t.Errorf("limits %v", got)
		}
		for _, m := range spec.Mounts {
			if m.Type == "devpts" && (!slices.Contains(m.Options, "max=64") || !slices.Contains(m.Options, "newinstance")) {
				t.Errorf("terminals are mounted with %v", m.Options)
			}
		}
		// What containerd takes away from its own default, and would keep of a file.
		if spec.Process.ApparmorProfile != "" || spec.Linux.Seccomp != nil {
			t.Errorf("the file decides about AppArmor %q and seccomp %v", spec.Process.ApparmorProfile, spec.Linux.Seccomp)
		}
	})
	t.Run("never above the machine's", func(t *testing.T) {
		for name, got := range limits(read(t, 500)) {
			if got > 500 {
				t.Errorf("%s is %d, which runc could not set", name, got)
			}
		}
	})
	t.Run("containerd finds it", func(t *testing.T) {
		dir := t.TempDir()
		c := New(Config{DataDir: dir})
		if got := string(containerdExtra(c.containerSpecFile(), true)); !strings.Contains(got, "base_runtime_spec = \""+dir+"/container.json\"") {
			t.Errorf("containerd is told\n%s", got)
		}
		if _, err := c.Prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "container.json")); err != nil {
			t.Error(err)
		}
	})
}
