package webui_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
)

// TestInterruptedByARestart: whoever had a notebook when the machine went down
// reads so at home, hours later too, and starts it again with a click; then the
// old one is gone from there.
func TestInterruptedByARestart(t *testing.T) {
	l := newLab(t)
	const why = "It was interrupted by a restart of the machine at 03:12 on Sat 21 Nov."
	ben, err := l.users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	l.notebooks.change(func(list *[]notebooks.Launch) {
		for i, ago := range []time.Duration{9 * time.Hour, 30 * 24 * time.Hour} {
			ended := time.Now().Add(-ago)
			*list = append(*list, notebooks.Launch{
				ID: int64(i + 1), UserID: ben.ID, Handle: "ben", Name: "cpu", Profile: "cpu", Title: "Thesis " + []string{"one", "two"}[i],
				State: notebooks.Ended, EndCode: notebooks.EndInterrupted, Reason: why, Requested: ended.Add(-time.Hour), Ready: ended.Add(-time.Hour), Ended: ended,
			})
		}
	})
	c := l.client(t, "ben")
	home := c.get("/")
	home.want(t, http.StatusOK, "Thesis one", why, "interrupted", "Start again")
	if strings.Contains(home.body, "Thesis two") {
		t.Error("one that was interrupted a month ago is still shown")
	}
	if page := l.client(t, "ada").get("/"); strings.Contains(page.body, "Thesis one") {
		t.Error("somebody else is told")
	}
	c.get("/launches/1").want(t, http.StatusOK, "It was interrupted", why, "Start it again")
	c.post("/", "/launch", url.Values{"profile": {"cpu"}, "title": {"Thesis one"}}).want(t, http.StatusSeeOther)
	if home := c.get("/"); strings.Contains(home.body, why) || !strings.Contains(home.body, "Thesis one") {
		t.Errorf("after it was started again, home says\n%s", visible(home.body))
	}
}
