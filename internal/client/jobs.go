package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpulab/gpulab/internal/units"
)

// A job is a program that runs to its end, as the API tells it.
type job struct {
	ID        int64     `json:"id"`
	User      string    `json:"user"`
	Name      string    `json:"name"`
	Profile   string    `json:"profile"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	EndCode   string    `json:"endCode"`
	ExitCode  *int      `json:"exitCode"`
	Array     string    `json:"array"`
	ArrayJob  int64     `json:"arrayJob"`
	ArrayTask *int      `json:"arrayTask"`
	Try       int       `json:"try"`
	Retries   int       `json:"retries"`
	GaveWay   int       `json:"gaveWay"`
	GPUs      int       `json:"gpus"`
	Simulated bool      `json:"simulated"`
	Output    string    `json:"output"`
	Errors    string    `json:"errors"`
	Notes     []string  `json:"notes"`
	Requested time.Time `json:"requested"`
	Page      string    `json:"page"`
	Version   string    `json:"version"`
}

type jobList struct {
	Jobs []job `json:"jobs"`
}

func (j job) ended() bool {
	return slices.Contains([]string{"succeeded", "failed", "cancelled", "timed out", "not run"}, j.State)
}

// says is what happens with it now, in one line.
func (j job) says() string {
	text := j.State
	if j.Retries+j.GaveWay > 0 && !j.ended() {
		text += fmt.Sprintf(", try %d of %d", j.Try, j.Retries+j.GaveWay+1)
	}
	if j.Reason != "" {
		text += ": " + j.Reason
	}
	return plain(text)
}

// number is what the job is called by: 12, or 12_3 as an element of an array.
func (j job) number() string {
	if j.ArrayTask != nil {
		return fmt.Sprintf("%d_%d", j.ArrayJob, *j.ArrayTask)
	}
	return strconv.FormatInt(j.ID, 10)
}

// arrayTask splits the number of an element, 12_3.
func arrayTask(name string) (array, task string, is bool) {
	array, task, is = strings.Cut(name, "_")
	for _, part := range []string{array, task} {
		if _, err := strconv.ParseUint(part, 10, 31); err != nil {
			return "", "", false
		}
	}
	return array, task, is
}

func (j job) path() string { return "/jobs/" + strconv.FormatInt(j.ID, 10) }

// findJob is the job that somebody names by its number, or the latest of a name.
func (s *Session) findJob(ctx context.Context, name string) (job, error) {
	var j job
	if _, err := strconv.ParseInt(name, 10, 64); err == nil {
		return j, s.Get(ctx, "/jobs/"+name, &j)
	}
	var list jobList
	if array, task, is := arrayTask(name); is {
		if err := s.Get(ctx, "/jobs/"+array+"/tasks", &list); err != nil {
			return j, err
		}
		for _, j := range list.Jobs {
			if j.number() == array+"_"+task {
				return j, nil
			}
		}
		return j, fail(ExitRefused, "job %s has no element %s that has been in line; `gpulab jobs --array %[1]s` shows "+
			"those that have", array, task)
	}
	if err := s.Get(ctx, "/jobs", &list); err != nil {
		return j, err
	}
	for _, j := range list.Jobs {
		if strings.EqualFold(j.Name, name) {
			return j, nil
		}
	}
	return j, fail(ExitRefused, "you have no job called %q; `gpulab jobs` shows those that there are",
		clip(plain(name), 80))
}

func (a *App) completeJobs(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := a.Session()
	var list jobList
	if err != nil || len(args) > 0 || s.Get(c.Context(), "/jobs", &list) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, j := range list.Jobs {
		words = append(words, fmt.Sprintf("%d\t%s", j.ID, plain(j.Name)))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// jobAsk is what a job is asked for with. What is left out is as the script's directives or the lab have it.
type jobAsk struct {
	Script    string   `json:"script,omitempty"`
	Command   []string `json:"command,omitempty"`
	Args      []string `json:"args,omitempty"`
	Name      string   `json:"name,omitempty"`
	File      string   `json:"file,omitempty"`
	Profile   string   `json:"profile,omitempty"`
	GPUs      *int     `json:"gpus,omitempty"`
	TimeLimit string   `json:"timeLimit,omitempty"`
	CPUs      float64  `json:"cpus,omitempty"`
	Memory    string   `json:"memory,omitempty"`
	Output    string   `json:"output,omitempty"`
	Errors    string   `json:"errors,omitempty"`
	Mail      string   `json:"mail,omitempty"`
	Dir       string   `json:"dir,omitempty"`

	Environment string `json:"environment,omitempty"`
	After       string `json:"after,omitempty"`
	Retries     *int   `json:"retries,omitempty"`
	Array       string `json:"array,omitempty"`
	Preemptible *bool  `json:"preemptible,omitempty"`

	gpus, retries int
	preemptible   bool
}

func (q *jobAsk) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&q.gpus, "gpus", 0, "how many GPUs")
	f.StringVar(&q.Profile, "profile", "", "which profile (gpulab profiles); the first with as many GPUs, or the "+
		"smallest with --cpus and --mem, if empty")
	f.Float64Var(&q.CPUs, "cpus", 0, "how many cores it needs at least")
	f.StringVar(&q.Memory, "mem", "", "how much memory it needs at least, such as 16G")
	f.StringVar(&q.TimeLimit, "time", "", "how long it may run, such as 2h, 90m, 3d or 1-12:00:00; 24h if empty")
	f.StringVar(&q.Name, "name", "", "what you call it")
	f.StringVar(&q.Output, "output", "", "file of its log in your home; %j is its number, %x its name, of an array's "+
		"elements %A and %a (default jobs/NAME-NUMBER.log)")
	f.StringVar(&q.Errors, "error", "", "file of its standard error in your home, named like --output; its log has it "+
		"if empty")
	f.StringVar(&q.Mail, "mail-type", "", "what you want mails of, as sbatch takes it: BEGIN, END, FAIL, TIME_LIMIT "+
		"with commas, ALL or NONE")
	f.StringVar(&q.Environment, "env", "", "which of the lab's environments it runs in, such as pytorch; the Python of "+
		"notebooks' image if empty")
	f.StringVar(&q.Dir, "dir", "", "folder of your home in which it runs")
	f.StringVar(&q.After, "after", "", "jobs that have to succeed before it starts, such as 12 or 12,13")
	f.StringVar(&q.After, "dependency", "", "the same as sbatch takes it, such as afterok:12:13,afterany:14")
	f.IntVar(&q.retries, "retries", 0, "how often it is started again when it fails or is interrupted, at most 10")
	f.StringVar(&q.Array, "array", "", "make it many jobs, one for each number, as sbatch does: 0-9, 1,3,7-20:2, or "+
		"0-99%4 for four at a time")
	f.BoolVar(&q.preemptible, "preemptible", false, "let it give way to others who wait for its GPU: it gets SIGTERM "+
		"and 30 s, and goes back into the line; its use counts half")
	f.SetInterspersed(false) // what stands behind the program is the program's
}

// submit is not interrupted: a job that is there must be told.
func (s *Session) submit(c *cobra.Command, q *jobAsk) (answer json.RawMessage, j job, err error) {
	if c.Flags().Changed("gpus") {
		q.GPUs = &q.gpus
	}
	if c.Flags().Changed("retries") {
		q.Retries = &q.retries
	}
	if c.Flags().Changed("preemptible") {
		q.Preemptible = &q.preemptible
	}
	if err = s.Do(context.WithoutCancel(c.Context()), http.MethodPost, "/jobs", q, &answer); err == nil {
		err = json.Unmarshal(answer, &j)
	}
	for _, note := range j.Notes {
		fmt.Fprintln(c.ErrOrStderr(), "Note: "+plain(note))
	}
	return answer, j, err
}

// Sizes in bytes: maxScript is more than a lab takes, maxNotebook is how large a notebook may be with its outputs, and
// mostTaken is how large a notebook a lab takes without them.
const (
	maxScript   = 1 << 20
	maxNotebook = 256 << 20
	mostTaken   = 64 << 10
)

func readScript(c *cobra.Command, name string) (string, error) {
	from := c.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return "", fail(ExitUsage, "the script cannot be read: %w; to run a command, write `gpulab run -- COMMAND`", err)
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	isNotebook := strings.EqualFold(filepath.Ext(name), ".ipynb")
	most := int64(maxScript)
	if isNotebook {
		most = maxNotebook
	}
	text, err := io.ReadAll(io.LimitReader(from, most))
	if err == nil && isNotebook {
		text, err = withoutOutputs(text)
	}
	switch {
	case err != nil:
		return "", fail(ExitUsage, "the script cannot be read: %w", err)
	case len(text) == 0:
		return "", fail(ExitUsage, "the script is empty")
	case isNotebook && len(text) > mostTaken:
		return "", fail(ExitUsage, "the notebook is longer than %d KiB without its outputs; copy it into your home with "+
			"`gpulab cp`, and run it there: `gpulab run -- run-notebook NOTEBOOK`", mostTaken>>10)
	}
	return string(text), nil
}

// withoutOutputs removes the outputs of a notebook's cells and the pictures attached to its text. A run reads neither,
// and they often make up most of the file.
func withoutOutputs(text []byte) ([]byte, error) {
	var book map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(text, []byte("\ufeff")), &book); err != nil {
		return nil, fmt.Errorf("it is no notebook: %w", err)
	}
	var cells []map[string]json.RawMessage
	if json.Unmarshal(book["cells"], &cells) != nil {
		return text, nil // a notebook of an old format
	}
	for _, cell := range cells {
		if _, has := cell["outputs"]; has {
			cell["outputs"], cell["execution_count"] = json.RawMessage("[]"), json.RawMessage("null")
		}
		delete(cell, "attachments")
	}
	var err error
	if book["cells"], err = marshal(cells); err != nil {
		return nil, err
	}
	return marshal(book)
}

// marshal encodes JSON without escaping HTML, which would make it longer.
func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	err := out.Encode(value)
	return b.Bytes(), err
}

func newSubmit(a *App) *cobra.Command {
	var q jobAsk
	var wait, asJSON bool
	c := &cobra.Command{
		Use: "submit SCRIPT|NOTEBOOK|MANIFEST [ARGUMENT...]", Short: "Submit a script as a job, which runs when its turn " +
			"has come",
		Long: `Submit a script as a job. It stands in the same line as notebooks, starts by
itself, and runs with your home, in the same software as a notebook. What it
says is kept in a file of your home.

Lines at the beginning of the script may say what it needs:

  #GPULAB --gpus=1 --time=8h
  #SBATCH --job-name=train --gres=gpu:1 --output=out/%x-%j.log

There are --gpus, --gres=gpu:N, --cpus-per-task, --mem, --time, --job-name (or
--name), --output, --error, --chdir, --env, --export, --dependency, --retries,
--array, --preemptible, --mail-type and --profile. Options of this command come
before them. Options of sbatch that have no effect here, such as --partition,
are ignored with a note. gpulab refuses all others and lists them in one error.

A script without #! in its first line is run by Python if it ends with .py, by
Rscript with .R, by julia with .jl, and by bash otherwise.

A notebook, which ends with .ipynb, is run from top to bottom. The copy with its
outputs is NAME.NUMBER.ipynb in the folder in which it runs; the notebook here
stays as it is.

A file that ends with .yaml, .yml or .json is the manifest of a Kubernetes Job
(batch/v1). gpulab takes its program, its environment and what it needs, and
refuses fields that it does not support, with their names and lines.`,
		Example: "  gpulab submit train.sh\n  gpulab submit --gpus 2 --time 12h train.sh --epochs 40\n  gpulab submit " +
			"--wait train.sh\n  gpulab submit --after 12 evaluate.sh\n  gpulab submit --array 0-99%4 sweep.sh\n  gpulab " +
			"submit --preemptible --gpus 1 sweep.sh\n  gpulab submit train.py --epochs 40\n  gpulab submit --gpus 1 --dir " +
			"work train.ipynb\n  gpulab submit job.yaml",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			if q.Script, err = readScript(c, args[0]); err != nil {
				return err
			}
			q.Args = args[1:]
			if args[0] != "-" {
				q.File = filepath.Base(args[0])
			}
			answer, j, err := s.submit(c, &q)
			if err != nil {
				return err
			}
			if wait {
				return s.watch(c, j, false)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), answer)
			}
			if j.Array != "" {
				_, err = fmt.Fprintf(c.OutOrStdout(), "Job %d (%s) is submitted: %s\nIts elements: `gpulab jobs --array "+
					"%d`\nIts page: %s\n", j.ID, plain(j.Name), j.says(), j.ID, j.Page)
				return err
			}
			files := plain(j.Output)
			if j.Errors != "" {
				files += ", its errors in " + plain(j.Errors)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "Job %d (%s) is submitted: %s\nIts log: `gpulab logs -f %d`, in your home "+
				"%s\nIts page: %s\n", j.ID, plain(j.Name), j.says(), j.ID, files, j.Page)
			return err
		},
	}
	q.flags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait until it ends, show what it says, and end with its exit code")
	jsonFlag(c, &asJSON)
	return c
}

