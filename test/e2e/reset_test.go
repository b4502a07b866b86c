//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// testReset: with a notebook running, reset takes everything of gpulab off the
// machine, and says so.
func testReset(t *testing.T, a *appliance) {
	checkFailure(t, a.Gpulab(a.ctx, "reset"), exitUsage, "--yes")
	if a.notebookPods(t) == "" {
		t.Error("no notebook runs, so reset has less to do than it should")
	}
	// In its first step, which takes a while.
	const interrupted = `"$0" reset --yes >/tmp/reset.out 2>&1 & reset=$!
until grep -q ending /tmp/reset.out; do sleep 0.01; done
kill $reset; wait $reset; code=$?
cat /tmp/reset.out >&2; rm /tmp/reset.out; exit $code`
	checkFailure(t, a.Run(a.ctx, "sh", "-c", interrupted, a.Binary()), 1, "Run `gpulab reset` again")
	a.Gpulab(a.ctx, "reset", "--yes") // whether it failed, the next one shows
	if got := a.MustRun(a.ctx, "ip", "netns", "list"); !strings.HasPrefix(got, "own") {
		t.Errorf("reset took somebody else's network namespace away: %q", got)
	}
	a.MustRun(a.ctx, "ip", "netns", "delete", "own")
	a.checkReset(t)
	if a.Run(a.ctx, "sh", "-c", "ls -d ~/.pki").Code == 0 {
		t.Error("a store of Chromium's that gpulab made is left")
	}
	if result := a.Gpulab(a.ctx, "reset", "--yes"); result.Code != 0 {
		t.Errorf("a second reset: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
}

func (a *appliance) checkReset(t *testing.T) {
	t.Helper()
	result := a.Gpulab(a.ctx, "reset", "--yes")
	if result.Code != 0 {
		t.Fatalf("reset: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("reset took %s", result.Took)
	after := a.Snapshot(a.ctx)
	if left := a.before.Added(after); len(left) > 0 {
		t.Errorf("reset left:\n%s", strings.Join(left, "\n"))
	}
	if missing := after.Added(a.before); len(missing) > 0 {
		t.Errorf("reset took away what was there before:\n%s", strings.Join(missing, "\n"))
	}
}

// testInitAfterReset: a machine that had a lab can have one again.
func testInitAfterReset(t *testing.T, a *appliance) {
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init after reset: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("from nothing to ready: %s\n%s", result.Took, result.Stdout)
	checkSummary(t, a, result)
}
