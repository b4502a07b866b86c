package webui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// A jobsView is somebody's jobs, and the form for another.
type jobsView struct {
	Rows      []jobRow
	MayLaunch bool
	Form      jobForm
	Notebook  notebookForm // empty unless one is to be run
}

// A jobForm is what was filled in, and what is wrong with it: with a field, by its name, or with the whole.
type jobForm struct {
	Script, Name, GPUs, Time, Environment, Array, Retries, After string
	Preemptible                                                  bool

	Environments []roleView
	Wrong        map[string]string
	Error        string
}

// more says that something is filled in, or wrong, that few jobs need.
func (f jobForm) more() bool {
	return f.Array != "" || f.Retries != "" || f.After != ""
}

// failed says that the form comes back because it was not taken.
func (f jobForm) failed() bool { return f.Error != "" || len(f.Wrong) > 0 }

type jobRow struct {
	ID, Title, Reason, State string
	Number                   string // as people call it: 12, or 12_3 as an element of an array
	Tone                     tone
	GPU, When                string
	Simulated                bool
	MayCancel, MayAgain      bool
}

// A jobView is the page of one job.
type jobView struct {
	jobRow
	Own            bool
	Headline, Text string
	Elapsed        string
	Profile        string
	Holders        []launchHolder
	Facts          []string
	Notes          []string // what of its script has no effect here
	Tries          []jobTry // the former ones
	IsArray        bool
	Tasks          []jobRow // of an array: elements that have been in line
	ArrayJob       string   // of an element: the array's number
	Program        string   // what it runs; "" where it is not the visitor's to see
	Log            logView
}

// A jobTry is a run of a job that another one has followed.
type jobTry struct{ Number, Lasted, Ended string }

// A logView is the end of what a job has said.
type logView struct {
	Text    string
	Note    string // about what is not shown
	Ongoing bool
}

// maxJobForm has room for the longest script with every character escaped.
const maxJobForm = 256 << 10

// shownLog is how much of a log's end its page shows, in bytes.
const shownLog = 32 << 10

func newJobForm() jobForm { return jobForm{Script: "#!/bin/bash\n"} }

func (s *Server) jobsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if r.URL.Query().Has("notebook") {
		return s.notebookPage(w, r, v)
	}
	return s.showJobs(w, r, v, http.StatusOK, newJobForm())
}

func (s *Server) showJobs(w http.ResponseWriter, r *http.Request, v visitor, status int, form jobForm) error {
	rows, err := s.jobRows(r.Context(), v)
	if err != nil {
		return err
	}
	if form.Environments, err = s.environmentChoices(r.Context(), form.Environment); err != nil {
		return err
	}
	view := jobsView{Rows: rows, MayLaunch: v.may(users.ActionLaunch), Form: form}
	s.render(w, r, status, jobsPage(s.page(w, r, v, "Jobs", "view=jobs"), view))
	return nil
}

func (s *Server) jobRows(ctx context.Context, v visitor) ([]jobRow, error) {
	list, err := s.cfg.Notebooks.Jobs(ctx, v.session.User.ID)
	if err != nil {
		return nil, fmt.Errorf("list own jobs: %w", err)
	}
	machines := s.machines(s.cfg.Fleet.Snapshots(), v, false)
	rows := make([]jobRow, len(list))
	for i := range list {
		rows[i] = s.jobRow(v, &list[i], machines)
	}
	return rows, nil
}

func (s *Server) jobRow(v visitor, l *notebooks.Launch, machines []machineView) jobRow {
	row := jobRow{
		ID: strconv.FormatInt(l.ID, 10), Number: l.Number(), Title: l.Title, Reason: l.Reason, GPU: gpuNames(l, machines),
		Simulated: simulated(l, machines),
	}
	row.State, row.Tone = jobStateWords(l)
	now := s.now()
	switch {
	case l.State == notebooks.Running:
		row.When = "for " + units.Lasting(now.Sub(l.Ready))
	case l.Active():
		row.When = "for " + units.Lasting(now.Sub(l.Requested))
	default:
		row.When = units.Lasting(now.Sub(l.Ended)) + " ago"
	}
	if c := l.Job.Tasks; c != nil && c.Running > 0 && l.Active() {
		row.State, row.Tone = stateWords(&notebooks.Launch{State: notebooks.Running})
	}
	own := l.UserID == v.session.User.ID
	row.MayCancel = l.Active() && l.State != notebooks.Stopping && v.mayOn(users.ActionManageNotebooks, l.UserID)
	row.MayAgain = own && !l.Active() && v.may(users.ActionLaunch)
	return row
}

