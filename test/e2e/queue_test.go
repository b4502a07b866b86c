//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestQueue is a lab with fewer GPUs than people who want one, with the real
// Kueue, which is killed while they wait, as gpulab is.
//
//test:about internal/queue internal/notebooks
func TestQueue(t *testing.T) {
	t.Parallel()
	var q line
	ready(t, queueConfig).live(t, []chapter{
		{"set up", q.setUp, true},
		{"more than there is", q.moreThanThereIs, false},
		{"who used less goes first", q.whoUsedLess, true},
		{"a group's share", q.groupShare, true},
		{"no machine takes new work", q.noneOpen, true},
		{"Kueue is killed", q.kueueKilled, true},
		{"gpulab is killed", q.gpulabKilled, true},
		{"what is deleted by hand comes back", q.byHand, true},
		{"a deleted pod makes room", q.podDeleted, true},
		{"a turn that nobody takes", q.notOpened, true},
		{"nothing is left", q.nothingLeft, false},
		{"the report", q.report, false},
		{"certificates that have run out", q.runOut, false},
	})
}

// TestKueueKindsDeleted is a lab in whose Kubernetes somebody deletes the kinds of Kueue.
//
//test:about internal/queue internal/charts
func TestKueueKindsDeleted(t *testing.T) {
	t.Parallel()
	var q line
	ready(t, queueConfig).live(t, []chapter{
		{"set up", q.setUp, true},
		{"Kueue's kinds are deleted", q.kindsDeleted, false},
	})
}

