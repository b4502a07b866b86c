package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Job is a program that runs to its end without a browser.
type Job struct {
	ID          int64            `json:"id"`
	User        string           `json:"user" doc:"Whose, by sign-in name"`
	Name        string           `json:"name,omitempty" doc:"Left out where it is not yours to see"`
	Profile     string           `json:"profile"`
	State       string           `json:"state" enum:"waiting,starting,running,stopping,succeeded,failed,cancelled,timed out,not run" doc:"The last five are ends"`
	Reason      string           `json:"reason,omitempty" doc:"Why it waits, what it does, how it ended; for people"`
	EndCode     string           `json:"endCode,omitempty" enum:"succeeded,time-limit,stopped,cancelled,quota,folder,failed,exited,oom,evicted,interrupted,dependency,preempted" doc:"How it ended, in one word; preempted while it gives way and is about to go back into the line"`
	ExitCode    *int             `json:"exitCode,omitempty" doc:"Of its program, where that ended by itself"`
	Machine     string           `json:"machine,omitempty" doc:"Where it runs, by the machine's name"`
	GPUs        int              `json:"gpus"`
	GPUUUIDs    []string         `json:"gpuUuids,omitempty" doc:"Which GPUs it has"`
	Simulated   bool             `json:"simulated,omitempty" doc:"Its GPUs are, and compute nothing"`
	Position    int              `json:"position,omitempty" doc:"Its place in the line while it waits, from 1"`
	Never       bool             `json:"never,omitempty" doc:"No GPU that becomes free could ever be enough"`
	Holders     []NotebookHolder `json:"holders,omitempty" doc:"Who holds GPUs while it waits"`
	Environment string           `json:"environment,omitempty" doc:"The lab's environment in which it runs, as NAME/VERSION"`
	After       []JobDependency  `json:"after,omitempty" doc:"The jobs that had to end before it may start"`
	Held        bool             `json:"held,omitempty" doc:"It waits for other jobs or for its owner's quota, and has no place in the line yet"`
	Try         int              `json:"try" doc:"Which one this is, from 1"`
	Retries     int              `json:"retries,omitempty" doc:"How often it is started again at most, when it fails by itself or is interrupted"`
	Tries       []JobTry         `json:"tries,omitempty" doc:"The former ones"`
	Preemptible bool             `json:"preemptible,omitempty" doc:"Its owner has said that it may give way to others who wait for its GPU"`
	GaveWay     int              `json:"gaveWay,omitempty" doc:"How many of its former tries gave way; they take none of its retries"`
	Lost        float64          `json:"lostSeconds,omitempty" doc:"How long those of them ran that did not save what they did: what was lost at most"`
	Array       string           `json:"array,omitempty" doc:"Of an array: the numbers of its elements, as in 0-9%4. An array runs nothing itself; it ends with the last of its elements"`
	Tasks       *JobTasks        `json:"tasks,omitempty" doc:"Of an array: how many elements stand how"`
	ArrayJob    int64            `json:"arrayJob,omitempty" doc:"Of an element: the number of its array"`
	ArrayTask   *int             `json:"arrayTask,omitempty" doc:"Of an element: its number there"`
	Output      string           `json:"output,omitempty" doc:"The file of its log, in the home"`
	Errors      string           `json:"errors,omitempty" doc:"The file of its standard error, in the home; left out where that is in its log"`
	Notes       []string         `json:"notes,omitempty" doc:"Options of its script that gpulab ignores, and other remarks; for people"`
	Mail        []string         `json:"mail,omitempty" enum:"BEGIN,END,FAIL,TIME_LIMIT,NONE" doc:"What its owner wants mails of; left out where that is as they have chosen for all jobs"`
	TimeLimit   int              `json:"timeLimit" doc:"For how many seconds it may run"`
	Requested   time.Time        `json:"requested"`
	Started     *time.Time       `json:"started,omitempty" doc:"When its turn came"`
	Ready       *time.Time       `json:"ready,omitempty" doc:"When its program began"`
	Ended       *time.Time       `json:"ended,omitempty"`
	Page        string           `json:"page" doc:"Its page for browsers"`
	Version     string           `json:"version" doc:"Another one whenever something above changes; see the parameter seen"`
}

// JobDependency is a job that another one waits for.
type JobDependency struct {
	Job int64 `json:"job"`
	Any bool  `json:"any,omitempty" doc:"However it ends; it has to succeed otherwise"`
}

