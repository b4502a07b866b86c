package webui_test

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

func (l *lab) record(t testing.TB, entries ...audit.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := l.users.AuditLog().Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAuditPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/").want(t, http.StatusOK, `href="/audit"`)
	c.get("/audit").want(t, http.StatusOK, "Nothing fits", strings.Repeat("0", 64))
	if strings.Contains(l.client(t, "lea").get("/").body, `href="/audit"`) {
		t.Error("a lead is led to the audit log")
	}
	for i := range 120 {
		l.record(t, audit.Entry{Actor: "ada", Action: "user.add", Target: fmt.Sprintf("user-%03d", i), Remote: "10.0.0.7"})
	}
	l.record(t, audit.Entry{Actor: "ben", Action: "sign-in", Target: "ben", Detail: `<script>"`, Remote: "10.0.0.8"})
	page := c.get("/audit")
	page.want(t, http.StatusOK, "&lt;script&gt;", "signed in", "user-119", "added a person")
	if strings.Contains(page.body, "user-070") || strings.Index(page.body, "user-119") > strings.Index(page.body, "user-118") {
		t.Error("not the newest 50 first")
	}
	link := func(body, text string) string {
		at := strings.Index(body, ">"+text+"</a>")
		if at < 0 {
			t.Fatalf("no link %q", text)
		}
		from := strings.LastIndex(body[:at], `href="`) + len(`href="`)
		return strings.ReplaceAll(body[from:from+strings.IndexByte(body[from:], '"')], "&amp;", "&")
	}
	seen := map[string]bool{}
	for path := "/audit?person=ada"; ; {
		page := c.get(path)
		for i := range 120 {
			if name := fmt.Sprintf("user-%03d", i); strings.Contains(page.body, name) {
				if seen[name] {
					t.Errorf("%s twice", name)
				}
				seen[name] = true
			}
		}
		if !strings.Contains(page.body, ">Older</a>") {
			if link(page.body, "Newest") != "/audit?person=ada" {
				t.Error("no way back that keeps the filter")
			}
			break
		}
		path = link(page.body, "Older")
	}
	if len(seen) != 120 {
		t.Errorf("paging shows %d of 120", len(seen))
	}
	for query, want := range map[string][2]string{
		"person=ben":                               {"signed in", "user-119"},
		"action=user.add&address=10.0.0":           {"Nothing fits", "user-119"},
		"address=10.0.0.":                          {"user-119", "Nothing fits"},
		"address=10.0.0.8":                         {"signed in", "user-119"},
		"since=2001-01-01":                         {"user-119", "Nothing fits"},
		"until=2001-01-01":                         {"Nothing fits", "user-119"},
		"since=yesterday":                          {"A day is written as", "Nothing fits"},
		"person=" + url.QueryEscape("' OR 1=1 --"): {"Nothing fits", "user-119"},
	} {
		got := c.get("/audit?" + query)
		got.want(t, http.StatusOK, want[0])
		if table := got.body[strings.Index(got.body, "entries-title"):]; strings.Contains(table, want[1]) {
			t.Errorf("%s shows %q", query, want[1])
		}
	}
	c.get("/audit?before=x").want(t, http.StatusNotFound)
	c.get("/audit?before=-1").want(t, http.StatusNotFound)
}

