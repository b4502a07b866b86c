package webui_test

import (
	"bufio"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpulab/gpulab/internal/webui"
)

// TestMachineNotes: the home page says what everybody should know of the
// machine, and goes on saying what is true.
func TestMachineNotes(t *testing.T) {
	var notes atomic.Pointer[[]string]
	notes.Store(&[]string{})
	l := newLabWith(t, func(c *webui.Config) { c.Machine = func() []string { return *notes.Load() } })
	c := l.client(t, "ben")
	c.get("/").want(t, http.StatusOK, `id="machine-notes" class="stack hidden"`)
	notes.Store(&[]string{"This machine stays awake while 2 notebooks run.", "It was asleep from Fri 22:10 to Sat 08:03 (9 h 53 min)."})
	c.get("/").want(t, http.StatusOK, "stays awake while 2 notebooks run", "asleep from Fri 22:10 to Sat 08:03")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.server.URL+"/events?view=home", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	told := false
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		switch {
		case !told && strings.Contains(lines.Text(), "asleep from Fri 22:10"):
			told = true
			notes.Store(&[]string{"It was mended."})
		case told && strings.Contains(lines.Text(), "It was mended."):
			return
		}
	}
	t.Errorf("the stream ended before the page was told (the first of it: %v)", told)
}

// TestMoved: whoever has opened the lab under an address that is not its own any
// more is told where to go, and whoever loses it, where to look.
func TestMoved(t *testing.T) {
	var moved atomic.Pointer[string]
	none := ""
	moved.Store(&none)
	var asked atomic.Pointer[string]
	l := newLabWith(t, func(c *webui.Config) {
		c.Elsewhere = func(host string) (string, []string) {
			asked.Store(&host)
			return *moved.Load(), []string{"https://gpu-box", "https://10.1.2.3"}
		}
	})
	c := l.client(t, "ben")
	home := c.get("/")
	home.want(t, http.StatusOK, `<div id="moved"></div>`, "it may answer at", `href="https://gpu-box/"`, `href="https://10.1.2.3/"`)
	if host := *asked.Load(); host != "127.0.0.1" {
		t.Errorf("it was asked for %q", host)
	}
	there := "https://10.9.9.9"
	moved.Store(&there)
	for _, page := range []string{"/", "/gpus", "/account"} {
		c.get(page).want(t, http.StatusOK, "The lab’s address has changed", `href="https://10.9.9.9/"`)
	}
}
