package notebooks

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Job is what makes a launch a job: a program that runs to its end in a pod of
// its own, with the same home, image and limits as a notebook of its profile.
type Job struct {
	Output      string        `json:"output"`                // the file of its log, below the home
	Limit       time.Duration `json:"limit"`                 // how long it may run
	Environment string        `json:"environment,omitempty"` // in which it runs, as NAME/VERSION; "" for the Python of its image
	ExitCode    *int          `json:"exitCode,omitempty"`    // of its program, once that has ended by itself
	After       []Dependency  `json:"after,omitempty"`       // the jobs that had to end first
	Held        bool          `json:"held,omitempty"`        // while it waits: it has no place in the line yet
	Retries     int           `json:"retries,omitempty"`     // how often it is started again when it fails
	Tries       []Try         `json:"tries,omitempty"`       // those that are over and were followed by another
	Preemptible bool          `json:"preemptible,omitempty"` // its owner has said that it may give way
	WayFor      string        `json:"wayFor,omitempty"`      // while it gives way: whose launch gets its GPU
	WayLaunch   int64         `json:"wayLaunch,omitempty"`   // and which that is
	NotBefore   time.Time     `json:"notBefore,omitzero"`    // when the next try may stand in line
	Array       string        `json:"array,omitempty"`       // of an array: its elements, as in 0-9%4
	Tasks       *TaskCounts   `json:"tasks,omitempty"`       // of an array: how they stand
	ArrayJob    int64         `json:"arrayJob,omitempty"`    // of an element: its array, 0 for none
	ArrayTask   int           `json:"arrayTask,omitempty"`   // and its number there
}

// Program is what a job runs.
type Program struct {
	Script string            // text of a script, "" for a command; or a manifest, which is read into the rest
	Args   []string          // of the script, or the command with its own
	Dir    string            // where, below the home; "" = the home
	Env    map[string]string // in its environment beside what every job has
}

// JobRequest is what a person asks for. What is not set stays as the script's
// directives or the lab have it.
type JobRequest struct {
	Program
	Name    string        // at most 80 characters, "" = the directive's, or that of the file, or "job"
	File    string        // the script's, as its owner calls it
	Profile string        // slug, "" = the first one with as many GPUs
	GPUs    *int          // nil = the directive's, or the profile's
	Limit   time.Duration // 0 = the directive's, or DefaultJobLimit
	Output  string        // file below the home, "" = the directive's, or jobs/NAME-NUMBER.log
	// Environment is the lab's in which it runs, by name, or name and version; ""
	// = the directive's, or none.
	Environment string
	After       []Dependency // jobs that have to end first, nil = the directive's, or none
	Retries     *int         // how often it is started again, nil = the directive's, or never
	Array       string       // elements of an array, "" = the directive's, or no array
	want        wanted       // what a manifest asks of a profile
	Preemptible *bool        // it may give way to others who wait, nil = the directive's, or not
}

// Bounds of jobs.
const (
	DefaultJobLimit = 24 * time.Hour
	MaxJobLimit     = 30 * 24 * time.Hour
	minJobLimit     = 10 * time.Second
	// maxJobs is how many jobs one person may have waiting or running.
	maxJobs = 100
	// MaxScript is how long a script may be, in bytes: it travels in the pod's
	// environment.
	MaxScript = 64 << 10
	maxArgs   = 16 << 10 // bytes
)

// End codes of jobs alone.
const (
	EndSucceeded = "succeeded"
	EndTimeLimit = "time-limit"
	// EndDependency: a job that it needs has not succeeded, so it was not run.
	EndDependency = "dependency"
)

// JobError refuses a job for what it asks; its text is for people.
type JobError struct{ Text string }

func (e *JobError) Error() string { return e.Text }

func refuse(format string, args ...any) error { return &JobError{fmt.Sprintf(format, args...)} }

// ErrTooManyJobs is a bound of [Service.Submit].
var ErrTooManyJobs = fmt.Errorf("you have %d jobs already that wait or run, as many as one person may have; cancel one, or wait for one to end", maxJobs)

