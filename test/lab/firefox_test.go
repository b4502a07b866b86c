package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFirefox opens pages of two people, and finds nothing left of the browser afterwards.
func TestFirefox(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/alone" {
			w.Header().Set("Content-Security-Policy", "frame-ancestors 'none'")
		}
		_, _ = io.WriteString(w, `<!doctype html><title>here</title>`)
	}))
	t.Cleanup(srv.Close)
	home := ""
	t.Run("use", func(t *testing.T) {
		f := NewFirefox(t)
		home = f.home
		page := f.Person()
		if err := page.Open(srv.URL); err != nil {
			t.Fatal(err)
		}
		if err := page.SetCookie("127.0.0.1", "hidden", "x", false); err != nil {
			t.Error(err)
		}
		const both = `(document.cookie = "seen=1", Promise.resolve(document.title + document.cookie))`
		if got, err := page.Evaluate(both); err != nil || got != "hereseen=1" {
			t.Errorf("%q %v", got, err)
		}
		if got, err := f.Person().Evaluate("document.cookie"); err != nil || got != "" {
			t.Errorf("somebody else has the cookies %q %v", got, err)
		}
		if _, err := page.Evaluate("nothing.there"); err == nil {
			t.Error("a script that fails is no error")
		}
		for _, path := range []string{"/", "/alone"} {
			if _, err := page.Evaluate(fmt.Sprintf(`new Promise(done => { const f = document.createElement("iframe"); f.src = %q; f.onload = done; document.body.append(f) })`, path)); err != nil {
				t.Error(err)
			}
		}
		got, err := page.Frames()
		if len(got) == 2 {
			got[1], _, _ = strings.Cut(got[1], "?")
		}
		if err != nil || !slices.Equal(got, []string{srv.URL + "/", "about:neterror"}) {
			t.Errorf("frames: %q %v", got, err)
		}
	})
	if _, err := os.Stat(home); home == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder %q: %v", home, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := processesWith(t, home)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left are %q", left)
		}
	}
}

// processesWith are the processes that have a text in their command line or environment.
func processesWith(t *testing.T, text string) (list []string) {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		for _, name := range []string{"cmdline", "environ"} {
			if content, err := os.ReadFile(filepath.Join(folder, name)); err == nil && bytes.Contains(content, []byte(text)) {
				list = append(list, folder)
				break
			}
		}
	}
	return list
}
