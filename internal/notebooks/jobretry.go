package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Try is a run of a job that another one has followed.
type Try struct {
	From     int64  `json:"from"`  // when its turn came, in unix milliseconds
	Until    int64  `json:"until"` // and when it had ended
	EndCode  string `json:"endCode"`
	Reason   string `json:"reason"`
	ExitCode *int   `json:"exitCode,omitempty"`
	// Of one that gave way: for whose launch, and whether it had saved its state.
	For       string `json:"for,omitempty"`
	ForLaunch int64  `json:"forLaunch,omitempty"`
	Saved     bool   `json:"saved,omitempty"`
	Simulated bool   `json:"simulated,omitempty"` // its GPUs were
	// Runs is how many runs it stands for, from From on one right after the other; 0 is one.
	Runs int `json:"runs,omitempty"`
}

func (t Try) runs() int { return max(t.Runs, 1) }

// MaxRetries is how often a job may be started again.
const MaxRetries = 10

// longestPause is how long a job waits at most before it is started again.
const longestPause = 5 * time.Minute

// Try counts the runs of a job from 1.
func (j *Job) Try() int { return len(j.Tries) + 1 }

// MostTries is how many runs it may come to; giving way takes none of them.
func (j *Job) MostTries() int {
	gaveWay, _ := j.Preempted()
	return j.Retries + 1 + gaveWay
}

// failures counts the tries that failed, or were interrupted.
func (j *Job) failures() int {
	gaveWay, _ := j.Preempted()
	return len(j.Tries) - gaveWay
}

// tryWords says which try it is.
func (j *Job) tryWords() string { return fmt.Sprintf("try %d of %d", j.Try(), j.MostTries()) }

// tryLine stands in the log before a try.
func (j *Job) tryLine() string {
	words := j.tryWords()
	if n := len(j.Tries); n > 0 && j.Tries[n-1].EndCode == EndPreempted {
		last := j.Tries[n-1]
		words = fmt.Sprintf("it gave way to %s, launch %d, at %s; %s", last.For, last.ForLaunch,
			time.UnixMilli(last.Until).Local().Format("15:04:05"), words)
	}
	return "\n[gpulab: " + words + "]\n"
}

// triesAgain tells whether a job is started again after this end. What ran out of
// memory or time would do so again; what somebody ended is to stay so.
func (l Launch) triesAgain() bool {
	switch {
	case l.Job == nil:
		return false
	case l.EndCode == EndPreempted:
		return true
	case l.Service != nil:
		return l.startsAgain()
	}
	return l.Job.failures() < l.Job.Retries && slices.Contains([]string{EndExited, EndEvicted, EndInterrupted}, l.EndCode)
}

// over ends a launch of which nothing is left in the cluster, or puts it aside for another try.
func (s *Service) over(l Launch, now time.Time) Launch {
	saved := false
	if l.EndCode == EndPreempted {
		l, saved = s.gaveWay(l)
	}
	if !l.triesAgain() {
		l = ended(l, now)
		if l.IsJob() && len(l.Job.Tries) > 0 && l.Finished() == "failed" {
			l.Reason += fmt.Sprintf(" This was %s.", l.Job.tryWords())
		}
		return l
	}
	job := *l.Job
	try := Try{
		From: l.Started.UnixMilli(), Until: now.UnixMilli(), EndCode: l.EndCode, Reason: l.Reason, ExitCode: job.ExitCode,
		Simulated: l.Simulated,
	}
	if l.EndCode == EndPreempted {
		try.For, try.ForLaunch, try.Saved = job.WayFor, job.WayLaunch, saved
	}
	job.Tries = l.triesOf(try)
	job.ExitCode, job.Held, job.NotBefore = nil, true, now
	if l.EndCode != EndPreempted && l.EndCode != EndRestart {
		failures := job.failures()
		if l.Service != nil {
			failures = failedInARow(job.Tries)
		}
		job.NotBefore = now.Add(s.pause(failures))
	}
	l.State, l.Job = Waiting, &job
	l.EndCode, l.Reason, l.Node, l.Pod, l.GPUUUIDs = "", "", "", "", nil
	l.Started, l.Ready, l.Simulated = time.Time{}, time.Time{}, false
	s.with(l.ID, func(t *track) { t.gpus, t.steps = nil, nil })
	return l
}

// pause is how long a job waits after so many tries that failed, at least one.
func (s *Service) pause(tries int) time.Duration {
	return min(s.patience.again<<(tries-1), longestPause)
}

// pauses says when a job is started again, "" once that time has come.
func (s *Service) pauses(l Launch) string {
	if !s.now().Before(l.Job.NotBefore) {
		return ""
	}
	last := l.Job.Tries[len(l.Job.Tries)-1]
	if l.Service != nil {
		return fmt.Sprintf("It is started again at %s. Before: %s", l.Job.NotBefore.Local().Format("15:04:05"),
			cmp.Or(last.Reason, "it ended."))
	}
	return fmt.Sprintf("It is started again at %s, for %s. The last one: %s", l.Job.NotBefore.Local().Format("15:04:05"),
		l.Job.tryWords(), cmp.Or(last.Reason, "it ended."))
}

// tryAgain notes that a job is to be started once more. It was ended by nobody
// meanwhile.
func tryAgain(ctx context.Context, tx *sql.Tx, l Launch) error {
	tries, err := json.Marshal(l.Job.Tries)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE jobs SET held = 1, tries = ?, not_before = ?, exit_code = NULL
		WHERE launch_id = ? AND (SELECT end_code FROM launches WHERE id = launch_id) = ?`,
		string(tries), l.Job.NotBefore.UnixMilli(), l.ID, l.Job.Tries[len(l.Job.Tries)-1].EndCode)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, errMoved)
	}
	return nil
}
