//go:build e2e

package jupyterlab

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/packaging/simdriver/simtest"
	"github.com/gpulab/gpulab/test/lab"
)

func TestMain(m *testing.M) { simtest.Main(m) }

// meterText is what the meter shows, its parts apart by "|".
const meterText = `[...document.querySelectorAll(".gpulab-meter span")].map(e => e.innerText).join("|")`

// uses has the notebook's control group say how much of 8 GiB is used, and how much of that is inactive file cache.
func (j jupyter) uses(t *testing.T, mebibytes, cache int) {
	t.Helper()
	group := filepath.Join(j.home, "cgroup")
	err := os.MkdirAll(group, 0o700)
	for name, text := range map[string]string{
		"memory.current": fmt.Sprintln(mebibytes << 20),
		"memory.max":     fmt.Sprintln(8 << 30),
		"memory.stat":    fmt.Sprintf("anon 0\ninactive_file %d\n", cache<<20),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(group, name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The meter shows the notebook's memory and GPUs. It asks the server only while the page is visible, and leaves out
// figures that it does not know.
func TestMeter(t *testing.T) {
	root := simtest.Start(t, 2)
	const works = "gpu 0 use 60\ngpu 1 use 9\ngpu 0 process 424242 sm 60 memory 6GiB\n"
	simtest.Play(t, root, works)
	server := startJupyterIn(t, t.TempDir(), "LD_LIBRARY_PATH="+filepath.Dir(simdriver.Library(root)))
	server.uses(t, 1536, 307)
	j, f := server.behindFront(t)
	b := j.browser(t)
	b.Open(j.base + "lab?reset")
	b.WaitFor("the figures", `/^Memory 1\.2 of 8 GiB\|2 GPUs 35 %, 6(\.\d)? of \d+ GiB$/.test(`+meterText+`)`)
	b.WaitFor("each GPU", `/\nGPU 1, .+: 9 %, [\d.]+ of [\d.]+ GiB\n.*everyone who shares it\.$/`+
		`.test(document.querySelectorAll(".gpulab-meter span")[1].title)`)
	b.WaitFor("no warning", `!document.querySelector(".gpulab-meter span").style.color`)
	b.Pictures("meter")

	server.uses(t, 7600, 0)
	b.WaitFor("a warning", `(e => e.innerText === "Memory 7.4 of 8 GiB" && e.style.color &&
		e.title.includes("Linux kills programs"))(document.querySelector(".gpulab-meter span"))`)
	b.Pictures("meter-warning")
	server.uses(t, 1024, 0)
	simtest.Play(t, root, "gpu 0 use 60\ngpu 1 fail 999\n")
	b.WaitFor("the GPU that works", `/^Memory 1 of 8 GiB\|(2 GPUs|GPU) 60 %/.test(`+meterText+`)`)
	simtest.Play(t, root, "gpu 0 fail 999\ngpu 1 fail 999\n")
	b.WaitFor("the memory alone", meterText+` === "Memory 1 of 8 GiB"`)

	silent := func(what string) {
		t.Helper()
		time.Sleep(time.Second) // a question may be under way
		before := f.count("gpulab/meter")
		time.Sleep(11 * time.Second)
		if more := f.count("gpulab/meter") - before; more > 0 {
			t.Errorf("%s, and the page asked %d times", what, more)
		}
	}
	lab.Evaluate[bool](b, `async () => {
		Object.defineProperty(document, "visibilityState", {configurable: true, get: () => "hidden"});
		return true;
	}`)
	silent("nobody sees it")
	server.uses(t, 2048, 0)
	lab.Evaluate[bool](b, `async () => {
		delete document.visibilityState;
		return document.dispatchEvent(new Event("visibilitychange"));
	}`)
	b.WaitFor("new figures", meterText+` === "Memory 2 of 8 GiB"`)

	f.answer(http.StatusServiceUnavailable)
	b.WaitFor("what is the matter", `document.querySelector(".gpulab-connection")`)
	b.WaitFor("no old figures", meterText+` === ""`)
	silent("the lab is away")
	simtest.Play(t, root, works)
	f.answer(0)
	b.WaitFor("the figures again", `/^Memory 2 of 8 GiB\|2 GPUs /.test(`+meterText+`)`)
}

// Where JupyterLab has no status bar, the other parts work.
func TestNoStatusBar(t *testing.T) {
	j := startJupyter(t)
	j.uses(t, 1024, 0)
	const settings = `{"disabledExtensions": {"@jupyterlab/statusbar-extension:plugin": true}}`
	config := filepath.Join(j.files, "etc/jupyter/labconfig/page_config.json")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	b := j.browser(t)
	b.Open(j.base + "lab?reset")
	b.WaitFor("the launcher", `document.querySelector('.jp-LauncherCard[data-category="Notebook"]')`)
	lab.Menu(b, "File")
	b.WaitFor("the part for the trash",
		`[...document.querySelectorAll(".lm-Menu-itemLabel")].some(e => e.innerText.trim() === "Empty Trash…")`)
	b.WaitFor("no status bar", `!document.querySelector("#jp-main-statusbar, .gpulab-meter")`)
}
