//go:build e2e

package e2e

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestClass is a lab with many people: who may do what to whom, how much each
// may use, and the ways in and out.
//
//test:alone
//test:about internal/users internal/quota internal/signin cmd/gpulab-client internal/client internal/transfer internal/sftpd
func TestClass(t *testing.T) {
	// Not beside others: thirty browsers and notebooks need what processors there are.
	ready(t, classConfig).live(t, []chapter{
		{"quotas", testQuotas, false},
		{"used-up hours", testHoursUsedUp, false}, // the grace period goes on below
		{"a class from a list", testClassFromList, true},
		{"after the grace period", testGraceIsOver, false},
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

// classConfig gives people whose hours are used up little time, and lets thirty
// notebooks onto two cores.
const classConfig = `
lab: Class lab
gpus: simulated
simulatedGPUs: 2
signUp: approval
profiles:
  - {slug: cpu, title: CPU notebook, cpus: 2, memory: 2Gi, cpuRequest: 0.01, memoryRequest: 128Mi}
  - {slug: gpu, title: GPU notebook, cpus: 2, memory: 4Gi, gpus: 1, cpuRequest: 0.01, memoryRequest: 128Mi}
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
}

const (
	// classSize is how many people the list has; all of them start a notebook.
	classSize = 30
	// classCells is how many of them run a cell in JupyterLab, which takes ten seconds of two processors each.
	classCells = 10
)

// studentPassword is what the students of the list choose.
func studentPassword(handle string) string { return "a password for " + handle }

var slipPattern = regexp.MustCompile(`<dd class="mono">([a-z0-9-]+)</dd>(?s:.*?)<dd class="mono">(https://[^<]+)</dd>`)

// mostClicks is how many a class may take from the list until a student works.
const mostClicks = 9

// testClassFromList: a list becomes a class at work. Everybody in it has a
// browser of their own.
func testClassFromList(t *testing.T, a *appliance) {
	list := "\ufeffName;Notes;Email\r\n"
	for i := range classSize {
		list += fmt.Sprintf("\"Student, Number %d\";x;s%d@lab.example\r\n", i+1, i+1)
	}
	b := a.browser.For(t).Tab()
	fill := func(text string) {
		b.WaitFor("the form", `(() => { const f = document.querySelector("#text"); if (!f) return false; f.value = `+strconv.Quote(text)+`; document.querySelector("#new-group").value = "seminar"; return true })()`)
	}
	b.Open(pages + "/users/import")
	fill(list + "\"An unfinished row;x;y\r\n")
	b.Click("main", "See what would happen")
	b.WaitText("main", "quot")
	if got := a.MustGpulab(a.ctx, "user", "list"); strings.Contains(got, "student-number-1") {
		t.Fatalf("a list with an error was imported in part:\n%s", got)
	}
	b.Open(pages + "/")
	earlier := b.Clicks()
	b.Click("nav", "Users")
	b.Click("main", "Import a list")
	fill(list)
	b.Click("main", "See what would happen")
	b.WaitText("main", "student-number-30")
	b.Pictures("import")
	b.Click("main", "Import 30 people")
	b.WaitText("main", "The links are shown only now.")
	admins := b.Clicks() - earlier
	b.Pictures("links")
	slips := slipPattern.FindAllStringSubmatch(lab.Evaluate[string](b, `() => document.querySelector(".slips").innerHTML`), -1)
	if len(slips) != classSize {
		t.Fatalf("%d slips for %d people", len(slips), classSize)
	}
	c := class{began: time.Now(), admins: admins, hands: make(chan struct{}, 2)}
	var students sync.WaitGroup
	for _, slip := range slips {
		handle, link := slip[1], html.UnescapeString(slip[2])
		students.Go(func() { t.Run(handle, func(t *testing.T) { c.student(t, a, handle, link) }) })
	}
	students.Wait()
	a.eventually(t, "all of the class have a notebook", func() bool { return a.running(t, "Exercise") == classSize })
	if got := a.MustGpulab(a.ctx, "group", "show", "seminar"); !strings.Contains(got, "student-number-30") {
		t.Errorf("group show: %s", got)
	}
}

// class is the students' way to work.
type class struct {
	began  time.Time
	admins int // clicks before the students' first
	// hands bounds how many of them look at their pages at once: all of them wait
	// for their notebooks together, but their browsers run on the lab's own
	// processors here.
	hands                chan struct{}
	started, cells, done atomic.Int32
}

// student follows the link of one person's slip, launches a notebook and runs a
// cell in it, in a browser with cookies of its own.
func (c *class) student(t *testing.T, a *appliance, handle, link string) {
	b := a.browser.For(t).Private().Patient(5 * lab.Patience)
	c.withHands(func() {
		choosePassword(b, link, studentPassword(handle))
		b.Fill("Title", "Exercise")
		b.Click(".launches", "Start CPU notebook")
		b.WaitFor("the progress page", `location.pathname.startsWith("/launches/") || location.pathname.startsWith("/user/")`)
		b.Open("about:blank")
	})
	c.note(t, &c.started, classSize, "have started a notebook")
	if c.cells.Add(1) > classCells {
		return
	}
	c.withHands(func() {
		b.Open(pages + "/")
		b.Click("#mine", "Open Exercise")
		waitJupyterLab(b, handle)
		if got := typeCell(b, "print(6 * 7)"); got != "42" {
			t.Errorf("the cell says %q", got)
		}
	})
	c.note(t, &c.done, classCells, "have run a cell")
	if clicks := c.admins + b.Clicks(); clicks > mostClicks {
		t.Errorf("from the list to the cell it took %d clicks: %d of the admin's and %d of the student's", clicks, c.admins, b.Clicks())
	} else if c.done.Load() == classCells {
		t.Logf("clicks: %d of the admin's, %d of each student's", c.admins, b.Clicks())
	}
}

func (c *class) withHands(work func()) {
	c.hands <- struct{}{}
	defer func() { <-c.hands }()
	work()
}

// note counts who got how far, and says when half of the class and all have.
func (c *class) note(t *testing.T, count *atomic.Int32, of int32, what string) {
	if n := count.Add(1); n == of/2 || n == of {
		t.Logf("%d students %s %s after their links were shown", n, what, time.Since(c.began).Round(time.Second))
	}
}

// running counts the notebooks of a title that run, as the admin's page has them.
func (a *appliance) running(t *testing.T, title string) int {
	t.Helper()
	_, body, _ := request(t, a.admin(t), "GET", pages+"/", nil)
	n := 0
	for _, row := range strings.Split(body, "<tr")[1:] {
		if strings.Contains(row, title) && strings.Contains(row, ">running<") {
			n++
		}
	}
	return n
}

// admin is a session of the administrator's, made once.
func (a *appliance) admin(t *testing.T) *http.Client {
	t.Helper()
	if a.adminClient == nil {
		a.adminClient = signIn(t, a, adminHandle, adminPassword)
	}
	return a.adminClient
}

// stopOf finds the action that ends somebody's notebook.
func stopOf(t *testing.T, client *http.Client, handle string) string {
	t.Helper()
	_, body, _ := request(t, client, "GET", pages+"/", nil)
	for _, row := range strings.Split(body, "<tr")[1:] {
		if strings.Contains(row, ">"+handle+"<") {
			if found := regexp.MustCompile(`action="(/launches/\d+/stop)"`).FindStringSubmatch(row); found != nil {
				return found[1]
			}
		}
	}
	return ""
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
	export := a.MustGpulab(a.ctx, "audit", "export", "--json")
	for _, action := range []string{"user.remove", "user.suspend", "quota.set", "quota.stop", "user.import"} {
		if !strings.Contains(export, `"`+action+`"`) {
			t.Errorf("%s is not in the audit log", action)
		}
	}
	a.MustRun(a.ctx, "python3", "-c", `import sqlite3
db = sqlite3.connect("/var/lib/gpulab/gpulab.db", timeout=20)
for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'").fetchall():
    db.execute("DROP TRIGGER " + name)
db.execute("UPDATE audit SET actor = 'nobody' WHERE action = 'user.suspend'")
db.commit()`)
	checkFailure(t, a.Gpulab(a.ctx, "audit", "verify"), 1, "broken at entry", "user.suspend", "it was changed")
}
