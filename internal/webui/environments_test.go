package webui_test

import (
	"bytes"
	"context"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/environments"
)

// An environment is built from the page, chosen, exported, removed and brought in again; the audit log tells of each.
func TestEnvironments(t *testing.T) {
	l := newLab(t)
	if os.Geteuid() != 0 {
		t.Skip("only root gives an environment's files to everybody")
	}
	c := l.client(t, "ada")
	c.get("/environments").want(t, http.StatusOK, "No environments yet", "From the catalogue", "PyTorch", "data-science", "/events?view=environments", "gpulab run --env NAME")

	begun, release := l.environments.Hold()
	c.post("/environments", "/environments", url.Values{"from": {"pytorch"}}).want(t, http.StatusSeeOther)
	<-begun
	c.get("/environments").want(t, http.StatusOK, "Building pytorch/", "Finding out which packages that takes.", "Collecting humanize", "Begun by ada.", "Cancel the build", "disabled")
	c.post("/environments", "/environments", url.Values{"name": {"other"}, "requirements": {"humanize"}}).want(t, http.StatusConflict, "is being built, and one is built at a time", `value="other"`, "humanize")
	c.post("/environments", "/environments/cancel", nil).want(t, http.StatusSeeOther)
	l.environments.Wait(t)
	c.get("/environments").want(t, http.StatusOK, "There is no pytorch/", "It was ended before it was done")
	c.post("/environments", "/environments/cancel", nil).want(t, http.StatusSeeOther) // nothing is built, as was wanted
	release()

	l.environments.Fail("No matching distribution found for humanise")
	c.post("/environments", "/environments", url.Values{"name": {"small"}, "requirements": {"humanise"}}).want(t, http.StatusSeeOther)
	l.environments.Wait(t)
	c.get("/environments").want(t, http.StatusOK, "There is no small/", "was not built: No matching distribution found for humanise", "What the last build said")
	l.environments.Fail("")

	for _, wrong := range []struct {
		form url.Values
		code int
		says string
	}{
		{url.Values{"name": {"../x"}, "requirements": {"humanize"}}, http.StatusUnprocessableEntity, "cannot be an environment"},
		{url.Values{"name": {"small"}, "requirements": {" "}}, http.StatusUnprocessableEntity, "Nothing is asked for"},
		{url.Values{"name": {"small"}, "requirements": {"humanize"}, "index": {"https://me:secret@example.org/simple"}}, http.StatusUnprocessableEntity, "may not hold a name or a password"},
		{url.Values{"name": {"small"}, "requirements": {"humanize"}, "cuda": {"99.0"}}, http.StatusConflict, "CUDA 99.0"},
		{url.Values{"from": {"nothing"}}, http.StatusNotFound, "The catalogue has no"},
	} {
		c.post("/environments", "/environments", wrong.form).want(t, wrong.code, wrong.says)
	}

	c.post("/environments", "/environments", url.Values{"name": {"small"}, "title": {"Small <one>"}, "version": {"1"}, "requirements": {"humanize\r\n"}, "cuda": {"99.0"}, "anyway": {"yes"}}).want(t, http.StatusSeeOther)
	l.environments.Wait(t)
	c.get("/environments").want(t, http.StatusOK, "small/1", "Small &lt;one&gt;", "CUDA 99.0", "is built, in")
	c.get("/environments/small/1").want(t, http.StatusOK, "Small &lt;one&gt; (1)", "/opt/gpulab/environments/small/1", "humanize", "4.9.0", "nobody right now", "#GPULAB --env=small/1", "Remove this environment", "/events?view=environment&amp;id=small/1")
	c.get("/environments/small/2").want(t, http.StatusNotFound)
	c.get("/environments/small/1/lock").want(t, http.StatusOK, "humanize==4.9.0 --hash=sha256:ce")
	c.get("/jobs").want(t, http.StatusOK, `value="small/1"`)

	c.post("/environments/small/1", "/environments/default", url.Values{"environment": {"small/1"}}).want(t, http.StatusSeeOther)
	c.get("/environments").want(t, http.StatusOK, ">default<")
	c.post("/environments/small/1", "/environments/default", url.Values{"environment": {"small/9"}}).want(t, http.StatusNotFound, "There is no environment small/9")
	c.post("/environments/small/1", "/environments/default", nil).want(t, http.StatusSeeOther)
	if strings.Contains(c.get("/environments").body, ">default<") {
		t.Error("it is the default still")
	}

	file := c.get("/environments/small/1/file")
	file.want(t, http.StatusOK)
	if name := file.header.Get("Content-Disposition"); name != `attachment; filename="small-1.env"` {
		t.Errorf("its file is called %s", name)
	}
	l.environments.Use(environments.Use{Environment: "small/1", Handle: "ben", Notebook: "thesis"})
	c.get("/environments/small/1").want(t, http.StatusOK, "ben/thesis", "those programs fail at the next thing that they import", `name="force"`)
	c.post("/environments/small/1", "/environments/small/1/remove", nil).want(t, http.StatusConflict, "is in use: ben/thesis")
	if to := c.post("/environments/small/1", "/environments/small/1/remove", url.Values{"force": {"yes"}}).header.Get("Location"); to != "/environments?done=removed" {
		t.Errorf("removed, one is led to %q", to)
	}
	c.get("/environments?done=removed").want(t, http.StatusOK, "The environment is removed.", "No environments yet")
	c.post("/environments", "/environments/small/1/remove", nil).want(t, http.StatusNotFound)

	token := c.token("/environments")
	c.bring(token, []byte(file.body[:len(file.body)/2])).want(t, http.StatusUnprocessableEntity, "cut short or damaged")
	c.bring(token, []byte("PK\x03\x04")).want(t, http.StatusUnprocessableEntity, "This file holds no environment")
	c.bring("guessed", []byte(file.body)).want(t, http.StatusForbidden, "This form was not accepted")
	c.get("/environments").want(t, http.StatusOK, "No environments yet")
	if to := c.bring(token, []byte(file.body)).header.Get("Location"); to != "/environments/small/1" {
		t.Errorf("brought in, one is led to %q", to)
	}
	c.bring(token, []byte(file.body)).want(t, http.StatusConflict, "There is an environment small/1 already")
	c.get("/environments/small/1").want(t, http.StatusOK, "Small &lt;one&gt;")

	entries, err := l.users.AuditLog().List(t.Context(), audit.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		if strings.HasPrefix(e.Action, "environment.") && e.Actor == "ada" {
			count[e.Action]++
		}
	}
	if count["environment.create"] != 1 || count["environment.default"] != 2 || count["environment.remove"] != 1 || count["environment.import"] != 1 {
		t.Errorf("the audit log has %v", count)
	}
}

