package lab

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

// jupyter is the notebook server of the image, of the image's locks and files,
// without the image and without a hub.
type jupyter struct {
	base string // its URL, as the person's computer has it
	home string // the person's
	*line
}

// line is the way from the person's computer to the server.
type line struct {
	cut  atomic.Bool // nothing passes
	slow atomic.Bool // what the server says comes late
	last atomic.Bool // the answer to the next save is the last thing that passes
	// unread is how many times a file that is asked for with its content does not come.
	unread atomic.Int32
	// status is what every request is answered with, as the lab does in the server's stead; 0 for none.
	status atomic.Int32
	// held is whether a file that is asked for without its content waits, as at a lab that is being started anew.
	held    atomic.Bool
	waits   atomic.Int32 // how many have waited
	deaf    atomic.Bool  // kernels' connections do not pass
	mute    atomic.Bool  // what kernels say waits
	saved   atomic.Int32 // how many files were saved
	mu      sync.Mutex
	ends    []net.Conn
	kernels []net.Conn // ends of kernels' connections
}

// serve passes connections on to a socket.
func (l *line) serve(listener net.Listener, socket string) {
	for {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", socket)
		if err != nil {
			_ = in.Close()
			continue
		}
		if l.cut.Load() {
			_, _ = in.Close(), out.Close()
			continue
		}
		if status := l.status.Load(); status != 0 {
			_ = out.Close()
			go refuse(in, int(status))
			continue
		}
		l.mu.Lock()
		l.ends = append(l.ends, in, out)
		l.mu.Unlock()
		var kernel atomic.Bool
		go func() { _, _ = io.Copy(in, late{out, l, &kernel}); _ = in.Close() }()
		go func() { _, _ = io.Copy(out, &saves{Conn: in, line: l, kernel: &kernel}); _ = out.Close() }()
	}
}

// refuse answers one request with a status.
func refuse(c net.Conn, status int) {
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", status, http.StatusText(status))
}

var (
	savesFile = regexp.MustCompile(`^PUT \S*/api/contents/`)
	readsFile = regexp.MustCompile(`^GET \S*/api/contents/\S*\.ipynb\?\S*content=1`)
	looksAt   = regexp.MustCompile(`^GET \S*/api/contents/\S*\.ipynb\?\S*content=0`)
	toKernel  = regexp.MustCompile(`^GET \S*/api/kernels/\S*/channels`)
)

// saves is a connection on which it is noticed that something is saved.
type saves struct {
	net.Conn
	line   *line
	kernel *atomic.Bool // whether it is a kernel's connection
	last   bool         // this is the last thing that passes
}

func (c *saves) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if savesFile.Match(p[:n]) {
		c.line.saved.Add(1)
	}
	switch {
	case readsFile.Match(p[:n]) && c.line.unread.Load() > 0:
		c.line.unread.Add(-1)
		return 0, io.EOF
	case looksAt.Match(p[:n]) && c.line.held.Load():
		for c.line.waits.Add(1); c.line.held.Load(); {
			time.Sleep(10 * time.Millisecond)
		}
	case toKernel.Match(p[:n]):
		if c.line.deaf.Load() {
			return 0, io.EOF
		}
		c.kernel.Store(true)
		c.line.mu.Lock()
		c.line.kernels = append(c.line.kernels, c.Conn)
		c.line.mu.Unlock()
	case savesFile.Match(p[:n]) && c.line.last.CompareAndSwap(true, false):
		c.last = true
		c.line.cut.Store(true)
	case c.line.cut.Load() && (!c.last || bytes.HasPrefix(p[:n], []byte("GET "))):
		return 0, io.EOF
	}
	return n, err
}

// late is a connection that is read from late while its line is slow.
type late struct {
	net.Conn
	line   *line
	kernel *atomic.Bool // whether it is a kernel's connection
}

func (c late) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.line.slow.Load() {
		time.Sleep(700 * time.Millisecond)
	}
	for c.kernel.Load() && c.line.mute.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	return n, err
}

// dropAll ends every connection.
func (l *line) dropAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.ends = nil
}

// dropKernels ends the connections to kernels, and lets no more pass.
func (l *line) dropKernels() {
	l.deaf.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.kernels {
		_ = end.Close()
	}
	l.kernels = nil
}

// startJupyter starts a notebook server with a home of its own. The test runs beside others: most of its time it waits.
func startJupyter(t *testing.T) jupyter {
	t.Helper()
	return startJupyterIn(t, t.TempDir())
}

