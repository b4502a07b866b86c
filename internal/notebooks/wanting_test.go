package notebooks

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

func TestWanting(t *testing.T) {
	h := newHouse(t, 2)
	free, list, err := h.service.Wanting(t.Context())
	if err != nil || free["node1"] != 2 || len(list) != 0 {
		t.Fatalf("an empty lab: %v, %v, %v", free, list, err)
	}
	first, second := h.running(h.alice, "gpu", ""), h.running(h.alice, "gpu", "")
	third := h.launch(h.bob, "gpu", "")
	h.until(third.ID, "waiting", func(l Launch) bool { return l.Position == 1 })
	free, list, err = h.service.Wanting(t.Context())
	if err != nil || free["node1"] != 0 || len(list) != 1 || list[0].Launch.ID != third.ID || strings.Join(list[0].Machines, " ") != "node1" {
		t.Fatalf("one waits: %v, %+v, %v", free, list, err)
	}
	// The line says who is first of several.
	h.line.setLast(third.ID)
	fourth := h.launch(h.bob, "gpu", "")
	h.until(fourth.ID, "first in line", func(l Launch) bool { return l.Position == 1 })
	if _, list, err = h.service.Wanting(t.Context()); err != nil || len(list) != 2 || list[0].Launch.ID != fourth.ID {
		t.Fatalf("two wait: %+v, %v", list, err)
	}
	if err := h.service.Cancel(t.Context(), fourth.ID); err != nil {
		t.Fatal(err)
	}
	// One that is ending is as good as free; nobody else needs to end for it.
	h.lab.edit(func() { h.lab.linger = time.Hour })
	if err := h.service.StopIdle(t.Context(), second.ID, EndIdle, "It was stopped: nobody had used its GPU."); err != nil {
		t.Fatal(err)
	}
	if free, _, err = h.service.Wanting(t.Context()); err != nil || free["node1"] != 1 {
		t.Errorf("one is ending: %v, %v", free, err)
	}
	h.lab.edit(func() { h.lab.linger, h.lab.unsynced = 0, true })
	if free, list, err = h.service.Wanting(t.Context()); err != nil || len(free) != 0 || len(list) != 0 {
		t.Errorf("while nothing is known of the cluster: %v, %v, %v", free, list, err)
	}
	h.lab.edit(func() { h.lab.unsynced = false })
	if l := h.get(first.ID); l.State != Running {
		t.Errorf("the first is %s", l.State)
	}
}

func TestNoteStandsBehindTheReason(t *testing.T) {
	h := newHouse(t, 1)
	h.service.mu.Lock()
	h.service.cfg.Note = func(int64) string { return "It is yours soon." }
	h.service.mu.Unlock()
	h.running(h.alice, "gpu", "")
	l := h.launch(h.bob, "gpu", "")
	l = h.until(l.ID, "explained", func(l Launch) bool { return l.Position == 1 })
	if !strings.HasSuffix(l.Reason, "next in line. It is yours soon.") {
		t.Errorf("reason: %q", l.Reason)
	}
	if err := h.service.Cancel(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if l = h.get(l.ID); strings.Contains(l.Reason, "soon") {
		t.Errorf("after its end: %q", l.Reason)
	}
}

func TestKeepFromJupyterLab(t *testing.T) {
	o := newOrigin(t)
	var kept []string
	o.proxy.cfg.Keep = func(_ context.Context, u users.User, launch int64, _ string) (string, bool) {
		if launch != 7 {
			return "It was too late.", false
		}
		kept = append(kept, u.Handle)
		return "It is yours until 15:04.", true
	}
	if res, body := o.do(http.MethodPost, "/gpulab/keep?launch=7", nil, cookie("alice-1"), header("Sec-Fetch-Site", "same-origin")); res.StatusCode != http.StatusOK || body != `{"done":true,"text":"It is yours until 15:04."}`+"\n" {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	if res, body := o.do(http.MethodPost, "/gpulab/keep?launch=8", nil, cookie("alice-1")); res.StatusCode != http.StatusConflict || !strings.Contains(body, "too late") {
		t.Errorf("too late: got %d %s", res.StatusCode, body)
	}
	for name, c := range map[string]struct {
		method, query string
		change        []change
		want          int
	}{
		"nobody":            {http.MethodPost, "?launch=7", nil, http.StatusUnauthorized},
		"a link":            {http.MethodGet, "?launch=7", []change{cookie("alice-1")}, http.StatusMethodNotAllowed},
		"another site":      {http.MethodPost, "?launch=7", []change{cookie("alice-1"), header("Sec-Fetch-Site", "cross-site")}, http.StatusForbidden},
		"another port":      {http.MethodPost, "?launch=7", []change{cookie("alice-1"), header("Sec-Fetch-Site", "same-site")}, http.StatusForbidden},
		"another origin":    {http.MethodPost, "?launch=7", []change{cookie("alice-1"), header("Origin", "https://evil.example")}, http.StatusForbidden},
		"without a launch":  {http.MethodPost, "", []change{cookie("alice-1")}, http.StatusBadRequest},
		"with words for it": {http.MethodPost, "?launch=x", []change{cookie("alice-1")}, http.StatusBadRequest},
	} {
		if res, body := o.do(c.method, "/gpulab/keep"+c.query, nil, c.change...); res.StatusCode != c.want {
			t.Errorf("%s: got %d %s", name, res.StatusCode, body)
		}
	}
	if strings.Join(kept, " ") != "alice" {
		t.Errorf("kept by %v", kept)
	}
}
