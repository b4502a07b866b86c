//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestIdle is a lab with two GPUs and three people: one computes without a browser, one has a tab open and does
// nothing, and one waits, who gets the GPU of the idle one.
//
//test:about internal/idle internal/report
func TestIdle(t *testing.T) {
	t.Parallel()
	ready(t, idleConfig(2, "45s", "0")).live(t, []chapter{
		{"the idle one goes for the one who waits", testReclaim, true},
		{"a kernel that computes was left alone", testComputingIsSpared, false},
	})
}

// TestIdleKept is a lab with one GPU, whose holder keeps it as often as the lab allows; then it goes to the one who
// waits, also when gpulab is killed meanwhile. Both are told by mail.
//
//test:about internal/idle internal/mail
func TestIdleKept(t *testing.T) {
	t.Parallel()
	// Whoever waited less than a minute is not written to that it is their turn.
	ready(t, idleConfig(1, "60s", "0")+mailConfig).live(t, []chapter{
		{"set up", testSetUpMail, true},
		{"one click keeps it, once", testKeep, true},
		{"gpulab restarts in the middle of a countdown", testRestartInCountdown, false},
		{"mail", testMail, false},
	})
}

// TestIdleEnds is a lab where nobody waits: an admin frees an idle GPU, and who computes is stopped once their notebook
// is as old as one may get.
//
//test:about internal/idle internal/mail
func TestIdleEnds(t *testing.T) {
	t.Parallel()
	ready(t, idleConfig(2, "20s", "0")+mailConfig).live(t, []chapter{
		{"set up", testSetUpEnds, true},
		{"an admin frees one", testFreeIdle, false},
		{"as old as one may get", testMaxAge, false},
	})
}

// idleConfig has times for a test's patience. JupyterLab asks every ten seconds whether there is something to tell: a
// countdown is longer. What a loop on a processor holds is bounded by hours here, too.
func idleConfig(gpus int, countdown, maxAge string) string {
	return fmt.Sprintf(`
lab: Idle lab
gpus: simulated
simulatedGPUs: %d
idle:
  after: 10s
  countdown: %s
  extend: 10s
  extensions: 1
  maxAge: %s
  profiles:
    cpu: {maxAge: 0}
`, gpus, countdown, maxAge)
}

// thirdHandle is who waits in the story.
const thirdHandle = "eve"

// testSetUpEnds: both GPUs are held by notebooks that no browser has opened; ben's computes.
func testSetUpEnds(t *testing.T, a *appliance) {
	testSetUpMail(t, a)
	launchBy(t, a.admin(t), "gpu", "Again")
	launchBy(t, signIn(t, a, guestHandle, guestPassword), "gpu", "Training")
	a.eventually(t, "it runs", func() bool { return a.running(t, "Training") == 1 })
	namespace, pod := a.podOf(t, guestHandle)
	a.MustGpulab(a.ctx, "kubectl", "-n", namespace, "exec", pod, "--",
		"sh", "-c", `python3 -c "$0" >/dev/null 2>&1 </dev/null`, load(70, "8GiB"))
	a.eventually(t, "it computes", func() bool { return strings.Contains(a.MustGpulab(a.ctx, "gpus"), " 70 % ") })
}

// warnings is how often somebody was warned.
func (a *appliance) warnings(t *testing.T, action, handle string) int {
	t.Helper()
	var list []struct{ Action, Target string }
	text := a.MustGpulab(a.ctx, "audit", "list", "--action", action, "--json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("audit list --json: %v\n%s", err, text)
	}
	n := 0
	for _, e := range list {
		if e.Action == action && e.Target == handle {
			n++
		}
	}
	return n
}

// idlePatience is how long it takes at most until somebody is warned whose notebook is not used.
const idlePatience = 4 * time.Minute

// toast is what JupyterLab shows.
const toast = `[...document.querySelectorAll(".Toastify__toast")].some(e => e.innerText.includes(%q))`

