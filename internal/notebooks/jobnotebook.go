package notebooks

import (
	"encoding/json"
	"path"
	"strings"
)

// notebookReader is the program of the notebooks' image that runs a notebook from top to bottom.
const notebookReader = "run-notebook"

// notebookText has the parts of a notebook's file that gpulab reads.
type notebookText struct {
	Format     int               `json:"nbformat"`
	Cells      []json.RawMessage `json:"cells"`
	Worksheets []json.RawMessage `json:"worksheets"` // in old formats
	Metadata   struct {
		Kernel struct {
			Name string `json:"name"`
		} `json:"kernelspec"`
	} `json:"metadata"`
}

// isNotebook reports whether a text is a notebook, by its file's name or by its content.
func isNotebook(file, text string) bool {
	if strings.EqualFold(path.Ext(file), ".ipynb") {
		return true
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	var book notebookText
	return json.Unmarshal([]byte(text), &book) == nil && book.Format > 0 && (book.Cells != nil || book.Worksheets != nil)
}

// readNotebook turns the request into one that runs a notebook. The job carries the notebook's text.
func (r *JobRequest) readNotebook() error {
	if len(r.Args) > 0 {
		return refuse("Arguments are for scripts; a notebook gets none.")
	}
	if len(r.Script) > MaxScript {
		return refuse("The notebook is longer than %d KiB. Copy it into your home with `gpulab cp`, and run it from "+
			"there: `gpulab run -- %s NOTEBOOK`.", MaxScript>>10, notebookReader)
	}
	var book notebookText
	r.Script = strings.TrimPrefix(r.Script, "\ufeff")
	if err := json.Unmarshal([]byte(r.Script), &book); err != nil || book.Format == 0 {
		return refuse("gpulab cannot read this notebook. Open it in JupyterLab and save it again.")
	}
	r.Reader, r.kernel = notebookReader, book.Metadata.Kernel.Name
	if r.File == "" {
		r.File = "notebook.ipynb"
	}
	return nil
}

// EnvironmentOfKernel returns the environment to which a kernel belongs, as NAME/VERSION;
// "" for the Python of the image and for a person's own kernels.
func EnvironmentOfKernel(kernel string) string {
	name, version, ok := strings.Cut(kernel, ".")
	if !ok || name == "" || version == "" || len(kernel) > 80 {
		return ""
	}
	return name + "/" + version
}
