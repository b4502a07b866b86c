package notebooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of arrays.
const (
	maxTasks = 1000    // elements of one array
	maxTask  = 1000000 // the highest number of an element
	// maxReleased is how many elements of one person's arrays are in line or run at
	// the same time.
	maxReleased = 100
)

// Array is which elements an array of jobs has.
type Array struct {
	Tasks []int // in rising order
	Most  int   // how many run at the same time, 0 for any number
}

// ParseArray reads the elements of an array as sbatch writes them: 0-9, 0-99%4,
// 1,3,7-20:2.
func ParseArray(text string) (Array, error) {
	var a Array
	wrong := refuse("%q is not a list of array elements. Write, for example, 0-9, 1,3,7-20:2, or 0-99%%4 for four "+
		"at a time.",
		clipped(text))
	list, most, limited := strings.Cut(text, "%")
	if limited {
		n, err := strconv.Atoi(most)
		if err != nil || n < 1 {
			return a, wrong
		}
		a.Most = n
	}
	for part := range strings.SplitSeq(list, ",") {
		span, step, stepped := strings.Cut(strings.TrimSpace(part), ":")
		first, last, isSpan := strings.Cut(span, "-")
		by := 1
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isSpan {
			to, err = strconv.Atoi(last)
		}
		if err == nil && stepped {
			by, err = strconv.Atoi(step)
		}
		switch {
		case err != nil, from < 0, to < from, by < 1, stepped && !isSpan:
			return a, wrong
		case to > maxTask, by > maxTask:
			return a, refuse("The numbers of an array's elements go to %d.", maxTask)
		case (to-from)/by >= maxTasks:
			return a, tooManyTasks
		}
		for i := from; i <= to; i += by {
			a.Tasks = append(a.Tasks, i)
		}
		if len(a.Tasks) > 2*maxTasks {
			return a, tooManyTasks
		}
	}
	slices.Sort(a.Tasks)
	if a.Tasks = slices.Compact(a.Tasks); len(a.Tasks) > maxTasks {
		return a, tooManyTasks
	}
	return a, nil
}

var tooManyTasks = refuse("An array has %d elements at most. Submit several.", maxTasks)

