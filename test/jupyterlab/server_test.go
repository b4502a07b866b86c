//go:build e2e

package jupyterlab

import (
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
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

// jupyter is the notebook server of the image, of the image's locks and files,
// without the image and without a hub.
type jupyter struct {
	base  string // its URL, as the person's computer has it
	home  string // the person's
	files string // what the image has in /opt/lab
	*line
}

// startJupyter starts a notebook server with a home of its own. The test runs beside others: most of its time it waits.
func startJupyter(t *testing.T) jupyter {
	t.Helper()
	return startJupyterIn(t, t.TempDir())
}

// startJupyterIn starts a notebook server as the image does, in a home that may have something in it, with more
// variables in its environment.
func startJupyterIn(t *testing.T, home string, env ...string) jupyter {
	t.Helper()
	t.Parallel()
	image := notebookImage(t)
	venv := jupyterVenv(t, image)
	opt, scratch := t.TempDir(), t.TempDir()
	err := errors.Join(os.CopyFS(opt, os.DirFS(filepath.Join(image, "files/opt/lab"))),
		os.CopyFS(filepath.Join(opt, "modules"), os.DirFS(filepath.Join(image, "modules"))))
	if err != nil {
		t.Fatal(err)
	}
	// What is at fixed places in the image is elsewhere here.
	places := strings.NewReplacer("/tmp/.gpulab", scratch, "/opt/gpulab/environments", filepath.Join(home, "environments"), "/etc/profile.d/gpulab.sh", filepath.Join(opt, "profile.sh"),
		"/opt/lab/bin", filepath.Join(venv, "bin"), "/sys/fs/cgroup", filepath.Join(home, "cgroup"),
		"gpulab_home.largest_message()", "16 << 20")
	for from, to := range map[string]string{
		"files/opt/lab/etc/jupyter/jupyter_server_config.py": "etc/jupyter/jupyter_server_config.py",
		"files/usr/local/bin/start-notebook":                 "start-notebook",
		"files/etc/profile.d/gpulab.sh":                      "profile.sh",
		"modules/gpulab_home.py":                             "modules/gpulab_home.py",
		"modules/gpulab_meter.py":                            "modules/gpulab_meter.py",
	} {
		text, err := os.ReadFile(filepath.Join(image, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(opt, to), []byte(places.Replace(string(text))), 0o600)
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
	j := jupyter{base: fmt.Sprintf("http://%s/user/ada/one/", passed.Addr()), home: home, files: opt, line: &line{}}
	go j.serve(passed, socket)
	t.Cleanup(func() { _ = passed.Close(); j.dropAll() })
	server := exec.Command("bash", filepath.Join(opt, "start-notebook"), filepath.Join(venv, "bin/jupyter-lab"), "--no-browser", "--allow-root",
		"--ServerApp.sock="+socket, "--ServerApp.base_url=/user/ada/one/", "--IdentityProvider.token=",
		"--ServerApp.allow_unauthenticated_access=True")
	server.Dir = j.home
	server.Env = append(os.Environ(), "HOME="+j.home, "PATH="+filepath.Join(venv, "bin")+":"+os.Getenv("PATH"),
		"JUPYTER_RUNTIME_DIR="+filepath.Join(scratch, "runtime"), "JUPYTER_CONFIG_PATH="+filepath.Join(opt, "etc/jupyter"), "JUPYTER_PATH="+filepath.Join(opt, "share/jupyter"),
		"PYTHONPATH="+filepath.Join(opt, "modules"), "PYTHONDONTWRITEBYTECODE=1")
	server.Env = append(server.Env, env...)
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
	return filepath.Join(lab.Repository(t), "packaging/images/notebook")
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
	defer lab.Lock(t, dir+".lock")()
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
func (j jupyter) browser(t *testing.T) *lab.Browser {
	t.Helper()
	return lab.NewBrowser(t, []string{"env"}, nil).Patient(2 * time.Minute) // JupyterLab tries to connect again for up to 63 s
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
func (j jupyter) open(b *lab.Browser, name string) {
	b.Open(j.base + "lab/tree/" + name + "?reset")
	b.WaitFor("the notebook's kernel", `/\| (Idle|Busy)/.test(document.querySelector("#jp-main-statusbar")?.innerText)`)
}

// runCells runs the first n cells, one after the other, by their keys.
func runCells(b *lab.Browser, n int) {
	b.WaitFor("the cells", fmt.Sprintf(`%s.length >= %d`, lab.CodeCells, n))
	for i := range n {
		focusCell(b, i)
		b.Press(kb.Enter, kb.ModifierShift)
	}
	b.WaitFor("a run", fmt.Sprintf(`/[*0-9]/.test(%s[0]?.querySelector(".jp-InputPrompt")?.innerText)`, lab.CodeCells))
}

// savedBy presses the keys that save until the notebook's file is as wanted.
func (j jupyter) savedBy(t *testing.T, b *lab.Browser, what, name string, wanted func([]fileCell) bool) {
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
func focusCell(b *lab.Browser, number int) {
	lab.Evaluate[bool](b, fmt.Sprintf(`async () => { %s[%d].querySelector(".cm-content").focus(); return true }`, lab.CodeCells, number))
}

// shown is what the page shows below the notebook's cell.
func shown(number int) string {
	return fmt.Sprintf(`[...(%s[%d]?.querySelectorAll(".jp-OutputArea-output") ?? [])].map(e => e.innerText).join("")`, lab.CodeCells, number)
}

// lines are the numbered lines from one to the last one.
func lines(last int) string {
	var b strings.Builder
	for i := range last {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}