// jobStateWords names a job's state for people.
func jobStateWords(l *notebooks.Launch) (string, tone) {
	switch end := l.Finished(); end {
	case "succeeded":
		return end, "ok"
	case "cancelled", "not run":
		return end, ""
	case "":
		return stateWords(l)
	default:
		return end, "bad"
	}
}

func (s *Server) submitJob(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := readJobForm(r)
	request := form.request()
	if len(form.Wrong) > 0 {
		return s.showJobs(w, r, v, http.StatusUnprocessableEntity, form)
	}
	l, err := s.cfg.Notebooks.Submit(r.Context(), v.session.User, request)
	if status := jobRefusal(err); status != 0 {
		form.Error = message(err)
		return s.showJobs(w, r, v, status, form)
	}
	if err != nil {
		return fmt.Errorf("submit a job: %w", err)
	}
	s.audit(r, v, "job.submit", l.Handle, l.Audited())
	return seeOther("/jobs/" + strconv.FormatInt(l.ID, 10))
}

func readJobForm(r *http.Request) jobForm {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	return jobForm{Script: r.PostForm.Get("script"), Name: get("name"), GPUs: get("gpus"), Time: get("time"),
		Environment: get("environment"), Array: get("array"), Retries: get("retries"), After: get("after"),
		Preemptible: get("preemptible") != ""}
}

// request is the job that the form asks for. What cannot be read is noted beside its field.
func (f *jobForm) request() notebooks.JobRequest {
	request := notebooks.JobRequest{
		Program: notebooks.Program{Script: f.Script}, Name: f.Name, Environment: f.Environment, Array: f.Array,
	}
	if f.Preemptible {
		request.Preemptible = &f.Preemptible // otherwise the script says it
	}
	f.Wrong = map[string]string{}
	wrong := func(field string, err error) {
		if err != nil {
			f.Wrong[field] = message(err)
		}
	}
	number := func(field, text, what string) *int {
		if text == "" {
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			f.Wrong[field] = what + " is a whole number, such as 1."
		}
		return &n
	}
	request.GPUs = number("gpus", f.GPUs, "The number of GPUs")
	request.Retries = number("retries", f.Retries, "How often it is started again")
	var err error
	if f.Time != "" {
		request.Limit, err = notebooks.ParseJobTime(f.Time)
		wrong("time", err)
	}
	if f.Array != "" {
		_, err = notebooks.ParseArray(f.Array)
		wrong("array", err)
	}
	if f.After != "" {
		request.After, err = notebooks.ParseDependencies(f.After)
		wrong("after", err)
	}
	return request
}

// environmentChoices are the environments in which a job can run; chosen is among them even if it is not there any
// more.
func (s *Server) environmentChoices(ctx context.Context, chosen string) ([]roleView, error) {
	list, err := s.cfg.Environments.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list environments: %w", err)
	}
	choices := []roleView{{"", "The image’s own Python"}}
	for i := range list {
		choices = append(choices, roleView{list[i].ID(), list[i].Words()})
	}
	if !slices.ContainsFunc(choices, func(c roleView) bool { return c.Value == chosen }) {
		choices = append(choices, roleView{chosen, chosen})
	}
	return choices, nil
}

// jobRefusal is the status of an error that somebody can cause, 0 for others.
func jobRefusal(err error) int {
	var job *notebooks.JobError
	var obstacle *notebooks.ObstacleError
	switch {
	case errors.As(err, &job):
		return http.StatusUnprocessableEntity
	case errors.As(err, &obstacle), errors.Is(err, notebooks.ErrTooManyJobs), errors.Is(err, notebooks.ErrTooManyServices),
		errors.Is(err, quota.ErrUsedUp):
		return http.StatusConflict
	}
	return 0
}

// jobFor reads a job that the visitor may act on. To others it does not exist.
func (s *Server) jobFor(ctx context.Context, v visitor, id string) (notebooks.Launch, error) {
	l, err := s.launchFor(ctx, v, id)
	if err == nil && !l.IsJob() {
		err = errNoPage
	}
	return l, err
}

func (s *Server) jobPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.jobFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	view := s.jobView(v, &l)
	if err := s.addTasks(r.Context(), v, &l, &view); err != nil {
		return err
	}
	if view.Own {
		program, err := s.cfg.Notebooks.Program(r.Context(), l.ID)
		if err != nil {
			return fmt.Errorf("what job %d runs: %w", l.ID, err)
		}
		view.Program = programText(program)
	}
	s.render(w, r, http.StatusOK, jobPage(s.page(w, r, v, view.Title, "view=job&id="+view.ID), view))
	return nil
}

