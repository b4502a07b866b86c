//go:build e2e

package e2e

import (
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// kernel is a Python kernel of the notebook that a browser shows.
type kernel struct {
	*lab.Kernel
	browser *lab.Browser
}

// answer is what a cell printed.
type answer = lab.Answer

// notebookBase is the notebook's own path, as a JavaScript expression.
const notebookBase = lab.NotebookBase

// newKernel starts a kernel in the notebook that the browser shows.
func newKernel(b *lab.Browser) *kernel { return &kernel{lab.NewKernel(b), b} }

// in returns the same kernel reporting to another test.
func (k *kernel) in(t *testing.T) *kernel { return &kernel{k.For(t), k.browser.For(t)} }

// run executes a cell and returns what it printed; an exception ends the test.
func (k *kernel) run(t *testing.T, code string) string {
	t.Helper()
	return k.For(t).Run(code)
}

// try executes a cell that may fail.
func (k *kernel) try(code string) (answer, error) { return k.Try(code) }

// typeCell opens a new notebook in JupyterLab by hand, types a cell, runs it
// and returns what is shown below it.
func typeCell(b *lab.Browser, code string) string { return lab.TypeCell(b, code) }
