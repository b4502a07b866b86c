//go:build e2e

package jupyterlab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

// front is the lab's proxy in front of a notebook server: it can answer in the server's stead, and then ends what runs.
type front struct {
	status atomic.Int32 // what it answers with; 0 for nothing
	pass   *httputil.ReverseProxy
	mu     sync.Mutex
	ends   map[*http.Request]context.CancelFunc
	asked  map[string]int // path → how often it was answered in the server's stead
	all    map[string]int // path → how often it was asked for
}

// behindFront is the server behind a proxy as the lab's.
func (j jupyter) behindFront(t *testing.T) (jupyter, *front) {
	t.Helper()
	server, err := url.Parse(j.base)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{ends: map[*http.Request]context.CancelFunc{}, asked: map[string]int{}, all: map[string]int{},
		pass: &httputil.ReverseProxy{
			Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = server.Scheme, server.Host },
			ErrorLog: log.New(io.Discard, "", 0),
		}}
	listener := httptest.NewServer(f)
	t.Cleanup(listener.Close)
	t.Cleanup(func() { f.answer(http.StatusServiceUnavailable) })
	j.base = listener.URL + server.Path
	return j, f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f.mu.Lock()
	status := int(f.status.Load())
	path := strings.TrimPrefix(r.URL.Path, "/user/ada/one/")
	f.all[path]++
	if status == 0 {
		f.ends[r] = cancel
	} else {
		f.asked[path]++
	}
	f.mu.Unlock()
	if status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "message": "You are not signed in."})
		return
	}
	defer func() { f.mu.Lock(); delete(f.ends, r); f.mu.Unlock() }()
	f.pass.ServeHTTP(w, r.WithContext(ctx))
}

// answer has every request answered with a status, and ends what runs; with 0 everything passes again.
func (f *front) answer(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Store(int32(status))
	clear(f.asked)
	if status == 0 {
		return
	}
	for _, end := range f.ends {
		end()
	}
}

// count is how often the page has asked for a path.
func (f *front) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[path]
}

// waitAsked waits until the page has asked for each of the paths so often.
func (f *front) waitAsked(t *testing.T, often int, paths ...string) {
	t.Helper()
	for end := time.Now().Add(lab.Patience); ; time.Sleep(50 * time.Millisecond) {
		f.mu.Lock()
		enough := true
		for _, path := range paths {
			enough = enough && f.asked[path] >= often
		}
		all := fmt.Sprint(f.asked)
		f.mu.Unlock()
		if enough {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the page has not asked for %v %d times: %s", paths, often, all)
		}
	}
}

// notice is the banner that says why the page is not connected.
func notice(text string) string {
	return fmt.Sprintf(`(document.querySelector(".gpulab-connection")?.innerText.includes(%q) ?? false)`, text)
}

// noDialog ends a test in which JupyterLab shows a dialog or an error.
func noDialog(t *testing.T, b *lab.Browser) {
	t.Helper()
	said := `[...document.querySelectorAll(".jp-Dialog, .Toastify__toast--error")].map(e => e.innerText).join("; ")`
	if got := lab.Evaluate[string](b, `async () => `+said); got != "" {
		t.Errorf("JupyterLab says: %s", got)
	}
}

