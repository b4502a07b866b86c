//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestGPUs is a lab that looks at its GPUs: one card that two people share,
// one that somebody uses behind gpulab's back, and cards that fail.
//
//test:about internal/gpu internal/deviceplugin internal/history internal/podresources internal/metrics cmd/gpulab-probe
func TestGPUs(t *testing.T) {
	t.Parallel()
	ready(t, sharingConfig).live(t, []chapter{
		{"one GPU for two", testSharing, true},
		{"a test of a GPU", testGPUCheck, false},
		{"used outside gpulab", testOutsider, false},
		{"two share a GPU", testShares, true},
		{"in a terminal", testWatch, false},
		{"the ledger", testLedger, false},
		{"curves", testCurves, false},
		{"memory nearly full", testCrowded, false},
		{"an error of the card", testXID, false},
		{"a card that fails", testLostGPU, false},
		{"metrics", testMetrics, false},
		{"restart", testHistoryOutlivesRestart, false},
		{"two cards instead of a shared one", testTwoCards, true},
		{"an image that needs a newer driver", testImageNeedsNewerDriver, false},
		{"a sick card beside a healthy one", testSickCard, false},
	})
}

// sharingConfig is a lab with one GPU for two, and a card for GPUs that it does
// not have.
const sharingConfig = `
lab: Sharing lab
gpus: simulated
simulatedGPUs: 1
gpuSharing: 2
profiles:
  - slug: cpu
    title: CPU notebook
    cpus: 2
    memory: 4Gi
  - slug: gpu
    title: GPU notebook
    cpus: 2
    memory: 4Gi
    gpus: 1
    gpuModel: Simulated GPU 24GB
    gpuMemory: 24Gi
  - slug: huge
    title: Huge notebook
    gpus: 1
    gpuMemory: 80Gi
`

func testSharing(t *testing.T, a *appliance) {
	for b, sees := range map[*lab.Browser]bool{a.browser: true, a.guest: false} {
		page := b.For(t)
		page.Open(pages + "/")
		page.WaitText(".launches", "GPU notebook")
		if got := strings.Contains(page.Text(".launches"), "Huge notebook"); got != sees {
			t.Errorf("the card for a GPU that the lab does not have is shown: %v, want %v", got, sees)
		}
	}
	a.eventually(t, "the machine's labels say that two share a GPU", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", `jsonpath={.items[0].metadata.labels.nvidia\.com/gpu\.product} {.items[0].metadata.labels.nvidia\.com/gpu\.replicas} {.items[0].metadata.labels.nvidia\.com/gpu\.sharing-strategy}`) ==
			"Simulated-GPU-24GB-SHARED 2 time-slicing"
	})
	if result := a.Gpulab(a.ctx, "gpus"); !strings.Contains(result.Stdout, "imulated") {
		t.Errorf("gpulab gpus does not say that the GPU is simulated:\n%s", result.Stdout)
	}
}

func testGPUCheck(t *testing.T, a *appliance) {
	if got := a.MustGpulab(a.ctx, "gpus", "check"); !strings.Contains(got, "simulated") || !strings.Contains(got, "computes nothing") {
		t.Errorf("gpulab gpus check says %q", got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/gpus")
	b.Click("main", "Test a free GPU")
	b.WaitText(".banner.ok", "A test pod saw a simulated GPU")
}

// simScript gives the simulated driver something to do.
func (a *appliance) simScript(t *testing.T, lines ...string) {
	t.Helper()
	a.MustRun(a.ctx, "sh", "-c", `f=/var/lib/gpulab/simdriver/root/run/simgpu/script; printf '%s\n' "$0" > $f.new && mv $f.new $f`, strings.Join(lines, "\n"))
}

// oneGPU is the lab's one GPU as the command shows it.
func (a *appliance) oneGPU(t *testing.T) gpuNow {
	t.Helper()
	var nodes []struct{ GPUs []gpuNow }
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "gpus", "--json")), &nodes); err != nil || len(nodes) != 1 || len(nodes[0].GPUs) != 1 {
		t.Fatalf("gpulab gpus --json: %v, %+v", err, nodes)
	}
	return nodes[0].GPUs[0]
}

type gpuNow struct {
	UUID, Error, Withheld string
	MemoryLimits          string
	LentAnyway            bool
	Utilization           *float64
	Holders               []struct{ User string }
	Processes             []struct {
		PID           int
		SMUtilization *float64
		MemoryUsed    *uint64
		UnixUser      string
		Pod           struct{ User string }
	}
}

