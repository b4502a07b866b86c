//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// TestAccounts is a lab whose people come and go: who may do what to whom, and the ways in and out.
//
//test:about internal/users internal/signin cmd/gpulab-client internal/client internal/transfer internal/sftpd
func TestAccounts(t *testing.T) {
	t.Parallel()
	ready(t, classConfig).live(t, []chapter{
		{"a seminar", testSeminar, true},
		{"a lead", testLead, false},
		{"suspended", testSuspended, false},
		{"removed and back", testRemovedAndBack, false},
		{"an invitation", testInvitation, false},
		{"asking for an account", testAsking, false},
		{"an access token", testToken, false},
		{"a student's terminal", testStudentTerminal, false},
		{"bring files in", testBringFilesIn, false},
		{"the audit log", testAudit, false},
	})
}

// testSeminar: a list is brought in by the command line as by the page; its links work, and each of the people starts a
// notebook.
func testSeminar(t *testing.T, a *appliance) {
	const size = 3
	a.WriteFile("/root/seminar.csv", classList(size))
	printed := a.MustGpulab(a.ctx, "user", "import", "/root/seminar.csv", "--group", "seminar", "--make-groups", "--json")
	var made struct {
		Links []struct{ Handle, Name, URL string }
	}
	if err := json.Unmarshal([]byte(printed), &made); err != nil || len(made.Links) != size {
		t.Fatalf("user import: %v\n%s", err, printed)
	}
	for _, one := range made.Links {
		a.redeem(t, one.URL, person{one.Handle, one.Name, studentPassword(one.Handle)})
		launchBy(t, signIn(t, a, one.Handle, studentPassword(one.Handle)), "cpu", "Exercise")
	}
	a.eventually(t, "all of them have a notebook", func() bool { return a.running(t, "Exercise") == size })
}

// testLead: who leads a group ends its members' notebooks, and nobody else's.
func testLead(t *testing.T, a *appliance) {
	a.MustGpulab(a.ctx, "group", "member", "add", "seminar", guestHandle, "--lead")
	client := signIn(t, a, guestHandle, guestPassword)
	stop := stopOf(t, client, "student-number-1")
	if stop == "" {
		t.Fatal("the lead is offered no way to stop a member's notebook")
	}
	// Out of the group, out of reach: at once, with the page still open.
	a.MustGpulab(a.ctx, "group", "member", "remove", "seminar", "student-number-1")
	if status, body := sendForm(t, client, "/", stop, url.Values{}); status != http.StatusNotFound {
		t.Errorf("a lead stops a notebook of somebody outside the group: status %d\n%.300s", status, body)
	}
	a.MustGpulab(a.ctx, "group", "member", "add", "seminar", "student-number-1")
	before := a.running(t, "Exercise")
	if status, body := sendForm(t, client, "/", stop, url.Values{}); status != http.StatusSeeOther {
		t.Errorf("a lead stops a member's notebook: status %d\n%.300s", status, body)
	}
	a.eventually(t, "it is stopped", func() bool { return a.running(t, "Exercise") == before-1 })
	for _, page := range []string{"/users", "/quotas", "/status"} {
		if status, _, _ := request(t, client, "GET", pages+page, nil); status != http.StatusForbidden && page != "/users" {
			t.Errorf("a lead opens %s: status %d", page, status)
		}
	}
}

// testSuspended: a suspension ends everything at once, and its end brings the
// account back.
func testSuspended(t *testing.T, a *appliance) {
	const handle = "student-number-2"
	client := signIn(t, a, handle, studentPassword(handle))
	before := a.running(t, "Exercise")
	a.MustGpulab(a.ctx, "user", "suspend", handle)
	if status, _, to := request(t, client, "GET", pages+"/", nil); status != http.StatusSeeOther || !strings.HasPrefix(to, "/login") {
		t.Errorf("a suspended person's page: status %d, to %q", status, to)
	}
	if status, _ := tryPassword(t, a.HTTPClient(a.ca), handle, studentPassword(handle)); status == http.StatusSeeOther {
		t.Error("a suspended person signs in")
	}
	a.eventually(t, "the notebook is stopped", func() bool { return a.running(t, "Exercise") == before-1 })
	a.MustGpulab(a.ctx, "user", "resume", handle)
	signIn(t, a, handle, studentPassword(handle))
	checkFailure(t, a.Gpulab(a.ctx, "user", "suspend", adminHandle), 1, "only admin")
}