// A page whose person is signed out, or whose lab is away, says what is the matter and nothing else, keeps what is
// typed, and connects again by itself: the kernel is the same, and cells run.
func TestPageReconnects(t *testing.T) {
	j, front := startJupyter(t).behindFront(t)
	j.write(t, "open.ipynb", "a = 6\nprint(a)", "print(a * 7)", "")
	b := j.browser(t)
	j.open(b, "open.ipynb")
	runCells(b, 1)
	b.WaitFor("the first cell's output", shown(0)+` === "6\n"`)
	runs := 1
	for _, how := range []struct {
		status     int
		text, link string
	}{
		{http.StatusUnauthorized, "You are signed out. Sign in in another tab, then this page connects again.", "Sign in"},
		{http.StatusForbidden, "You are signed out.", "Sign in"},
		{http.StatusBadGateway, "The lab does not answer. This page keeps trying.", ""},
		{http.StatusFailedDependency, "This notebook has been stopped.", "Start it again on the lab’s page"},
	} {
		typed := fmt.Sprintf("# typed %d", how.status)
		front.answer(how.status)
		b.WaitFor("what is the matter", notice(how.text))
		link := `[...document.querySelectorAll(".gpulab-connection a")].filter(a => a.checkVisibility() && a.href === location.href)`
		if got := lab.Evaluate[string](b, `async () => `+link+`.map(a => a.innerText).join()`); got != how.link {
			t.Errorf("%d: the link says %q, want %q", how.status, got, how.link)
		}
		focusCell(b, 2)
		b.Type(typed)
		front.waitAsked(t, 1, "api/kernels", "api/sessions") // JupyterLab itself looks for what is there
		front.waitAsked(t, 4, "api/status")
		noDialog(t, b)
		front.answer(0)
		b.WaitFor("that the notice goes", `!document.querySelector(".gpulab-connection")`)
		b.WaitFor("the kernel", `/\| Idle/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
		b.Mouse("the second cell", lab.CodeCells+`[1].querySelector(".cm-content")`)
		runs++
		b.Press(kb.Enter, kb.ModifierShift)
		b.WaitFor("that the cell has run", shown(1)+fmt.Sprintf(` === "42\n" && %s[1].querySelector(".jp-InputPrompt").innerText.trim() === "[%d]:"`, lab.CodeCells, runs))
		noDialog(t, b)
		j.savedBy(t, b, "what was typed", "open.ipynb", func(cells []fileCell) bool {
			return strings.Contains(fmt.Sprint(cells[2].Source), typed)
		})
	}
}

// A notebook that was stopped and is started again has no kernel of the page's any more: nothing says that it died, and
// cells run in a new one.
func TestStoppedAndStarted(t *testing.T) {
	behind := startJupyter(t)
	j, front := behind.behindFront(t)
	j.write(t, "stopped.ipynb", "print(6 * 7)", "")
	b := j.browser(t)
	j.open(b, "stopped.ipynb")
	front.answer(http.StatusFailedDependency)
	b.WaitFor("what is the matter", notice("This notebook has been stopped."))
	focusCell(b, 1)
	b.Type("# typed")
	_, kernels := behind.ask(t, http.MethodGet, "api/kernels", "")
	var running []struct{ ID string }
	if err := json.Unmarshal([]byte(kernels), &running); err != nil || len(running) != 1 {
		t.Fatalf("%v: %s", err, kernels)
	}
	if status, body := behind.ask(t, http.MethodDelete, "api/kernels/"+running[0].ID, ""); status != http.StatusNoContent {
		t.Fatalf("%d: %s", status, body)
	}
	front.answer(0)
	b.WaitFor("that the notice goes", `!document.querySelector(".gpulab-connection")`)
	focusCell(b, 0)
	b.Press(kb.Enter, kb.ModifierShift)
	b.WaitFor("that the cell has run", shown(0)+` === "42\n"`)
	noDialog(t, b)
	j.savedBy(t, b, "what was typed", "stopped.ipynb", func(cells []fileCell) bool {
		return fmt.Sprint(cells[1].Source) == "[# typed]"
	})
}

// A kernel that dies is said to have died.
func TestKernelDies(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "dies.ipynb", "import os\nos._exit(1)")
	b := j.browser(t)
	j.open(b, "dies.ipynb")
	runCells(b, 1)
	b.WaitFor("what JupyterLab says", `/appears to have died/.test(document.querySelector(".jp-Dialog")?.innerText)`)
	b.WaitFor("that nothing says the lab is away", `!document.querySelector(".gpulab-connection")`)
}

// wire is a network that can drop what passes without a word.
type wire struct {
	mu      sync.Mutex
	drops   bool
	dropped []*atomic.Bool // of each connection so far, whether it is one on which everything is dropped
}

// overWire is the server behind such a network.
func (j jupyter) overWire(t *testing.T) (jupyter, *wire) {
	t.Helper()
	server, err := url.Parse(j.base)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{}
	var ends []net.Conn
	t.Cleanup(func() {
		_ = listener.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, end := range ends {
			_ = end.Close()
		}
	})
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server.Host)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.mu.Lock()
			dropped := &atomic.Bool{}
			dropped.Store(w.drops)
			w.dropped = append(w.dropped, dropped)
			ends = append(ends, in, out)
			w.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(lossy{way[1], dropped}, way[0])
					if !dropped.Load() {
						_ = way[1].Close()
					}
				}()
			}
		}
	}()
	j.base = "http://" + listener.Addr().String() + server.Path
	return j, w
}

// lossy is a connection that may drop what is sent.
type lossy struct {
	net.Conn
	dropped *atomic.Bool
}

func (c lossy) Write(p []byte) (int, error) {
	if c.dropped.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// drop lets nothing pass any more on the connections that there are, nor on new ones until it is told otherwise.
func (w *wire) drop(drops bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drops = drops
	if drops {
		for _, dropped := range w.dropped {
			dropped.Store(true)
		}
	}
}

// After a change of networks, of which nothing tells the page, it connects again by itself. What was printed meanwhile
// is there, and what somebody ran meanwhile runs, once.
func TestNetworkChanges(t *testing.T) {
	j, network := startJupyter(t).overWire(t)
	b := j.browser(t)
	pages := map[string]*lab.Browser{}
	const last = 8
	for name, pause := range map[string]string{"ended.ipynb": "0.5", "goes-on.ipynb": "8"} { // seconds
		j.write(t, name, fmt.Sprintf("import time\nfor i in range(%d):\n    print('line', i + 1, flush=True)\n    time.sleep(%s)", last, pause),
			"n = globals().get('n', 0) + 1\nprint('run', n)")
		pages[name] = b.Tab()
		j.open(pages[name], name)
	}
	for _, page := range pages {
		runCells(page, 1)
	}
	for _, page := range pages {
		page.WaitFor("the first lines", shown(0)+`.includes("line 1\n")`)
	}
	network.drop(true)
	for _, page := range pages {
		focusCell(page, 1)
		page.Press(kb.Enter, kb.ModifierShift)
	}
	network.drop(false)
	for _, page := range pages {
		page.WaitFor("every line", fmt.Sprintf(`%s === %q`, shown(0), lines(last)))
		page.WaitFor("what was run meanwhile", shown(1)+` === "run 1\n"`)
		page.WaitFor("that both have ended", lab.CodeCells+`.slice(0, 2).map(cell => cell.querySelector(".jp-InputPrompt").innerText.trim())
			.join("") === "[1]:[2]:"`)
		page.WaitFor("the kernel's state", `/\| Idle/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
		noDialog(t, page)
	}
}