func TestAuditExport(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	l.record(t, audit.Entry{Actor: "ben", Action: "sign-in", Target: "ben", Detail: "=cmd|calc"}, audit.Entry{Actor: "lea", Action: "sign-in", Target: "lea"})
	got := c.post("/audit", "/audit/export", url.Values{"format": {"csv"}, "person": {"ben"}})
	got.want(t, http.StatusOK)
	if d := got.header.Get("Content-Disposition"); !strings.Contains(d, `attachment; filename="gpulab-audit-`) || !strings.HasSuffix(d, `.csv"`) {
		t.Error(d)
	}
	rows, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
	if err != nil || len(rows) != 2 || rows[1][2] != "ben" || rows[1][5] != "'=cmd|calc" {
		t.Errorf("%q, %v", rows, err)
	}
	got = c.post("/audit", "/audit/export", url.Values{"format": {"json"}})
	got.want(t, http.StatusOK, `"complete": true`)
	check, err := audit.CheckExport(strings.NewReader(got.body), nil)
	if err != nil || check.Entries != 4 {
		t.Errorf("%+v, %v", check, err)
	}
	log := l.users.audit(t)
	if e := log[len(log)-2]; e.Actor != "ada" || e.Action != "audit.export" || e.Detail != "csv, of person ben" {
		t.Errorf("%+v", e)
	}
	c.post("/audit", "/audit/export", url.Values{"format": {"xml"}}).want(t, http.StatusNotFound)
}

// What people do with notebooks is recorded, and to whom; the title is not.
func TestNotebooksAreRecorded(t *testing.T) {
	l := newLab(t)
	if _, err := l.users.CreateGroup(t.Context(), "class", ""); err != nil {
		t.Fatal(err)
	}
	for id, lead := range map[int64]bool{2: false, 3: true} {
		if err := l.users.SetMember(t.Context(), "class", id, lead); err != nil {
			t.Fatal(err)
		}
	}
	ben, lea := l.client(t, "ben"), l.client(t, "lea")
	ben.post("/", "/launch", url.Values{"profile": {"cpu"}, "title": {"my secret thesis"}}).want(t, http.StatusSeeOther)
	lea.post("/", "/launches/1/stop", nil).want(t, http.StatusSeeOther)
	lea.post("/", "/launches/1/stop", nil).want(t, http.StatusSeeOther) // has ended: nothing is done
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = append(*list, notebooks.Launch{ID: 2, UserID: 2, Handle: "ben", Profile: "gpu", State: notebooks.Waiting})
	})
	ben.post("/", "/launches/2/cancel", nil).want(t, http.StatusSeeOther)
	ben.post("/", "/logout", nil).want(t, http.StatusSeeOther)
	if got, want := actions(t, l), "ben notebook.launch ben, lea notebook.stop ben, ben notebook.cancel ben, ben sign-out ben"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if log := fmt.Sprint(l.users.audit(t)); strings.Contains(log, "thesis") || !strings.Contains(log, "launch 1, profile cpu") {
		t.Error(log)
	}
}

// traces are what people leave behind in a lab: browsers, tokens and entries of the audit log.
func (l *lab) traces(t testing.TB) {
	t.Helper()
	for _, agent := range []string{"Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/140.0 Safari/537.36", "Mozilla/5.0 (iPad; CPU OS 18_5 like Mac OS X) Safari/604.1"} {
		if _, err := l.users.StartSession(t.Context(), 2, users.SessionMeta{Remote: "2001:db8:85a3::8a2e:370:7334", UserAgent: agent}); err != nil {
			t.Fatal(err)
		}
	}
	l.accessToken(t, "ben", users.ScopeLaunch)
	l.accessToken(t, "ben", users.ScopeFull)
	l.users.exec(t, "UPDATE api_tokens SET last_used_at = created_at, last_remote = '192.0.2.17', name = 'nightly job on the cluster of the physics department' WHERE id = 1")
	l.users.exec(t, "UPDATE api_tokens SET expires_at = 1 WHERE id = 2")
	for i := range 30 {
		l.record(t,
			audit.Entry{Actor: "ada", Action: "user.role", Target: "ben", Detail: "from guest to member", Remote: "10.0.0.7"},
			audit.Entry{Actor: "system", Action: "sign-in.failed-often", Target: "ben", Detail: "295 more failed sign-ins; the last one: wrong password", Remote: "2001:db8:85a3::8a2e:370:7334"},
			audit.Entry{Actor: "somebody-with-a-long-name-of-30", Action: "notebook.launch", Target: "somebody-with-a-long-name-of-30", Detail: fmt.Sprintf("launch %d, profile gpu", i), Remote: "10.0.0.9"})
	}
}
