//go:build e2e

package jupyterlab

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// The menu leads to gpulab's page of jobs with the notebook's path, as saved.
func TestRunAsJobMenu(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "a b.ipynb", "1")
	b := j.browser(t)
	j.open(b, "a%20b.ipynb")
	b.Mouse("the cell", lab.CodeCells+`[0].querySelector(".cm-content")`)
	lab.Evaluate[bool](b, `async () => { window.open = page => { window.opened = page; return window }; return true }`)
	b.Type("# typed ")
	lab.RunAsJob(b)
	b.WaitFor("the page of jobs", `window.opened === "/gpulab/job?notebook=a+b.ipynb&kernel=python3"`)
	if got := fmt.Sprint(j.read(t, "a b.ipynb")[0].Source); !strings.Contains(got, "# typed") {
		t.Errorf("it was not saved before; the file has %s", got)
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
	if lab.Evaluate[bool](b, `async () => `+listed) {
		t.Error("it is shown before somebody asks for it")
	}
	lab.Menu(b, "View", "Show Hidden Files")
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
	lab.Evaluate[bool](b, `async () => {
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
	lab.Menu(b, "File", "Save and Export Notebook As", "PDF (print to a file)…")
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
		b.Scheme(scheme)
		b.Open(j.base + "lab?reset")
		b.WaitFor("its theme", fmt.Sprintf(`document.body.dataset.jpThemeName === %q`, name))
	}
}
