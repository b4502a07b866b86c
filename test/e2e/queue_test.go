//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestQueue is a lab with fewer GPUs than people who want one: who is next in line, why, and what the report
// says of it.
//
//test:about internal/queue internal/notebooks
func TestQueue(t *testing.T) {
	t.Parallel()
	a := ready(t, queueConfig+"idle: {unopened: 15s}\n")
	q := newLine(t, a)
	a.live(t, []chapter{
		{"more than there is", q.moreThanThereIs, false},
		{"who used less goes first", q.whoUsedLess, true},
		{"a group's share", q.groupShare, true},
		{"no machine takes new work", q.noneOpen, true},
		{"a turn that nobody takes", q.notOpened, true},
		{"nothing is left", q.nothingLeft, true},
		{"the report", q.report, false},
	})
}

// line is a line of people for the GPUs.
type line struct {
	computers
	cleo  *lab.Browser
	more  *lab.Browser // ada's page of the launch that waits
	third *lab.Browser // ben's
}

// queueConfig counts use anew every second: what people do in these minutes counts.
const queueConfig = `
lab: Crowded lab
gpus: simulated
simulatedGPUs: 2
profiles:
  - {slug: cpu, title: CPU notebook, cpus: 2, memory: 2Gi, cpuRequest: 0.01, memoryRequest: 128Mi}
  - {slug: gpu, title: GPU notebook, cpus: 2, memory: 2Gi, gpus: 1, cpuRequest: 0.01, memoryRequest: 128Mi}
  - {slug: many, title: Many GPUs, cpus: 2, memory: 2Gi, gpus: 9}
queue: {halfLife: 1h, sampling: 1s, shares: {vision: 2}}
`

// newLine makes the account of a third person, and waits until the lab gives GPUs away.
func newLine(t *testing.T, a *appliance) *line {
	t.Helper()
	q := &line{cleo: a.welcome(t, "cleo", "Cleo", studentPassword("cleo"))}
	q.computers = newComputers(t, a, adminHandle, guestHandle, "cleo")
	a.waitKueue(t)
	return q
}

// waitKueue waits until Kueue gives GPUs away.
func (a *appliance) waitKueue(t *testing.T) {
	t.Helper()
	began := time.Now()
	a.eventually(t, "Kueue is ready", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "deployment", "kueue-controller-manager",
			"-o", "jsonpath={.status.readyReplicas}") == "1"
	})
	memory := a.Run(a.ctx, "sh", "-c", `for p in $(pgrep -f '^/manager'); do
		awk '/^(Rss|Pss):/ { print $1, $2 * 1024 / 1e6 }' /proc/$p/smaps_rollup; done`).Stdout
	t.Logf("Kueue was ready after %s; its memory in MB: %s", time.Since(began).Round(100*time.Millisecond),
		strings.Join(strings.Fields(memory), " "))
}

// moreThanThereIs is refused at once with what there is.
func (q *line) moreThanThereIs(t *testing.T, a *appliance) {
	startRefused(a.browser.For(t).Tab(), "many", "It asks for 9 GPUs, but no machine of this lab has more than 2.")
}

// whoUsedLess: two have the GPUs; of the two who wait then, the one who has used
// none goes first, though she came later.
func (q *line) whoUsedLess(t *testing.T, a *appliance) {
	// What notebooks did here two months ago.
	a.MustRun(a.ctx, "python3", "-c", `import sqlite3, time
db = sqlite3.connect("/var/lib/gpulab/gpulab.db", timeout=20)
for hours in range(1, 10):
    at = int((time.time() - 60 * 86400) * 1000)
    db.execute("""INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at, started_at, ready_at, ended_at)
        SELECT id, handle, 'old', 'Old', 'gpu', 1, 'ended', ?, ?, ?, ? FROM users WHERE handle = ?""", (at, at, at, at + hours * 3600000, "`+adminHandle+`"))
db.commit()`)
	began := time.Now()
	ada, ben := a.browser.For(t), a.guest.For(t)
	launch(ada, "gpu", "First")
	launch(ben, "gpu", "Second")
	// The lab takes back notebooks that nobody opens within 15 s.
	waitJupyterLab(ada, adminHandle)
	waitJupyterLab(ben, guestHandle)
	t.Logf("the first two launches took %s", time.Since(began).Round(100*time.Millisecond))

	q.more = a.browser.For(a.lifeOf).Tab().For(t) // for the chapters after this one, too
	launch(q.more, "gpu", "More")
	q.more.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	for _, holder := range []string{"You", guestHandle} {
		q.more.WaitText("#launch-detail", holder)
	}
	q.more.WaitText("#launch-state", "It starts in about 5 h, judging by how long notebooks here have run.")
	cleo := q.cleo.For(t)
	launch(cleo, "gpu", "Fresh")
	cleo.WaitText("#launch-state", "It is next in line.")
	q.more.WaitText("#launch-state", "One launch is ahead of it.")
	q.more.Pictures("queue-waiting")
	if got := a.workloads(t); strings.Count(got, "True") != 2 || len(strings.Fields(got)) == 0 {
		t.Errorf("Kueue has admitted\n%s", got)
	}
}

