package notebooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/unicode/norm"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Job is what makes a launch a job: a program that runs to its end in a pod of
// its own, with the same home, image and limits as a notebook of its profile.
type Job struct {
	Output string        `json:"output"`           // the file of its log, below the home
	Errors string        `json:"errors,omitempty"` // the file of its standard error, below the home; "" = Output
	Notes  []string      `json:"notes,omitempty"`  // for its owner: what of the script has no effect here
	Mail   []string      `json:"mail,omitempty"`   // which mails its owner gets, nil = as chosen for all jobs
	Limit  time.Duration `json:"limit"`            // how long it may run
	// in which it runs, as NAME/VERSION; "" for the Python of its image
	Environment string       `json:"environment,omitempty"`
	ExitCode    *int         `json:"exitCode,omitempty"`    // of its program, once that has ended by itself
	After       []Dependency `json:"after,omitempty"`       // the jobs that had to end first
	Held        bool         `json:"held,omitempty"`        // while it waits: it has no place in the line yet
	Retries     int          `json:"retries,omitempty"`     // how often it is started again when it fails
	Tries       []Try        `json:"tries,omitempty"`       // those that are over and were followed by another
	Preemptible bool         `json:"preemptible,omitempty"` // its owner has said that it may give way
	WayFor      string       `json:"wayFor,omitempty"`      // while it gives way: whose launch gets its GPU
	WayLaunch   int64        `json:"wayLaunch,omitempty"`   // and which that is
	NotBefore   time.Time    `json:"notBefore,omitzero"`    // when the next try may stand in line
	Array       string       `json:"array,omitempty"`       // of an array: its elements, as in 0-9%4
	Tasks       *TaskCounts  `json:"tasks,omitempty"`       // of an array: how they stand
	ArrayJob    int64        `json:"arrayJob,omitempty"`    // of an element: its array, 0 for none
	ArrayTask   int          `json:"arrayTask,omitempty"`   // and its number there
}

// Program is what a job runs.
type Program struct {
	// text of a script or a notebook, "" for a command; or a manifest, which is read into the rest
	Script string
	Reader string            // the program that reads the script; "" = the one that its first line names, or bash
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
	Profile string        // slug, "" = the first one with as many GPUs, or the smallest with enough cores and memory
	GPUs    *int          // nil = the directive's, or the profile's
	Limit   time.Duration // 0 = the directive's, or DefaultJobLimit
	Output  string        // file below the home, "" = the directive's, or jobs/NAME-NUMBER.log
	Errors  string        // file of its standard error below the home, "" = the directive's, or Output
	CPUs    float64       // how many cores it needs at least, 0 = the directive's, or any
	Memory  int64         // how much memory it needs at least, in bytes, 0 = the directive's, or any
	Mail    []string      // Mail constants, nil = the directive's, or what its owner has chosen
	// Environment is the lab's in which it runs, by name, or name and version; ""
	// = the directive's, or none.
	Environment string
	After       []Dependency // jobs that have to end first, nil = the directive's, or none
	Retries     *int         // how often it is started again, nil = the directive's, or never
	Array       string       // elements of an array, "" = the directive's, or no array
	Preemptible *bool        // it may give way to others who wait, nil = the directive's, or not

	image  string         // the image that a manifest asks for, "" = any
	kernel string         // the kernel that a notebook names
	lines  map[string]int // where cpu, memory, gpus and image stand, nil but for scripts and manifests
	faults []string       // what it cannot have
	notes  []string       // see Job.Notes
}

// need records the first line in which something is asked for.
func (r *JobRequest) need(what string, line int) {
	if r.lines == nil {
		r.lines = map[string]int{}
	}
	if r.lines[what] == 0 {
		r.lines[what] = line
	}
}

func (r *JobRequest) note(text string) { r.notes = append(r.notes, text) }

// fault collects a *JobError, so that one answer names all of them. It returns any other error.
func (r *JobRequest) fault(err error) error {
	if no := (*JobError)(nil); errors.As(err, &no) {
		r.faults = append(r.faults, no.Text)
		return nil
	}
	return err
}