// line is what the chapters of TestQueue hand on.
type line struct {
	cleo   *lab.Browser
	more   *lab.Browser // ada's page of the launch that waits
	third  *lab.Browser // ben's
	kernel *kernel      // of the first notebook
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
idle: {unopened: 30s}
`

func (q *line) setUp(t *testing.T, a *appliance) {
	q.cleo = a.welcome(t, "cleo", "Cleo", studentPassword("cleo"))
	began := time.Now()
	a.eventually(t, "Kueue is ready", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "deployment", "kueue-controller-manager", "-o", "jsonpath={.status.readyReplicas}") == "1"
	})
	t.Logf("Kueue was ready %s after the lab was set up; its memory in MB: %s", time.Since(began).Round(100*time.Millisecond),
		strings.Join(strings.Fields(a.Run(a.ctx, "sh", "-c", `for p in $(pgrep -f '^/manager'); do awk '/^(Rss|Pss):/ { print $1, $2 * 1024 / 1e6 }' /proc/$p/smaps_rollup; done`).Stdout), " "))
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
	ada := a.browser.For(t)
	launch(ada, "gpu", "First")
	waitJupyterLab(ada, adminHandle)
	t.Logf("the first launch took %s", time.Since(began).Round(100*time.Millisecond))
	q.kernel = newKernel(ada)
	q.kernel.run(t, "answer = 41")
	ben := a.guest.For(t)
	launch(ben, "gpu", "Second")
	waitJupyterLab(ben, guestHandle)

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

// stopNotebook stops one as its owner does, and waits until it is gone.
func stopNotebook(t *testing.T, owner *lab.Browser, title string) {
	t.Helper()
	b := owner.For(t).Tab()
	b.Open(pages + "/")
	b.Click("#mine", "Stop "+title)
	b.Click("dialog[open]", "Stop")
	waitGone(b, title)
}

// kueueKilled: nobody is let in while it is away, it is said so, and nobody
// loses their place.
func (q *line) kueueKilled(t *testing.T, a *appliance) {
	cleo := q.cleo.For(t)
	// Its next pod finds no machine until that has the label again.
	const label = "node-role.kubernetes.io/control-plane"
	a.MustGpulab(a.ctx, "kubectl", "label", "nodes", "--all", label+"-")
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "delete", "pod", "-l", "control-plane=controller-manager", "--force", "--grace-period=0", "--wait=false")
	cleo.WaitText("#launch-state", "Kueue, which decides who gets a GPU next, does not answer.")
	cleo.Pictures("queue-kueue-away")
	stopNotebook(t, a.guest, "Second")
	// What runs goes on, and what needs no GPU starts.
	if got := strings.TrimSpace(q.kernel.run(t, "print(answer + 1)")); got != "42" {
		t.Errorf("the running notebook says %q", got)
	}
	ben := a.guest.For(t).Tab()
	launch(ben, "cpu", "Meanwhile")
	waitJupyterLab(ben, guestHandle)
	stopNotebook(t, a.guest, "Meanwhile")
	cleo.WaitText("#launch-state", "does not answer.")
	a.MustGpulab(a.ctx, "kubectl", "label", "nodes", "--all", label+"=true")
	began := time.Now()
	waitJupyterLab(cleo, "cleo")
	t.Logf("from the end of that to the next one's JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))
	q.more.For(t).WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	if got := a.running(t, "More"); got != 0 {
		t.Error("who is second was let in, too")
	}
}

// gpulabKilled: who waits keeps the place, and gets the GPU that becomes free.
func (q *line) gpulabKilled(t *testing.T, a *appliance) {
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	ada := q.more.For(t)
	ada.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	stopNotebook(t, q.cleo, "Fresh")
	began := time.Now()
	waitJupyterLab(ada, adminHandle)
	t.Logf("from the stop to the next one's JupyterLab: %s", time.Since(began).Round(100*time.Millisecond))
}

// byHand: what of the line somebody deletes is made again, and what runs counts
// at once: a third is not let in.
func (q *line) byHand(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "kubectl", "delete", "workloads", "-n", "user-"+adminHandle, "--all", "--wait=false")
	ben := a.guest.For(a.lifeOf).Tab().For(t) // for the next chapter, too
	q.third = ben
	launch(ben, "gpu", "Third")
	ben.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
	a.eventually(t, "what runs is booked again", func() bool {
		got := a.workloads(t)
		return strings.Count(got, "user-"+adminHandle) == 2 && strings.Count(got, "True") == 2
	})
	a.MustGpulab(a.ctx, "kubectl", "delete", "localqueues", "-n", "user-"+guestHandle, "--all", "--wait=false")
	a.MustGpulab(a.ctx, "kubectl", "patch", "cohort", "lab", "--type=json", "-p", `[{"op":"replace","path":"/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota","value":"5"}]`)
	a.eventually(t, "the quota is that of the pool again", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "cohort", "lab", "-o", "jsonpath={.spec.resourceGroups[0].flavors[0].resources[0].nominalQuota}") == "2"
	})
	a.MustGpulab(a.ctx, "kubectl", "delete", "workloads", "-n", "user-"+guestHandle, "--all", "--wait=false")
	a.eventually(t, "who waits is in line again", func() bool { return strings.Contains(a.workloads(t), "user-"+guestHandle) })
	ben.WaitText("#launch-state", "Both GPUs are in use. It is next in line.")
}

// podDeleted: what holds a GPU ends, whatever ended it, and the next one gets it.
func (q *line) podDeleted(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+adminHandle, "delete", "pods", "-l", "gpulab.dev/notebook=first", "--wait=false")
	waitJupyterLab(q.third.For(t), guestHandle)
	a.eventually(t, "two have a GPU, as before", func() bool {
		got := a.workloads(t)
		return strings.Count(got, "launch-") == 2 && strings.Count(got, "True") == 2 && strings.Contains(got, "user-"+guestHandle)
	})
	if got := a.running(t, "First"); got != 0 {
		t.Error("the notebook without its pod runs")
	}
}

// notOpened: who waited, went away and does not open what they got loses it to
// the next.
func (q *line) notOpened(t *testing.T, a *appliance) {
	cleo := q.cleo.For(t).Tab()
	launch(cleo, "gpu", "Forgotten")
	cleo.WaitText("#launch-state", "It is next in line.")
	cleo.Open(pages + "/")
	ben := a.guest.For(t).Tab()
	launch(ben, "gpu", "After")
	ben.WaitText("#launch-state", "One launch is ahead of it.")
	stopNotebook(t, a.browser, "More")
	cleo.WaitText("main", "It is your turn: your notebook “Forgotten” has been ready")
	cleo.Pictures("queue-your-turn")
	ben.WaitText("#launch-state", "It was the turn of cleo, who has not opened the notebook")
	waitJupyterLab(ben, guestHandle)
	cleo.WaitText("main", "nobody opened it for")
}

// nothingLeft: when all have ended, Kueue knows of none.
func (q *line) nothingLeft(t *testing.T, a *appliance) {
	stopNotebook(t, a.guest, "Third")
	stopNotebook(t, a.guest, "After")
	a.eventually(t, "Kueue knows of no launch", func() bool {
		return strings.TrimSpace(a.workloads(t)) == ""
	})
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
	if w := got.Whole; !got.Simulated || w.People != 3 || w.Launches != 7 || w.GaveUp != 0 || w.Reclaimed != 1 || w.ReclaimedForSomebody != 1 ||
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

// runOut: Kueue makes certificates anew that have run out, and whoever wants a GPU
// then has it soon.
func (q *line) runOut(t *testing.T, a *appliance) {
	const secret = "kueue-webhook-server-cert"
	certificate, key := expiredCertificate(t)
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate, "ca.key": key}})
	if err != nil {
		t.Fatal(err)
	}
	a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "patch", "secret", secret, "--type=merge", "-p", string(patch))
	began := time.Now()
	ben := a.guest.For(t).Tab()
	launch(ben, "gpu", "Afterwards")
	waitJupyterLab(ben, guestHandle)
	t.Logf("a notebook was open %s after Kueue's certificates had run out", time.Since(began).Round(100*time.Millisecond))
	if got := a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "secret", secret, "-o", `jsonpath={.data.tls\.crt}`); got == base64.StdEncoding.EncodeToString(certificate) {
		t.Error("the one that has run out is still there")
	}
	stopNotebook(t, a.guest, "Afterwards")
}

// expiredCertificate is one that was good until yesterday, and its key.
func expiredCertificate(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const service = "kueue-webhook-service.gpulab-system.svc"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: service}, DNSNames: []string{service}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(0, 0, -1),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: scalar})
}

// kindsDeleted: without one of its kinds, and all that was of it, what runs goes
// on and is booked again, once gpulab has put the kind back.
func (q *line) kindsDeleted(t *testing.T, a *appliance) {
	ben := a.guest.For(t).Tab()
	launch(ben, "gpu", "Throughout")
	waitJupyterLab(ben, guestHandle)
	k := newKernel(ben)
	k.run(t, "answer = 41")
	uid := func() string {
		return a.Gpulab(a.ctx, "kubectl", "get", "crd", "workloads.kueue.x-k8s.io", "-o", "jsonpath={.metadata.uid}").Stdout
	}
	before, began := uid(), time.Now()
	a.MustGpulab(a.ctx, "kubectl", "delete", "crd", "workloads.kueue.x-k8s.io", "--wait=false")
	a.eventually(t, "the kind is there again", func() bool { now := uid(); return now != "" && now != before })
	t.Logf("Kueue's Workload was a kind again after %s", time.Since(began).Round(100*time.Millisecond))
	a.eventually(t, "what runs is booked again", func() bool {
		got := a.Gpulab(a.ctx, "kubectl", "get", "workloads", "-A", "--no-headers", "-o", `custom-columns=NS:.metadata.namespace,ADMITTED:.status.conditions[?(@.type=="Admitted")].status`).Stdout
		return strings.Contains(got, "user-"+guestHandle) && strings.Contains(got, "True")
	})
	t.Logf("and what ran was booked after %s", time.Since(began).Round(100*time.Millisecond))
	if got := strings.TrimSpace(k.run(t, "print(answer + 1)")); got != "42" {
		t.Errorf("the running notebook says %q", got)
	}
	cleo := q.cleo.For(t).Tab()
	launch(cleo, "gpu", "Later")
	waitJupyterLab(cleo, "cleo")
	t.Logf("and somebody else had a GPU after %s", time.Since(began).Round(100*time.Millisecond))
	stopNotebook(t, a.guest, "Throughout")
	stopNotebook(t, q.cleo, "Later")
}