func newRun(a *App) *cobra.Command {
	var q jobAsk
	c := &cobra.Command{
		Use: "run [--gpus N] -- COMMAND [ARGUMENT...]", Short: "Run a command in the lab as if it ran here",
		Long: `Run a command in the lab, with your home there, as a job: what it says appears
here, and gpulab ends with its exit code. Nothing is read from this computer's
files or its keyboard.

Ctrl-C asks whether to cancel the job; it goes on otherwise, also when this
computer is closed. Exit codes beside the command's: 124 for its time limit, 130
when it was cancelled, 137 for memory, and those of ` + "`gpulab exit-codes`.",
		Example: "  gpulab run --gpus 1 -- python train.py --epochs 3\n  gpulab run -- bash -c 'du -sh ~/data; df -h'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			if q.Command = args; q.Name == "" {
				q.Name = clip(plain(filepath.Base(args[0])), 60)
			}
			_, j, err := s.submit(c, &q)
			if err != nil {
				return err
			}
			return s.watch(c, j, false)
		},
	}
	q.flags(c)
	return c
}

func newJobs(a *App) *cobra.Command {
	var all, asJSON bool
	var array int64
	c := &cobra.Command{
		Use: "jobs", Short: "List your jobs, the newest first; with --all those of others that run or wait, too",
		Example: "  gpulab jobs\n  gpulab jobs --all\n  gpulab jobs --array 12\n  gpulab jobs --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path := "/jobs"
			if all {
				path += "?of=everybody"
			}
			if array != 0 {
				path = fmt.Sprintf("/jobs/%d/tasks", array)
			}
			return answered(a, c, path, asJSON, func(_ *Session, list jobList) error {
				return a.printJobs(c, list.Jobs, all)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list everybody's; how others call theirs is not shown")
	c.Flags().Int64Var(&array, "array", 0, "list the elements of this array that have been in line")
	jsonFlag(c, &asJSON)
	return c
}

func (a *App) printJobs(c *cobra.Command, list []job, all bool) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(c.OutOrStdout(), "There is no job. `gpulab submit SCRIPT` submits one.")
		return err
	}
	header := []string{"NUMBER", "NAME", "PROFILE", "GPUS", "SINCE", "STATE"}
	if all {
		header = slices.Insert(header, 1, "USER")
	}
	rows := [][]string{header}
	for _, j := range list {
		gpus := strconv.Itoa(j.GPUs)
		if j.Simulated {
			gpus += " simulated"
		}
		row := []string{j.number(), j.Name, j.Profile, gpus, units.Lasting(a.time().Sub(j.Requested)), j.says()}
		if all {
			row = slices.Insert(row, 1, j.User)
		}
		rows = append(rows, row)
	}
	return table(c.OutOrStdout(), rows)
}

// toCancel is what cancels a job. Of an element of an array, which may not be in
// line yet, nothing else is known.
func (s *Session) toCancel(ctx context.Context, name string) (job, string, error) {
	if array, task, is := arrayTask(name); is {
		return job{}, "/jobs/" + array + "/tasks/" + task, nil
	}
	j, err := s.findJob(ctx, name)
	return j, j.path(), err
}

func newCancel(a *App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "cancel JOB...", Short: "Cancel jobs, by number or name; what they have written stays",
		Example:           "  gpulab cancel 12\n  gpulab cancel train\n  gpulab cancel 12_3",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeJobs,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.Session()
			if err != nil {
				return err
			}
			answers := []json.RawMessage{}
			for _, name := range args {
				j, path, err := s.toCancel(c.Context(), name)
				if err != nil {
					return err
				}
				var answer json.RawMessage
				if err := s.Do(c.Context(), http.MethodDelete, path, nil, &answer); err != nil {
					return err
				}
				answers = append(answers, answer)
				switch {
				case asJSON:
				case j.ID == 0:
					fmt.Fprintf(c.OutOrStdout(), "Job %s is being cancelled.\n", name)
				case j.ended():
					fmt.Fprintf(c.OutOrStdout(), "Job %d had ended before: %s\n", j.ID, j.says())
				default:
					fmt.Fprintf(c.OutOrStdout(), "Job %d (%s) is being cancelled.\n", j.ID, plain(j.Name))
				}
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), map[string]any{"jobs": answers})
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// Logs shows what a job has said.
func (a *App) Logs() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs JOB", Short: "Show what a job has said; with -f go on until it ends",
		Example:           "  gpulab logs 12\n  gpulab logs -f train\n  gpulab logs 12_3",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs,
		RunE:              func(c *cobra.Command, args []string) error { return a.JobLog(c, args[0], follow) },
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on showing new lines until the job ends")
	return c
}

// JobLog shows what a job has said.
func (a *App) JobLog(c *cobra.Command, name string, follow bool) error {
	s, err := a.Session()
	if err != nil {
		return err
	}
	j, err := s.findJob(c.Context(), name)
	if err != nil {
		return err
	}
	if follow {
		return s.watch(c, j, true)
	}
	w := &watcher{Session: s, c: c, j: j, out: terminalSafe(c.OutOrStdout())}
	for {
		more, err := w.piece(c.Context(), 0)
		if err != nil {
			return err
		}
		if !more {
			if w.missing {
				fmt.Fprintf(c.ErrOrStderr(), "[job %d has no log: %s]\n", j.ID, j.says())
			}
			return nil
		}
	}
}

// terminalSafe keeps what a program says from controlling a terminal; files and pipes get it as it is.
func terminalSafe(out io.Writer) io.Writer {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) { //nolint:gosec // a file descriptor is small
		return &saneWriter{out: out}
	}
	return out
}
