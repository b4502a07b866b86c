//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// TestQuotas is a lab whose people may use only so much: what they start beyond it, and what ends when it is used up.
//
//test:about internal/quota
func TestQuotas(t *testing.T) {
	t.Parallel()
	ready(t, quotasConfig).live(t, []chapter{
		{"quotas", testQuotas, true},
		{"used-up hours", testHoursUsedUp, true},
		{"after the grace period", testGraceIsOver, false},
	})
}

// quotasConfig has a short grace period, but one longer than the ten seconds between JupyterLab's requests.
const quotasConfig = `
lab: Quotas lab
gpus: simulated
simulatedGPUs: 2
quotas:
  grace: 30s
`

// startRefused clicks on a launch card and waits for the page that says why not.
func startRefused(b *lab.Browser, profile, says string) {
	b.Open(pages + "/")
	b.WaitFor("the launch card for "+profile, fmt.Sprintf(`(() => {
		const form = document.querySelector('form:has(input[name=profile][value=%q])');
		if (!form) return false;
		form.querySelector("button").click();
		return true;
	})()`, profile))
	b.WaitText("main", "The notebook was not started")
	b.WaitText("main", says)
}

// testQuotas: a launch beyond a quota is refused with the reason; a grant makes
// room, and what runs is not touched.
func testQuotas(t *testing.T, a *appliance) {
	checkFailure(t, a.Gpulab(a.ctx, "quota", "set", "everyone", "gpus", "1"), 2, "role:guest")
	checkFailure(t, a.Gpulab(a.ctx, "quota", "set", "role:member", "gpu", "1"), 2, "gpu-hours-week")
	checkFailure(t, a.Gpulab(a.ctx, "quota", "set", "role:member", "gpus", "1.5"), 2, "whole number")
	checkFailure(t, a.Gpulab(a.ctx, "quota", "set", "user:nobody1", "gpus", "1"), 1, "no such user")
	if got := a.MustGpulab(a.ctx, "quota", "list"); !strings.Contains(got, "No quotas") {
		t.Errorf("quota list of a new lab: %q", got)
	}

	admin := a.browser.For(t)
	admin.Open(pages + "/quotas")
	admin.Fill("For", "role:member")
	admin.WaitFor("the kind", `(() => { document.querySelector("#set-kind").value = "gpus"; return true })()`)
	admin.Fill("At most", "0")
	admin.Click("main", "Set")
	admin.WaitText("table", "role:member")
	admin.Pictures("quotas")

	b := a.guest.For(t)
	startRefused(b, "gpu", "Your quota allows no GPUs at once (for the role member).")
	a.MustGpulab(a.ctx, "quota", "grant", guestHandle, "gpus", "1", "--for", "1h", "--note", "thesis")
	launch(b, "gpu", "Granted")
	waitJupyterLab(b, guestHandle)
	startRefused(b, "gpu", "Your quota for GPUs at once is 1 (for the role member), and you use 1.")
	b.Open(pages + "/")
	b.WaitText("main", "1 of it is granted until")
	b.Pictures("home-quotas")
	a.MustGpulab(a.ctx, "quota", "end-grant", "1")
	if got := a.MustGpulab(a.ctx, "quota", "show", guestHandle); !strings.Contains(got, "role:member") {
		t.Errorf("quota show: %q", got)
	}
	if got := holderOf(t, a, guestHandle); got == "" {
		t.Error("the end of a grant took the GPU away from a running notebook")
	}
	a.MustGpulab(a.ctx, "quota", "unset", "role:member", "gpus")
}

// testHoursUsedUp: who holds a GPU without hours left is told, in JupyterLab
// too.
func testHoursUsedUp(t *testing.T, a *appliance) {
	b := a.guest.For(t)
	b.Open(hub + "/user/" + guestHandle + "/granted/lab")
	waitJupyterLab(b, guestHandle)
	a.MustGpulab(a.ctx, "quota", "set", "user:"+guestHandle, "gpu-hours-week", "0")
	b.WaitFor("JupyterLab to tell it", `document.querySelector(".Toastify__toast")?.innerText.includes("Your GPU hours are used up")`)
	page := b.Tab()
	page.Open(pages + "/")
	page.WaitText(".banner", "Your GPU hours are used up")
}

// testGraceIsOver: after the grace period they are stopped; files and CPU
// notebooks stay.
func testGraceIsOver(t *testing.T, a *appliance) {
	a.eventually(t, "the notebook is stopped", func() bool {
		for _, g := range a.gpus(t) {
			for _, h := range g.Holders {
				if h.User == guestHandle {
					return false
				}
			}
		}
		return true
	})
	b := a.guest.For(t)
	b.Open(pages + "/")
	b.WaitText("#mine", "Granted")
	b.WaitText("#mine", "GPU hours in 7 days")
	startRefused(b, "gpu", "A notebook without GPU starts at any time.")
	launch(b, "cpu", "Without GPU")
	waitJupyterLab(b, guestHandle)
	a.MustGpulab(a.ctx, "quota", "unset", "user:"+guestHandle, "gpu-hours-week")
	a.checkAudited(t, "quota.set", "quota.stop")
}
