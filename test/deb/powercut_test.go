//go:build deb

package deb

import (
	"context"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var cuts = flag.Int("cuts", 4, "how often the power fails in TestPowerCut")

// TestPowerCut has the power fail at random moments of an installation, of
// `gpulab init`, of an upgrade and of a rollback. What Debian and gpulab say to do then is enough each time.
//
//test:about packaging/deb
func TestPowerCut(t *testing.T) {
	packages, newer := quick(t), anotherVersion(t)
	m := boot(t)
	m.put(packages, "/old")
	m.put(newer, "/new")
	for n := range *cuts {
		round := interruptions[n%len(interruptions)]
		whole := t.Run(round.what, func(t *testing.T) {
			m.t = t
			m.run(round.before)
			after := time.Duration(rand.Int64N(int64(round.takes)))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			interrupted := m.command(ctx, round.script)
			var out strings.Builder
			interrupted.Stdout, interrupted.Stderr = &out, &out
			if err := interrupted.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			m.cutPower()
			err := interrupted.Wait()
			t.Logf("the power failed after %s (%v):\n%s", after.Round(10*time.Millisecond), err, lastLines(out.String(), 3))

			// What was half unpacked dpkg wants reinstalled, which the script does.
			if out, err := m.try("dpkg --configure --pending"); err != nil && !strings.Contains(out, "you should\n reinstall it") {
				t.Errorf("dpkg --configure --pending: %v\n%s", err, out)
			}
			m.run(round.script)
			if round.lab {
				m.wait(2*time.Minute, "gpulab status")
			}
			if bad := m.run("dpkg --audit; dpkg --verify gpulab gpulab-images"); bad != "" {
				t.Errorf("the packages are not whole:\n%s", bad)
			}
			m.run("apt-get -q -y purge gpulab gpulab-images")
			if left := m.run0("ls -A /var/lib/gpulab /etc/gpulab 2>/dev/null | grep -v '^homes$'"); strings.Contains(left, "gpulab.db") {
				t.Errorf("a purge leaves %s", left)
			}
		})
		if m.t = t; !whole {
			t.Fatal("the next ones begin with a machine without packages")
		}
	}
}

// olderLab is a lab of the older version.
const olderLab = "apt-get -q -y install /old/*.deb && gpulab init --yes --gpus simulated"

// interruptions are what the power fails in: the script that makes it possible,
// the script that is interrupted and does the same when it is run again, and how
// long that takes.
var interruptions = []struct {
	what, before, script string
	takes                time.Duration
	lab                  bool // there is one in the end
}{
	{"an installation", "true", "apt-get -q -y install /old/*.deb", 6 * time.Second, false},
	{"init", "apt-get -q -y install /old/*.deb", "gpulab init --yes --gpus simulated", 25 * time.Second, true},
	{"an upgrade", olderLab, "apt-get -q -y install /new/*.deb", 8 * time.Second, true},
	// A second one would lead forth again.
	{"a rollback", olderLab + " && apt-get -q -y install /new/*.deb && gpulab init --yes", `! gpulab status --json | grep -qF '"version": "` + newerVersion + `"' || gpulab rollback --yes`, 12 * time.Second, true},
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