// programText is what a job runs, for reading.
func programText(p notebooks.Program) string {
	var words []string
	for _, a := range p.Args {
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./=:,@%+", r)
		}) {
			a = strconv.Quote(a)
		}
		words = append(words, a)
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		env = append(env, name+"="+strconv.Quote(p.Env[name]))
	}
	if p.Script == "" {
		return strings.Join(append(env, strings.Join(words, " ")), "\n")
	}
	if words = append(env, words...); len(words) > 0 {
		return strings.TrimRight(p.Script, "\n") + "\n# with " + strings.Join(words, " ")
	}
	return p.Script
}

func (s *Server) jobView(v visitor, l *notebooks.Launch) jobView {
	view := jobView{
		jobRow: s.jobRow(v, l, s.machines(s.cfg.Fleet.Snapshots(), v, false)), Own: l.UserID == v.session.User.ID,
		Profile: s.profileTitle(l.Profile),
	}
	var common launchView
	now := s.now()
	view.Text = sentence(l.Reason)
	switch l.State {
	case notebooks.Waiting:
		s.describeWaiting(&common, v, l)
		switch c := l.Job.Tasks; {
		case c != nil && c.Running > 0:
			common.Headline = "Running"
		case l.Held():
			common.Headline = "Waiting"
		}
		view.Headline, view.Text, view.Holders = common.Headline, common.Text, common.Holders
		view.Elapsed = units.Duration(now.Sub(l.Requested))
	case notebooks.Starting:
		view.Headline, view.Elapsed = "Starting", units.Duration(now.Sub(l.Started))
	case notebooks.Running:
		view.Headline, view.Elapsed = "Running", units.Duration(now.Sub(l.Ready))
	case notebooks.Stopping:
		view.Headline = "Ending"
	case notebooks.Ended:
		view.Headline = map[string]string{"succeeded": "It has succeeded", "failed": "It has failed",
			"cancelled": "Cancelled", "timed out": "It ran out of time", "not run": "It was not run"}[l.Finished()]
		if !l.Ready.IsZero() {
			view.Elapsed = units.Duration(l.Ended.Sub(l.Ready))
		}
	}
	if l.GPUs > 0 {
		view.Facts = append(view.Facts, view.GPU)
	}
	if l.Job.Environment != "" {
		view.Facts = append(view.Facts, l.Job.Environment)
	}
	view.Facts = append(view.Facts, "time limit "+units.Lasting(l.Job.Limit))
	if most := l.Job.MostTries(); most > 1 {
		view.Facts = append(view.Facts, fmt.Sprintf("try %d of %d", l.Job.Try(), most))
	}
	if l.Job.Preemptible {
		view.Facts = append(view.Facts, "gives way to others")
	}
	if times, lost := l.Job.Preempted(); times > 0 {
		view.Facts = append(view.Facts, "gave way "+timesWords(times)+", "+lostWords(lost))
	}
	for i, t := range l.Job.Tries {
		view.Tries = append(view.Tries, jobTry{
			strconv.Itoa(i + 1), units.Duration(time.Duration(t.Until-t.From) * time.Millisecond), sentence(t.Reason),
		})
	}
	if l.Node != "" && l.Active() && len(s.cfg.Fleet.Snapshots()) > 1 {
		view.Facts = append(view.Facts, "on "+s.called(l.Node))
	}
	if view.IsArray = l.IsArray(); view.IsArray {
		view.Facts = append(view.Facts, "elements "+l.Job.Array)
	} else if view.Own {
		view.Facts = append(view.Facts, "log in "+l.Job.Output)
		if l.Job.Errors != "" {
			view.Facts = append(view.Facts, "errors in "+l.Job.Errors)
		}
		view.Log = s.logView(l)
	}
	if view.Own { // notes quote the script
		view.Notes = l.Job.Notes
	}
	if l.Job.ArrayJob != 0 {
		view.ArrayJob = strconv.FormatInt(l.Job.ArrayJob, 10)
	}
	return view
}