// Submit records a job; it starts when its turn has come and there is room. The
// caller has checked that u may launch. Errors: *JobError, ErrTooManyJobs, and
// those of Launch.
func (s *Service) Submit(ctx context.Context, u users.User, r JobRequest) (Launch, error) {
	if err := r.prepare(u.Handle); err != nil {
		return Launch{}, err
	}
	if err := s.profileFor(&r); err != nil {
		return Launch{}, err
	}
	profile, err := s.profileForJob(r)
	if err != nil {
		return Launch{}, err
	}
	environment, err := s.environment(r.Environment)
	if err != nil {
		return Launch{}, err
	}
	if err := s.checkAfter(ctx, u.ID, r.After); err != nil {
		return Launch{}, err
	}
	return s.launch(ctx, u, profile, Launch{
		Title: r.Name, Job: &Job{Output: r.Output, Limit: r.Limit, Environment: environment.ID, After: r.After, Held: len(r.After) > 0 || r.Array != "", Retries: *r.Retries, Array: r.Array, Preemptible: r.Preemptible != nil && *r.Preemptible},
	}, slug(r.Name), r.Program)
}

// environment finds an environment for a job; "" is none.
func (s *Service) environment(name string) (Environment, error) {
	switch {
	case name == "":
		return Environment{}, nil
	case s.cfg.Environment == nil:
		return Environment{}, refuse("This lab has no environments.")
	}
	return s.cfg.Environment(name)
}

var errTooLong = refuse("The command is longer than %d KiB. Put it in a script.", maxArgs>>10)

// prepare reads the script's directives, and checks everything that needs no lab.
func (r *JobRequest) prepare(handle string) error {
	if r.Script == "" && (len(r.Args) == 0 || r.Args[0] == "") {
		return refuse("The job has nothing to run. Give it a script or a command.")
	}
	switch {
	case r.Script == "":
	case isManifest(r.File, r.Script):
		if err := r.readManifest(); err != nil {
			return err
		}
	default:
		if err := r.readScript(); err != nil {
			return err
		}
	}
	r.Name = strings.TrimSpace(r.Name)
	if !validTitle(r.Name) {
		return refuse("A job's name has at most %d characters, all of them visible.", maxTitle)
	}
	if stem := strings.TrimSuffix(path.Base(r.File), path.Ext(r.File)); r.Name == "" && r.File != "" && validTitle(stem) {
		r.Name = stem
	}
	r.Name = cmp.Or(r.Name, "job")
	total := 0
	for name, value := range r.Env {
		total += len(name) + len(value) + 2
	}
	for _, a := range r.Args {
		if total += len(a) + 1; strings.ContainsRune(a, 0) {
			return refuse("A command cannot have the character with the number 0 in it.")
		}
	}
	if total > maxArgs {
		return errTooLong
	}
	if r.Limit == 0 {
		r.Limit = DefaultJobLimit
	}
	if r.Limit < minJobLimit || r.Limit > MaxJobLimit {
		return refuse("A job's time limit is between %s and %s.", units.Lasting(minJobLimit), units.Lasting(MaxJobLimit))
	}
	if r.GPUs != nil && *r.GPUs < 0 {
		return refuse("A job asks for 0 GPUs or more.")
	}
	if r.Retries == nil {
		r.Retries = new(0)
	}
	if *r.Retries < 0 || *r.Retries > MaxRetries {
		return refuse("A job is started again %d times at most.", MaxRetries)
	}
	var err error
	if r.Dir, err = belowHome(r.Dir, handle, "The folder in which a job runs"); err != nil {
		return err
	}
	if r.Array == "" {
		_, err = outputFile(r.Output, handle, r.Name, math.MaxInt64, nil)
		return err
	}
	if _, err := ParseArray(r.Array); err != nil {
		return err
	}
	// As long as their names may ever get.
	first, err := outputFile(r.Output, handle, r.Name, math.MaxInt64-1, &Job{ArrayJob: math.MaxInt64, ArrayTask: maxTask - 1})
	if err != nil {
		return err
	}
	if second, err := outputFile(r.Output, handle, r.Name, math.MaxInt64, &Job{ArrayJob: math.MaxInt64, ArrayTask: maxTask}); err != nil || first == second {
		return refuse("All elements of the array would write to the same file. Have %%a, the element's number, in the name of the output.")
	}
	return nil
}

