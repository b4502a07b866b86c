package webui

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// A notebookForm asks for a job that runs a notebook's file from top to bottom.
type notebookForm struct {
	Notebook                         string // its path below the home
	Profile, GPUs, Time, Environment string
	Profiles                         []notebooks.Profile
	Error                            string
}

// copied is the file that gets the outputs, for people.
func (f notebookForm) copied() string {
	return strings.TrimSuffix(path.Base(f.Notebook), ".ipynb") + ".NUMBER.ipynb"
}

// notebookPage is the page of jobs for somebody who comes from JupyterLab.
func (s *Server) notebookPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	query := r.URL.Query()
	form := notebookForm{
		Notebook: query.Get("notebook"), Time: "24h", Environment: notebooks.EnvironmentOfKernel(query.Get("kernel")),
	}
	if _, _, err := notebookFile(form.Notebook); err != nil {
		return err
	}
	return s.showNotebook(w, r, v, http.StatusOK, form)
}

func (s *Server) showNotebook(w http.ResponseWriter, r *http.Request, v visitor, status int, form notebookForm) error {
	rows, err := s.jobRows(r.Context(), v)
	if err != nil {
		return err
	}
	form.Profiles = s.cfg.Notebooks.Profiles()
	script := newJobForm()
	if script.Environments, err = s.environmentChoices(r.Context(), ""); err != nil {
		return err
	}
	view := jobsView{Rows: rows, MayLaunch: v.may(users.ActionLaunch), Form: script, Notebook: form}
	s.render(w, r, status, jobsPage(s.page(w, r, v, "Jobs", "view=jobs"), view))
	return nil
}

// notebookFile checks a path below the home, and returns its folder, "" for the
// home, and its name. An error is a page.
func notebookFile(text string) (dir, name string, err error) {
	var why string
	switch {
	case text == "" || len(text) > 500 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r)
	}):
		why = "Which notebook is to be run is missing. Open it in JupyterLab, and choose File, Run as Job… there."
	case path.IsAbs(text) || path.Clean(text) != text || text == ".." || strings.HasPrefix(text, "../"):
		why = "The notebook has to lie in your home. Give its path from there, such as work/train.ipynb."
	case path.Ext(text) != ".ipynb":
		why = "Only a notebook, a file that ends with .ipynb, can be run so. For a script use the form for scripts."
	}
	if why != "" {
		return "", "", &problem{
			status: http.StatusUnprocessableEntity, title: "This notebook cannot be run", text: why, linkText: "Go to the jobs",
			link: "/jobs",
		}
	}
	dir, name = path.Split(text)
	return strings.TrimSuffix(dir, "/"), name, nil
}

func (s *Server) submitNotebook(w http.ResponseWriter, r *http.Request, v visitor) error {
	value := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := notebookForm{
		Notebook: r.PostForm.Get("notebook"), Profile: value("profile"), GPUs: value("gpus"), Time: value("time"),
		Environment: value("environment"),
	}
	l, err := s.runNotebook(r, v, form)
	if wrong := (*problem)(nil); errors.As(err, &wrong) {
		return wrong
	}
	if status := jobRefusal(err); status != 0 {
		form.Error = message(err)
		return s.showNotebook(w, r, v, status, form)
	}
	if err != nil {
		return fmt.Errorf("submit a notebook as a job: %w", err)
	}
	s.audit(r, v, "job.submit", l.Handle, l.Audited())
	return seeOther("/jobs/" + strconv.FormatInt(l.ID, 10))
}

func (s *Server) runNotebook(r *http.Request, v visitor, form notebookForm) (notebooks.Launch, error) {
	dir, name, err := notebookFile(form.Notebook)
	if err != nil {
		return notebooks.Launch{}, err
	}
	request := notebooks.JobRequest{
		Program: notebooks.Program{Args: []string{"run-notebook", name}, Dir: dir}, File: name, Profile: form.Profile,
		Environment: form.Environment,
	}
	if form.GPUs != "" {
		n, err := strconv.Atoi(form.GPUs)
		if err != nil {
			return notebooks.Launch{}, &notebooks.JobError{Text: "The number of GPUs is a whole number, such as 1."}
		}
		request.GPUs = &n
	}
	if form.Time != "" {
		if request.Limit, err = notebooks.ParseJobTime(form.Time); err != nil {
			return notebooks.Launch{}, err
		}
	}
	return s.cfg.Notebooks.Submit(r.Context(), v.session.User, request)
}