func timesWords(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// lostWords say what runs that gave way have lost.
func lostWords(lost time.Duration) string {
	if lost == 0 {
		return "nothing lost"
	}
	return units.Lasting(lost) + " of running lost at most"
}

// addTasks adds an array's elements to its page.
func (s *Server) addTasks(ctx context.Context, v visitor, l *notebooks.Launch, view *jobView) error {
	if !view.IsArray {
		return nil
	}
	tasks, err := s.cfg.Notebooks.Tasks(ctx, l.ID)
	if err != nil {
		return fmt.Errorf("list the elements of job %d: %w", l.ID, err)
	}
	machines := s.machines(s.cfg.Fleet.Snapshots(), v, false)
	for i := range tasks {
		view.Tasks = append(view.Tasks, s.jobRow(v, &tasks[i], machines))
	}
	return nil
}

func (s *Server) logView(l *notebooks.Launch) logView {
	view := logView{Ongoing: l.Active()}
	part, err := s.cfg.Notebooks.Log(*l, -shownLog)
	switch {
	case errors.Is(err, notebooks.ErrNoLog) && !l.Active() && !l.Ready.IsZero():
		view.Note = "The file " + l.Job.Output + " is not in the home any more."
	case err != nil && !errors.Is(err, notebooks.ErrNoLog):
		view.Note = "The log cannot be read now."
	case part.From > 0:
		view.Note = "The end of a longer log. All that is kept is in the home, in " + l.Job.Output + "."
		if _, after, ok := bytes.Cut(part.Data, []byte("\n")); ok {
			part.Data = after
		}
	}
	view.Text = readable(part.Data)
	return view
}

// escapes are what programs colour and move text in a terminal with.
var escapes = regexp.MustCompile("\x1b(\\[[0-9;?:]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\-_])")

// readable is what a program says as it would stand on paper: a line that was
// written over several times as it was last, and nothing that is not text.
func readable(said []byte) string {
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(said), "\ufffd"), "")
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		lines[i] = line[strings.LastIndexByte(line, '\r')+1:]
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return -1
		}
		return r
	}, strings.Join(lines, "\n"))
}

// jobLog sends all that is kept of a log.
func (s *Server) jobLog(w http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.jobFor(r.Context(), v, r.PathValue("id"))
	if err == nil && l.UserID != v.session.User.ID {
		err = errNotAllowed
	}
	if err != nil {
		return err
	}
	return s.sendLog(w, l)
}

func (s *Server) cancelJob(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.jobFor(r.Context(), v, r.PathValue("id"))
	if err != nil {
		return err
	}
	if l.Active() {
		if err := s.cfg.Notebooks.Cancel(r.Context(), l.ID); err != nil {
			return fmt.Errorf("cancel job %d: %w", l.ID, err)
		}
		s.audit(r, v, "job.cancel", l.Handle, l.Audited())
	}
	next := r.PostForm.Get("next")
	if next == "" {
		next = "/jobs/" + strconv.FormatInt(l.ID, 10)
	}
	return seeOther(localPath(next))
}

func (s *Server) runJobAgain(_ http.ResponseWriter, r *http.Request, v visitor) error {
	l, err := s.jobFor(r.Context(), v, r.PathValue("id"))
	if err == nil && l.UserID != v.session.User.ID {
		err = errNotAllowed
	}
	if err != nil {
		return err
	}
	again, err := s.cfg.Notebooks.Again(r.Context(), v.session.User, l.ID)
	if status := jobRefusal(err); status != 0 {
		return &problem{
			status: status, title: "The job was not taken", text: message(err), linkText: "Go to the jobs", link: "/jobs",
			cause: err,
		}
	}
	if err != nil {
		return fmt.Errorf("run job %d again: %w", l.ID, err)
	}
	s.audit(r, v, "job.submit", again.Handle, fmt.Sprintf("%s, job %d again", again.Audited(), l.ID))
	return seeOther("/jobs/" + strconv.FormatInt(again.ID, 10))
}

// jobsParts are the live parts of the list of jobs.
func (s *Server) jobsParts(v visitor, p page) parts {
	return func(ctx context.Context, _ *tick) ([]part, error) {
		rows, err := s.jobRows(ctx, v)
		return []part{{id: "jobs", body: jobList(p, "jobs", "/jobs", rows)}}, err
	}
}

// jobParts are the live parts of a job's page.
func (s *Server) jobParts(v visitor, p page, id string) parts {
	return func(ctx context.Context, _ *tick) ([]part, error) {
		l, err := s.jobFor(ctx, v, id)
		if err != nil {
			return nil, err
		}
		view := s.jobView(v, &l)
		if err := s.addTasks(ctx, v, &l, &view); err != nil {
			return nil, err
		}
		return []part{
			{id: "job-state", body: jobState(view)},
			{id: "job-clock", body: jobClock(view)},
			{id: "job-detail", body: jobDetail(view)},
			{id: "job-actions", body: jobActions(p, view)},
			{id: "job-log", body: jobOutcome(p, view)},
		}, nil
	}
}