// refusal returns the faults as one *JobError, a line for each; nil if there are none.
func (r *JobRequest) refusal() error {
	if len(r.faults) == 0 {
		return nil
	}
	return &JobError{strings.Join(slices.Compact(r.faults), "\n")}
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
var ErrTooManyJobs = fmt.Errorf("you have %d jobs already that wait or run, as many as one person may have; cancel "+
	"one, or wait for one to end", maxJobs)

// Submit records a job; it starts when its turn has come and there is room. The
// caller has checked that u may launch. Errors: *JobError, ErrTooManyJobs, and
// those of Launch.
func (s *Service) Submit(ctx context.Context, u users.User, r JobRequest) (Launch, error) {
	if err := r.check(u.Handle); err != nil {
		return Launch{}, err
	}
	profile, err := s.profileForJob(r)
	if err := r.fault(err); err != nil {
		return Launch{}, err
	}
	environment, err := s.environmentFor(r)
	if err := r.fault(err); err != nil {
		return Launch{}, err
	}
	if err := r.fault(s.checkAfter(ctx, u.ID, r.After)); err != nil {
		return Launch{}, err
	}
	if err := r.refusal(); err != nil {
		return Launch{}, err
	}
	job := s.jobOf(u, r)
	job.Environment, job.After, job.Held = environment.ID, r.After, len(r.After) > 0 || r.Array != ""
	job.Limit, job.Retries, job.Array = r.Limit, *r.Retries, r.Array
	job.Preemptible = r.Preemptible != nil && *r.Preemptible
	return s.launch(ctx, u, profile, Launch{Title: r.Name, Job: job}, slug(r.Name), r.Program)
}

// jobOf returns a job with the request's files, mails and notes.
func (s *Service) jobOf(u users.User, r JobRequest) *Job {
	if r.Mail != nil && !slices.Contains(r.Mail, mailNone) {
		if r.Array != "" && slices.Contains(r.Mail, MailBegin) {
			r.note("Of an array one mail is sent, when it has ended.")
		}
		if why := s.cfg.MailTrouble; why != nil && why(u) != "" {
			r.note("No mail is sent: " + why(u))
		}
	}
	return &Job{Output: r.Output, Errors: r.Errors, Notes: r.notes, Mail: r.Mail}
}

// environmentFor returns the environment that the request names. For a notebook without one, it is the environment of
// the notebook's kernel.
func (s *Service) environmentFor(r JobRequest) (Environment, error) {
	if name := EnvironmentOfKernel(r.kernel); r.Environment == "" && name != "" && s.cfg.Environment != nil {
		if e, err := s.cfg.Environment(name); err == nil {
			return e, nil // any other kernel is the person's own
		}
	}
	return s.environment(r.Environment)
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
	if err := r.check(handle); err != nil {
		return err
	}
	return r.refusal()
}

// check is prepare, but collects what the job cannot have in the faults. It returns an error if it cannot check more.
func (r *JobRequest) check(handle string) error {
	if r.Script == "" && (len(r.Args) == 0 || r.Args[0] == "") {
		return refuse("The job has nothing to run. Give it a script or a command.")
	}
	var err error
	switch {
	case r.Script == "":
	case isNotebook(r.File, r.Script):
		err = r.readNotebook()
	case isManifest(r.File, r.Script):
		err = r.readManifest()
	default:
		err = r.readScript()
	}
	if err != nil {
		return err
	}
	r.Name = norm.NFC.String(strings.TrimSpace(r.Name))
	if !validTitle(r.Name) {
		_ = r.fault(refuse("A job's name has at most %d characters, all of them visible.", maxTitle))
		r.Name = ""
	}
	if stem := norm.NFC.String(strings.TrimSuffix(path.Base(r.File), path.Ext(r.File))); r.Name == "" && r.File != "" &&
		validTitle(stem) {
		r.Name = stem
	}
	r.Name = cmp.Or(r.Name, "job")
	r.checkLength()
	if r.Limit == 0 {
		r.Limit = DefaultJobLimit
	}
	if r.Limit < minJobLimit || r.Limit > MaxJobLimit {
		_ = r.fault(refuse("A job's time limit is between %s and %s.", units.Lasting(minJobLimit),
			units.Lasting(MaxJobLimit)))
	}
	if r.GPUs != nil && *r.GPUs < 0 {
		_ = r.fault(refuse("A job cannot ask for a negative number of GPUs."))
		r.GPUs = nil
	}
	if r.CPUs < 0 || r.Memory < 0 {
		_ = r.fault(refuse("A job cannot ask for a negative number of cores or a negative amount of memory."))
	}
	if r.Retries == nil {
		r.Retries = new(0)
	}
	if *r.Retries < 0 || *r.Retries > MaxRetries {
		_ = r.fault(refuse("A job can have at most %d retries.", MaxRetries))
	}
	r.Dir, err = belowHome(r.Dir, handle, "The folder in which a job runs")
	_ = r.fault(err)
	_ = r.fault(r.checkFiles(handle))
	return nil
}

// checkLength checks the arguments and variables that go to the job with its script.
func (r *JobRequest) checkLength() {
	total := 0
	for name, value := range r.Env {
		total += len(name) + len(value) + 2
	}
	for _, a := range r.Args {
		if total += len(a) + 1; strings.ContainsRune(a, 0) {
			_ = r.fault(refuse("A command cannot contain the character NUL."))
			return
		}
	}
	if total > maxArgs {
		_ = r.fault(errTooLong)
	}
}

// checkFiles checks the names of the files for the job's output and errors.
func (r *JobRequest) checkFiles(handle string) error {
	patterns := []string{r.Output}
	if r.Errors != "" {
		patterns = append(patterns, r.Errors)
	}
	for _, pattern := range patterns {
		if r.Array == "" {
			if _, err := outputFile(pattern, handle, r.Name, math.MaxInt64, nil); err != nil {
				return err
			}
			continue
		}
		if _, err := ParseArray(r.Array); err != nil {
			return err
		}
		// The largest numbers make the longest names.
		first, err := outputFile(pattern, handle, r.Name, math.MaxInt64-1,
			&Job{ArrayJob: math.MaxInt64, ArrayTask: maxTask - 1})
		if err != nil {
			return err
		}
		if second, err := outputFile(pattern, handle, r.Name, math.MaxInt64,
			&Job{ArrayJob: math.MaxInt64, ArrayTask: maxTask}); err != nil || first == second {
			return refuse("All elements of the array would write to the same file. Have %%a, the element's number, in the " +
				"name of the output.")
		}
	}
	return nil
}

// profileForJob returns the profile for a job, with the number of GPUs that the job asks for. That is the profile that
// the request names. Otherwise it is one with enough cores and memory: one with as many GPUs if there is any, else one
// with GPUs at all. Among several it is the smallest, or the first if the request asks for neither cores nor memory.
func (s *Service) profileForJob(r JobRequest) (Profile, error) {
	all := s.cfg.Profiles
	fromManifest := r.Script == "" && r.lines != nil
	if fromManifest && r.GPUs == nil && (r.Profile == "" || r.CPUs > 0 || r.Memory > 0 || r.image != "") {
		r.GPUs = new(0) // as in Kubernetes: none unless the manifest asks for some
	}
	var choice []Profile
	switch {
	case r.Profile != "":
		i := slices.IndexFunc(all, func(p Profile) bool { return p.Slug == r.Profile })
		if i < 0 {
			return Profile{}, refuse("This lab has no profile %q. It has %s.", clipped(r.Profile), slugs(all))
		}
		p := all[i]
		switch {
		case r.GPUs == nil:
		case p.GPUs == 0 && *r.GPUs > 0:
			return Profile{}, refuse("The profile %s has no GPU. Leave the profile out, or name another: %s.", p.Slug,
				slugs(all))
		case p.GPUs > 0 && *r.GPUs == 0:
			return Profile{}, refuse("The profile %s has a GPU. For a job without one leave the profile out, or name "+
				"another: %s.", p.Slug, slugs(all))
		}
		choice = []Profile{p}
	case r.GPUs == nil || *r.GPUs == 0:
		if choice = withGPUs(all, false); len(choice) == 0 {
			return Profile{}, refuse("Every profile of this lab has a GPU. Say how many the job needs, such as --gpus 1, or "+
				"name a profile: %s.", slugs(all))
		}
	default:
		if choice = withGPUs(all, true); len(choice) == 0 {
			return Profile{}, refuse("No profile of this lab has a GPU. Ask an admin.")
		}
	}
	p, err := s.fitting(r, choice)
	if err == nil && r.GPUs != nil {
		p.GPUs = *r.GPUs
	}
	return p, err
}

func withGPUs(all []Profile, some bool) (list []Profile) {
	for _, p := range all {
		if (p.GPUs > 0) == some {
			list = append(list, p)
		}
	}
	return list
}

// size returns the cores and the bytes of memory that a launch of this profile may take. Without a limit in the
// profile the result is the largest number: the machine decides.
func (p Profile) size() (cpus float64, memory int64) {
	cpus, memory = cmp.Or(p.CPUs, math.Inf(1)), int64(math.MaxInt64)
	if q, err := resource.ParseQuantity(p.Memory); err == nil {
		memory = q.Value()
	}
	return cpus, memory
}

// fitting returns the profile for the job among those in choice.
func (s *Service) fitting(r JobRequest, choice []Profile) (Profile, error) {
	if r.image != "" {
		list := slices.DeleteFunc(slices.Clone(choice), func(p Profile) bool { return s.imageOf(p) != r.image })
		if len(list) == 0 {
			return Profile{}, refuse("%s", r.inLine("image",
				fmt.Sprintf("image %q is that of no profile of this lab. There are %s.", clipped(r.image), s.catalogue())))
		}
		choice = list
	}
	enough := slices.DeleteFunc(slices.Clone(choice), func(p Profile) bool {
		cpus, memory := p.size()
		return r.CPUs > cpus || r.Memory > memory
	})
	if len(enough) == 0 {
		return Profile{}, tooMuch(r, choice)
	}
	gpus := 0
	if r.GPUs != nil {
		gpus = *r.GPUs
	}
	if exact := slices.DeleteFunc(slices.Clone(enough), func(p Profile) bool { return p.GPUs != gpus }); len(exact) > 0 {
		enough = exact
	}
	if r.CPUs > 0 || r.Memory > 0 {
		return slices.MinFunc(enough, byMemory), nil
	}
	return enough[0], nil
}

func byMemory(a, b Profile) int {
	aCPUs, aMemory := a.size()
	bCPUs, bMemory := b.size()
	return cmp.Or(cmp.Compare(aMemory, bMemory), cmp.Compare(aCPUs, bCPUs))
}

func byCPUs(a, b Profile) int {
	aCPUs, _ := a.size()
	bCPUs, _ := b.size()
	return cmp.Or(cmp.Compare(aCPUs, bCPUs), byMemory(a, b))
}

// tooMuch is the refusal of a job for which no profile in choice has enough cores and memory. It names the largest.
func tooMuch(r JobRequest, choice []Profile) error {
	most, line := slices.MaxFunc(choice, byMemory), "memory"
	if _, memory := most.size(); r.Memory <= memory {
		most, line = slices.MaxFunc(choice, byCPUs), "cpu"
	}
	var asked []string
	if r.CPUs > 0 {
		asked = append(asked, coresWords(r.CPUs))
	}
	if r.Memory > 0 {
		asked = append(asked, bytesWords(r.Memory)+" of memory")
	}
	if r.Profile != "" {
		return refuse("%s", r.inLine(line, fmt.Sprintf("the job asks for %s, and the profile %s has %s. Ask for less, or "+
			"leave the profile out.", units.List(asked), most.Slug, most.sizeWords())))
	}
	with := "without"
	if most.GPUs > 0 {
		with = "with"
	}
	return refuse("%s", r.inLine(line, fmt.Sprintf("no profile of this lab %s a GPU has %s. The largest is %s, which "+
		"has %s. Ask for less, or ask an admin for a larger profile.", with, units.List(asked), most.Slug, most.sizeWords())))
}

// sizeWords names the cores and the memory that a launch of this profile may take.
func (p Profile) sizeWords() string {
	cores, memory := "half of a machine's cores", "half of its memory"
	if p.CPUs > 0 {
		cores = coresWords(p.CPUs)
	}
	if q, err := resource.ParseQuantity(p.Memory); err == nil {
		memory = bytesWords(q.Value()) + " of memory"
	}
	return cores + " and " + memory
}

func coresWords(n float64) string {
	if n == 1 {
		return "1 core"
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + " cores"
}

// inLine begins a sentence about something that is asked for with its line, if that is known.
func (r *JobRequest) inLine(what, sentence string) string {
	if r.lines[what] == 0 {
		return strings.ToUpper(sentence[:1]) + sentence[1:]
	}
	return fmt.Sprintf("Line %d: %s", r.lines[what], sentence)
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
	output, errs, err := s.rows.filesAs(ctx, l)
	if err != nil {
		return Launch{}, err
	}
	again := Launch{Title: l.Title, Job: &Job{Limit: l.Job.Limit, Output: output, Errors: errs,
		Environment: l.Job.Environment, Retries: l.Job.Retries, Preemptible: l.Job.Preemptible, Notes: l.Job.Notes,
		Mail: l.Job.Mail}}
	switch {
	case l.IsArray():
		again.Job.Array, again.Job.Held = l.Job.Array, true
	case l.Job.ArrayJob != 0: // an array of this element alone
		again.Job.Array, again.Job.Held = strconv.Itoa(l.Job.ArrayTask), true
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