// testReclaim: three people, two GPUs. The third waits; the first, who has JupyterLab open and does nothing, is warned,
// ignores it and is stopped; the third gets the GPU. The second computes without a browser and is left alone.
func testReclaim(t *testing.T, a *appliance) {
	a.third = a.welcome(t, thirdHandle, "Eve", "a password for eve, quite long")
	launch(a.guest.For(t), "gpu", "Training")
	launch(a.browser.For(t), "gpu", "Forgotten")
	waitJupyterLab(a.guest.For(t), guestHandle)
	a.second = newKernel(a.guest.For(t))
	a.second.in(t).run(t, load(70, "8GiB"))
	a.guest.For(t).Open(pages + "/network")

	waitJupyterLab(a.browser.For(t), adminHandle)
	a.first = newKernel(a.browser.For(t))
	a.first.in(t).run(t, "kept = 1")

	a.within(t, idlePatience, "gpulab gpus says that it is held and idle", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "gpus"), adminHandle+"/forgotten, idle for ")
	})
	if n := a.warnings(t, "idle.warn", adminHandle); n != 0 {
		t.Errorf("nobody waits, and %s was warned %d times", adminHandle, n)
	}

	waiting := a.third.For(t)
	launch(waiting, "gpu", "Urgent")
	waiting.WaitText("#launch-state", "Waiting for 1 GPU")
	jupyter := a.browser.For(t).Patient(idlePatience)
	jupyter.WaitFor("JupyterLab to warn", fmt.Sprintf(toast, "eve waits for one"))
	jupyter.WaitFor("a countdown", `[...document.querySelectorAll(".Toastify__toast")].some(e => /Stops in \d:\d\d\. /.test(e.innerText))`)
	jupyter.Pictures("jupyterlab-idle")
	waiting.WaitText("#launch-state", adminHandle+" has not used a GPU for")
	page := a.browser.For(t).Tab()
	page.Open(pages + "/")
	page.WaitText("#idle", "“Forgotten”")
	page.WaitText("#idle", "eve waits for one")
	page.WaitText("#idle", "I still need it")
	left := lab.Evaluate[string](page, `async () => document.querySelector("#idle [data-countdown]").innerText`)
	if !regexp.MustCompile(`^[01]:\d\d$`).MatchString(left) {
		t.Errorf("the countdown reads %q", left)
	}
	page.WaitFor("the countdown to go on", fmt.Sprintf(`document.querySelector("#idle [data-countdown]")?.innerText !== %q`, left))
	page.Pictures("home-idle")
	open := page.Tab()
	open.Open(pages + "/")
	open.ClickOn("#mine a.title")
	open.WaitText("#launch-idle", "Kernels")
	t.Logf("left of the countdown when all of it was seen: %s", page.Text("#idle [data-countdown]"))

	waiting.Patient(idlePatience).WaitFor("JupyterLab of who waited", `location.pathname.startsWith("/user/eve/urgent/lab")`)
	page.WaitText("#mine", "nobody had used its GPU for")
	page.WaitText("#mine", "eve was waiting for one")
	page.WaitText("#mine", "Start again")
	page.Open(pages + "/use")
	page.WaitText("#reclaimed", adminHandle)
	page.WaitText("#reclaimed", thirdHandle)
	own := waiting.Tab()
	own.Open(pages + "/")
	own.WaitText("#mine", "It got the GPU of a notebook of "+adminHandle)
	own.Open(pages + "/use")
	own.WaitText("main", "Mine")
	if strings.Contains(own.Text("main"), "Taken back") {
		t.Error("eve, from whom nothing was taken back, sees what was taken back from others")
	}
	if warned, stopped := a.warnings(t, "idle.warn", adminHandle), a.warnings(t, "idle.stop", adminHandle); warned != 1 || stopped != 1 {
		t.Errorf("warned %d times, stopped %d times", warned, stopped)
	}
	a.MustRun(a.ctx, "test", "-d", "/var/lib/gpulab/homes")
}