// profileForJob is the profile that is named, or the first with as many GPUs;
// else the first with GPUs, with as many as are asked for.
func (s *Service) profileForJob(r JobRequest) (Profile, error) {
	all := s.cfg.Profiles
	var p Profile
	var i int
	switch {
	case r.Profile != "":
		if i = slices.IndexFunc(all, func(p Profile) bool { return p.Slug == r.Profile }); i < 0 {
			return Profile{}, refuse("This lab has no profile %q. It has %s.", clipped(r.Profile), slugs(all))
		}
		p = all[i]
	case r.GPUs == nil || *r.GPUs == 0:
		if i = slices.IndexFunc(all, func(p Profile) bool { return p.GPUs == 0 }); i < 0 {
			return Profile{}, refuse("Every profile of this lab has a GPU. Say how many the job needs, such as --gpus 1, or name a profile: %s.", slugs(all))
		}
		p = all[i]
	default:
		i = slices.IndexFunc(all, func(p Profile) bool { return p.GPUs == *r.GPUs })
		if i < 0 {
			i = slices.IndexFunc(all, func(p Profile) bool { return p.GPUs > 0 })
		}
		if i < 0 {
			return Profile{}, refuse("No profile of this lab has a GPU. Ask an admin.")
		}
		p = all[i]
	}
	if r.GPUs == nil {
		return p, nil
	}
	switch {
	case p.GPUs == 0 && *r.GPUs > 0:
		return Profile{}, refuse("The profile %s has no GPU. Leave the profile out, or name another: %s.", p.Slug, slugs(all))
	case p.GPUs > 0 && *r.GPUs == 0:
		return Profile{}, refuse("The profile %s has a GPU. For a job without one leave the profile out, or name another: %s.", p.Slug, slugs(all))
	}
	p.GPUs = *r.GPUs
	return p, nil
}

func slugs(all []Profile) string {
	var list []string
	for i := range all {
		list = append(list, all[i].Slug)
	}
	return strings.Join(list, ", ")
}

func clipped(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// Jobs are a user's jobs that have not ended, newest first, then the latest ended ones.
func (s *Service) Jobs(ctx context.Context, userID int64) ([]Launch, error) {
	list, err := s.decorated(s.rows.ofUser(ctx, userID, jobHistory, kindJob))
	return s.counted(ctx, list, err)
}

// EndedJobs are everybody's jobs that have ended since, the oldest first; of an array, the array.
func (s *Service) EndedJobs(ctx context.Context, since time.Time) ([]Launch, error) {
	return s.decorated(s.rows.endedJobs(ctx, since))
}

// jobHistory is how many jobs Jobs returns at most.
const jobHistory = 100

// Program is what a job runs, as it was asked for.
func (s *Service) Program(ctx context.Context, id int64) (Program, error) {
	return s.rows.program(ctx, id)
}

// Again asks for a job once more, as it was asked for. It waits for no other job.
func (s *Service) Again(ctx context.Context, u users.User, id int64) (Launch, error) {
	l, err := s.rows.get(ctx, id)
	if err != nil {
		return Launch{}, err
	}
	if !l.IsJob() {
		return Launch{}, ErrNotFound
	}
	p, err := s.rows.program(ctx, id)
	if err != nil {
		return Launch{}, err
	}
	profile, ok := s.profile(l.Profile)
	if !ok {
		return Launch{}, refuse("This lab has no profile %q any more. It has %s.", l.Profile, slugs(s.cfg.Profiles))
	}
	profile.GPUs = l.GPUs
	if _, err := s.environment(l.Job.Environment); err != nil {
		return Launch{}, err
	}
	again := Launch{Title: l.Title, Job: &Job{Limit: l.Job.Limit, Output: l.Job.Output, Environment: l.Job.Environment, Retries: l.Job.Retries, Preemptible: l.Job.Preemptible}}
	switch {
	case l.IsArray():
		again.Job.Array, again.Job.Held = l.Job.Array, true
	case l.Job.ArrayJob != 0: // an array of this element alone
		again.Job.Array, again.Job.Held, again.Job.Output = strconv.Itoa(l.Job.ArrayTask), true, ""
	}
	if !l.IsArray() && strings.Contains(l.Job.Output, fmt.Sprint(id)) {
		again.Job.Output = "" // a file of its own, as it had before
	}
	return s.launch(ctx, u, profile, again, slug(l.Title), p)
}

// Finished says how a job ended: succeeded, failed, cancelled, timed out or not run; "" for
// one that has not ended, and for what is no job.
func (l Launch) Finished() string {
	switch {
	case l.Job == nil || l.Active():
		return ""
	case l.EndCode == EndSucceeded:
		return "succeeded"
	case l.EndCode == EndTimeLimit:
		return "timed out"
	case l.EndCode == EndDependency:
		return "not run"
	case l.EndCode == EndCancelled, l.EndCode == EndStopped:
		return "cancelled"
	}
	return "failed"
}