// bring sends a file as the form does.
func (c *client) bring(token string, file []byte) answer {
	c.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	_ = w.WriteField("csrf", token)
	part, err := w.CreateFormFile("file", "small.env")
	if err == nil {
		_, err = part.Write(file)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return c.doBody(http.MethodPost, "/environments/import", &body, func(r *http.Request) {
		r.Header.Set("Content-Type", w.FormDataContentType())
	})
}

// People who do not make environments see which there are and how to use them, and nobody's notebooks.
func TestEnvironmentsForEverybody(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/environments").want(t, http.StatusOK, "No environments yet", "An admin of the lab can build PyTorch", "How to use it", "!own-kernel my-kernel")
	l.environments.Make(t, "small", "1", "Small")
	l.environments.Use(environments.Use{Environment: "small/1", Handle: "lea", Notebook: "secret-plan"})
	c.get("/environments").want(t, http.StatusOK, "small/1", "1 notebook or job")
	c.get("/environments/small/1").want(t, http.StatusOK, "humanize", "gpulab run --env small/1", "1 notebook or job")
	for _, path := range []string{"/environments", "/environments/small/1"} {
		for _, not := range []string{"secret-plan", "From the catalogue", "/remove", "From a file", "/file", "last build said"} {
			if strings.Contains(c.get(path).body, not) {
				t.Errorf("%s shows %q to a member", path, not)
			}
		}
	}
}

// What happens to environments is on open pages by itself.
func TestEnvironmentsLive(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives an environment's files to everybody")
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=environments", nil)
		defer s.stop()
		if got, want := targets(s.out.take()), "environment-build environments-missing environments"; got != want {
			t.Errorf("first: %s, want %s", got, want)
		}
		time.Sleep(2 * time.Second)
		if text := s.out.take(); text != "" {
			t.Errorf("nothing changed, but was sent: %s", text)
		}
		s.environments.Make(t, "small", "1", "Small")
		time.Sleep(2 * time.Second)
		if text := s.out.take(); !strings.Contains(text, "is built, in") || !strings.Contains(text, "/environments/small/1") || strings.Contains(text, "Collecting humanize") {
			t.Errorf("after a build: %s", text)
		}
		one := s.beside(t, "ben", "view=environment&id=small/1")
		if got := targets(one.out.take()); got != "environment-state" {
			t.Errorf("the page of one: %s", got)
		}
		s.environments.Use(environments.Use{Environment: "small/1", Handle: "lea", Notebook: "thesis"})
		time.Sleep(20 * time.Second)
		if text := one.out.take(); !strings.Contains(text, "1 notebook or job") {
			t.Errorf("somebody uses it: %s", text)
		}
		if _, err := s.environments.Remove(context.Background(), "small/1", true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if text := one.out.take(); !strings.Contains(text, "It is gone.") {
			t.Errorf("after it was removed: %s", text)
		}
	})
}

