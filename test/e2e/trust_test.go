//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// testUntrusted: somebody whose browser does not know the lab's authority is
// warned, finds the steps for their device without signing in, and learns on
// the pages whether notebooks will work.
func testUntrusted(t *testing.T, a *appliance) {
	b := a.Browser(nil).For(t)
	b.OpenDespiteWarning(pages + "/login")
	b.Click("footer", "Browser warnings and certificates")
	b.WaitText("main", "Steps for this device: Debian, Ubuntu")
	b.WaitText("main", strings.TrimSpace(a.MustGpulab(a.ctx, "ca", "--fingerprint")))
	b.Pictures("trust")
	if got := lab.Evaluate[string](b, `async () => (await fetch(document.querySelector("a[download]").href)).text()`); got != string(a.ca) {
		t.Errorf("the page offers another certificate than gpulab ca prints:\n%s", got)
	}

	signInBrowser(b, pages, guestHandle, guestPassword)
	// Chromium accepts a certificate for all ports of a host, and for WebSockets
	// too; browsers that do not are told so (internal/webui).
	b.WaitFor("the live connection to the notebooks works", `sessionStorage.getItem("gpulab-websocket-works")`)
	if said := b.Text(".notices"); said != "" {
		t.Errorf("the page warns in a browser that works: %s", said)
	}
}

// testTrustHere: the machine itself can be made to trust its pages; reset
// takes that back (testReset).
func testTrustHere(t *testing.T, a *appliance) {
	visit := func() lab.Result { return a.Run(a.ctx, "curl", "-sSf", "-o", "/dev/null", pages+"/login") }
	if result := visit(); result.Code != 60 {
		t.Fatalf("this machine trusts the lab before it was told to: exit code %d: %s", result.Code, result.Stderr)
	}
	for _, want := range []string{"System: trusted, by ", "System: trusted already."} {
		said := a.MustGpulab(a.ctx, "ca", "--trust")
		if !strings.Contains(said, want) || !strings.Contains(said, "Chromium: trusted") {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if result := visit(); result.Code != 0 {
		t.Errorf("curl: exit code %d: %s", result.Code, result.Stderr)
	}
	if list := a.MustRun(a.ctx, "sh", "-c", "certutil -L -d sql:$HOME/.pki/nssdb"); !strings.Contains(list, "gpulab web CA") {
		t.Errorf("Chromium's list:\n%s", list)
	}
}
