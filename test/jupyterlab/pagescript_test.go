//go:build e2e

package jupyterlab

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// withScript is the server with another page script in the place of gpulab's own.
func (j jupyter) withScript(t *testing.T, change func(script string) (string, int)) jupyter {
	t.Helper()
	server, err := url.Parse(j.base)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		ErrorLog: log.New(io.Discard, "", 0),
		Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = server.Scheme, server.Host },
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasSuffix(r.Request.URL.Path, "/gpulab/static/gpulab.js") {
				return nil
			}
			script, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			text, status := change(string(script))
			r.Body.Close()
			r.Body, r.StatusCode, r.ContentLength = io.NopCloser(strings.NewReader(text)), status, int64(len(text))
			r.Header.Set("Content-Length", fmt.Sprint(len(text)))
			return nil
		},
	})
	t.Cleanup(front.Close)
	j.base = front.URL + server.Path
	return j
}

// A fault in gpulab's page script leaves JupyterLab's own behaviour: a notebook opens and runs a cell. A fault in one
// part leaves the others.
func TestBrokenPageScript(t *testing.T) {
	inPart := func(from, to string) func(string) (string, int) {
		return func(script string) (string, int) {
			if !strings.Contains(script, from) {
				return "the script has changed; change this test", http.StatusOK
			}
			return `window.said = []; { const error = console.error; console.error = (...said) => { window.said.push(said.join(" ")); error(...said); }; }` +
				strings.ReplaceAll(script, from, to), http.StatusOK
		}
	}
	j := startJupyter(t)
	j.write(t, "a.ipynb", "print(6 * 7)")
	browser := j.browser(t)
	for name, test := range map[string]struct {
		change func(string) (string, int)
		failed int // parts
	}{
		"missing":          {change: func(string) (string, int) { return "", http.StatusNotFound }},
		"no JavaScript":    {change: func(script string) (string, int) { return script + "}", http.StatusOK }},
		"fails at once":    {change: func(script string) (string, int) { return `throw new Error("broken");` + script, http.StatusOK }},
		"fails as module":  {change: inPart("const all = await plugins();", `throw new Error("broken");`)},
		"every part fails": {change: inPart("return await activate(...args);", `throw new Error("broken");`), failed: 11},
		"one part fails":   {change: inPart("function connection(", `function connection() { throw new Error("broken"); } function unused(`), failed: 1},
		"a run fails":      {change: inPart("async function waited(", `async function waited() { throw new Error("broken"); } async function unused(`), failed: 1},
	} {
		broken := j.withScript(t, test.change)
		b := browser.Tab()
		t.Log(name)
		broken.open(b, "a.ipynb")
		runCells(b, 1)
		b.WaitFor("the output", shown(0)+` === "42\n"`)
		if test.failed > 0 {
			said := `(window.said ?? []).filter(line => /^gpulab:[a-z]+ does not work/.test(line)).length`
			if got := lab.Evaluate[int](b, `async () => `+said); got != test.failed {
				t.Errorf("%s: %d parts are said not to work, want %d", name, got, test.failed)
			}
		}
		if test.failed == 1 {
			lab.Menu(b, "File")
			b.WaitFor("a part that works", `[...document.querySelectorAll(".lm-Menu-itemLabel")].some(e => e.innerText.trim() === "Run as Job…")`)
		}
		b.Close()
	}
}

// An extension that needs a part in the server, which is not there, is left out with one quiet note, once: its page
// part would show an error at every load.
func TestExtensionWithoutServer(t *testing.T) {
	home := t.TempDir()
	extension := func(name, more string) {
		dir := filepath.Join(home, ".local/share/jupyter/labextensions", name)
		err := os.MkdirAll(filepath.Join(dir, "static"), 0o700)
		for path, text := range map[string]string{
			"package.json": fmt.Sprintf(`{"name": %q, "version": "1.0.0", "jupyterlab": {"extension": true, "_build": {"load": "static/e.js", "extension": "./extension"}%s}}`, name, more),
			"static/e.js": fmt.Sprintf(`(window._JUPYTERLAB ??= {})[%q] = {init: () => {}, get: async () => () => ({__esModule: true, default: {id: "%[1]s:plugin", autoStart: true,
				activate: app => { app.restored.then(() => { document.body.dataset.%[2]s = "here"; }); }}})}`, name, name[len(name)-1:]),
		} {
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	extension("extension-a", `, "discovery": {"server": {"managers": ["pip"], "base": {"name": "jupyterlab-git"}}}`)
	extension("extension-b", `, "discovery": {"server": {"managers": ["pip"], "base": {"name": "jupyter-lsp"}}}`) // the image has it
	extension("extension-c", "")
	j := startJupyterIn(t, home)
	b := j.browser(t)
	note := `[...document.querySelectorAll(".Toastify__toast")].filter(e => /Not used: ~\/\.local\/share\/jupyter\/labextensions\/extension-a: it needs the package jupyterlab-git/.test(e.innerText)).length`
	for load := range 2 {
		b.Open(j.base + "lab?reset")
		b.WaitFor("the others", `document.body.dataset.b && document.body.dataset.c`)
		if load == 0 {
			b.WaitFor("the note", note+" === 1")
			b.WaitFor("that it is known as said", `localStorage.getItem("gpulab:home")?.includes("extension-a")`)
			continue
		}
		if lab.Evaluate[int](b, `async () => `+note) > 0 || lab.Evaluate[bool](b, `async () => Boolean(document.body.dataset.a)`) {
			t.Error("it is said again, or used")
		}
		noDialog(t, b)
	}
}
