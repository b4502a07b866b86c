package embedk8s

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every file that containers need is missed when it has been there and is gone. One that a slow machine has not made yet
// is not.
func TestGone(t *testing.T) {
	root := t.TempDir()
	c := New(Config{DataDir: filepath.Join(root, "data")})
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gone := func(after time.Duration) string { return c.gone(root, since, since.Add(after)) }
	paths := []string{
		"run/flannel/subnet.env", "data/k3s/agent/etc/cni/net.d/10-flannel.conflist", "run/k3s/containerd/containerd.sock", "run/k3s",
	}
	if why := gone(50 * time.Minute); why != "" {
		t.Errorf("on a slow machine: %s", why)
	}
	if why := gone(firstStart); why == "" {
		t.Error("files that never come are not missed")
	}
	for _, path := range paths[:3] {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, path), nil, 0o600))
	}
	if why := gone(startsIn); why != "" {
		t.Errorf("all is there: %s", why)
	}
	for _, path := range paths {
		aside := filepath.Join(root, "aside")
		must(t, os.Rename(filepath.Join(root, path), aside))
		if why := gone(startsIn); !strings.Contains(why, filepath.Join(root, path)) {
			t.Errorf("without %s: %q", path, why)
		}
		if why := gone(startsIn - time.Second); why != "" {
			t.Errorf("of a k3s that was just started: %s", why)
		}
		must(t, os.Rename(aside, filepath.Join(root, path)))
	}
	must(t, os.RemoveAll(root))
	since = since.Add(time.Hour) // another k3s, which has made nothing yet
	if why := gone(startsIn); why != "" {
		t.Errorf("of another k3s: %s", why)
	}
	if why := c.Lost(); why != "" {
		t.Errorf("no k3s runs: %s", why)
	}
}

func TestRestarts(t *testing.T) {
	var r restarts
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lost := Trouble{"it is gone", lostFor}
	var at []time.Duration
	for passed := time.Duration(0); passed < 3*time.Hour; passed += lookEvery {
		trouble := lost
		if passed == lookEvery { // a moment in which all is well
			trouble = Trouble{}
		}
		if r.due(trouble, now.Add(passed)) {
			at = append(at, passed)
		}
	}
	if len(at) < 4 || len(at) > 3*perHour || at[0] != 2*lookEvery+lostFor || at[1]-at[0] < firstPause || at[2]-at[1] < 2*firstPause {
		t.Errorf("restarted after %v", at)
	}
	for i := range at {
		if i >= perHour && at[i]-at[i-perHour] <= time.Hour {
			t.Errorf("more than %d restarts per hour: %v", perHour, at)
		}
	}
	if r = (restarts{}); r.due(Trouble{"all fail", time.Minute}, now) || r.due(Trouble{"for another reason", time.Minute}, now.Add(time.Minute)) {
		t.Error("restarted without patience")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
