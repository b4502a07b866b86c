//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// ballast is what fills the lab's disk.
const ballast = "/var/lib/gpulab/homes/ballast"

// component finds a part of the lab in its status.
func (a *appliance) component(t *testing.T, name string) (state, detail, next string) {
	t.Helper()
	for _, c := range a.status(t).Components {
		if c.Name == name {
			return c.State, c.Detail, c.NextStep
		}
	}
	return "", "", ""
}

// leave fills the lab's disk but for that many hundredths. Nothing is written
// for it.
func (a *appliance) leave(t *testing.T, percent int) {
	t.Helper()
	a.MustRun(a.ctx, "sh", "-ec", fmt.Sprintf(`
set -- $(df --output=used,avail -B1 /var/lib/gpulab | tail -1)
fallocate -l $(($2 - ($1 + $2) * %d / 100 + $(stat -c %%s %s 2>/dev/null || echo 0))) %[2]s`, percent, ballast))
}

// TestFullDisk: somebody fills the disk with the homes. It ends nobody's
// notebook, since nothing would be won by it; theirs is where they can tidy up.
// The nearer the end, the less gpulab takes on; at the end people still sign in
// and stop notebooks, and nothing is damaged.
//
//test:about internal/diskspace internal/store
func TestFullDisk(t *testing.T) {
	t.Parallel()
	a := ready(t, "simulatedGPUs: 1\n")
	testTwoNotebooks(t, a)
	third := a.browser.Tab()
	launch(third, "gpu", "Third")
	third.WaitText("#launch-state", "Waiting for 1 GPU")
	a.waiting = third.Location()
	if source := a.MustRun(a.ctx, "findmnt", "-no", "SOURCE", "-T", "/var/lib/gpulab"); !strings.HasPrefix(source, "/dev/loop") {
		t.Fatalf("the lab has no disk of its own to fill, but %s: loop devices are needed (losetup --find)", source)
	}
	guest := a.guest.For(t).Tab()
	launch(guest, "cpu", "Spare")
	waitJupyterLab(guest, guestHandle)
	pods := a.notebookPods(t)
	defer a.Run(a.ctx, "rm", "-f", ballast)
	admin := a.browser.For(t).Tab()
	admin.Open(pages + "/")
	diskSays := func(next string) {
		t.Helper()
		a.eventually(t, "the status of the disk says: "+next, func() bool {
			_, _, got := a.component(t, "disk")
			return strings.Contains(got, next)
		})
	}

	a.leave(t, 14)
	diskSays("from 95 % on no notebook starts")
	admin.WaitText("#disk", "From 95 % on no notebook starts")

	a.leave(t, 4)
	diskSays("no notebook starts and no image is brought in")
	waiting := a.browser.For(t).Tab()
	waiting.Open(a.waiting)
	waiting.WaitText("#launch-state", "Nothing new starts")
	guest.Open(pages + "/")
	guest.WaitText(".launches", "Nothing new starts before there is more room")
	refused := lab.Evaluate[string](guest, `async () => {
		const form = new URLSearchParams({profile: "cpu", csrf: document.querySelector("[name=csrf]").value});
		const answer = await fetch("/launch", {method: "POST", body: form});
		return answer.status + " " + await answer.text();
	}`)
	if !strings.HasPrefix(refused, "409 ") || !strings.Contains(refused, "% full") {
		t.Errorf("a launch was answered with %.300s", refused)
	}
	checkFailure(t, a.Gpulab(a.ctx, "images", "pull", "registry.invalid/x:1"), 1, "Nothing new starts")

	// To the last byte, and what gpulab itself held back is given away then.
	a.MustRun(a.ctx, "sh", "-c", "cat /dev/zero >>"+ballast+"; [ $(df --output=avail -B1 /var/lib/gpulab | tail -1) -lt 100000000 ]")
	diskSays("make room now")
	// What is given away while the disk is still being filled is filled as well; the
	// next part comes at the next look.
	a.eventually(t, "there is room for the databases", func() bool {
		return a.Run(a.ctx, "sh", "-c", "[ $(df --output=avail -B1 /var/lib/gpulab | tail -1) -gt 16000000 ]").Code == 0
	})
	began := time.Now()
	other := a.browser.Private().For(t)
	signInBrowser(other, pages, guestHandle, guestPassword)
	other.WaitText("#mine", "Spare")
	other.Click("#mine", "Stop Spare")
	other.Click("dialog[open]", "Stop")
	waitGone(other, "Spare")
	t.Logf("on the full disk, signed in and stopped a notebook within %s", time.Since(began).Round(100*time.Millisecond))
	var kept []string
	for line := range strings.Lines(pods) {
		if !strings.Contains(line, "--spare") {
			kept = append(kept, line)
		}
	}
	// A restart meets the same disk.
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Errorf("init on the full disk: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	signInBrowser(a.browser.Private().For(t), pages, guestHandle, guestPassword)
	// The kubelet looks every 10 s and would act at once.
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if got := a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", `jsonpath={.items[0].status.conditions[?(@.type=="DiskPressure")].status}`); got != "False" {
			t.Fatalf("the node's condition DiskPressure is %q", got)
		}
	}
	a.checkDatabases(t)
	shown := a.MustGpulab(a.ctx, "disk")
	for _, want := range []string{"DISK WITH", "full", "images and running containers", "LARGEST HOMES"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is missing in\n%s", want, shown)
		}
	}

	a.MustRun(a.ctx, "rm", ballast)
	a.eventually(t, "the disk is well", func() bool {
		state, _, _ := a.component(t, "disk")
		return state == "ok"
	})
	a.eventually(t, "room is held back again", func() bool {
		return strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%s", "/var/lib/gpulab/reserve")) == "268435456"
	})
	a.eventually(t, "the history goes on", func() bool {
		state, _, _ := a.component(t, "history")
		return state == "ok"
	})
	a.waitReady(t)
	a.checkDatabases(t)
	guest.Open(pages + "/")
	guest.WaitText(".launches", "starts at once")
	a.stillThere(t, strings.Join(kept, ""))
}

// checkDatabases has SQLite look for damage in every database of the lab.
func (a *appliance) checkDatabases(t *testing.T) {
	t.Helper()
	const check = `import glob, sqlite3
for path in ["/var/lib/gpulab/gpulab.db", "/var/lib/gpulab/metrics.db", "/var/lib/gpulab/k3s/server/db/state.db"] + glob.glob("/var/lib/gpulab/hub/*.sqlite"):
    print(path, *sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("PRAGMA integrity_check").fetchone())`
	for line := range strings.Lines(a.MustRun(a.ctx, "python3", "-c", check)) {
		if !strings.HasSuffix(line, " ok\n") {
			t.Errorf("integrity: %s", line)
		}
	}
}