// testRemovedAndBack: a removed account comes back with its home; one that is
// deleted for good leaves nothing, whatever its owner put there.
func testRemovedAndBack(t *testing.T, a *appliance) {
	const handle = "student-number-3"
	uid := strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", a.Binary()+` user list --json | python3 -c 'import json,sys; print(next(u["id"] for u in json.load(sys.stdin) if u["handle"] == "`+handle+`"))'`))
	home := "/var/lib/gpulab/homes/" + uid
	a.MustRun(a.ctx, "sh", "-c", "echo thesis > "+home+"/thesis.txt && mkdir -p /root/precious && echo kept > /root/precious/file && ln -s /root/precious "+home+"/link")
	if result := a.Gpulab(a.ctx, "user", "remove", handle); result.Code == 0 {
		t.Error("a removal without a terminal does not ask for --yes")
	}
	a.MustGpulab(a.ctx, "user", "remove", "--yes", handle)
	if status, _ := tryPassword(t, a.HTTPClient(a.ca), handle, studentPassword(handle)); status == http.StatusSeeOther {
		t.Error("a removed person signs in")
	}
	a.eventually(t, "the namespace is gone", func() bool { return a.Gpulab(a.ctx, "kubectl", "get", "namespace", "user-"+handle).Code != 0 })
	if got := a.MustGpulab(a.ctx, "user", "list", "--removed"); !strings.Contains(got, handle) {
		t.Errorf("user list --removed: %s", got)
	}
	a.MustGpulab(a.ctx, "user", "undelete", handle)
	signIn(t, a, handle, studentPassword(handle))
	if got := a.MustRun(a.ctx, "cat", home+"/thesis.txt"); got != "thesis\n" {
		t.Errorf("the home came back with %q", got)
	}
	a.MustGpulab(a.ctx, "user", "remove", "--yes", "--purge", handle)
	a.eventually(t, "the home is deleted", func() bool { return a.Run(a.ctx, "test", "-e", home).Code != 0 })
	if got := a.MustRun(a.ctx, "cat", "/root/precious/file"); got != "kept\n" {
		t.Errorf("what a link in the home led to is %q", got)
	}
	if left := a.MustRun(a.ctx, "ls", "-A", "/var/lib/gpulab/homes"); strings.Contains(left, "purge") {
		t.Errorf("left of it: %s", left)
	}
}

// testInvitation: a link with one use makes one account.
func testInvitation(t *testing.T, a *appliance) {
	b := a.browser.For(t)
	b.Open(pages + "/invitations")
	b.WaitFor("the number of uses", `(() => { const f = document.querySelector("input[name=uses]"); if (!f) return false; f.value = "1"; return true })()`)
	b.Click("main", "Make the link")
	b.WaitFor("the link", `document.querySelector("#link")?.value`)
	link := lab.Evaluate[string](b, `() => document.querySelector("#link").value`)
	b.Pictures("invitation")
	visitor := b.Private().For(t)
	visitor.Open(link)
	createAccount(visitor, "Zoë Ångström", "zoe", "seven grey old boats")
	if status, _, _ := request(t, a.HTTPClient(a.ca), "GET", link, nil); status != http.StatusGone {
		t.Errorf("a used-up invitation: status %d", status)
	}
}