// TaskCounts are how an array's elements stand.
type TaskCounts struct {
	Total     int `json:"total"`
	Waiting   int `json:"waiting"` // those that are not in line yet, too
	Running   int `json:"running"` // starting and ending ones, too
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// IsArray tells whether the launch is an array of jobs, which runs nothing itself.
func (l Launch) IsArray() bool { return l.Job != nil && l.Job.Array != "" }

// Number is what people call a job: 12, or 12_3 as an element of an array.
func (l Launch) Number() string {
	if l.Job != nil && l.Job.ArrayJob != 0 {
		return fmt.Sprintf("%d_%d", l.Job.ArrayJob, l.Job.ArrayTask)
	}
	return strconv.FormatInt(l.ID, 10)
}

// Tasks are the elements of an array that have been in line, in the order of
// their numbers.
func (s *Service) Tasks(ctx context.Context, id int64) ([]Launch, error) {
	return s.decorated(s.rows.tasks(ctx, id))
}

func (t rows) tasks(ctx context.Context, id int64) ([]Launch, error) {
	return t.query(ctx, `WHERE array_job = ? ORDER BY array_task`, id)
}

// taskStates are the elements of an array with nothing but their numbers and how
// they stand: of a thousand, each row is read many times.
func (t rows) taskStates(ctx context.Context, id int64) (list []Launch, err error) {
	found, err := t.db.QueryContext(ctx,
		`SELECT state, end_code, array_task FROM launches JOIN jobs ON launch_id = id WHERE array_job = ?
			ORDER BY array_task`,
		id)
	if err != nil {
		return nil, fmt.Errorf("read the elements of job %d: %w", id, err)
	}
	defer found.Close()
	for found.Next() {
		l := Launch{Job: &Job{ArrayJob: id}}
		if err := found.Scan(&l.State, &l.EndCode, &l.Job.ArrayTask); err != nil {
			return nil, fmt.Errorf("read the elements of job %d: %w", id, err)
		}
		list = append(list, l)
	}
	return list, found.Err()
}

// counted adds to arrays how their elements stand.
func (s *Service) counted(ctx context.Context, list []Launch, err error) ([]Launch, error) {
	for i := range list {
		if err == nil && list[i].IsArray() {
			err = s.count(ctx, &list[i])
		}
	}
	return list, err
}

func (s *Service) count(ctx context.Context, l *Launch) error {
	tasks, err := s.rows.taskStates(ctx, l.ID)
	if err != nil {
		return err
	}
	a, err := ParseArray(l.Job.Array)
	l.Job.Tasks = counts(a, tasks)
	if unmade := len(a.Tasks) - len(tasks); !l.Active() {
		l.Job.Tasks.Waiting -= unmade // they never were
		l.Job.Tasks.Cancelled += unmade
	}
	return err
}

func counts(a Array, tasks []Launch) *TaskCounts {
	c := &TaskCounts{Total: len(a.Tasks), Waiting: len(a.Tasks) - len(tasks)}
	for _, l := range tasks {
		switch how := l.Finished(); {
		case l.State == Waiting:
			c.Waiting++
		case l.Active():
			c.Running++
		case how == "succeeded":
			c.Succeeded++
		case how == "cancelled":
			c.Cancelled++
		default:
			c.Failed++
		}
	}
	return c
}

// spread puts elements of an array in line as far as they may, and ends the array
// after the last one. It says what happens with it, "" when it has ended.
func (s *Service) spread(ctx context.Context, l Launch, seen *pass) (string, error) {
	a, err := ParseArray(l.Job.Array)
	if err != nil {
		return "", err
	}
	tasks, err := s.rows.taskStates(ctx, l.ID)
	if err != nil {
		return "", err
	}
	made := make(map[int]bool, len(tasks))
	for _, t := range tasks {
		made[t.Job.ArrayTask] = true
	}
	c := counts(a, tasks)
	if c.Waiting+c.Running == 0 {
		s.endArray(ctx, l, c, tasks)
		return "", nil
	}
	const atOnce = 20 // others want their turn, too
	active, added, words := len(tasks)-c.Succeeded-c.Failed-c.Cancelled, 0, ""
	for _, task := range a.Tasks {
		if made[task] {
			continue
		}
		if added >= atOnce || a.Most > 0 && active >= a.Most {
			break
		}
		words, err = s.withinQuota(ctx, l, seen, func() error { return s.addTask(ctx, l, task, nil) })
		if errors.Is(err, errReleased) {
			err = nil
			break
		}
		if err != nil || words != "" {
			break
		}
		active, added = active+1, added+1
		s.again()
	}
	return strings.TrimSpace(c.words() + " " + words), err
}

// words say how an array's elements stand.
func (c *TaskCounts) words() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Running, "running"}, {c.Waiting, "waiting"}, {c.Succeeded, "succeeded"}, {c.Failed, "failed"},
		{c.Cancelled, "cancelled"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return fmt.Sprintf("Of %d elements: %s.", c.Total, strings.Join(parts, ", "))
}

// endArray ends an array whose elements have all ended.
func (s *Service) endArray(ctx context.Context, l Launch, c *TaskCounts, tasks []Launch) {
	var failed []string
	for _, t := range tasks {
		if how := t.Finished(); how != "succeeded" && how != "cancelled" {
			failed = append(failed, t.Number())
		}
	}
	switch {
	case c.Succeeded == c.Total:
		s.endWaiting(ctx, l, EndSucceeded, fmt.Sprintf("All %d elements have succeeded.", c.Total))
	case c.Cancelled == c.Total:
		s.endWaiting(ctx, l, EndCancelled, cancelled)
	case len(failed) == 0:
		s.endWaiting(ctx, l, EndCancelled, c.words())
	case len(failed) == 1:
		s.endWaiting(ctx, l, EndExited, c.words()+" Failed: "+failed[0]+".")
	default:
		const named = 20
		if more := len(failed) - named; more > 0 {
			failed = append(failed[:named:named], fmt.Sprintf("%d more", more))
		}
		s.endWaiting(ctx, l, EndExited, c.words()+" Failed: "+enumerated(failed)+".")
	}
}