// JobTasks count the elements of an array.
type JobTasks struct {
	Total     int `json:"total"`
	Waiting   int `json:"waiting" doc:"Those that are not in line yet, too"`
	Running   int `json:"running" doc:"Starting and ending ones, too"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// JobTry is a run of a job that another one has followed.
type JobTry struct {
	Started  time.Time `json:"started" doc:"When its turn came"`
	Ended    time.Time `json:"ended"`
	EndCode  string    `json:"endCode" enum:"exited,evicted,interrupted,preempted"`
	Reason   string    `json:"reason" doc:"How it ended, for people"`
	ExitCode *int      `json:"exitCode,omitempty"`
	For      string    `json:"for,omitempty" doc:"Of one that gave way: who waited for its GPU, by sign-in name"`
	ForID    int64     `json:"forLaunch,omitempty" doc:"And the number of their notebook or job"`
	Saved    bool      `json:"saved,omitempty" doc:"It ended with 0 when it was asked to: it has saved what it did"`
}

// JobList is some jobs, the newest first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// JobLog is a piece of what a job has said.
type JobLog struct {
	Data    []byte `json:"data" doc:"In base64: a program may say anything"`
	From    int64  `json:"from" doc:"Where the piece begins, in bytes of all that the job has said"`
	Next    int64  `json:"next" doc:"Where the next one begins"`
	LeftOut int64  `json:"leftOut,omitempty" doc:"How many bytes before from are not kept: of a long log the beginning and the end are"`
	Missing bool   `json:"missing,omitempty" doc:"The file of the log is not there: it was not begun, or was moved or deleted"`
	End     bool   `json:"end,omitempty" doc:"The job has ended, and this was the last piece"`
}

type jobsInput struct {
	Of string `query:"of" default:"me" enum:"me,everybody" doc:"me lists yours, ended ones too; everybody lists all that have not ended"`
}

type jobLogInput struct {
	IDInput
	From int64 `query:"from" minimum:"-10485760" doc:"Where to begin, in bytes; a negative number counts from the end"`
	Wait int   `query:"wait" minimum:"0" maximum:"20" doc:"For how many seconds to wait at most while there is nothing more"`
}

type submitInput struct {
	Body struct {
		Script      string   `json:"script,omitempty" maxLength:"65536" doc:"Text of a script, or of a Jupyter notebook, which is run from top to bottom, or the manifest of a Kubernetes Job (batch/v1, YAML or JSON), of which the program, its environment and what it needs are taken and anything else is refused. A script's directives, #GPULAB --gpus=1 or #SBATCH --gres=gpu:1, hold where nothing else is said here"`
		Command     []string `json:"command,omitempty" maxItems:"1000" doc:"A program with its arguments, instead of a script; no shell reads it"`
		Args        []string `json:"args,omitempty" maxItems:"1000" doc:"Arguments of the script"`
		Name        string   `json:"name,omitempty" maxLength:"80"`
		File        string   `json:"file,omitempty" maxLength:"500" doc:"The script's own name, after which a job is called that has no other; a script without a first line #! is read by what its ending names: Python for .py, Rscript for .R, julia for .jl, bash otherwise"`
		Profile     string   `json:"profile,omitempty" maxLength:"63" doc:"Its slug; the first with as many GPUs if left out"`
		GPUs        *int     `json:"gpus,omitempty" minimum:"0" maximum:"1000"`
		CPUs        float64  `json:"cpus,omitempty" minimum:"0" maximum:"1000000" doc:"How many cores it needs at least: it gets the smallest profile with so many"`
		Memory      string   `json:"memory,omitempty" maxLength:"40" doc:"How much memory it needs at least, such as 16G, or in MiB: it gets the smallest profile with so much"`
		TimeLimit   string   `json:"timeLimit,omitempty" maxLength:"40" doc:"Such as 2h, 90m, 3d, or as sbatch takes it; 24h if left out"`
		Environment string   `json:"environment,omitempty" maxLength:"80" doc:"The lab's environment in which it runs, by name or NAME/VERSION; the Python of its image if left out"`
		After       string   `json:"after,omitempty" maxLength:"2000" doc:"Jobs of yours that have to end first: their numbers, such as 12,13, if they have to succeed, or as sbatch takes it, such as afterok:12:13,afterany:14"`
		Retries     *int     `json:"retries,omitempty" minimum:"0" maximum:"10" doc:"How often it is started again when it fails by itself or is interrupted; never if left out"`
		Array       string   `json:"array,omitempty" maxLength:"2000" doc:"Makes it an array: the numbers of its elements as sbatch takes them, such as 0-9, 1,3,7-20:2, or 0-99%4 for four at a time"`
		Preemptible *bool    `json:"preemptible,omitempty" doc:"It may give way to anybody else who waits for its GPU, then goes back into the line; it stands behind them, and its use counts half"`
		Output      string   `json:"output,omitempty" maxLength:"500" doc:"File of its log, in the home; %j is the job's number and %x its name; jobs/NAME-NUMBER.log if left out"`
		Errors      string   `json:"errors,omitempty" maxLength:"500" doc:"File of its standard error, in the home, named like output; in its log if left out"`
		Mail        string   `json:"mail,omitempty" maxLength:"200" doc:"What its owner wants mails of, as sbatch takes it: BEGIN, END, FAIL, TIME_LIMIT with commas, ALL or NONE; as they have chosen for all jobs if left out"`
		Dir         string   `json:"dir,omitempty" maxLength:"500" doc:"Where it runs, in the home"`
	}
}

type submitted struct {
	Location string `header:"Location"`
	Body     Job
}

// maxJobBody has room for a script with every character escaped.
const maxJobBody = 512 << 10

func (s *Server) addJobs() {
	add(s, Operation{Method: "GET", Path: "/jobs", ID: "listJobs", Need: users.ActionSee, tag: "jobs",
		summary: "Your jobs, or everybody's"}, s.listJobs)
	add(s, Operation{Method: "POST", Path: "/jobs", ID: "submitJob", Need: users.ActionLaunch, tag: "jobs",
		summary:     "Submit a job",
		description: "It stands in the same line as notebooks, and starts by itself.", status: http.StatusCreated,
		also: []int{conflict}, maxBody: maxJobBody}, s.submitJob)
	add(s, Operation{Method: "GET", Path: "/jobs/{id}", ID: "getJob", Need: users.ActionSee, tag: "jobs",
		summary: "One job; waits for a change where asked to"}, s.getJob)
	add(s, Operation{Method: "GET", Path: "/jobs/{id}/log", ID: "readJobLog", Need: users.ActionSee, tag: "jobs",
		summary:     "What a job of yours has said",
		description: "Of long logs the beginning and the end are kept."}, s.readJobLog)
	add(s, Operation{Method: "POST", Path: "/jobs/{id}/again", ID: "runJobAgain", Need: users.ActionLaunch, tag: "jobs",
		summary: "Submit a job of yours once more",
		status:  http.StatusCreated, also: []int{conflict}}, s.runJobAgain)
	add(s, Operation{Method: "GET", Path: "/jobs/{id}/tasks", ID: "listJobTasks", Need: users.ActionSee, tag: "jobs",
		summary: "The elements of an array, as far as they have been in line"}, s.listJobTasks)
	add(s, Operation{Method: "DELETE", Path: "/jobs/{id}/tasks/{task}", ID: "cancelJobTask",
		Need: users.ActionManageNotebooks, tag: "jobs", summary: "Cancel an element of an array",
		description: "One that is not in line yet never gets there."}, s.cancelJobTask)
	add(s, Operation{Method: "DELETE", Path: "/jobs/{id}", ID: "cancelJob", Need: users.ActionManageNotebooks, tag: "jobs",
		summary:     "Cancel a job",
		description: "Its program gets SIGTERM, and half a minute to end. One that has ended is as was wanted."}, s.cancelJob)
}

func (s *Server) listJobs(ctx context.Context, c *call, in *jobsInput) (*body[JobList], error) {
	var launches []notebooks.Launch
	var err error
	if in.Of == "everybody" {
		launches, err = s.cfg.Notebooks.Active(ctx)
	} else {
		launches, err = s.cfg.Notebooks.Jobs(ctx, c.user.ID)
	}
	if err != nil {
		return nil, err
	}
	list := JobList{Jobs: []Job{}}
	for i := range launches {
		if launches[i].IsJob() {
			list.Jobs = append(list.Jobs, s.job(c, &launches[i]))
		}
	}
	return answerWith(list)
}

// job is a job as whoever asks may see it.
func (s *Server) job(c *call, l *notebooks.Launch) Job {
	j := Job{ID: l.ID, User: l.Handle, Profile: l.Profile, State: string(l.State), GPUs: l.GPUs, Simulated: l.Simulated,
		TimeLimit: int(l.Job.Limit / time.Second), Try: l.Job.Try(), Retries: l.Job.Retries,
		Requested: l.Requested, Started: given(l.Started), Ready: given(l.Ready), Ended: given(l.Ended),
		Page: c.page("/jobs/" + strconv.FormatInt(l.ID, 10))}
	if end := l.Finished(); end != "" {
		j.State = end
	}
	if c.may(users.ActionManageNotebooks, l.UserID) {
		j.Name, j.Reason, j.EndCode, j.ExitCode, j.Machine, j.GPUUUIDs, j.Position, j.Never, j.Output, j.Environment =
			l.Title, l.Reason, l.EndCode, l.Job.ExitCode, l.Node, l.GPUUUIDs, l.Position, l.Never, l.Job.Output,
			l.Job.Environment
		j.Held, j.Preemptible = l.Held(), l.Job.Preemptible
		j.Errors, j.Mail = l.Job.Errors, l.Job.Mail
		if l.UserID == c.user.ID { // notes quote the script
			j.Notes = l.Job.Notes
		}
		gaveWay, lost := l.Job.Preempted()
		j.GaveWay, j.Lost = gaveWay, lost.Seconds()
		for _, d := range l.Job.After {
			j.After = append(j.After, JobDependency(d))
		}
		j.Array = l.Job.Array
		if l.Job.ArrayJob != 0 {
			j.ArrayJob, j.ArrayTask = l.Job.ArrayJob, &l.Job.ArrayTask
		}
		if c := l.Job.Tasks; c != nil {
			j.Tasks = new(JobTasks(*c))
			if l.Active() && c.Running > 0 {
				j.State = string(notebooks.Running)
			}
		}
		for _, t := range l.Job.Tries {
			j.Tries = append(j.Tries, JobTry{
				time.UnixMilli(t.From).UTC(), time.UnixMilli(t.Until).UTC(), t.EndCode, t.Reason, t.ExitCode, t.For, t.ForLaunch,
				t.Saved,
			})
		}
		for _, h := range l.Holders {
			j.Holders = append(j.Holders, NotebookHolder{h.Handle, h.GPUs, h.Node, h.Since})
		}
	}
	j.Version = versionOf(j)
	return j
}

var errNoJob = problem(http.StatusNotFound, "There is no such job",
	"There is no such job: its number may be mistyped, or it is somebody else's. “gpulab jobs” lists yours.")

// jobOf reads a job that the caller may see all of. To others it does not exist.
func (s *Server) jobOf(ctx context.Context, c *call, id int64) (notebooks.Launch, error) {
	l, err := s.cfg.Notebooks.Get(ctx, id)
	if errors.Is(err, notebooks.ErrNotFound) || err == nil &&
		(!l.IsJob() || !c.may(users.ActionManageNotebooks, l.UserID)) {
		return l, errNoJob
	}
	return l, err
}

// ownJob is jobOf for what is its owner's alone.
func (s *Server) ownJob(ctx context.Context, c *call, id int64) (notebooks.Launch, error) {
	l, err := s.jobOf(ctx, c, id)
	if err == nil && l.UserID != c.user.ID {
		err = problem(http.StatusForbidden, "It is not yours", "What a job runs and says is for its owner alone.")
	}
	return l, err
}

func (s *Server) submitJob(ctx context.Context, c *call, in *submitInput) (*submitted, error) {
	b := &in.Body
	if b.Script != "" && len(b.Command) > 0 {
		return nil, &notebooks.JobError{Text: "A job runs a script or a command, not both."}
	}
	r := notebooks.JobRequest{
		Program: notebooks.Program{Script: b.Script, Args: b.Args, Dir: b.Dir}, Name: strings.TrimSpace(b.Name), File: b.File,
		Profile: b.Profile, GPUs: b.GPUs, Output: b.Output, Environment: b.Environment, Retries: b.Retries, Array: b.Array,
		Preemptible: b.Preemptible, Errors: b.Errors, CPUs: b.CPUs,
	}
	if b.Script == "" {
		r.Args = b.Command
	}
	if b.After != "" {
		after, err := notebooks.ParseDependencies(b.After)
		if err != nil {
			return nil, err
		}
		r.After = after
	}
	var err error
	if r.Memory, err = notebooks.ParseMemory(b.Memory); err != nil {
		return nil, err
	}
	if r.Mail, err = notebooks.ParseMail(b.Mail); err != nil {
		return nil, err
	}
	if b.TimeLimit != "" {
		limit, err := notebooks.ParseJobTime(b.TimeLimit)
		if err != nil {
			return nil, err
		}
		r.Limit = limit
	}
	l, err := s.cfg.Notebooks.Submit(ctx, c.user, r)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "job.submit", l.Handle, l.Audited())
	return s.submitted(c, &l), nil
}

func (s *Server) submitted(c *call, l *notebooks.Launch) *submitted {
	return &submitted{Prefix + "/jobs/" + strconv.FormatInt(l.ID, 10), s.job(c, l)}
}

func (s *Server) runJobAgain(ctx context.Context, c *call, in *IDInput) (*submitted, error) {
	if _, err := s.ownJob(ctx, c, in.ID); err != nil {
		return nil, err
	}
	l, err := s.cfg.Notebooks.Again(ctx, c.user, in.ID)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "job.submit", l.Handle, fmt.Sprintf("%s, job %d again", l.Audited(), in.ID))
	return s.submitted(c, &l), nil
}

func (s *Server) getJob(ctx context.Context, c *call, in *notebookInput) (*body[Job], error) {
	return onceChanged(ctx, s, in, func(ctx context.Context) (Job, string, error) {
		l, err := s.jobOf(ctx, c, in.ID)
		if err != nil {
			return Job{}, "", err
		}
		v := s.job(c, &l)
		return v, v.Version, nil
	})
}

// logEvery is how often a log is looked at while somebody follows it.
const logEvery = 250 * time.Millisecond

func (s *Server) readJobLog(ctx context.Context, c *call, in *jobLogInput) (*body[JobLog], error) {
	return s.readLog(ctx, in, func() (notebooks.Launch, error) { return s.ownJob(ctx, c, in.ID) })
}

func (s *Server) readLog(ctx context.Context, in *jobLogInput,
	find func() (notebooks.Launch, error)) (*body[JobLog], error) {
	until := time.Now().Add(time.Duration(min(in.Wait, longestWait)) * time.Second)
	for {
		l, err := find()
		if err != nil {
			return nil, err
		}
		part, err := s.cfg.Notebooks.Log(l, in.From)
		missing := errors.Is(err, notebooks.ErrNoLog)
		if err != nil && !missing {
			return nil, err
		}
		// The state was read before the log: what a job that had ended has said is all there.
		log := JobLog{
			Data: part.Data, From: part.From, Next: part.Next, LeftOut: part.LeftOut, Missing: missing, End: !l.Active() &&
				len(part.Data) == 0,
		}
		if log.Data == nil {
			log.Data = []byte{}
		}
		if len(part.Data) > 0 || part.LeftOut > 0 || log.End || time.Now().After(until) {
			return answerWith(log)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(logEvery):
		}
	}
}

type jobTaskInput struct {
	IDInput
	Task int `path:"task" minimum:"0" example:"3"`
}

var errNoTask = problem(http.StatusNotFound, "There is no such element",
	"The job has no such element. “gpulab jobs” shows which jobs are arrays.")

func (s *Server) listJobTasks(ctx context.Context, c *call, in *IDInput) (*body[JobList], error) {
	if _, err := s.jobOf(ctx, c, in.ID); err != nil {
		return nil, err
	}
	tasks, err := s.cfg.Notebooks.Tasks(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	list := JobList{Jobs: []Job{}}
	for i := range tasks {
		list.Jobs = append(list.Jobs, s.job(c, &tasks[i]))
	}
	return answerWith(list)
}

func (s *Server) cancelJobTask(ctx context.Context, c *call, in *jobTaskInput) (*body[Job], error) {
	l, err := s.jobOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	err = s.cfg.Notebooks.CancelTask(ctx, l, in.Task)
	if errors.Is(err, notebooks.ErrNotFound) {
		return nil, errNoTask
	}
	if err != nil {
		return nil, fmt.Errorf("cancel element %d of job %d: %w", in.Task, l.ID, err)
	}
	s.audit(ctx, c, "job.cancel", l.Handle, fmt.Sprintf("%s, element %d", l.Audited(), in.Task))
	if l, err = s.cfg.Notebooks.Get(ctx, l.ID); err != nil {
		return nil, err
	}
	return answerWith(s.job(c, &l))
}

func (s *Server) cancelJob(ctx context.Context, c *call, in *IDInput) (*body[Job], error) {
	l, err := s.jobOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if l.Active() {
		if err := s.cfg.Notebooks.Cancel(ctx, l.ID); err != nil {
			return nil, fmt.Errorf("cancel job %d: %w", l.ID, err)
		}
		s.audit(ctx, c, "job.cancel", l.Handle, l.Audited())
		if l, err = s.cfg.Notebooks.Get(ctx, l.ID); err != nil {
			return nil, err
		}
	}
	return answerWith(s.job(c, &l))
}
