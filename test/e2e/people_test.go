//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// testRemovePerson: whoever is removed on the page has nothing left that runs;
// the files stay, and the name is given to nobody else.
func testRemovePerson(t *testing.T, a *appliance) {
	b := a.guest.For(t)
	b.Open(pages + "/login")
	b.Fill("Sign-in name", guestHandle)
	b.Fill("Password", guestPassword)
	b.Click("form", "Sign in")
	b.WaitFor("the home page", `location.pathname === "/" && document.querySelector(".launches")`)
	launch(b, "cpu", "Left behind")
	waitJupyterLab(b, guestHandle)
	pods := func() string {
		return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "gpulab.dev/user="+guestHandle, "-o", "name")
	}
	if pods() == "" {
		t.Fatal("the notebook has no pod")
	}
	homes := a.MustRun(a.ctx, "ls", "/var/lib/gpulab/homes")

	admin := a.browser.For(t)
	admin.Open(pages + "/users")
	admin.Pictures("users")
	admin.Click("table", "Remove "+guestHandle)
	admin.Click("dialog[open]", "Remove")
	admin.WaitFor("the list without "+guestHandle, `location.pathname === "/users" && !document.querySelector("table").innerText.includes("`+guestHandle+`")`)
	a.eventually(t, "the notebook and its namespace are gone", func() bool {
		return pods() == "" && a.Gpulab(a.ctx, "kubectl", "get", "namespace", "user-"+guestHandle).Code != 0
	})
	if got := a.MustRun(a.ctx, "ls", "/var/lib/gpulab/homes"); got != homes {
		t.Errorf("the homes were %q and are %q", homes, got)
	}
	b.Open(pages + "/")
	b.WaitFor("the sign-in page", `location.pathname === "/login"`)
	if status, body := tryPassword(t, a.HTTPClient(a.ca), guestHandle, guestPassword); status != http.StatusUnauthorized {
		t.Errorf("a removed person signs in: status %d\n%.500s", status, body)
	}
	if result := a.Gpulab(a.ctx, "user", "add", guestHandle); result.Code == 0 || !strings.Contains(result.Stderr, "belonged to somebody who left") {
		t.Errorf("the name of a removed person: exit code %d: %s%s", result.Code, result.Stdout, result.Stderr)
	}
}
