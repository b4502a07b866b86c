//go:build e2e

package jupyterlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

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
	early := func(name string) *lab.Browser {
		page := b.Tab()
		page.Open(j.base + "lab/tree/" + name + "?reset")
		page.WaitFor("the cells", lab.CodeCells+`[1]?.querySelector(".cm-content")?.innerText.trim()`)
		for i := range cells {
			focusCell(page, i)
			page.Press(kb.Enter, kb.ModifierShift)
		}
		return page
	}
	prompts := func(want string) string {
		return fmt.Sprintf(`%s.slice(0, 3).map(cell => cell.querySelector(".jp-InputPrompt").innerText.trim()).join("") === %q`, lab.CodeCells, want)
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
				"local": {"~/.local/share/jupyter/kernels/python3/kernel.json: its program /gone/python is not there", "half/kernel.json: line 3 is not JSON", "~/.local/share/jupyter/labextensions",
					"Your home uses Python 3.11, because it has packages in ~/.local/lib/python3.11/site-packages."},
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
func TestHomeWithoutSpace(t *testing.T) {
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