// testAsking: who has no invitation asks; the command line decides, as pages do.
func testAsking(t *testing.T, a *appliance) {
	for _, handle := range []string{"wanda", "mallory"} {
		status, body := sendForm(t, a.HTTPClient(a.ca), "/signup", "/signup", url.Values{"name": {"Somebody new"}, "handle": {handle}, "note": {"for the seminar"},
			"password": {"five round blue stones"}, "again": {"five round blue stones"}})
		if status/100 > 3 {
			t.Fatalf("%s asks for an account: status %d\n%.500s", handle, status, body)
		}
	}
	if status, _ := tryPassword(t, a.HTTPClient(a.ca), "wanda", "five round blue stones"); status == http.StatusSeeOther {
		t.Error("somebody signs in before an admin has decided")
	}
	if got := a.MustGpulab(a.ctx, "request", "list"); !strings.Contains(got, "wanda") || !strings.Contains(got, "for the seminar") {
		t.Errorf("request list: %s", got)
	}
	a.MustGpulab(a.ctx, "request", "approve", "1", "--group", "seminar")
	a.MustGpulab(a.ctx, "request", "decline", "2")
	checkFailure(t, a.Gpulab(a.ctx, "request", "approve", "2"), 1, "not there any more")
	checkFailure(t, a.Gpulab(a.ctx, "request", "approve", "two"), 2, "request list")
	signIn(t, a, "wanda", "five round blue stones")
	if status, _ := tryPassword(t, a.HTTPClient(a.ca), "mallory", "five round blue stones"); status == http.StatusSeeOther {
		t.Error("who was declined signs in")
	}
	checkFailure(t, a.Gpulab(a.ctx, "invitation", "add", "--uses", "501"), 1, "1 to 500")
	printed := a.MustGpulab(a.ctx, "invitation", "add", "--role", "guest", "--uses", "2")
	link := joinLink.FindString(printed)
	if status, _, _ := request(t, a.HTTPClient(a.ca), "GET", pages+link, nil); link == "" || status != http.StatusOK {
		t.Errorf("the link of the command line: status %d\n%s", status, printed)
	}
	if got := a.MustGpulab(a.ctx, "invitation", "list"); !strings.Contains(got, "0 of 2") || !strings.Contains(got, "used up") {
		t.Errorf("invitation list: %s", got)
	}
	a.MustGpulab(a.ctx, "invitation", "revoke", "2")
	if status, _, _ := request(t, a.HTTPClient(a.ca), "GET", pages+link, nil); status != http.StatusGone {
		t.Errorf("an invitation that was taken back: status %d", status)
	}
}

// testToken: an access token does what its scope allows, on the API alone, and
// nothing once it is revoked.
func testToken(t *testing.T, a *appliance) {
	b := a.browser.For(t)
	b.Open(pages + "/account")
	b.Pictures("account")
	b.Fill("What it is for", "a script")
	b.Click("main", "Make the token")
	b.WaitFor("the token", `document.querySelector("#secret")?.value`)
	token := lab.Evaluate[string](b, `() => document.querySelector("#secret").value`)
	ask := func(path string) int {
		r, err := http.NewRequest(http.MethodGet, pages+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := a.HTTPClient(a.ca).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if got := ask("/api/v1/gpus"); got != http.StatusOK {
		t.Errorf("the API with a token: status %d", got)
	}
	for _, path := range []string{"/users", "/quotas"} {
		if got := ask(path); got == http.StatusOK {
			t.Errorf("%s opens with a token", path)
		}
	}
	if got := strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", "grep -rlF '"+token+"' /var/lib/gpulab/log /var/lib/gpulab/*.db* || true")); got != "" {
		t.Errorf("the token stands in %s", got)
	}
	b.Open(pages + "/account")
	b.Click("main", "Revoke a script")
	b.Click("dialog[open]", "Revoke")
	b.WaitFor("the page without it", `!document.querySelector("dialog[open]") && !document.querySelector("main").innerText.includes("a script")`)
	if got := ask("/api/v1/gpus"); got != http.StatusUnauthorized {
		t.Errorf("the API with a revoked token: status %d", got)
	}
}

// testAudit: what was done is in the log, and a log that somebody changed
// behind gpulab's back is found out.
func testAudit(t *testing.T, a *appliance) {
	if got := a.MustGpulab(a.ctx, "audit", "verify"); !strings.Contains(got, "unbroken") {
		t.Errorf("audit verify: %s", got)
	}
	b := a.browser.For(t)
	b.Open(pages + "/audit")
	b.WaitText("main", "zoe")
	b.Pictures("audit")
	a.checkAudited(t, "user.remove", "user.suspend", "user.import")
	a.MustRun(a.ctx, "python3", "-c", `import sqlite3
db = sqlite3.connect("/var/lib/gpulab/gpulab.db", timeout=20)
for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'").fetchall():
    db.execute("DROP TRIGGER " + name)
db.execute("UPDATE audit SET actor = 'nobody' WHERE action = 'user.suspend'")
db.commit()`)
	checkFailure(t, a.Gpulab(a.ctx, "audit", "verify"), 1, "broken at entry", "user.suspend", "it was changed")
}

// checkAudited checks that the audit log has entries of these actions.
func (a *appliance) checkAudited(t *testing.T, actions ...string) {
	t.Helper()
	export := a.MustGpulab(a.ctx, "audit", "export", "--json")
	for _, action := range actions {
		if !strings.Contains(export, `"`+action+`"`) {
			t.Errorf("%s is not in the audit log", action)
		}
	}
}
