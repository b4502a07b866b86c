package webui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// someJobs are ben's: one that waits, one that runs and has said something, and
// two that have ended.
func (l *lab) someJobs() {
	l.notebooks.change(func(list *[]notebooks.Launch) {
		now := time.Now()
		job := func(title string, state notebooks.State, ago time.Duration, gpus int) *notebooks.Launch {
			id := int64(len(*list) + 1)
			*list = append(*list, notebooks.Launch{
				ID: id, UserID: 2, Handle: "ben", Name: "job", Title: title, Profile: "gpu", GPUs: gpus, State: state, Requested: now.Add(-ago),
				Job: &notebooks.Job{Limit: 24 * time.Hour, Output: fmt.Sprintf("jobs/%s-%d.log", title, id), Environment: "pytorch/2.5.1"},
			})
			return &(*list)[id-1]
		}
		waiting := job("sweep", notebooks.Waiting, 10*time.Minute, 1)
		waiting.Position, waiting.Reason = 2, "Both GPUs are in use. One is ahead of it in line."
		waiting.Holders = []notebooks.Holder{{Handle: "ada", GPUs: 1, Since: now.Add(-time.Hour)}}
		running := job("train-a-model-with-a-long-name-that-says-everything-about-it", notebooks.Running, 3*time.Hour, 1)
		running.Started, running.Ready, running.Node = now.Add(-2*time.Hour), now.Add(-2*time.Hour), "gpu-box"
		failed := job("evaluate", notebooks.Ended, 26*time.Hour, 0)
		failed.Ended, failed.EndCode, failed.Reason = now.Add(-25*time.Hour), notebooks.EndExited, "Its program ended with exit code 1. Its last line was: ValueError: no data"
		failed.Job.Retries = 1
		failed.Job.Tries = []notebooks.Try{{From: now.Add(-26 * time.Hour).UnixMilli(), Until: now.Add(-25*time.Hour - 30*time.Minute).UnixMilli(), EndCode: notebooks.EndInterrupted, Reason: "It was interrupted: its machine was shut down."}}
		held := job("report", notebooks.Waiting, 5*time.Minute, 1)
		held.Job.Held, held.Reason = true, "It waits until job 1 (sweep) and job 2 (train) have succeeded."
		held.Job.Notes, held.Job.Errors = []string{"gpulab ignores these options: --partition=gpu."}, "report.err"
		array := job("grid", notebooks.Waiting, 9*time.Minute, 1)
		array.Job.Held, array.Job.Array, array.Job.Tasks = true, "0-99%4", &notebooks.TaskCounts{Total: 100, Waiting: 99, Running: 1}
		array.Reason = "Of 100 elements: 1 running, 99 waiting."
		element := job("grid", notebooks.Running, 9*time.Minute, 1)
		element.Job.ArrayJob, element.Job.ArrayTask, element.Ready = int64(len(*list)-1), 3, now.Add(-time.Minute)
		never := job("publish", notebooks.Ended, 40*time.Hour, 0)
		never.Ended, never.EndCode, never.Reason = now.Add(-39*time.Hour), notebooks.EndDependency, "It was not run: it needs job 3 (evaluate) to succeed, and that has failed."
		done := job("download", notebooks.Ended, 50*time.Hour, 0)
		done.Ended, done.EndCode, done.Reason = now.Add(-48*time.Hour), notebooks.EndSucceeded, "It has ended well."
		l.notebooks.said = strings.Repeat("epoch 1: loss 0.71, a line that is much longer than any phone is wide, and then some more of it\n", 12)
	})
}

// A job that waits for others says so, and one that was not run is no failure.
func TestJobAfter(t *testing.T) {
	l := newLab(t)
	l.someJobs()
	c := l.client(t, "ben")
	c.get("/jobs").want(t, http.StatusOK, "It waits until job 1 (sweep) and job 2 (train) have succeeded.", "not run")
	c.get("/jobs/4").want(t, http.StatusOK, "Waiting", "It waits until job 1", "gpulab ignores these options: --partition=gpu.", "errors in report.err")
	if body := l.client(t, "ada").get("/jobs/4").body; strings.Contains(body, "--partition") {
		t.Error("an admin reads what is in somebody's script")
	}
	c.get("/jobs/3").want(t, http.StatusOK, "try 2 of 2", "Tries before this one", "It was interrupted: its machine was shut down.", "30 min")
	if body := c.get("/jobs/4").body; strings.Contains(body, "Waiting for 1 GPU") {
		t.Error("it is said to wait for a GPU")
	}
	if body := c.get("/jobs").body; strings.Count(body, "grid") == 0 || strings.Contains(body, "5_3") {
		t.Error("an array is not one row")
	}
	c.get("/jobs/5").want(t, http.StatusOK, "Running", "Of 100 elements: 1 running, 99 waiting.", "elements 0-99%4", "5_3", `href="/jobs/6"`)
	c.get("/jobs/6").want(t, http.StatusOK, "5_3", "All elements", `href="/jobs/5"`)
	c.get("/jobs/7").want(t, http.StatusOK, "It was not run", "and that has failed.", "Run again")
}

// A job is submitted on its page, followed there, cancelled and run again.
func TestJobs(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/jobs").want(t, http.StatusOK, "You have no job", "gpulab submit train.sh", `name="script"`)
	c.post("/jobs", "/jobs", url.Values{"script": {""}, "name": {"keep this"}}).want(t, http.StatusUnprocessableEntity, "nothing to run", "keep this")
	c.post("/jobs", "/jobs", url.Values{"script": {"x"}, "gpus": {"one"}}).want(t, http.StatusUnprocessableEntity, "whole number")
	c.post("/jobs", "/jobs", url.Values{"script": {"x"}, "time": {"soon"}}).want(t, http.StatusUnprocessableEntity, "is not a time limit. Write 2h")
	bad := c.post("/jobs", "/jobs", url.Values{"script": {"x"}, "retries": {"often"}, "array": {"a-b"}, "after": {"yesterday"}, "environment": {"none/1"}})
	bad.want(t, http.StatusUnprocessableEntity, "How often it is started again is a whole number", "is not a list of array elements", "is not a list of jobs", `value="none/1" selected`, "open>")
	if strings.Index(bad.body, `id="script"`) > strings.Index(bad.body, `id="jobs"`) {
		t.Error("the form stands behind the list, where nobody sees what is wrong")
	}
	got := c.post("/jobs", "/jobs", url.Values{"script": {"echo '<b>'"}, "name": {"Train <3>"}, "gpus": {"1"}, "time": {"2h"}, "retries": {"2"}, "array": {"0-9%2"}, "after": {"afterany:7"}, "environment": {"small/1"}})
	if to := got.header.Get("Location"); to != "/jobs/1" {
		t.Fatalf("led to %q: %s", to, got.body)
	}
	if r := l.notebooks.asked[0]; *r.Retries != 2 || r.Array != "0-9%2" || r.Environment != "small/1" || len(r.After) != 1 || r.After[0] != (notebooks.Dependency{Job: 7, Any: true}) || r.Limit != 2*time.Hour {
		t.Errorf("it asks for %+v", r)
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
	entries, err := l.users.AuditLog().List(t.Context(), audit.Filter{})
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
