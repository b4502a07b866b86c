//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// testRemovePerson: whoever is removed on the page has nothing left that runs;
// the files stay, and the name is given to nobody else.
func testRemovePerson(t *testing.T, a *appliance) {
	b := a.guest.For(t)
	signInBrowser(b, pages, guestHandle, guestPassword)
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
	admin.Open(pages + "/users/" + guestHandle)
	admin.Pictures("person")
	admin.Click("main", "Remove")
	admin.Click("dialog[open]", "Remove")
	admin.WaitFor("the way back", `location.pathname === "/users/`+guestHandle+`" && document.querySelector("main").innerText.includes("Bring back")`)
	admin.Open(pages + "/users")
	admin.WaitFor("the list without "+guestHandle, `!document.querySelector("table").innerText.includes("`+guestHandle+`")`)
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
	if result := a.Gpulab(a.ctx, "user", "add", guestHandle); result.Code == 0 || !strings.Contains(result.Stderr, "belongs to a removed account") {
		t.Errorf("the name of a removed person: exit code %d: %s%s", result.Code, result.Stdout, result.Stderr)
	}
}

// testSecrets: what opens doors stands in no command line, no log and nothing
// that a notebook can read.
func testSecrets(t *testing.T, a *appliance) {
	var shared map[string]string
	if err := json.Unmarshal([]byte(a.MustRun(a.ctx, "cat", "/var/lib/gpulab/hub-secrets.json")), &shared); err != nil {
		t.Fatal(err)
	}
	secrets := []string{adminPassword, guestPassword, strings.TrimSpace(a.MustRun(a.ctx, "cat", "/var/lib/gpulab/k3s/server/token"))}
	for _, value := range shared {
		if len(value) > 20 { // the client's name is none
			secrets = append(secrets, value)
		}
	}
	link, err := url.Parse(a.link)
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, link.Query().Get("token"))
	if len(secrets) < 8 {
		t.Fatalf("only %d secrets are known", len(secrets))
	}
	a.WriteFile("/root/secrets", strings.Join(secrets, "\n")+"\n")
	defer a.MustRun(a.ctx, "rm", "/root/secrets")
	for what, look := range map[string]string{
		"command lines":           `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -qaF -f /root/secrets && cat $p/comm; done`,
		"notebooks' surroundings": `for p in /proc/[0-9]*; do u=$(stat -c %u $p 2>/dev/null) && [ $u -ge 20000 ] && [ $u -lt 60000 ] && tr '\0' '\n' <$p/environ | grep -qaF -f /root/secrets && cat $p/comm; done`,
		"logs":                    `grep -rlaF -f /root/secrets /var/lib/gpulab/log /var/log/pods`,
		"homes":                   `grep -rlaF -f /root/secrets /var/lib/gpulab/homes`,
		"the machine's files":     `grep -rlaF -f /root/secrets /etc/gpulab /run/gpulab /run/systemd 2>/dev/null`,
	} {
		if found := a.Run(a.ctx, "sh", "-c", look).Stdout; found != "" {
			t.Errorf("a secret stands in %s:\n%s", what, found)
		}
	}
	// The look itself finds what there is.
	if a.Run(a.ctx, "grep", "-qaF", "-f", "/root/secrets", "/var/lib/gpulab/hub-secrets.json").Code != 0 {
		t.Error("this test finds nothing")
	}
	if logs := a.MustGpulab(a.ctx, "logs", "hub"); !strings.Contains(logs, "JupyterHub") {
		t.Errorf("gpulab logs hub:\n%.500s", logs)
	}
}
