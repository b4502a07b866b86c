package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
)

// TestBootTries: a try that fails is the end of a watch, with the reason and
// the time of the next; the next begins with what the one before has done.
func TestBootTries(t *testing.T) {
	b := newBoot("1", "x", "runtime", "images", "charts")
	if c, failing := startComponent(b.state); failing {
		t.Errorf("before the first try has ended: %+v", c)
	}
	var seen ctl.Boot
	watched := make(chan error, 1)
	go func() { watched <- b.watch(t.Context(), func(now ctl.Boot) error { seen = now; return nil }) }()

	fails := errors.New("an image of charts is missing")
	_ = b.do("runtime", func(*stage) error { return nil })
	called, cancel := context.WithCancel(t.Context())
	_ = b.do("charts", func(*stage) error { cancel(); return fails })
	_ = b.do("images", func(*stage) error { return fmt.Errorf("importing: %w", called.Err()) })
	next := time.Now().Add(time.Minute)
	b.failed(fails, next)
	if err := <-watched; err != nil || seen.Failed != fails.Error() || !seen.Next.Equal(next) || seen.Ready || seen.Try != 1 {
		t.Fatalf("the watch of a try that fails ended with %v and %+v", err, seen)
	}
	states := func(want string) {
		t.Helper()
		now, _ := b.now()
		var got []string
		for _, s := range now.Stages {
			got = append(got, s.State)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the stages are %v, want %s", got, want)
		}
	}
	states("done waiting failed") // what was only called off has not failed
	said := triesAgain(seen)
	for _, part := range []string{fails.Error(), "again by itself at " + next.Local().Format(time.TimeOnly), "`gpulab init` at once"} {
		if !strings.Contains(said, part) {
			t.Errorf("init says %q, without %q", said, part)
		}
	}
	c, failing := startComponent(seen)
	if !failing || c.State != ctl.Failed || c.Detail != fails.Error() || !strings.Contains(c.NextStep, next.Local().Format(time.TimeOnly)) {
		t.Errorf("status shows %+v", c)
	}

	b.again()
	states("done waiting waiting")
	now, _ := b.now()
	c, failing = startComponent(now)
	if !failing || c.State != ctl.Starting || !strings.Contains(c.Detail, "try 2") || !strings.Contains(c.Detail, fails.Error()) || now.Failed != "" {
		t.Errorf("during the second try status shows %+v", c)
	}
	b.finish()
	now, _ = b.now()
	if c, failing := startComponent(now); failing || !now.Ready {
		t.Errorf("a lab that is ready shows %+v", c)
	}
}

// TestStartingPage: before there are pages, people read why, and when it goes on.
func TestStartingPage(t *testing.T) {
	cfg, err := loadConfig(writeConfig(t, "lab: Vision <lab>"))
	if err != nil {
		t.Fatal(err)
	}
	l := &appliance{cfg: cfg, boot: newBoot("1", "x", "address", "runtime"), pages: newSwitchHandler()}
	page := func() string {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "https://10.0.0.5/", nil)
		r.Header.Set("Accept", "text/html")
		l.starting(l.pages).ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Refresh") == "" {
			t.Errorf("status %d, header %v", w.Code, w.Header())
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Errorf("a page may be shown in a frame: %q", csp)
		}
		return w.Body.String()
	}
	want := func(texts ...string) {
		t.Helper()
		got := page()
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("the page lacks %q:\n%s", text, got)
			}
		}
	}
	want("Vision &lt;lab&gt; is starting", "comes back by itself")
	_ = l.boot.do("address", func(*stage) error { return errors.New("this machine has no network address") })
	l.boot.failed(errors.New("this machine has no network address"), time.Date(2026, 3, 2, 10, 20, 30, 0, time.Local))
	want("It could not start: this machine has no network address", "tried again by itself at 10:20:30")
	l.boot.again()
	want("It could not start: this machine has no network address", "being tried again now, for the 2nd time")
}

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 102: "102nd", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
