//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestJobsInSeries is a lab whose jobs are more than one run: they follow each other, are tried again, come as arrays,
// and go on when gpulab is killed.
//
//test:about internal/notebooks
func TestJobsInSeries(t *testing.T) {
	t.Parallel()
	a := ready(t, jobsConfig)
	j := newJobs(t, a)
	a.live(t, []chapter{
		{"one after the other", j.after, false},
		{"tried again", j.triedAgain, false},
		{"an array", j.array, false},
		{"gpulab is killed", j.gpulabKilled, false},
		{"nothing is left", j.nothingLeft, false},
	})
}

// after: jobs wait for each other, outside of the line; who needs one that fails
// is not run.
func (j *jobs) after(t *testing.T, a *appliance) {
	l := j.terminal
	l.gpulab(t, 9, []string{"submit", "--after", "4711", l.script(t, "after.sh", "echo after; date\n")}, "You have no job 4711")
	first := l.submit(t, "--name", "first", l.script(t, "first.sh", "until [ -e go-on ]; do sleep 0.2; done\n"))
	second := l.submit(t, "--name", "second", "--after", first, "--gpus", "1", "after.sh")
	third := l.submit(t, "--name", "third", l.script(t, "third.sh", "#SBATCH --dependency=afterok:"+second+",afterany:"+first+"\nexit 4\n"))
	needs := l.submit(t, "--name", "needs", "--after", third, "after.sh")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + second)
	b.WaitText("#job-state", "It waits until job "+first+" (first) has succeeded.")
	b.Pictures("job-after")
	l.gpulab(t, 0, []string{"jobs"}, "It waits until job "+second+" (second) has succeeded, and until job "+first+" (first) has ended.")
	if got := a.workloads(t); strings.Contains(got, "user-cleo") {
		t.Errorf("it stands in the line all the same:\n%s", got)
	}
	home := a.homeOf(t, "cleo")
	a.MustRun(a.ctx, "touch", home+"/go-on")
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-log", "after")
	b.Open(pages + "/jobs/" + needs)
	b.WaitText("#job-state", "It was not run: it needs job "+third+" (third) to succeed, and that has failed.")
	l.gpulab(t, 10, []string{"run", "--after", third, "--", "true"}, "It was not run")
	l.gpulab(t, 0, []string{"run", "--dependency", "afterany:" + third + ":" + needs, "--", "echo", "all the same"}, "all the same")
}

// triedAgain: a job that fails, and one whose pod is lost, is started again, in the
// same log.
func (j *jobs) triedAgain(t *testing.T, a *appliance) {
	l := j.terminal
	number := l.submit(t, "--name", "stubborn", l.script(t, "stubborn.sh", `#!/bin/bash
#GPULAB --retries=2
echo "this is try $GPULAB_JOB_TRY of $SLURM_JOB_ID"
case $GPULAB_JOB_TRY in
1) exit 5 ;;
2) sleep 600 ;;
esac
`))
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "for try 2 of 3. The last one: Its program ended with exit code 5.")
	l.gpulab(t, 0, []string{"jobs"}, "waiting, try 2 of 3: It is started again at")
	b.Pictures("job-retry")
	b.Patient(time.Minute).WaitText("#job-log", "this is try 2 of "+number)
	a.MustGpulab(a.ctx, "kubectl", "-n", "user-cleo", "delete", "pod", "job-"+number, "--wait=false", "--grace-period=1")
	b.Patient(2*time.Minute).WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-detail", "Its program ended with exit code 5.")
	said := l.gpulab(t, 0, []string{"logs", number})
	for _, line := range []string{"this is try 1", "[gpulab: try 2 of 3]", "this is try 2", "[gpulab: try 3 of 3]", "this is try 3"} {
		if strings.Count(said, line) != 1 {
			t.Errorf("the log does not have %q once:\n%s", line, said)
		}
	}
}

