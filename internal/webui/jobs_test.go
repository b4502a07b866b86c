package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// A job is submitted on its page, followed there, cancelled and run again.
func TestJobs(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/jobs").want(t, http.StatusOK, "You have no job", "gpulab submit train.sh", `name="script"`)
	c.post("/jobs", "/jobs", url.Values{"script": {""}, "name": {"keep this"}}).want(t, http.StatusUnprocessableEntity, "nothing to run", "keep this")
	c.post("/jobs", "/jobs", url.Values{"script": {"x"}, "gpus": {"one"}}).want(t, http.StatusUnprocessableEntity, "whole number")
	c.post("/jobs", "/jobs", url.Values{"script": {"x"}, "time": {"soon"}}).want(t, http.StatusUnprocessableEntity, "is no time limit; write 2h")
	got := c.post("/jobs", "/jobs", url.Values{"script": {"echo '<b>'"}, "name": {"Train <3>"}, "gpus": {"1"}, "time": {"2h"}})
	if to := got.header.Get("Location"); to != "/jobs/1" {
		t.Fatalf("led to %q: %s", to, got.body)
	}
	c.get("/jobs/1").want(t, http.StatusOK, "Train &lt;3&gt;", "Waiting for 1 GPU", "It is next in line.", "time limit 2 h", "echo &#39;&lt;b&gt;&#39;", "/events?view=job&amp;id=1", "It has said nothing yet")
	c.get("/launches/1").want(t, http.StatusSeeOther)
	c.get("/").want(t, http.StatusOK, `href="/jobs"`)
	if body := c.get("/").body; strings.Contains(body, "Train") {
		t.Error("it is listed among the notebooks")
	}
	l.client(t, "ada").get("/").want(t, http.StatusOK, "Job: Train &lt;3&gt;", "/jobs/1/cancel")

	l.notebooks.change(func(list *[]notebooks.Launch) {
		job := &(*list)[0]
		job.State, job.Reason, job.Ready = notebooks.Running, "", time.Now()
		l.notebooks.said = "\x1b[31mred\x1b[0m\n10%\r100%\n\x00\xff\x1b]0;title\x07<i>\n"
	})
	c.get("/jobs/1").want(t, http.StatusOK, "Running", "red\n100%\n\ufffd&lt;i&gt;")
	c.get("/jobs/1/log").want(t, http.StatusOK, "10%\r100%")
	l.client(t, "ada").get("/jobs/1").want(t, http.StatusOK, "Running", "Cancel")
	if body := l.client(t, "ada").get("/jobs/1").body; strings.Contains(body, "100%") || strings.Contains(body, "echo") {
		t.Error("an admin reads somebody's log or script")
	}
	l.client(t, "gus").get("/jobs/1").want(t, http.StatusNotFound)

	c.post("/jobs/1", "/jobs/1/cancel", nil).want(t, http.StatusSeeOther)
	c.post("/jobs/1", "/jobs/1/cancel", nil).want(t, http.StatusSeeOther) // twice is no error
	c.get("/jobs/1").want(t, http.StatusOK, "Cancelled", "Run again")
	if to := c.post("/jobs/1", "/jobs/1/again", nil).header.Get("Location"); to != "/jobs/2" {
		t.Errorf("again leads to %q", to)
	}
	c.get("/jobs").want(t, http.StatusOK, "/jobs/1", "/jobs/2", "cancelled", "waiting")
	entries, err := l.users.AuditEntries(t.Context(), users.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		count[e.Action]++
	}
	if count["job.submit"] != 2 || count["job.cancel"] != 1 {
		t.Errorf("the audit log has %v", count)
	}
}