// groupShare: while a group holds fewer GPUs than its share, its people go first,
// whatever they have used; and no longer than they are in it.
func (q *line) groupShare(t *testing.T, a *appliance) {
	const nobodys = "queue.shares gives GPUs to groups that are not there: vision"
	if got := a.MustGpulab(a.ctx, "status"); !strings.Contains(got, nobodys) {
		t.Errorf("a share of a group that is not there:\n%s", got)
	}
	a.MustGpulab(a.ctx, "group", "add", "vision")
	a.MustGpulab(a.ctx, "group", "member", "add", "vision", adminHandle)
	ada, cleo := q.more.For(t), q.cleo.For(t)
	ada.WaitText("#launch-state", "It is next in line.")
	ada.WaitText("#launch-state", "It goes before others: group vision has a share of 2 GPUs, and holds fewer.")
	cleo.WaitText("#launch-state", "One launch is ahead of it.")
	ada.Pictures("queue-share")
	if got := a.MustGpulab(a.ctx, "status"); strings.Contains(got, nobodys) {
		t.Errorf("the share is still nobody's:\n%s", got)
	}
	a.MustGpulab(a.ctx, "group", "member", "remove", "vision", adminHandle)
	cleo.WaitText("#launch-state", "It is next in line.")
	ada.WaitText("#launch-state", "One launch is ahead of it.")
}

// noneOpen: while no machine takes new work, who waits reads so and holds up nobody, and then has the place of before.
func (q *line) noneOpen(t *testing.T, a *appliance) {
	machine := a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	places := func(path string) []string {
		list := strings.Fields(a.MustGpulab(a.ctx, "kubectl", "get", "workloads", "-A", "-o", "jsonpath={.items[*]."+path+"}"))
		slices.Sort(list)
		return list
	}
	before := places("metadata.uid")
	a.MustGpulab(a.ctx, "nodes", "cordon", machine)
	cleo, ada := q.cleo.For(t), q.more.For(t)
	cleo.WaitText("#launch-state", "takes no new work now. It starts when that has changed.")
	a.eventually(t, "those who wait stand aside, and who runs does not", func() bool {
		return slices.Equal(places("spec.queueName"), []string{"any", "any", "aside", "aside"})
	})
	cleo.Pictures("queue-none-open")
	a.MustGpulab(a.ctx, "nodes", "uncordon", machine)
	cleo.WaitText("#launch-state", "It is next in line.")
	ada.WaitText("#launch-state", "One launch is ahead of it.")
	if after := places("metadata.uid"); !slices.Equal(before, after) {
		t.Errorf("places in the line were %v and are %v", before, after)
	}
}

// workloads are Kueue's, one a line: who, which, whether admitted.
func (a *appliance) workloads(t *testing.T) string {
	t.Helper()
	return a.MustGpulab(a.ctx, "kubectl", "get", "workloads", "-A", "--no-headers", "-o",
		`custom-columns=NS:.metadata.namespace,NAME:.metadata.name,ADMITTED:.status.conditions[?(@.type=="Admitted")].status`)
}

// notOpened: who waited, went away and does not open what they got loses it to the next.
func (q *line) notOpened(t *testing.T, a *appliance) {
	cleo, ada := q.cleo.For(t), q.more.For(t)
	cleo.Open(pages + "/")
	q.computers[guestHandle].stop(t, "Second")
	cleo.WaitText("main", "It is your turn: your notebook “Fresh” has been ready")
	cleo.Pictures("queue-your-turn")
	ada.WaitText("#launch-state", "It was the turn of cleo, who has not opened the notebook")
	waitJupyterLab(ada, adminHandle)
	cleo.WaitText("main", "nobody opened it for")
}

// report: what all this has come to, on the page and in the terminal.
func (q *line) report(t *testing.T, a *appliance) {
	var got struct {
		Simulated bool
		Whole     struct {
			HeldSeconds, ThereSeconds                                 float64
			People, Launches, GaveUp, Reclaimed, ReclaimedForSomebody int
			Waited50Seconds, Waited95Seconds, Fairness                float64
		}
		Weeks []struct{ Launches int }
	}
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "report", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if w := got.Whole; !got.Simulated || w.People != 3 || w.Launches != 4 || w.GaveUp != 0 || w.Reclaimed != 1 || w.ReclaimedForSomebody != 1 ||
		w.HeldSeconds <= 0 || w.HeldSeconds > w.ThereSeconds || w.Waited95Seconds < 3 || w.Waited50Seconds > w.Waited95Seconds || w.Fairness <= 1.0/3 || w.Fairness > 1 || len(got.Weeks) == 0 {
		t.Errorf("the report says %+v", got)
	}
	t.Logf("held %.0f s, half waited %.1f s, 19 of 20 %.1f s, fairness %.2f", got.Whole.HeldSeconds, got.Whole.Waited50Seconds, got.Whole.Waited95Seconds, got.Whole.Fairness)
	if text := a.MustGpulab(a.ctx, "report"); !strings.Contains(text, "TAKEN BACK") || !strings.Contains(text, "These GPUs are simulated.") {
		t.Errorf("the command says\n%s", text)
	}
	checkFailure(t, a.Gpulab(a.ctx, "report", "--weeks", "54"), exitUsage, "1 to 53 weeks")
	b := a.browser.For(t).Tab()
	b.Open(pages + "/use")
	b.ClickOn(`a[href="/report"]`)
	b.WaitText("main", "Week by week")
	b.Pictures("report")
}
