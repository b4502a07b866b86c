//go:build e2e

package jupyterlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

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
	again.WaitFor("the first cell", fmt.Sprintf(`/[0-9]/.test(%s[0].querySelector(".jp-InputPrompt").innerText)`, lab.CodeCells))
	for i := range 3 {
		focusCell(again, i+1)
		again.Press(kb.Enter, kb.ModifierShift)
	}
	again.WaitFor("the last run", fmt.Sprintf(`/[*8]/.test(%s[3].querySelector(".jp-InputPrompt").innerText)`, lab.CodeCells))
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
	page.WaitFor("the end of the run", fmt.Sprintf(`%s[0].querySelector(".jp-InputPrompt").innerText.includes("2")`, lab.CodeCells))
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
	again.WaitFor("the first cell's new number", fmt.Sprintf(`%s[0].querySelector(".jp-InputPrompt").innerText.includes("5")`, lab.CodeCells))
	lab.Menu(again, "Edit", "Clear Outputs of All Cells")
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