// array: one submit makes many jobs, some at a time, each with its log; they are
// cancelled one by one or as a whole.
func (j *jobs) array(t *testing.T, a *appliance) {
	l := j.terminal
	l.script(t, "sweep.sh", `#SBATCH --output=sweep/%A-%a.log
echo "element $SLURM_ARRAY_TASK_ID of $GPULAB_ARRAY_JOB_ID"
until [ -e sweep-on ]; do sleep 0.2; done
`)
	l.gpulab(t, 9, []string{"submit", "--array", "0-9", "--output", "same.log", "sweep.sh"}, "to the same file")
	number := l.submit(t, "--name", "sweep", "--array", "1-5:2,8%2", "sweep.sh")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "Of 4 elements: 2 running, 2 waiting.")
	b.WaitText("#job-log", number+"_3")
	b.Pictures("job-array")
	l.gpulab(t, 0, []string{"jobs"}, "sweep", "Of 4 elements: 2 running, 2 waiting.")
	l.gpulab(t, 0, []string{"jobs", "--array", number}, number+"_1", number+"_3")
	l.gpulab(t, 0, []string{"cancel", number + "_8"}, "is being cancelled")
	l.gpulab(t, 9, []string{"cancel", number + "_2"}, "no such element")
	b.WaitText("#job-state", "2 running, 1 waiting, 1 cancelled.")
	a.MustRun(a.ctx, "touch", a.homeOf(t, "cleo")+"/sweep-on")
	b.WaitText("#job-state", "Of 4 elements: 3 succeeded, 1 cancelled.")
	if said := l.gpulab(t, 0, []string{"logs", number + "_5"}); said != "element 5 of "+number+"\n" {
		t.Errorf("its third element has said %q", said)
	}
	if got := a.MustRun(a.ctx, "cat", a.homeOf(t, "cleo")+"/sweep/"+number+"-1.log"); got != "element 1 of "+number+"\n" {
		t.Errorf("the log of its first is %q", got)
	}
	a.MustRun(a.ctx, "rm", a.homeOf(t, "cleo")+"/sweep-on")
	whole := l.submit(t, "--name", "whole", "--array", "0-999%2", "sweep.sh")
	b.Open(pages + "/jobs/" + whole)
	b.WaitText("#job-state", "2 running, 998 waiting.")
	b.Click("#job-actions", "Cancel whole")
	b.Click("dialog[open]", "Cancel it")
	b.WaitText("#job-state", "Cancelled")
	a.eventually(t, "its pods are gone", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-cleo", "get", "pods", "-o", "name"), "job-")
	})
}

// gpulabKilled: a job goes on without gpulab, is not run twice, and nothing of what it says is lost.
func (j *jobs) gpulabKilled(t *testing.T, a *appliance) {
	l := j.terminal
	number := l.submit(t, "--gpus", "1", "--name", "steady", l.script(t, "steady.sh", `echo run >>runs.txt
n=0
until [ -e reached ]; do n=$((n + 1)); echo "step $n"; sleep 1; done
echo "the end"
`))
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-log", "step 3")
	steps := func() int { return strings.Count(l.gpulab(t, 0, []string{"logs", number}), "step ") }
	before := steps()
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	a.MustGpulab(a.ctx, initArgs...)
	a.eventually(t, "it goes on", func() bool { return steps() > before })
	reached := a.homeOf(t, "cleo") + "/reached"
	a.MustRun(a.ctx, "touch", reached)
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-log", "the end")
	said := l.gpulab(t, 0, []string{"logs", number})
	for n := range strings.Count(said, "step ") {
		if step := fmt.Sprintf("step %d\n", n+1); strings.Count(said, step) != 1 {
			t.Fatalf("the log does not have %q once:\n%s", step, said)
		}
	}
	if got := a.MustRun(a.ctx, "cat", a.homeOf(t, "cleo")+"/runs.txt"); got != "run\n" {
		t.Errorf("it ran as often as this: %q", got)
	}
	// Once more, from its page.
	a.MustRun(a.ctx, "rm", reached)
	b.Click("#job-actions", "Run again steady")
	b.WaitFor("the page of another job",
		fmt.Sprintf(`location.pathname.startsWith("/jobs/") && location.pathname !== "/jobs/%s"`, number))
	b.WaitText("#job-log", "step 2")
	l.gpulab(t, 0, []string{"cancel", "steady"}, "is being cancelled")
	b.WaitText("#job-state", "Cancelled")
}