// A build is begun, followed and its outcome removed, on a phone.
func TestBuildInABrowser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives an environment's files to everybody")
	}
	ctx := browser(t)
	l := newLab(t)
	var wrong complaints
	wrong.listen(ctx)
	if err := chromedp.Do(ctx, cookie(l, l.session(t, "ada")), screen(390, false), chromedp.Navigate(l.server.URL+"/environments")); err != nil {
		t.Fatal(err)
	}
	_, release := l.environments.Hold()
	defer release()
	run(ctx, t, `document.querySelector('input[name=from][value=pytorch]').form.querySelector('button').click()`)
	eventually(ctx, t, "it is being built", `document.querySelector('#environment-build').innerText.includes('Building pytorch/')`)
	eventually(ctx, t, "what it does", `document.querySelector('#environment-build').innerText.includes('Finding out which packages that takes.')`)
	eventually(ctx, t, "no second one", `[...document.querySelectorAll('#environment-offers button')].every(b => b.disabled)`)
	checkLooks(ctx, t, "environments-building")
	release()
	eventually(ctx, t, "it is built", `document.querySelector('#environment-build a')?.innerText.startsWith('pytorch/')`)
	eventually(ctx, t, "it is listed", `document.querySelector('#environments a')?.innerText === 'PyTorch'`)
	eventually(ctx, t, "another may be built", `[...document.querySelectorAll('#environment-offers button')].every(b => !b.disabled)`)
	run(ctx, t, `document.querySelector('#environments a').click()`)
	eventually(ctx, t, "its page", `document.querySelector('#environment-actions form[action$="/remove"]')`)
	checkLooks(ctx, t, "environment")
	run(ctx, t, `document.querySelector('#environment-actions form[action$="/remove"] button').click()`)
	eventually(ctx, t, "it asks", `document.querySelector('#confirm[open]')?.innerText.includes('Kernels that people made')`)
	run(ctx, t, `document.querySelector('#confirm [data-yes]').click()`)
	eventually(ctx, t, "it is removed", `document.querySelector('main').innerText.includes('The environment is removed.')`)
	for _, complaint := range wrong.take() {
		t.Errorf("the browser reports: %s", complaint)
	}
}
