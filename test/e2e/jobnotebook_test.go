//go:build e2e

package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// notebook: a student tries a cell in JupyterLab, and has the menu there run the
// notebook as a job: the copy beside it has the outputs, the notebook is as it was.
func (j *jobs) notebook(t *testing.T, a *appliance) {
	page := j.cleo.For(t).Tab()
	launch(page, "cpu", "Draft")
	waitJupyterLab(page, "cleo")
	lab.TypeCell(page, "import os; print('job', os.environ.get('GPULAB_JOB_ID', 'none'), os.getcwd())")
	page.WaitText(".jp-OutputArea-output", "job none /home/cleo")
	// The page of jobs opens here rather than in another tab.
	lab.Evaluate[bool](page, `async () => { window.open = () => null; return true }`)
	lab.RunAsJob(page)
	page.WaitText("main", "Run Untitled.ipynb as a job")
	if at := page.Location(); !strings.HasPrefix(at, pages+"/jobs?") {
		t.Errorf("the menu leads to %s", at)
	}
	page.Pictures("job-notebook")
	page.WaitFor("the profile", `(() => { document.querySelector("#notebook-profile").value = "cpu"; return true })()`)
	page.Fill("Time limit", "10m")
	page.Click("main", "Run as a job")
	page.WaitText("#job-state", "It has succeeded")
	page.WaitText("#job-log", "/home/cleo")
	number := page.Location()[strings.LastIndexByte(page.Location(), '/')+1:]

	home := a.homeOf(t, "cleo")
	output := func(name string) string {
		var book struct {
			Cells []struct{ Outputs []struct{ Text []string } }
		}
		if err := json.Unmarshal([]byte(a.MustRun(a.ctx, "cat", filepath.Join(home, name))), &book); err != nil || len(book.Cells) == 0 || len(book.Cells[0].Outputs) == 0 {
			t.Fatalf("%s: %v, %+v", name, err, book)
		}
		return strings.Join(book.Cells[0].Outputs[0].Text, "")
	}
	if got := output("Untitled." + number + ".ipynb"); got != "job "+number+" /home/cleo\n" {
		t.Errorf("the copy has %q", got)
	}
	if got := output("Untitled.ipynb"); got != "job none /home/cleo\n" {
		t.Errorf("the notebook has %q", got)
	}

	a.MustRun(a.ctx, "sh", "-ec", `cd "$1" && sed 's/print(/1 \/ 0; print(/' Untitled.ipynb >broken.ipynb && chown "$(stat -c %u:%g .)" broken.ipynb`, "sh", home)
	j.terminal.gpulab(t, 1, []string{"run", "--profile", "cpu", "--", "run-notebook", "broken.ipynb"}, "cell 1 of", "ZeroDivisionError: division by zero")
	page.Open(pages + "/jobs?notebook=../ben/secret.ipynb")
	page.WaitText("main", "The notebook has to lie in your home.")
	j.terminal.stop(t, "Draft")
}