// errReleased: somebody's arrays have as many elements in line as they may.
var errReleased = errors.New("as many elements as may be are in line")

// addTask makes an element of an array; edit changes it before, nil for nothing.
func (s *Service) addTask(ctx context.Context, array Launch, task int, edit func(*Launch)) error {
	program, err := s.rows.program(ctx, array.ID)
	if err != nil {
		return err
	}
	job := Job{
		Output: array.Job.Output, Errors: array.Job.Errors, Limit: array.Job.Limit, Environment: array.Job.Environment,
		Retries: array.Job.Retries, Preemptible: array.Job.Preemptible, ArrayJob: array.ID, ArrayTask: task,
	}
	l := Launch{
		UserID: array.UserID, Handle: array.Handle, Title: array.Title, Profile: array.Profile, GPUs: array.GPUs,
		Requested: s.now(), Job: &job,
	}
	if edit != nil {
		edit(&l)
	}
	_, err = s.rows.insert(ctx, l, taskStem(array.Name, task), maxReleased, program)
	return err
}

// taskStem names an element's pod and folder.
func taskStem(name string, task int) string {
	suffix := fmt.Sprintf("-%d", task)
	return strings.TrimRight(name[:min(len(name), maxNameLength-len(suffix))], "-") + suffix
}

// CancelTask cancels an element of an array, also one that is not in line yet.
func (s *Service) CancelTask(ctx context.Context, array Launch, task int) error {
	if !array.IsArray() {
		return ErrNotFound
	}
	a, err := ParseArray(array.Job.Array)
	if err != nil {
		return err
	}
	if !slices.Contains(a.Tasks, task) {
		return ErrNotFound
	}
	for range 3 {
		tasks, err := s.rows.tasks(ctx, array.ID)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(tasks, func(l Launch) bool { return l.Job.ArrayTask == task }); i >= 0 {
			return s.Cancel(ctx, tasks[i].ID)
		}
		if !array.Active() {
			return nil
		}
		err = s.addTask(ctx, array, task, func(l *Launch) {
			l.State, l.Ended, l.EndCode, l.Reason = Ended, s.now(), EndCancelled, cancelled
		})
		if err == nil {
			s.kick()
			return nil
		}
	}
	return fmt.Errorf("cancel element %d of job %d: %w", task, array.ID, errMoved)
}

// endStrays ends elements that go on although their array has been ended: gpulab
// was killed in between.
func (s *Service) endStrays(ctx context.Context, list []Launch) {
	there := map[int64]bool{}
	for _, l := range list {
		there[l.ID] = true
	}
	for _, l := range list {
		if l.Job == nil || l.Job.ArrayJob == 0 || there[l.Job.ArrayJob] || l.State == Stopping && !l.triesAgain() {
			continue
		}
		if err := s.end(ctx, l.ID, EndCancelled, cancelled); err != nil && ctx.Err() == nil {
			s.log.Error("an element of an array that has ended could not be ended", "launch", l.ID, "error", err)
		}
	}
}

// endTasks ends what an array has in line and in the cluster.
func (s *Service) endTasks(ctx context.Context, array int64, code, reason string) error {
	tasks, err := s.rows.tasks(ctx, array)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range tasks {
		if t.Active() {
			errs = append(errs, s.end(ctx, t.ID, code, reason))
		}
	}
	return errors.Join(errs...)
}

// taskEnv is what the program of an element is told of its array.
func (l Launch) taskEnv() map[string]string {
	if l.Job.ArrayJob == 0 {
		return nil
	}
	task := strconv.Itoa(l.Job.ArrayTask)
	return map[string]string{
		"GPULAB_ARRAY_JOB_ID": strconv.FormatInt(l.Job.ArrayJob, 10), "GPULAB_ARRAY_TASK_ID": task,
		"SLURM_ARRAY_JOB_ID": strconv.FormatInt(l.Job.ArrayJob, 10), "SLURM_ARRAY_TASK_ID": task,
		"JOB_COMPLETION_INDEX": task, // as programs know it that were written for Kubernetes
	}
}