// testKeep: the button in JupyterLab keeps a notebook, as often as the lab allows.
func testKeep(t *testing.T, a *appliance) {
	jupyter := a.guest.For(t).Patient(idlePatience)
	launch(jupyter, "gpu", "Mine")
	waitJupyterLab(jupyter, guestHandle)
	page := a.browser.For(t)
	launch(page, "gpu", "Again")
	page.WaitText("#launch-state", "Waiting for 1 GPU")
	jupyter.WaitFor("JupyterLab to warn", fmt.Sprintf(toast, adminHandle+" waits for one"))
	jupyter.WaitFor("the click", `(() => {
		const button = [...document.querySelectorAll(".Toastify__toast button")].find(e => e.innerText.includes("I still need it"));
		button?.click();
		return !!button;
	})()`)
	jupyter.WaitFor("what came of it", fmt.Sprintf(toast, "is yours until"))
	a.eventually(t, "the audit log has it", func() bool { return a.warnings(t, "idle.extend", guestHandle) == 1 })
	jupyter.WaitFor("the second warning, without a button", `[...document.querySelectorAll(".Toastify__toast")].some(e => e.innerText.includes("`+adminHandle+` waits for one") && !e.innerText.includes("I still need it"))`)
	a.eventually(t, "the audit log has that, too", func() bool { return a.warnings(t, "idle.warn", guestHandle) == 2 })
	if n := a.warnings(t, "idle.stop", guestHandle); n != 0 {
		t.Errorf("what was kept was stopped %d times", n)
	}
}

// testRestartInCountdown: gpulab is killed while ben's countdown runs. It goes on, nobody is warned anew, and the one
// who waits gets the GPU.
func testRestartInCountdown(t *testing.T, a *appliance) {
	before := a.warnings(t, "idle.warn", guestHandle)
	if n := a.warnings(t, "idle.stop", guestHandle); n != 0 {
		t.Fatalf("the countdown is over: ben was stopped %d times", n)
	}
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init after kill -9: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	a.browser.For(t).Patient(idlePatience).WaitFor("JupyterLab of who waited", `location.pathname.startsWith("/user/`+adminHandle+`/again/lab")`)
	if after := a.warnings(t, "idle.warn", guestHandle); after != before {
		t.Errorf("ben was warned %d times before and %d times after a restart", before, after)
	}
	if n := a.warnings(t, "idle.stop", guestHandle); n != 1 {
		t.Errorf("ben was stopped %d times", n)
	}
}

// testComputingIsSpared: all the while the second person had no browser open, a GPU at work, and somebody waited.
func testComputingIsSpared(t *testing.T, a *appliance) {
	if n := a.warnings(t, "idle.warn", guestHandle); n != 0 {
		t.Errorf("who computes was warned %d times", n)
	}
	b := a.guest.For(t)
	b.Open(pages + "/")
	b.WaitText("#mine", "Training")
	b.ClickOn("#mine a.title")
	b.WaitText("#launch-idle", "at work")
}

// testFreeIdle: nobody waits; an admin sees who holds a GPU without use, and frees it.
func testFreeIdle(t *testing.T, a *appliance) {
	a.within(t, idlePatience, "it is held and idle", func() bool {
		return strings.Contains(a.MustGpulab(a.ctx, "gpus"), adminHandle+"/again, idle for ")
	})
	b := a.browser.For(t).Tab()
	b.Open(pages + "/gpus")
	b.WaitText("#machines", "idle for")
	b.Open(pages + "/gpus/" + holderOf(t, a, adminHandle))
	b.WaitText("#gpu-head", "nobody has used it for")
	b.Pictures("gpu-idle")
	b.Click("#gpu-head", "Free the GPU")
	b.Click("dialog[open]", "Free the GPU")
	a.eventually(t, "it is freed", func() bool { return !strings.Contains(a.MustGpulab(a.ctx, "gpus"), adminHandle+"/again") })
	if n := a.warnings(t, "idle.free", adminHandle); n != 1 {
		t.Errorf("the audit log has it %d times", n)
	}
}

// testMaxAge: every notebook ends once it is as old as one may get, also one that computes.
func testMaxAge(t *testing.T, a *appliance) {
	a.WriteFile("/etc/gpulab/config.yaml", idleConfig(2, "20s", "40s")+mailConfig)
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	b := a.guest.For(t).Patient(idlePatience)
	b.Open(pages + "/")
	b.WaitText("#idle", "which is as long as one may run here")
	a.mailedWarning(t, guestHandle)
	b.WaitText("#mine", "It was stopped: it had run for")
}
