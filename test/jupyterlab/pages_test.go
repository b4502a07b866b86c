//go:build e2e

package jupyterlab

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/test/lab"
)

// fileItem is an entry of JupyterLab's list of files.
func fileItem(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".jp-DirListing-item")].find(e => e.querySelector(".jp-DirListing-itemText")?.innerText === %q)`, name)
}

// toast is a notice with a text, or with a button of that label.
func toast(text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".Toastify__toast")].find(e => e.innerText.includes(%q))`, text)
}

// toastButton is the button of a notice.
func toastButton(label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".Toastify__toast button")].find(e => e.innerText.trim() === %q)`, label)
}

// press clicks on a button that may still move into its place.
func press(b *lab.Browser, button string) {
	b.WaitFor("the button", button)
	lab.Evaluate[bool](b, `async () => { `+button+`.click(); return true }`)
}

// dialogButton is a button of JupyterLab's dialog.
func dialogButton(label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".jp-Dialog button")].find(e => e.innerText.trim() === %q)`, label)
}

// Progress bars and widgets show, %matplotlib widget too, in kernels that have their Python part, without a reload. So do
// those of packages in the lab's environments; other extensions that come with an environment stay away.
func TestWidgets(t *testing.T) {
	home := t.TempDir()
	kernels := venvOf(t, "test-widgets-", "testdata/widgets.txt")
	write := func(path string, content any) {
		t.Helper()
		text, err := json.Marshal(content)
		path = filepath.Join(home, path)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type object = map[string]any
	write(".local/share/jupyter/kernels/science/kernel.json", object{
		"argv": []string{filepath.Join(kernels, "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"}, "display_name": "Science", "language": "python",
	})
	extension := func(name string, shared object) {
		write("environments/science-1/share/jupyter/labextensions/"+name+"/package.json", object{
			"name": name, "version": "1.0.0", "jupyterlab": object{
				"extension": true, "_build": object{"load": "static/remoteEntry.js", "extension": "./extension"}, "sharedPackages": shared,
			},
		})
	}
	extension("draws", object{"@jupyter-widgets/base": object{"bundled": false, "singleton": true}})
	extension("meddles", object{})
	extension("gpulab", object{"@jupyter-widgets/base": object{}})

	j := startJupyterIn(t, home)
	_, page := j.ask(t, http.MethodGet, "lab", "")
	if !strings.Contains(page, `"name": "draws"`) && !strings.Contains(page, `"name":"draws"`) {
		t.Error("an environment's extension that draws widgets is not loaded")
	}
	if strings.Contains(page, "meddles") || strings.Count(page, "static/gpulab.js") != 1 {
		t.Error("an environment's extension that draws no widgets is loaded, or takes the lab's place")
	}

	j.writeFor(t, "widgets.ipynb", "science",
		"import ipywidgets\nslider = ipywidgets.IntSlider(value=7)\nslider",
		"from tqdm.auto import tqdm\nfor _ in tqdm(range(30)): pass",
		"%matplotlib widget\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
		"print(slider.value)")
	b := j.browser(t)
	j.open(b, "widgets.ipynb")
	runCells(b, 3)
	b.WaitFor("a slider", fmt.Sprintf(`%s[0].querySelector(".widget-slider .widget-readout")?.innerText === "7"`, lab.CodeCells))
	b.WaitFor("a bar at its end", fmt.Sprintf(`%s[1].querySelector(".jupyter-widgets .progress-bar")?.style.width === "100%%"`, lab.CodeCells))
	b.WaitFor("a plot to play with", fmt.Sprintf(`%s[2].querySelector(".jupyter-matplotlib canvas")`, lab.CodeCells))
	lab.Evaluate[bool](b, `async () => { document.querySelector(".widget-slider .noUi-handle").focus(); return true }`)
	b.Press(kb.ArrowRight)
	b.WaitFor("the slider's new value", fmt.Sprintf(`%s[0].querySelector(".widget-slider .widget-readout")?.innerText === "8"`, lab.CodeCells))
	focusCell(b, 3)
	b.Press(kb.Enter, kb.ModifierShift)
	b.WaitFor("the value in the kernel", shown(3)+` === "8\n"`)
}

// What is deleted in the list of files can be put back, until the trash is emptied.
func TestTrash(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "mine.ipynb", "1")
	if err := os.MkdirAll(filepath.Join(j.home, "folder/below"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := j.browser(t)
	b.Open(j.base + "lab?reset")
	remove := func(name string) {
		t.Helper()
		b.Mouse(name, fileItem(name))
		b.Press(kb.Delete)
		b.WaitFor("the question", `/Move to Trash/i.test(document.querySelector(".jp-Dialog")?.innerText)`)
		b.Mouse("yes", dialogButton("Move to Trash"))
		b.WaitFor("that it is gone", "!"+fileItem(name))
	}
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(j.home, name))
		return err == nil
	}
	remove("mine.ipynb")
	b.WaitFor("the notice", toast("“mine.ipynb” is in the trash."))
	press(b, toastButton("Undo"))
	b.WaitFor("that it is back", fileItem("mine.ipynb"))
	if !there("mine.ipynb") {
		t.Error("the file is not back")
	}

	remove("folder")
	b.WaitFor("the notice", toast("“folder” is in the trash."))
	if !there(".local/share/Trash/files/folder/below") {
		t.Error("the folder is not in the trash")
	}
	lab.Menu(b, "File", "Empty Trash…")
	b.WaitFor("the question", `document.querySelector(".jp-Dialog")?.innerText.includes("1 file or folder will be deleted for good.")`)
	b.Mouse("yes", dialogButton("Empty Trash"))
	b.WaitFor("that it is empty", toast("1 file or folder deleted for good."))
	if there(".local/share/Trash/files/folder") {
		t.Error("the trash is not empty")
	}
	if status, said := j.ask(t, http.MethodPost, "gpulab/trash", `{"restore": ["folder"]}`); status != http.StatusNotFound || !strings.Contains(said, "folder is not in the trash any more.") {
		t.Errorf("what is gone comes back: %d %s", status, said)
	}
	if status, said := j.ask(t, http.MethodPost, "gpulab/trash", `{"look": ["folder", "mine.ipynb"]}`); status != http.StatusOK || said != `{"look": []}` {
		t.Errorf("what is in the trash: %d %s", status, said)
	}
	for _, body := range []string{`{"restore": "x"}`, `{"restore": [1]}`, `[]`, `{"restore": ["../../etc/passwd"]}`} {
		if status, said := j.ask(t, http.MethodPost, "gpulab/trash", body); status != http.StatusBadRequest && status != http.StatusNotFound {
			t.Errorf("%s: %d %s", body, status, said)
		}
	}
}

// A folder can be downloaded as a ZIP file, hidden files, links and empty folders included. What cannot be read is named.
func TestFolderArchive(t *testing.T) {
	j := startJupyter(t)
	folder := filepath.Join(j.home, "results ü")
	for _, path := range []string{"a.txt", ".git/config", "below/b.txt"} {
		err := os.MkdirAll(filepath.Join(folder, filepath.Dir(path)), 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, path), []byte("text of "+path), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Mkdir(filepath.Join(folder, "empty"), 0o700),
		os.Symlink(".", filepath.Join(folder, "loop")),
		os.Symlink("/proc/self/mem", filepath.Join(folder, "link")),
		unix.Lutimes(filepath.Join(folder, "link"), []unix.Timeval{{}, {}}), // before what ZIP can have
		os.Mkdir(filepath.Join(folder, "M\xfcll"), 0o700),
		os.Chtimes(filepath.Join(folder, "a.txt"), time.Time{}, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)),
		syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b := j.browser(t)
	downloads := t.TempDir()
	b.Downloads(downloads)
	b.Open(j.base + "lab?reset")
	b.ContextMenu("the folder", fileItem("results ü")+`?.querySelector(".jp-DirListing-itemText")`)
	b.Mouse("Download as an Archive",
		`[...document.querySelectorAll(".lm-Menu-itemLabel")].find(e => e.innerText === "Download as an Archive")`)
	var archive *zip.ReadCloser
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var err error
		if archive, err = zip.OpenReader(filepath.Join(downloads, "results ü.zip")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer archive.Close()
	got := map[string]string{}
	for _, file := range archive.File {
		r, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[file.Name] = string(text)
		if file.Mode()&fs.ModeSymlink != 0 {
			got[file.Name] = "-> " + string(text)
		}
	}
	want := map[string]string{
		"results ü/a.txt": "text of a.txt", "results ü/.git/config": "text of .git/config", "results ü/below/b.txt": "text of below/b.txt",
		"results ü/empty/": "", "results ü/M�ll/": "", "results ü/loop": "-> .", "results ü/link": "-> /proc/self/mem",
	}
	if !maps.Equal(got, want) {
		t.Errorf("the archive has %q, want %q", got, want)
	}
	for path, want := range map[string]int{"gone": http.StatusNotFound, "results%20%C3%BC/a.txt": http.StatusNotFound, "..%2F..%2Fetc": http.StatusNotFound} {
		if status, _ := j.ask(t, http.MethodGet, "gpulab/archive/"+path, ""); status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
	}
}

// Where a cell or a terminal prints an address that only the notebook reaches, a notice leads to the lab's services.
func TestAddressesOfPrograms(t *testing.T) {
	j := startJupyter(t)
	j.write(t, "serves.ipynb",
		`print("Running on local URL:  http://127.0.0.1:7860"); print("again http://localhost:7860/")`,
		`from IPython.display import HTML; HTML('<iframe id="tensorboard-frame-1"></iframe><p hidden>const port = 6006;</p>')`,
		`display(HTML('<iframe id="tensorboard-frame-1"></iframe><p hidden>const port = 6006;</p>'))`)
	b := j.browser(t)
	j.open(b, "serves.ipynb")
	lab.Evaluate[bool](b, `async () => { window.open = page => { window.opened = page; return window }; return true }`)
	runCells(b, 3)
	for _, port := range []string{"7860", "6006"} {
		b.WaitFor("the notice for "+port, toast("Only programs in this notebook can reach port "+port+"."))
	}
	b.WaitFor("one notice each", `[...document.querySelectorAll(".Toastify__toast")].filter(e => e.innerText.includes("7860")).length === 1`)
	press(b, toast("port 7860")+`.querySelector("button:not(.Toastify__close-button)")`)
	b.WaitFor("the form for a service", `window.opened === "/gpulab/service?port=7860"`)

	lab.Menu(b, "File", "New Launcher")
	b.Mouse("a terminal", `document.querySelector('.jp-LauncherCard[title="Start a new terminal session"]')`)
	b.WaitFor("the terminal", `document.querySelector(".jp-Terminal .xterm-screen")`)
	b.ClickOn(".jp-Terminal .xterm-helper-textarea")
	lab.Evaluate[bool](b, `async () => { document.querySelector(".jp-Terminal .xterm-helper-textarea").focus(); return true }`)
	b.Type("echo http://0.0.0.0:$((8000 + 1))/")
	b.Press(kb.Enter)
	b.WaitFor("the notice for 8001", toast("Only programs in this notebook can reach port 8001."))
}
