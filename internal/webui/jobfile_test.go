package webui_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// Who comes from JupyterLab finds the form for their notebook first; what it
// submits runs that notebook in its own folder.
func TestNotebookAsJob(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	const page = "/jobs?notebook=work%2Fmy+%3Cb%3E.ipynb&kernel=pytorch.2.5.1"
	got := c.get(page)
	got.want(t, http.StatusOK, "Run work/my &lt;b&gt;.ipynb as a job", "my &lt;b&gt;.NUMBER.ipynb", `value="pytorch/2.5.1"`, `action="/jobs/notebook"`, "GPU notebook (1 GPU)", `name="script"`)
	if strings.Index(got.body, "/jobs/notebook") > strings.Index(got.body, `id="jobs"`) {
		t.Error("the form does not stand first")
	}
	form := url.Values{"notebook": {"work/my <b>.ipynb"}, "profile": {"gpu"}, "gpus": {"2"}, "time": {"8h"}, "environment": {"pytorch/2.5.1"}}
	if to := c.post(page, "/jobs/notebook", form).header.Get("Location"); to != "/jobs/1" {
		t.Fatalf("led to %q", to)
	}
	program := l.notebooks.programs[0]
	if !slices.Equal(program.Args, []string{"run-notebook", "my <b>.ipynb"}) || program.Dir != "work" || program.Script != "" {
		t.Errorf("it runs %+v", program)
	}
	form.Set("gpus", "many")
	c.post(page, "/jobs/notebook", form).want(t, http.StatusUnprocessableEntity, "whole number", "work/my &lt;b&gt;.ipynb", `value="8h"`)
	form.Set("gpus", "")
	form.Set("time", "soon")
	c.post(page, "/jobs/notebook", form).want(t, http.StatusUnprocessableEntity, "is not a time limit. Write 2h")
	// The form for scripts, which has one to choose, follows.
	if form, _, _ := strings.Cut(c.get("/jobs?notebook=top.ipynb&kernel=python3").body, `name="script"`); strings.Contains(form, `name="environment"`) {
		t.Error("the image's own Python is taken for an environment")
	}
	for notebook, why := range map[string]string{
		"": "is missing", "a\n.ipynb": "is missing", "../ada/x.ipynb": "has to lie in your home", "a/../../x.ipynb": "has to lie in your home",
		"/home/ada/x.ipynb": "has to lie in your home", "a//b.ipynb": "has to lie in your home", "train.py": "Only a notebook", "x.ipynb/": "has to lie in your home",
	} {
		c.get("/jobs?"+url.Values{"notebook": {notebook}}.Encode()).want(t, http.StatusUnprocessableEntity, why)
		form = url.Values{"notebook": {notebook}}
		c.post(page, "/jobs/notebook", form).want(t, http.StatusUnprocessableEntity, why)
	}
	if len(l.notebooks.programs) != 1 {
		t.Errorf("%d jobs", len(l.notebooks.programs))
	}
}