// startJupyterIn starts a notebook server as the image does, in a home that may have something in it.
func startJupyterIn(t *testing.T, home string) jupyter {
	t.Helper()
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: JupyterLab is installed from PyPI and run in a browser")
	}
	image := notebookImage(t)
	venv := jupyterVenv(t, image)
	lab, scratch := t.TempDir(), t.TempDir()
	if err := os.CopyFS(lab, os.DirFS(filepath.Join(image, "files/opt/lab"))); err != nil {
		t.Fatal(err)
	}
	// What is at fixed places in the image is elsewhere here.
	places := strings.NewReplacer("/tmp/.gpulab", scratch, "/opt/gpulab/environments", filepath.Join(home, "environments"), "/etc/profile.d/gpulab.sh", filepath.Join(lab, "profile.sh"),
		"/opt/lab/bin", filepath.Join(venv, "bin"),
		"gpulab_home.largest_message()", "16 << 20")
	for from, to := range map[string]string{
		"opt/lab/etc/jupyter/jupyter_server_config.py":        "etc/jupyter/jupyter_server_config.py",
		"usr/local/bin/start-notebook":                        "start-notebook",
		"etc/profile.d/gpulab.sh":                             "profile.sh",
		"opt/lab/lib/python3.11/site-packages/gpulab_home.py": "lib/python3.11/site-packages/gpulab_home.py",
	} {
		text, err := os.ReadFile(filepath.Join(image, "files", from))
		if err == nil {
			err = os.WriteFile(filepath.Join(lab, to), []byte(places.Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	passed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(scratch, "server")
	j := jupyter{base: fmt.Sprintf("http://%s/user/ada/one/", passed.Addr()), home: home, line: &line{}}
	go j.serve(passed, socket)
	t.Cleanup(func() { _ = passed.Close(); j.dropAll() })
	server := exec.Command("bash", filepath.Join(lab, "start-notebook"), filepath.Join(venv, "bin/jupyter-lab"), "--no-browser", "--allow-root",
		"--ServerApp.sock="+socket, "--ServerApp.base_url=/user/ada/one/", "--IdentityProvider.token=",
		"--ServerApp.allow_unauthenticated_access=True")
	server.Dir = j.home
	server.Env = append(os.Environ(), "HOME="+j.home, "PATH="+filepath.Join(venv, "bin")+":"+os.Getenv("PATH"),
		"JUPYTER_RUNTIME_DIR="+filepath.Join(scratch, "runtime"), "JUPYTER_CONFIG_PATH="+filepath.Join(lab, "etc/jupyter"), "JUPYTER_PATH="+filepath.Join(lab, "share/jupyter"),
		"PYTHONPATH="+filepath.Join(lab, "lib/python3.11/site-packages"), "PYTHONDONTWRITEBYTECODE=1")
	var said bytes.Buffer
	server.Stdout, server.Stderr, server.WaitDelay = &said, &said, 10*time.Second // kernels hold them open
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		// A thread that still reads a file for a request may keep it from ending.
		late := time.AfterFunc(20*time.Second, func() { _ = server.Process.Kill() })
		_ = server.Wait()
		late.Stop()
		if t.Failed() {
			t.Logf("the server said:\n%s", said.String())
		}
		// No exception passes through the image's modules.
		if regexp.MustCompile(`gpulab_\w+\.py`).MatchString(said.String()) {
			t.Errorf("the server had an accident:\n%s", said.String())
		}
	})
	for range 1200 {
		if response, err := http.Get(j.base + "api"); err == nil {
			_ = response.Body.Close()
			return j
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("no notebook server\n%s", said.String())
	return j
}

// notebookImage is the folder that the notebook image is made of.
func notebookImage(t *testing.T) string {
	t.Helper()
	return filepath.Join(repository(t), "packaging/images/notebook")
}

// jupyterVenv is an environment with what the image's locks name, made once per
// lock in the user's cache folder.
func jupyterVenv(t *testing.T, image string) string {
	t.Helper()
	return venvOf(t, "test-jupyter-", filepath.Join(image, "kernel.txt"), filepath.Join(image, "lab.txt"), filepath.Join(image, "labextensions.txt"))
}

// venvOf is an environment with what the locks name.
func venvOf(t *testing.T, name string, locks ...string) string {
	t.Helper()
	sum := sha256.New()
	for _, lock := range locks {
		text, err := os.ReadFile(lock)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "gpulab", name+hex.EncodeToString(sum.Sum(nil)[:6]))
	defer Lock(t, dir+".lock")()
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	commands := [][]string{{"python3", "-m", "venv", "--clear", dir}}
	for _, lock := range locks {
		commands = append(commands, []string{filepath.Join(dir, "bin/pip"), "install", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", lock})
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v (Python 3.11 with venv is needed)\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// browser opens a browser of the person's own computer.
func (j jupyter) browser(t *testing.T) *Browser {
	t.Helper()
	return NewBrowser(t, []string{"env"}, nil).Patient(2 * time.Minute) // JupyterLab tries to connect again for up to 63 s
}

// write puts a notebook with these cells into the home; their IDs are cell-0 and so on.
func (j jupyter) write(t *testing.T, name string, sources ...string) {
	t.Helper()
	j.writeFor(t, name, "python3", sources...)
}

// writeFor is write for another kernel.
func (j jupyter) writeFor(t *testing.T, name, kernel string, sources ...string) {
	t.Helper()
	cells := []map[string]any{}
	for i, source := range sources {
		cells = append(cells, map[string]any{"cell_type": "code", "id": fmt.Sprintf("cell-%d", i), "metadata": map[string]any{},
			"source": source, "outputs": []any{}, "execution_count": nil})
	}
	text, err := json.Marshal(map[string]any{"nbformat": 4, "nbformat_minor": 5, "cells": cells,
		"metadata": map[string]any{"kernelspec": map[string]any{"name": kernel, "display_name": kernel, "language": "python"}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(j.home, name), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fileCell is a cell as the notebook's file has it.
type fileCell struct {
	ID      string `json:"id"`
	Source  any    `json:"source"`
	Count   int    `json:"execution_count"`
	Outputs []struct {
		Type  string         `json:"output_type"`
		Name  string         `json:"name"`
		Text  []string       `json:"text"`
		Data  map[string]any `json:"data"`
		Ename string         `json:"ename"`
	} `json:"outputs"`
}

func (c fileCell) text() string {
	var b strings.Builder
	for _, o := range c.Outputs {
		b.WriteString(strings.Join(o.Text, ""))
	}
	return b.String()
}

// read is the notebook as its file has it, once it is not being written.
func (j jupyter) read(t *testing.T, name string) []fileCell {
	t.Helper()
	for tries := 0; ; tries++ {
		var book struct{ Cells []fileCell }
		text, err := os.ReadFile(filepath.Join(j.home, name))
		if err == nil {
			err = json.Unmarshal(text, &book)
		}
		if err == nil {
			return book.Cells
		}
		if tries == 50 {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// within waits until the notebook's file is as wanted.
func (j jupyter) within(t *testing.T, most time.Duration, what, name string, wanted func([]fileCell) bool) {
	t.Helper()
	for deadline := time.Now().Add(most); !wanted(j.read(t, name)); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; the file has %+v", what, most, j.read(t, name))
		}
	}
}

// open opens a notebook, and waits for its kernel.
func (j jupyter) open(b *Browser, name string) {
	b.t.Helper()
	b.Open(j.base + "lab/tree/" + name + "?reset")
	b.WaitFor("the notebook's kernel", `/\| (Idle|Busy)/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
}

// runCells runs the first n cells, one after the other, by their keys.
func runCells(b *Browser, n int) {
	b.t.Helper()
	b.WaitFor("the cells", fmt.Sprintf(`%s.length >= %d`, codeCells, n))
	for i := range n {
		focusCell(b, i)
		b.Press(kb.Enter, kb.ModifierShift)
	}
	b.WaitFor("a run", fmt.Sprintf(`/[*0-9]/.test(%s[0]?.querySelector(".jp-InputPrompt")?.innerText)`, codeCells))
}

// savedBy presses the keys that save until the notebook's file is as wanted.
func (j jupyter) savedBy(t *testing.T, b *Browser, what, name string, wanted func([]fileCell) bool) {
	t.Helper()
	b.Press("s", kb.ModifierCtrl)
	j.within(t, time.Minute, what, name, wanted)
	noQuestion(b)
}

// ask asks the server as a page does.
func (j jupyter) ask(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, j.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	// What a page sends with each request against forgery.
	request.Header.Set("X-XSRFToken", "mine")
	request.Header.Set("Referer", j.base+"lab")
	request.AddCookie(&http.Cookie{Name: "_xsrf", Value: "mine"})
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// focusCell puts the cursor into a cell.
func focusCell(b *Browser, number int) {
	Evaluate[bool](b, fmt.Sprintf(`async () => { %s[%d].querySelector(".cm-content").focus(); return true }`, codeCells, number))
}

// shown is what the page shows below the notebook's cell.
func shown(number int) string {
	return fmt.Sprintf(`[...(%s[%d]?.querySelectorAll(".jp-OutputArea-output") ?? [])].map(e => e.innerText).join("")`, codeCells, number)
}

// lines are the numbered lines from one to the last one.
func lines(last int) string {
	var b strings.Builder
	for i := range last {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}

// What cells print while no browser is there is in the notebook: in its file, and
// in the page of somebody who comes back while they still print, or afterwards.
func TestOutputsWithoutBrowser(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "long.ipynb",
		"import sys, time\nfor i in range(40):\n    print('line', i + 1, flush=True)\n    time.sleep(0.5)\nfor i in range(50):\n    print(f'\\r{i} of 50', end='', flush=True)\n",
		"h = display('first', display_id=True)\nfrom IPython.display import clear_output\nprint('gone'); clear_output(wait=True)\nh = display('old', display_id=True)\nh.update('new')\nprint('oops', file=sys.stderr)\n6 * 7",
		"1 / 0", "print('never')")
	b := j.browser(t)
	page := b.Tab()
	j.open(page, "long.ipynb")
	runCells(page, 4)
	page.WaitFor("the first lines", shown(0)+`.includes("line 2\n")`)
	page.Close()

	j.within(t, time.Minute, "the file has what was printed meanwhile", "long.ipynb", func(cells []fileCell) bool {
		return strings.Contains(cells[0].text(), "line 10\n")
	})
	again := b.Tab()
	j.open(again, "long.ipynb")
	again.WaitFor("the lines that still come", shown(0)+`.includes("line 20\n")`)
	again.Close()

	j.within(t, time.Minute, "the file has the error", "long.ipynb", func(cells []fileCell) bool { return len(cells[2].Outputs) > 0 })
	cells := j.read(t, "long.ipynb")
	if got, want := cells[0].text(), lines(40)+"49 of 50"; got != want || cells[0].Count != 1 || len(cells[0].Outputs) != 1 {
		t.Errorf("the first cell: %q, %+v", got, cells[0])
	}
	if got := fmt.Sprint(cells[1].Outputs); !strings.Contains(got, "'new'") || !strings.Contains(got, "oops") || !strings.Contains(got, "42") ||
		strings.Contains(got, "gone") || strings.Contains(got, "old") || cells[1].Count != 2 {
		t.Errorf("the second cell: %+v", cells[1])
	}
	if len(cells[2].Outputs) != 1 || cells[2].Outputs[0].Ename != "ZeroDivisionError" || len(cells[3].Outputs) > 0 {
		t.Errorf("the error: %+v", cells[2:])
	}
	last := b.Tab()
	j.open(last, "long.ipynb")
	last.WaitFor("every line", fmt.Sprintf(`%s.trim() === %q`, shown(0), lines(40)+"49 of 50"))
	last.WaitFor("the result", shown(1)+`.includes("42")`)
}

// A page whose computer slept has, when it is back, what was printed meanwhile
// and what its person typed before, and saves both without a question.
func TestOutputsAfterSleep(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "sleep.ipynb", "import time\nfor i in range(30):\n    print('line', i + 1, flush=True)\n    time.sleep(0.5)", "")
	b := j.browser(t)
	j.open(b, "sleep.ipynb")
	runCells(b, 1)
	b.WaitFor("the first lines", shown(0)+`.includes("line 2\n")`)
	focusCell(b, 1)
	b.Type("# typed")
	j.cut.Store(true)
	j.dropAll()
	j.within(t, time.Minute, "the file has what was printed meanwhile", "sleep.ipynb", func(cells []fileCell) bool {
		return strings.Contains(cells[0].text(), "line 30\n")
	})
	j.cut.Store(false)
	b.WaitFor("every line", fmt.Sprintf(`%s === %q`, shown(0), lines(30)))
	j.within(t, time.Minute, "the file has both", "sleep.ipynb", func(cells []fileCell) bool {
		return cells[0].text() == lines(30) && fmt.Sprint(cells[1].Source) == "[# typed]"
	})
	noQuestion(b)
}

// A page that was cut off for a while, and saves as soon as it is back, before it knows
// that it is, or while it is not, first takes over what the server has written into the notebook meanwhile.
func TestSaveAfterCut(t *testing.T) {
	j := startJupyter(t)
	b := j.browser(t)
	for _, name := range []string{"back.ipynb", "before.ipynb", "meanwhile.ipynb"} {
		j.write(t, name, "import time\ntime.sleep(3)\nprint(6 * 7)", "print('next')", "")
		page := b.Tab()
		j.open(page, name)
		runCells(page, 1)
		time.Sleep(time.Second) // it was saved without its output
		j.cut.Store(true)
		j.dropAll()
		j.within(t, time.Minute, "the file has what was printed meanwhile", name, func(cells []fileCell) bool { return cells[0].text() == "42\n" })
		if name == "meanwhile.ipynb" {
			page.Press("s", kb.ModifierCtrl)
		}
		time.Sleep(12 * time.Second) // JupyterLab tries to connect ever less often
		j.cut.Store(false)
		if name == "back.ipynb" {
			page.WaitFor("the kernel", `/\| (Idle|Busy)/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
		}
		focusCell(page, 2)
		page.Type("# typed")
		page.Press("s", kb.ModifierCtrl)
		j.within(t, time.Minute, "the file has it all", name, func(cells []fileCell) bool {
			noQuestion(page)
			return cells[0].text() == "42\n" && fmt.Sprint(cells[2].Source) == "[# typed]"
		})
		page.WaitFor("the output", shown(0)+` === "42\n"`)
		page.Close()
	}
}

// A save may arrive just before the lab goes away: then the file is the page's own when the lab is back, and nobody is
// asked which version is right.
func TestSaveThatArrives(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "last.ipynb", "")
	b := j.browser(t)
	j.open(b, "last.ipynb")
	focusCell(b, 0)
	b.Type("# typed")
	j.last.Store(true)
	b.Press("s", kb.ModifierCtrl)
	j.within(t, time.Minute, "the file has it", "last.ipynb", func(cells []fileCell) bool { return fmt.Sprint(cells[0].Source) == "[# typed]" })
	b.Type(" and more")
	time.Sleep(4 * time.Second)
	j.unread.Store(6) // it goes away once more; browsers themselves ask again
	j.cut.Store(false)
	time.Sleep(4 * time.Second)
	b.Press("s", kb.ModifierCtrl)
	j.within(t, time.Minute, "the file has what was typed since", "last.ipynb", func(cells []fileCell) bool {
		noQuestion(b)
		return fmt.Sprint(cells[0].Source) == "[# typed and more]"
	})
	if left := j.unread.Load(); left != 0 {
		t.Errorf("the file was not asked for while the lab was away again, %d times", left)
	}
}

// So it is for the save because of a run, into which the server then writes what the cell prints.
func TestSaveOfRunThatArrives(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "run.ipynb", "import time\ntime.sleep(3)\nprint(6 * 7)", "")
	b := j.browser(t)
	j.open(b, "run.ipynb")
	focusCell(b, 0)
	b.Press(kb.End, kb.ModifierCtrl)
	b.Type("  # typed")
	j.last.Store(true)
	runCells(b, 1)
	has := func(cells []fileCell) bool {
		noQuestion(b)
		return cells[0].text() == "42\n" && strings.Contains(fmt.Sprint(cells[0].Source), "# typed")
	}
	j.within(t, time.Minute, "the file has what was printed meanwhile", "run.ipynb", has)
	j.cut.Store(false)
	b.WaitFor("the output", shown(0)+` === "42\n"`)
	focusCell(b, 1)
	b.Type("# typed, too")
	b.Press("s", kb.ModifierCtrl)
	j.within(t, time.Minute, "the file has it all", "run.ipynb", func(cells []fileCell) bool {
		return has(cells) && fmt.Sprint(cells[1].Source) == "[# typed, too]"
	})
}

// whilePrinting has a notebook's first cell print so many lines, and something typed into its second that is not saved.
func whilePrinting(t *testing.T, name string, last int) (jupyter, *Browser) {
	t.Helper()
	j := startJupyter(t)
	j.write(t, name, fmt.Sprintf("import time\nfor i in range(%d):\n    print('line', i + 1, flush=True)\n    time.sleep(0.5)", last), "")
	b := j.browser(t)
	j.open(b, name)
	runCells(b, 1)
	b.WaitFor("the first lines", shown(0)+`.includes("line 2\n")`)
	time.Sleep(6 * time.Second) // the save because of the run is over
	focusCell(b, 1)
	b.Type("# typed")
	return j, b
}

// A save may look at the file while the lab is started anew, and get its answer when the server has written what was
// printed meanwhile: it begins anew, and nobody is asked which version is right.
func TestSaveThatWaits(t *testing.T) {
	j, b := whilePrinting(t, "waits.ipynb", 40)
	j.held.Store(true)
	b.Press("s", kb.ModifierCtrl)
	for end := time.Now().Add(time.Minute); j.waits.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the save does not look at the file")
		}
	}
	j.dropKernels()
	j.within(t, time.Minute, "the file has what was printed meanwhile", "waits.ipynb", func(cells []fileCell) bool {
		return strings.Contains(cells[0].text(), "line 40\n")
	})
	j.held.Store(false)
	time.Sleep(time.Second)
	j.deaf.Store(false)
	j.within(t, time.Minute, "the file has both", "waits.ipynb", func(cells []fileCell) bool {
		noQuestion(b)
		return cells[0].text() == lines(40) && fmt.Sprint(cells[1].Source) == "[# typed]"
	})
}

// A save may find that the kernel's connection does not come back for longer than it waits: what the server has written
// until then is taken over all the same, and nobody is asked which version is right.
func TestSaveWithoutKernel(t *testing.T) {
	j, b := whilePrinting(t, "deaf.ipynb", 20)
	j.dropKernels()
	j.within(t, time.Minute, "the file has what was printed meanwhile", "deaf.ipynb", func(cells []fileCell) bool {
		return strings.Contains(cells[0].text(), "line 20\n")
	})
	b.Press("s", kb.ModifierCtrl)
	both := func(cells []fileCell) bool {
		noQuestion(b)
		return cells[0].text() == lines(20) && fmt.Sprint(cells[1].Source) == "[# typed]"
	}
	j.within(t, time.Minute, "the file has both", "deaf.ipynb", both)
	j.deaf.Store(false)
	b.WaitFor("the kernel", `/\| Idle/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
	time.Sleep(4 * time.Second) // what the server held back for the page has come, and what it has of it otherwise
	b.WaitFor("every line once", fmt.Sprintf(`%s === %q`, shown(0), lines(20)))
	b.Press("s", kb.ModifierCtrl)
	j.within(t, time.Minute, "the file has both once more", "deaf.ipynb", both)
}

// While the lab does not answer, is starting, or has stopped the notebook, the page says so
// without a question; saves wait for a lab that comes back.
func TestLabAway(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "away.ipynb", "")
	b := j.browser(t)
	j.open(b, "away.ipynb")
	notice := func(text string) string {
		return fmt.Sprintf(`(document.querySelector(".gpulab-connection")?.innerText.includes(%q) ?? false)`, text)
	}
	for _, how := range []struct {
		cut    bool
		status int32
	}{{cut: true}, {status: http.StatusServiceUnavailable}, {status: http.StatusFailedDependency}} {
		typed := fmt.Sprintf("# typed %d", how.status)
		focusCell(b, 0)
		b.Type(typed)
		j.cut.Store(how.cut)
		j.status.Store(how.status)
		j.dropAll()
		said := "The lab does not answer"
		if how.status == http.StatusFailedDependency {
			said = "This notebook has been stopped"
		}
		b.Press("s", kb.ModifierCtrl)
		b.WaitFor("what is the matter", notice(said))
		time.Sleep(5 * time.Second)
		if got := Evaluate[string](b, `async () => document.querySelector(".jp-Dialog")?.innerText ?? ""`); got != "" {
			t.Errorf("JupyterLab asks: %s", got)
		}
		if got := fmt.Sprint(j.read(t, "away.ipynb")[0].Source); strings.Contains(got, typed) {
			t.Errorf("it was saved nevertheless: %s", got)
		}
		j.cut.Store(false)
		j.status.Store(0)
		b.WaitFor("that the notice goes", "!"+notice(said))
		j.within(t, time.Minute, "the file has what was typed", "away.ipynb", func(cells []fileCell) bool {
			noQuestion(b)
			return strings.Contains(fmt.Sprint(cells[0].Source), typed)
		})
	}
}

// A save that somebody cancels is not tried again by those that waited behind it.
func TestCancelledSave(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "two.ipynb", "print('run')", "")
	b := j.browser(t)
	j.open(b, "two.ipynb")
	runCells(b, 1)
	b.WaitFor("the run", shown(0)+`.includes("run")`)
	time.Sleep(6 * time.Second) // the next run saves at once again
	b.Mouse("the second cell", codeCells+`[1].querySelector(".cm-content")`)
	b.Type("# here")
	j.write(t, "two.ipynb", "print('of another computer')")
	j.slow.Store(true)
	b.Press("s", kb.ModifierCtrl)
	b.Press(kb.Enter, kb.ModifierShift) // saves, too
	b.WaitFor("the question", `document.querySelector(".jp-Dialog")?.innerText.includes("has changed on disk")`)
	b.Click(".jp-Dialog", "Cancel")
	for range 20 {
		if strings.Contains(b.text(), "has changed on disk") {
			t.Fatal("it asks again")
		}
		time.Sleep(200 * time.Millisecond)
	}
	if got := j.read(t, "two.ipynb"); fmt.Sprint(got[0].Source) != "print('of another computer')" {
		t.Errorf("it was saved nevertheless: %+v", got)
	}
}

// Saves that are asked for while one goes on, on a slow way to the server, are not
// taken for somebody else's changes.
func TestSavesInTurn(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "slow.ipynb", "print(6 * 7)", "")
	b := j.browser(t)
	j.open(b, "slow.ipynb")
	j.slow.Store(true)
	runCells(b, 1)
	b.Mouse("the second cell", codeCells+`[1].querySelector(".cm-content")`)
	for i := range 6 {
		b.Type(fmt.Sprintf("# %d ", i))
		b.Press("s", kb.ModifierCtrl)
		time.Sleep(400 * time.Millisecond)
	}
	j.within(t, time.Minute, "the file has it all", "slow.ipynb", func(cells []fileCell) bool {
		noQuestion(b)
		return cells[0].text() == "42\n" && strings.Contains(fmt.Sprint(cells[1].Source), "# 5")
	})
	time.Sleep(2 * time.Second) // the last save has ended
	b.Type("# 6 ")
	saved := j.saved.Load()
	b.Press("s", kb.ModifierCtrl)
	for deadline := time.Now().Add(time.Minute); j.saved.Load() == saved; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the page does not save")
		}
	}
	b.Type("# 7 ")
	j.within(t, time.Minute, "what was there at the save", "slow.ipynb", func(cells []fileCell) bool { return strings.Contains(fmt.Sprint(cells[1].Source), "# 6") })
	time.Sleep(3 * time.Second) // the page knows that, too
	b.WaitFor("what was typed meanwhile is still to be saved", `document.querySelector("#jp-main-dock-panel .lm-mod-current.jp-mod-dirty")`)
}

// noQuestion ends a test in which JupyterLab takes gpulab's changes of a file for somebody else's.
func noQuestion(b *Browser) {
	b.t.Helper()
	if strings.Contains(b.text(), "has changed on disk") {
		b.fail("no question", errors.New("JupyterLab asks which version is right"))
	}
}

// The menu leads to gpulab's page of jobs with the notebook's path, as saved.
func TestRunAsJobMenu(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "a b.ipynb", "1")
	b := j.browser(t)
	j.open(b, "a%20b.ipynb")
	b.Mouse("the cell", codeCells+`[0].querySelector(".cm-content")`)
	Evaluate[bool](b, `async () => { window.open = page => { window.opened = page; return window }; return true }`)
	b.Type("# typed ")
	RunAsJob(b)
	b.WaitFor("the page of jobs", `window.opened === "/gpulab/job?notebook=a+b.ipynb&kernel=python3"`)
	if got := fmt.Sprint(j.read(t, "a b.ipynb")[0].Source); !strings.Contains(got, "# typed") {
		t.Errorf("it was not saved before; the file has %s", got)
	}
}

// Of very much output the file has the beginning and the end, with a page and without one, and what is left out is said.
// Messages in quick succession are all there.
func TestMuchOutput(t *testing.T) {
	home := t.TempDir()
	profile := filepath.Join(home, ".ipython/profile_default")
	settings, err := os.ReadFile(filepath.Join(notebookImage(t), "files/etc/ipython/ipython_config.py"))
	if err == nil {
		err = os.MkdirAll(profile, 0o700)
	}
	if err == nil {
		text := strings.ReplaceAll(string(settings), "/tmp/.gpulab/jupyter", profile)
		err = os.WriteFile(filepath.Join(profile, "ipython_config.py"), []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	j := startJupyterIn(t, home)
	j.write(t, "much.ipynb", "for i in range(6000): print(i, flush=True)", `print("x" * 6_000_000); print("LAST")`,
		"for i in range(10_000): print('-' * 400, i)", "6 * 7")
	b := j.browser(t)
	page := b.Tab()
	j.open(page, "much.ipynb")
	runCells(page, 4)
	page.WaitFor("the last cell", shown(3)+`.includes("42")`)
	all := func(cells []fileCell) bool {
		var numbers strings.Builder
		for i := range 6000 {
			fmt.Fprintln(&numbers, i)
		}
		long, many := cells[1].text(), cells[2].text()
		return cells[0].text() == numbers.String() &&
			strings.HasPrefix(long, "xxx") && strings.HasSuffix(long, "x\nLAST\n") && strings.Contains(long, "characters are left out here]") && len(long) < 4<<20 &&
			strings.HasPrefix(many, "---") && strings.HasSuffix(many, "- 9999\n") && strings.Contains(many, "characters are left out here]") && len(many) < 4<<20 &&
			!strings.Contains(long+many, "so far") && !strings.Contains(long+many, "IOPub")
	}
	j.savedBy(t, page, "the file has it, with the page", "much.ipynb", all)
	page.Close()

	// A page that is closed at once; what it had is not in the file any more.
	again := b.Tab()
	j.open(again, "much.ipynb")
	runCells(again, 1)
	again.WaitFor("the first cell", fmt.Sprintf(`/[0-9]/.test(%s[0].querySelector(".jp-InputPrompt").innerText)`, codeCells))
	for i := range 3 {
		focusCell(again, i+1)
		again.Press(kb.Enter, kb.ModifierShift)
	}
	again.WaitFor("the last run", fmt.Sprintf(`/[*8]/.test(%s[3].querySelector(".jp-InputPrompt").innerText)`, codeCells))
	again.Close()
	j.within(t, time.Minute, "the file has it, without the page", "much.ipynb", func(cells []fileCell) bool {
		return all(cells) && cells[3].Count >= 8
	})
}

// Threads that print after their cell has ended are bounded, too: the page and the file have the beginning and the end.
func TestThreadsPrintAfterTheirCell(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "threads.ipynb", `import threading, time
def work():
    for i in range(100):
        print(i, "-" * 100_000)
        time.sleep(0.02)
    print("LAST")
threading.Timer(1, work).start()`)
	b := j.browser(t)
	page := b.Tab()
	j.open(page, "threads.ipynb")
	runCells(page, 1)
	page.WaitFor("how much there is", shown(0)+`.includes("Threads of the cell still print")`)
	page.WaitFor("the end", shown(0)+`.endsWith("\nLAST\n")`)
	whole := func(cells []fileCell) bool {
		text := cells[0].text()
		return strings.HasPrefix(text, "0 ---") && strings.HasSuffix(text, "\nLAST\n") && len(text) < 4<<20 &&
			strings.Contains(text, "characters are left out here]") && !strings.Contains(text, "so far")
	}
	j.savedBy(t, page, "the file has it, with the page", "threads.ipynb", whole)
	runCells(page, 1)
	page.WaitFor("the end of the run", fmt.Sprintf(`%s[0].querySelector(".jp-InputPrompt").innerText.includes("2")`, codeCells))
	page.Close()
	j.within(t, time.Minute, "the file has it, without the page", "threads.ipynb", func(cells []fileCell) bool {
		return cells[0].Count == 2 && whole(cells)
	})
}

// A page that wants to save before it has seen what its cells printed, and is then closed, loses nothing: it may be busy
// showing much output. What it has seen and its owner then cleared stays cleared.
func TestPageBehindItsKernel(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "behind.ipynb", "print('first')", "print('second')", "print('third')", "print('fourth')")
	b := j.browser(t)
	page := b.Tab()
	j.open(page, "behind.ipynb")
	runCells(page, 2)
	page.WaitFor("the second cell's output", shown(1)+` === "second\n"`)
	j.within(t, time.Minute, "the file has both", "behind.ipynb", func(cells []fileCell) bool { return cells[1].text() == "second\n" })

	j.mute.Store(true)
	for i := 2; i < 4; i++ {
		focusCell(page, i)
		page.Press(kb.Enter, kb.ModifierShift)
	}
	page.Press("s", kb.ModifierCtrl)
	time.Sleep(7 * time.Second) // a page saves within 5 s of a run
	if cells := j.read(t, "behind.ipynb"); cells[2].text() != "" {
		t.Fatalf("the page is not behind: %+v", cells)
	}
	page.Close()
	j.mute.Store(false)
	j.within(t, time.Minute, "the file has all", "behind.ipynb", func(cells []fileCell) bool {
		return cells[2].text() == "third\n" && cells[2].Count == 3
	})

	again := b.Tab()
	j.open(again, "behind.ipynb")
	again.WaitFor("the third cell's output", shown(2)+` === "third\n"`)
	runCells(again, 1)
	again.WaitFor("the first cell's new number", fmt.Sprintf(`%s[0].querySelector(".jp-InputPrompt").innerText.includes("5")`, codeCells))
	fromMenu(again, "Edit", "Clear Outputs of All Cells")
	j.savedBy(t, again, "the file has no outputs", "behind.ipynb", func(cells []fileCell) bool {
		return len(cells[0].Outputs) == 0 && len(cells[2].Outputs) == 0
	})
	again.Close()
	time.Sleep(5 * time.Second) // the server writes within three
	if cells := j.read(t, "behind.ipynb"); len(cells[0].Outputs) > 0 || len(cells[2].Outputs) > 0 {
		t.Errorf("cleared outputs are back: %+v", cells)
	}
}

// A cell of 12 MB is run; one that is larger than what a message may be is not sent, and the page says so.
func TestLargeCell(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "large.ipynb", `d = "`+strings.Repeat("A", 12_000_000)+`"`+"\nprint(len(d))", "print('next')")
	b := j.browser(t)
	j.open(b, "large.ipynb")
	runCells(b, 2)
	b.WaitFor("its output", shown(0)+` === "12000000\n"`)
	b.WaitFor("the next one's", shown(1)+` === "next\n"`)
	b.WaitFor("a connection", `/\| Idle/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
	j.write(t, "larger.ipynb", `d = "`+strings.Repeat("A", 17_000_000)+`"`, "print('next')")
	page := b.Tab()
	j.open(page, "larger.ipynb")
	focusCell(page, 0)
	page.Press(kb.Enter, kb.ModifierShift)
	page.WaitFor("what is the matter", `document.body.innerText.includes("This cell is too large to be run: it has 16 MiB, and 16 MiB are possible.")`)
	focusCell(page, 1)
	page.Press(kb.Enter, kb.ModifierShift)
	page.WaitFor("the next one's output", shown(1)+` === "next\n"`)
}

// Outputs of equal cells without lasting IDs are kept without a page, each in its place, and a page that comes back while
// they run shows them there.
func TestOutputsOfEqualCells(t *testing.T) {
	j := startJupyter(t)
	code := `{"cell_type": "code", "metadata": {"id": "aa"}, %s"execution_count": null, "outputs": [],
		"source": ["import time\n", "for i in range(3): time.sleep(3); print(i)"]}`
	for name, format := range map[string][2]string{"old.ipynb": {"0", ""}, "twice.ipynb": {"5", `"id": "aa", `}} {
		cell := fmt.Sprintf(code, format[1])
		text := `{"nbformat": 4, "nbformat_minor": ` + format[0] + `, "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "cells": [` + cell + ", " + cell + "]}"
		if err := os.WriteFile(filepath.Join(j.home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := j.browser(t)
	for _, name := range []string{"old.ipynb", "twice.ipynb"} {
		page := b.Tab()
		j.open(page, name)
		runCells(page, 2)
		page.Close()
		j.within(t, time.Minute, "the first cell's first lines", name, func(cells []fileCell) bool { return cells[0].text() != "" })
		if name == "old.ipynb" {
			again := b.Tab()
			j.open(again, name)
			again.WaitFor("the second cell's lines", shown(1)+` === "0\n1\n2\n"`)
			again.Close()
		}
		j.within(t, time.Minute, "the file has both", name, func(cells []fileCell) bool {
			return cells[0].text() == "0\n1\n2\n" && cells[1].text() == "0\n1\n2\n"
		})
	}
}

// oddKernels makes kernels in a home: one that takes its time to start, and one that cannot.
func oddKernels(t *testing.T, home string) {
	t.Helper()
	broken := filepath.Join(home, "broken")
	if err := os.WriteFile(broken, []byte("#!/none\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, argv := range map[string][]string{
		"slow":   {"bash", "-c", `sleep 12; exec "$0" -m ipykernel_launcher -f "$1"`, filepath.Join(jupyterVenv(t, notebookImage(t)), "bin/python"), "{connection_file}"},
		"broken": {broken, "{connection_file}"},
	} {
		dir := filepath.Join(home, ".local/share/jupyter/kernels", name)
		text, err := json.Marshal(map[string]any{"argv": argv, "display_name": name, "language": "python"})
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "kernel.json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What is run before a notebook's kernel is there waits for it, shows [*], and runs in order. Where the kernel does not
// start, the page says so.
func TestFirstRuns(t *testing.T) {
	home := t.TempDir()
	oddKernels(t, home)
	j := startJupyterIn(t, home)
	b := j.browser(t)
	cells := []string{"a = 1", "a += 1\nprint(a)", "a *= 21\nprint(a)"}
	early := func(name string) *Browser {
		page := b.Tab()
		page.Open(j.base + "lab/tree/" + name + "?reset")
		page.WaitFor("the cells", codeCells+`[1]?.querySelector(".cm-content")?.innerText.trim()`)
		for i := range cells {
			focusCell(page, i)
			page.Press(kb.Enter, kb.ModifierShift)
		}
		return page
	}
	prompts := func(want string) string {
		return fmt.Sprintf(`%s.slice(0, 3).map(cell => cell.querySelector(".jp-InputPrompt").innerText.trim()).join("") === %q`, codeCells, want)
	}
	for i := range 4 {
		name := fmt.Sprintf("early-%d.ipynb", i)
		j.write(t, name, cells...)
		j.slow.Store(i >= 2) // a session takes longer, and so does the time in which there is none
		page := early(name)
		page.WaitFor("the runs", prompts("[1]:[2]:[3]:")+" && "+shown(2)+` === "42\n"`)
		page.Close()
	}
	j.slow.Store(false)
	j.writeFor(t, "slow.ipynb", "slow", cells...)
	page := early("slow.ipynb")
	page.WaitFor("that they wait", prompts("[*]:[*]:[*]:"))
	page.WaitFor("the runs", prompts("[1]:[2]:[3]:")+" && "+shown(2)+` === "42\n"`)
	page.Close()

	j.writeFor(t, "broken.ipynb", "broken", cells...)
	page = early("broken.ipynb")
	page.WaitFor("what is the matter", `document.body.innerText.includes("The kernel of broken.ipynb has not started. The cells that waited for it have not run.")`)
	page.WaitFor("that nothing waits", prompts("[ ]:[ ]:[ ]:"))
	page.Close()
}

// What lies in a home does not keep a notebook from starting, and what is not used of it is said.
func TestStrangeHomes(t *testing.T) {
	notNotebook := `c = get_config()
c.ServerApp.contents_manager_class = "jupytext.TextFileContentsManager"
c.ServerApp.root_dir = "/data/mine"
raise SystemExit(1)
`
	for name, files := range map[string]map[string]string{
		"settings": {
			".jupyter/jupyter_server_config.py": notNotebook, ".jupyter/jupyter_config.py": notNotebook, ".jupyter/jupyter_lab_config.py": notNotebook,
			".jupyter/jupyter_server_config.json":                                                  `{"ServerApp": {"kernel_manager_class": "x.Y"}}`,
			".jupyter/jupyter_server_config.d/mine.json":                                           `{"ServerApp": {"jpserver_extensions": {"mine": true`,
			".jupyter/labconfig/page_config.json":                                                  "{",
			".jupyter/jupyter_notebook_config.py/x":                                                "", // a folder of that name
			".jupyter/lab/user-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings": "{",
			".bashrc": "exit 1\n", ".profile": "exit 1\n", ".condarc": "[", ".config/pip/pip.conf": "[", ".pip/pip.conf": "[",
			".ipython/profile_default/ipython_notebook_config.py": "raise SystemExit(1)\n",
		},
		"local": {
			".local/lib/python3.11/site-packages/usercustomize.py":   "raise SystemExit(1)\n",
			".local/lib/python3.11/site-packages/jupyter_server.py":  "raise SystemExit(1)\n",
			".local/lib/python3.9/site-packages/site.py":             "raise SystemExit(1)\n",
			".local/share/jupyter/kernels/python3/kernel.json":       `{"argv": ["/gone/python", "-f", "{connection_file}"], "display_name": "Mine", "language": "python"}`,
			".local/share/jupyter/kernels/half/kernel.json":          "{\n\n",
			".local/share/jupyter/labextensions/mine/package.json":   "{",
			".local/share/jupyter/nbconvert/templates/lab/conf.json": "{",
			".local/etc/jupyter/jupyter_server_config.d/mine.json":   "{",
		},
		"files": {".jupyter": "", ".local": "", ".ipython": "", ".cache": "", ".config": ""},
		"programs": {
			".local/bin/mkdir": "#!/bin/sh\nexit 1\n", ".local/bin/git": "#!/bin/sh\nexit 1\n", ".local/bin/id": "#!/none\n",
			".local/bin/getent": "#!/bin/sh\nexit 1\n", ".local/bin/bash": "#!/none\n", ".local/bin/python3": "#!/none\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			for path, text := range files {
				path = filepath.Join(home, path)
				err := os.MkdirAll(filepath.Dir(path), 0o700)
				if err == nil {
					err = os.WriteFile(path, []byte(text), 0o700)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			j := startJupyterIn(t, home)
			j.write(t, "a.ipynb", "import os; print(6 * 7, os.environ.get('JUPYTER_CONFIG_DIR'))")
			b := j.browser(t)
			j.open(b, "a.ipynb")
			runCells(b, 1)
			b.WaitFor("the output", shown(0)+` === "42 None\n"`)
			if status, _ := j.ask(t, http.MethodGet, "gpulab/outputs?path=a.ipynb", ""); status != http.StatusOK {
				t.Errorf("outputs are not kept: %d", status)
			}
			_, said := j.ask(t, http.MethodGet, "gpulab/home", "")
			for _, want := range map[string][]string{
				"settings": {"~/.jupyter/jupyter_server_config.py, ~/.jupyter/jupyter_server_config.json", "~/.jupyter/labconfig"},
				"local":    {"~/.local/share/jupyter/kernels/python3/kernel.json: its program /gone/python is not there", "half/kernel.json: line 3 is not JSON", "~/.local/share/jupyter/labextensions"},
			}[name] {
				if !strings.Contains(said, want) {
					t.Errorf("it is not said that %s is not used: %s", want, said)
				}
			}
			if name == "settings" || name == "local" {
				b.WaitFor("that the page says it", `[...document.querySelectorAll(".Toastify__toast")].some(e => /Not (read|used): ~/.test(e.innerText))`)
			}
		})
	}
}

// A home that is full, or that nothing can be written to for another reason, does not keep a notebook from starting.
func TestFullHome(t *testing.T) {
	home := t.TempDir()
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(home, syscall.MNT_DETACH) })
	file, err := os.Create(filepath.Join(home, "data"))
	if err == nil {
		_, err = io.Copy(file, io.LimitReader(zeros{}, 1<<20))
		_ = file.Close()
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	j := startJupyterIn(t, home)
	b := j.browser(t)
	b.Open(j.base + "lab?reset")
	b.WaitFor("the launcher", `document.querySelector('.jp-LauncherCard[data-category="Notebook"]')`)
}

// zeros is a reader of zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// menu chooses an entry of JupyterLab's menus by the labels on the way there.
func menu(b *Browser, labels ...string) {
	b.t.Helper()
	b.Mouse("the menu "+labels[0], fmt.Sprintf(`[...document.querySelectorAll(".lm-MenuBar-itemLabel")].find(e => e.innerText.trim() === %q)`, labels[0]))
	for _, label := range labels[1:] {
		b.Mouse(label, fmt.Sprintf(`[...document.querySelectorAll(".lm-Menu-item:not(.lm-mod-disabled) .lm-Menu-itemLabel")].find(e => e.innerText.trim() === %q)`, label))
	}
}

// Hidden files can be shown.
func TestHiddenFiles(t *testing.T) {
	j := startJupyter(t)
	if err := os.WriteFile(filepath.Join(j.home, ".gitignore"), []byte("data/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := j.browser(t)
	b.Open(j.base + "lab?reset")
	listed := `[...document.querySelectorAll(".jp-DirListing-itemText")].some(e => e.innerText.trim() === ".gitignore")`
	b.WaitFor("the launcher", `document.querySelector('.jp-LauncherCard[data-category="Notebook"]')`)
	if Evaluate[bool](b, `async () => `+listed) {
		t.Error("it is shown before somebody asks for it")
	}
	menu(b, "View", "Show Hidden Files")
	b.WaitFor("the hidden file", listed)
	if status, body := j.ask(t, http.MethodGet, "api/contents/.gitignore", ""); status != http.StatusOK || !strings.Contains(body, "data/") {
		t.Errorf("it is answered with %d: %s", status, body)
	}
}

// Every format that the export menu offers works, and PDF leads to the browser's printing.
func TestExports(t *testing.T) {
	j := startJupyter(t)
	text := `{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "language_info": {"name": "python", "file_extension": ".py"}}, "cells": [
		{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Report\n\n*really*"},
		{"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "outputs": [{"output_type": "stream", "name": "stdout", "text": "42\n"}], "source": "print(6 * 7)"}]}`
	if err := os.WriteFile(filepath.Join(j.home, "report.ipynb"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	status, body := j.ask(t, http.MethodGet, "api/nbconvert", "")
	var formats map[string]any
	if err := json.Unmarshal([]byte(body), &formats); status != http.StatusOK || err != nil {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	for _, want := range []string{"html", "markdown", "notebook", "script", "slides"} {
		if formats[want] == nil {
			t.Errorf("%s is not offered", want)
		}
	}
	for format := range formats {
		if format == "custom" {
			continue // JupyterLab's menu leaves it out
		}
		if status, body := j.ask(t, http.MethodGet, "nbconvert/"+format+"/report.ipynb?download=true", ""); status != http.StatusOK || !strings.Contains(body, "42") && format != "python" && format != "script" {
			t.Errorf("%s is answered with %d", format, status)
		}
	}
	b := j.browser(t)
	j.open(b, "report.ipynb")
	Evaluate[bool](b, `async () => {
		// What is printed is a page in a frame.
		const open = HTMLIFrameElement.prototype.__lookupGetter__("contentWindow");
		Object.defineProperty(HTMLIFrameElement.prototype, "contentWindow", {get() {
			const inside = open.call(this);
			if (inside && /Report/.test(inside.document?.body?.innerText)) window.printed = inside.document.body.innerText;
			if (inside) inside.print = () => {};
			return inside;
		}});
		return true;
	}`)
	focusCell(b, 0)
	menu(b, "File", "Save and Export Notebook As", "PDF (print to a file)…")
	b.WaitFor("the page that is printed", `/really/.test(window.printed)`)
}

// A name that is too long is refused, and no half file is left.
func TestLongName(t *testing.T) {
	j := startJupyter(t)
	for name, want := range map[string]int{strings.Repeat("n", 238) + ".ipynb": http.StatusCreated, strings.Repeat("n", 245) + ".ipynb": http.StatusBadRequest} {
		status, body := j.ask(t, http.MethodPut, "api/contents/"+name,
			`{"type": "notebook", "format": "json", "content": {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}}`)
		if status != want || want == http.StatusBadRequest && !strings.Contains(body, "too long: it has 251 bytes, and 244 are possible") {
			t.Errorf("%d bytes are answered with %d: %s", len(name), status, body)
		}
		_, err := os.Stat(filepath.Join(j.home, name))
		if (err == nil) != (want == http.StatusCreated) {
			t.Errorf("%d bytes: %v", len(name), err)
		}
	}
}

// Without a choice of its own a page is light or dark as the person's system is.
func TestThemeOfSystem(t *testing.T) {
	j := startJupyter(t)
	b := j.browser(t)
	for scheme, name := range map[string]string{"dark": "JupyterLab Dark", "light": "JupyterLab Light"} {
		b.scheme(scheme)
		b.Open(j.base + "lab?reset")
		b.WaitFor("its theme", fmt.Sprintf(`document.body.dataset.jpThemeName === %q`, name))
	}
}
