//go:build e2e

package jupyterlab

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

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
func whilePrinting(t *testing.T, name string, last int) (jupyter, *lab.Browser) {
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
		if got := lab.Evaluate[string](b, `async () => document.querySelector(".jp-Dialog")?.innerText ?? ""`); got != "" {
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
	b.Mouse("the second cell", lab.CodeCells+`[1].querySelector(".cm-content")`)
	b.Type("# here")
	j.write(t, "two.ipynb", "print('of another computer')")
	j.slow.Store(true)
	b.Press("s", kb.ModifierCtrl)
	b.Press(kb.Enter, kb.ModifierShift) // saves, too
	b.WaitFor("the question", `document.querySelector(".jp-Dialog")?.innerText.includes("has changed on disk")`)
	b.Click(".jp-Dialog", "Cancel")
	for range 20 {
		if strings.Contains(b.Shown(), "has changed on disk") {
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
	b.Mouse("the second cell", lab.CodeCells+`[1].querySelector(".cm-content")`)
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
func noQuestion(b *lab.Browser) {
	if strings.Contains(b.Shown(), "has changed on disk") {
		b.Fail("no question", errors.New("JupyterLab asks which version is right"))
	}
}