// testOutsider: a GPU that somebody uses outside gpulab is not lent out, until
// it is free, or unless an administrator lends it anyway.
func testOutsider(t *testing.T, a *appliance) {
	const outsider = `cd / && exec setsid python3 -c 'import ctypes, sys, time
ctypes.CDLL("/var/lib/gpulab/simdriver/root/usr/lib/x86_64-linux-gnu/libcuda.so.1")
time.sleep(1000)' >/dev/null 2>&1 & echo $!`
	start := func() string { return strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", outsider)) }
	process := start()
	a.eventually(t, "the GPU is withheld", func() bool {
		return a.oneGPU(t).Withheld == "root uses it outside gpulab; it is lent out again when nobody does."
	})
	b := a.guest.For(t)
	b.Open(pages + "/gpus")
	b.WaitText("#machines", "not lent out")
	b.WaitText("#machines", "outside gpulab")
	a.eventually(t, "Kubernetes offers no GPU", func() bool { return a.offeredGPUs(t) == "0" })

	// A lab that starts while there is no GPU to be tested is ready all the same.
	a.MustRun(a.ctx, "rm", "/var/lib/gpulab/gpu-check")
	a.Kill(a.ctx, "KILL", "gpulab")
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 || !strings.Contains(result.Stdout, "none is free to be tested") {
		t.Errorf("init without a free GPU: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.eventually(t, "the GPU is withheld", func() bool { return a.oneGPU(t).Withheld != "" })
	launch(b, "gpu", "Patient")
	b.WaitText("#launch-state", "No GPU is lent out now")
	waiting := b.Location()

	admin := a.browser.For(t)
	admin.Open(pages + "/gpus/" + a.oneGPU(t).UUID)
	admin.WaitText("#gpu-head", "Not lent out.")
	admin.Click("#gpu-head", "Lend it anyway")
	admin.WaitText("#gpu-head", "Always lent out.")
	waitJupyterLab(b, guestHandle)

	// Back to the rule: who has it keeps it, and nobody new gets it.
	if got := a.MustGpulab(a.ctx, "gpus", "lend", "--undo", "0"); !strings.Contains(got, "only while nobody outside gpulab uses it") {
		t.Errorf("gpulab gpus lend --undo says %q", got)
	}
	b.Open(waiting)
	b.WaitText("#launch-state", "Running")
	b.Open(pages + "/")
	b.Click("#mine", "Stop Patient")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "Patient")
	a.eventually(t, "the GPU is withheld again", func() bool { return a.oneGPU(t).Withheld != "" })
	a.MustRun(a.ctx, "kill", "-KILL", process)
	a.eventually(t, "the GPU is lent out again", func() bool { return a.oneGPU(t).Withheld == "" && a.offeredGPUs(t) == "2" })
}

// offeredGPUs is how many GPUs, or shares of them, Kubernetes has for pods.
func (a *appliance) offeredGPUs(t *testing.T) string {
	t.Helper()
	return a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", `jsonpath={.items[0].status.allocatable.nvidia\.com/gpu}`)
}

// load is a cell that takes an exact share of the notebook's GPU.
func load(percent int, memory string) string {
	return fmt.Sprintf(`import os, subprocess, sys
work = subprocess.Popen([sys.executable, "-c", "import ctypes, time; ctypes.CDLL('libcuda.so.1'); time.sleep(3600)"],
    env={**os.environ, "GPULAB_SIMULATED_LOAD": "sm=%d memory=%s"})`, percent, memory)
}

// testShares: two people on one GPU, and everybody sees who takes what.
func testShares(t *testing.T, a *appliance) {
	launch(a.browser.For(t), "gpu", "Large")
	launch(a.guest.For(t), "gpu", "Small")
	waitJupyterLab(a.browser.For(t), adminHandle)
	waitJupyterLab(a.guest.For(t), guestHandle)
	a.first, a.second = newKernel(a.browser.For(t)), newKernel(a.guest.For(t))
	for _, k := range []*kernel{a.first, a.second} {
		if got := k.in(t).run(t, gpuCell); !strings.HasPrefix(got, "1 ") {
			t.Errorf("a notebook on a shared GPU sees %q", got)
		}
	}
	a.first.in(t).run(t, load(70, "8GiB"))
	a.second.in(t).run(t, load(30, "4GiB"))

	g := a.oneGPU(t)
	if len(g.Holders) != 2 {
		t.Fatalf("the GPU is held by %v, want two people", g.Holders)
	}
	b := a.guest.For(t).Tab()
	b.Open(pages + "/gpus/" + g.UUID)
	for _, text := range []string{adminHandle, "70 %", "8 GiB", "you", "30 %", "4 GiB"} {
		b.WaitText("#gpu-shares", text)
	}
	b.WaitText("#gpu-now", "100 %")
	b.ClickOn("main details summary")
	b.WaitText("#gpu-labels", "nvidia.com/gpu.sharing-strategy=time-slicing")
	b.Pictures("gpu")
	a.eventually(t, "70 and 30 percent", func() bool {
		shares := map[string]float64{}
		g := a.oneGPU(t)
		for _, p := range g.Processes {
			if p.SMUtilization != nil {
				shares[p.Pod.User] += *p.SMUtilization
			}
		}
		return shares[adminHandle] == 70 && shares[guestHandle] == 30 && g.Utilization != nil && *g.Utilization == 100
	})
}

// testWatch: a terminal shows it too, drawn anew every second until somebody leaves.
func testWatch(t *testing.T, a *appliance) {
	began := time.Now()
	screen := a.Run(a.ctx, "sh", "-c", `(sleep 5; printf '\003') | script -qec 'stty cols 120 rows 40; exec `+a.Binary()+` gpus --watch' /dev/null`).Stdout
	if drawn := strings.Count(screen, "\x1b[H"); drawn < 3 || drawn > int(time.Since(began)/time.Second)+2 {
		t.Errorf("in %s it was drawn %d times", time.Since(began).Round(time.Second), drawn)
	}
	for _, want := range []string{"simulated", adminHandle + "/large", "70 %", guestHandle + "/small", "30 %"} {
		if !strings.Contains(screen, want) {
			t.Errorf("there is no %q in\n%s", want, screen)
		}
	}
}

// testLedger: what two people took is written down as it was.
func testLedger(t *testing.T, a *appliance) {
	begin := a.usage(t)
	time.Sleep(25 * time.Second)
	now := a.usage(t)
	taken := func(who string) float64 { return now[who].Compute - begin[who].Compute }
	held := func(who string) float64 { return now[who].Held - begin[who].Held }
	for _, who := range []string{adminHandle, guestHandle} {
		if h := held(who); h < 10 || h > 60 {
			t.Errorf("in 25 s and what is written down late %s held the GPU for %.1f s", who, h)
		}
		if !now[who].Simulated {
			t.Errorf("the hours of %s do not say that the GPU was simulated", who)
		}
	}
	if share := taken(adminHandle) / (taken(adminHandle) + taken(guestHandle)); math.Abs(share-0.70) > 0.01 {
		t.Errorf("the ledger gives %s %.1f %% of the work, want 70", adminHandle, share*100)
	}
	b := a.guest.For(t).Tab()
	b.Open(pages + "/use")
	b.WaitText("main", "GPU hours")
	if text := b.Text("main"); strings.Contains(text, "Everybody") || !strings.Contains(text, "simulated") {
		t.Errorf("a member's page of use reads\n%s", text)
	}
	admin := a.browser.For(t).Tab()
	admin.Open(pages + "/use")
	admin.WaitText("main", guestHandle)
	admin.Pictures("use")
}

type usageRow struct {
	Name      string
	Simulated bool
	Held      float64 `json:"heldSeconds"`
	Busy      float64 `json:"busySeconds"`
	Compute   float64 `json:"computeSeconds"`
}

// usage is the ledger by person.
func (a *appliance) usage(t *testing.T) map[string]usageRow {
	t.Helper()
	var answer struct{ Usage []usageRow }
	text := a.MustGpulab(a.ctx, "gpus", "history", "--by", "user", "--json")
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		var rows []usageRow
		if err := json.Unmarshal([]byte(text), &rows); err != nil {
			t.Fatalf("gpulab gpus history --json: %v\n%s", err, text)
		}
		answer.Usage = rows
	}
	usage := map[string]usageRow{}
	for _, row := range answer.Usage {
		usage[row.Name] = row
	}
	return usage
}

// testCurves: the page draws what was recorded.
func testCurves(t *testing.T, a *appliance) {
	b := a.browser.For(t).Tab()
	b.Open(pages + "/gpus/" + a.oneGPU(t).UUID)
	b.WaitFor("curves", `document.querySelectorAll("[data-curve] canvas").length >= 4`)
	highest := lab.Evaluate[float64](b, `async () => {
		const data = await (await fetch(document.querySelector("[data-history]").dataset.history)).json();
		return Math.max(...data.use.filter(v => v !== null));
	}`)
	if highest != 100 {
		t.Errorf("the highest use of the last ten minutes is %v, want 100", highest)
	}
	b.Click("main", "24 hours")
	b.WaitFor("the day", `location.search === "?span=24h" && document.querySelector('.choices a[aria-current="true"]').innerText === "24 hours"`)
	b.WaitFor("its curves", `document.querySelectorAll("[data-curve] canvas").length >= 4`)
}

// testCrowded: both are told, on the page and in JupyterLab, before a program fails.
func testCrowded(t *testing.T, a *appliance) {
	a.first.in(t).run(t, "work.kill()")
	a.first.in(t).run(t, load(70, "19GiB"))
	b := a.guest.For(t)
	b.WaitFor("JupyterLab to tell it", `document.querySelector(".Toastify__toast")?.innerText.includes("The memory of GPU 0 is nearly full")`)
	b.Pictures("jupyterlab-notice")
	page := b.Tab()
	page.Open(pages + "/")
	page.WaitText("#machines", "you 4 GiB, "+adminHandle+" 19 GiB")
	a.MustGpulab(a.ctx, "quota", "set", "user:"+adminHandle, "gpu-memory", "10Gi")
	a.browser.For(t).WaitFor("JupyterLab to tell who takes too much", `[...document.querySelectorAll(".Toastify__toast")].some(e => e.innerText.includes("more GPU memory than your quota allows"))`)
	// Its programs had the memory before the limit, which takes nothing away.
	how := "measured, not enforced"
	if a.oneGPU(t).MemoryLimits == "enforced" {
		how = "enforced by the driver"
	}
	if got := a.MustGpulab(a.ctx, "quota", "show", adminHandle); !strings.Contains(got, how) {
		t.Errorf("quota show does not say %q:\n%s", how, got)
	}
	own := a.browser.For(t).Tab()
	startRefused(own, "gpu", "Your notebooks have taken 19 GiB of GPU memory; your quota is 10 GiB (for you alone).")
	own.Open(pages + "/")
	own.WaitText(".banner", "more GPU memory than your quota allows")
	a.MustGpulab(a.ctx, "quota", "unset", "user:"+adminHandle, "gpu-memory")
	a.first.in(t).run(t, "work.kill()")
	a.first.in(t).run(t, load(70, "8GiB"))
	b.WaitFor("JupyterLab to take it back", `!document.querySelector(".Toastify__toast")?.innerText.includes("nearly full")`)
}

// testXID: an error that the driver reports is on the page with what it means.
func testXID(t *testing.T, a *appliance) {
	b := a.guest.For(t).Tab()
	b.Open(pages + "/gpus/" + a.oneGPU(t).UUID)
	b.WaitText("#gpu-now", "Use")
	a.simScript(t, "gpu 0 xid 79")
	began := time.Now()
	b.WaitText("#gpu-events", "XID 79")
	t.Logf("from the error to the page: %s", time.Since(began).Round(100*time.Millisecond))
	b.WaitText("#gpu-events", "fallen off the bus")
	a.simScript(t, "gpu 0 xid 13 times 10000")
	b.WaitText("#gpu-events", "XID 13")
	if n := strings.Count(b.Text("#gpu-events"), "XID 13"); n != 1 {
		t.Errorf("a storm of errors fills %d lines of the page", n)
	}
}

// testLostGPU: a card that is gone is shown as such, and comes back.
func testLostGPU(t *testing.T, a *appliance) {
	b := a.guest.For(t).Tab()
	b.Open(pages + "/gpus")
	a.simScript(t, "gpu 0 lost")
	b.WaitText("#machines", "fallen off the bus")
	a.simScript(t, "gpu 0 hang")
	b.WaitText("#machines", "has not answered for")
	a.simScript(t, "gpu 0 ok")
	b.WaitFor("the card is read again", `!document.querySelector("#machines .error") && document.querySelector("#machines .reading .value")`)
}

// testMetrics: Prometheus hears the same, and nobody else does.
func testMetrics(t *testing.T, a *appliance) {
	text := a.MustGpulab(a.ctx, "metrics")
	for _, want := range []string{"DCGM_FI_DEV_GPU_UTIL{", `simulated="true"`, `user="` + adminHandle + `"`, `user="` + guestHandle + `"`, "node_memory_MemAvailable_bytes"} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	status, _, _ := request(t, a.HTTPClient(a.ca), "GET", pages+"/metrics", nil)
	if status != 401 {
		t.Errorf("/metrics answers anybody with status %d, want 401", status)
	}
}

// testHistoryOutlivesRestart: what was written down is there after gpulab was killed.
func testHistoryOutlivesRestart(t *testing.T, a *appliance) {
	before := a.usage(t)
	held, at := a.written(t, adminHandle)
	time.Sleep(6 * time.Second) // until much waits to be written
	killed := time.Now()
	a.Kill(a.ctx, "KILL", "gpulab")
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init after kill -9: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	away := time.Since(killed)
	a.eventually(t, "the ledger goes on", func() bool {
		now := a.usage(t)
		return now[adminHandle].Held > before[adminHandle].Held && now[guestHandle].Compute > before[guestHandle].Compute
	})
	heldThen, then := a.written(t, adminHandle)
	passed, counted := then.Sub(at).Seconds(), heldThen-held
	t.Logf("of %.1f s around the kill the ledger has %.1f; gpulab was away for at most %.1f", passed, counted, away.Seconds())
	if lost := passed - counted; lost > 10+away.Seconds() || lost < -2 {
		t.Errorf("%.1f s of what somebody held are not in the ledger", lost)
	}
}

// written waits until the ledger has been added to, and returns how long somebody has held GPUs until then.
func (a *appliance) written(t *testing.T, who string) (held float64, at time.Time) {
	t.Helper()
	before := a.usage(t)[who].Held
	a.eventually(t, "more is in the ledger", func() bool {
		held, at = a.usage(t)[who].Held, time.Now()
		return held > before
	})
	return held, at
}

// twoCardsConfig is a lab with two GPUs, and a card for an image of its own.
const twoCardsConfig = `
lab: Sharing lab
gpus: simulated
simulatedGPUs: 2
profiles:
  - slug: cpu
    title: CPU notebook
  - slug: gpu
    title: GPU notebook
    gpus: 1
  - slug: torch
    title: PyTorch notebook
    gpus: 1
    image: ` + torchImage + `
`

// testTwoCards: the configuration is changed while notebooks run on a shared
// GPU; they end when their owners say so.
func testTwoCards(t *testing.T, a *appliance) {
	a.WriteFile("/etc/gpulab/config.yaml", twoCardsConfig)
	checkFailure(t, a.Gpulab(a.ctx, initArgs...), exitPreflight, "gpuSharing cannot go from 2 to 1 while notebooks hold GPUs", adminHandle+"/large")
	for b, title := range map[*lab.Browser]string{a.browser: "Large", a.guest: "Small"} {
		page := b.For(t)
		page.Open(pages + "/")
		page.Click("#mine", "Stop "+title)
		page.Click("dialog[open]", "Stop")
		waitGone(page, title)
	}
	a.eventually(t, "nobody holds the GPU", func() bool { return len(a.oneGPU(t).Holders) == 0 })
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.eventually(t, "two GPUs are offered", func() bool { return a.offeredGPUs(t) == "2" })
}

// testSickCard: a card that fails under a notebook takes no healthy one away
// from others, and is given to nobody after it.
func testSickCard(t *testing.T, a *appliance) {
	launch(a.browser.For(t), "gpu", "Unlucky")
	waitJupyterLab(a.browser.For(t), adminHandle)
	sick := holderOf(t, a, adminHandle)
	index := strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", `LD_LIBRARY_PATH=/var/lib/gpulab/simdriver/root/usr/lib/x86_64-linux-gnu \
		/var/lib/gpulab/simdriver/root/usr/bin/nvidia-smi --query-gpu=index,uuid --format=csv,noheader | grep "$0" | cut -d, -f1`, sick))
	a.simScript(t, "gpu "+index+" xid 79")
	b := a.guest.For(t)
	b.Open(pages + "/gpus/" + sick)
	b.WaitText("#gpu-events", "XID 79")
	// NVIDIA's plugin calls it unhealthy by now.
	a.eventually(t, "the device plugin has noticed", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "logs", "daemonset/nvidia-device-plugin", "--tail=20"), "unhealthy")
	})
	launch(b, "gpu", "Lucky")
	waitJupyterLab(b, guestHandle)
	if got := holderOf(t, a, guestHandle); got == sick {
		t.Error("the next notebook got the card that has failed")
	}
	admin := a.browser.For(t)
	admin.Open(pages + "/")
	admin.Click("#mine", "Stop Unlucky")
	admin.Click("dialog[open]", "Stop")
	waitGone(admin, "Unlucky")
	a.eventually(t, "only the healthy card is offered", func() bool { return a.offeredGPUs(t) == "1" })
	b.Open(pages + "/gpus")
	b.WaitText("#machines", "Not lent out: It has failed (XID 79")
	a.eventually(t, "gpulab status tells it", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "status"), "is not lent out: It has failed (XID 79")
	})
}
