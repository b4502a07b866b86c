//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestJobsInLine is a lab of two GPUs, of which a notebook has one. Jobs stand in the same line as notebooks:
// they wait for the other GPU and for their owner's quota, give way to a notebook, and leave the GPU to the next
// one when they are cancelled.
//
//test:about internal/notebooks internal/queue
func TestJobsInLine(t *testing.T) {
	t.Parallel()
	a := ready(t, jobsConfig)
	j := newJobs(t, a)
	j.computers[adminHandle].start(t, "gpu", "First")
	a.live(t, []chapter{
		{"behind two notebooks", j.behindNotebooks, false},
		{"gives way", j.givesWay, false},
		{"beyond a quota", j.beyondQuota, false},
		{"cancelled", j.cancelled, false},
		{"nothing is left", j.nothingLeft, false},
	})
}

// behindNotebooks: a job waits for a GPU that two notebooks have, and runs when
// one of them ends; what it says is on its page and in the terminal, and stays in
// the home.
func (j *jobs) behindNotebooks(t *testing.T, a *appliance) {
	l, ben := j.terminal, j.computers[guestHandle]
	ben.start(t, "gpu", "Second")
	// As an editor on Windows leaves it.
	number := l.submit(t, l.script(t, "train.sh", strings.ReplaceAll(`#!/bin/bash
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=00:10:00 --output=out/%x-%j.log
echo "begun on $(hostname) in $PWD with $1"
echo result >result.txt
for i in $(seq 1 40); do
	echo "line $i"
	until [ $i -lt 20 ] || [ -e seen ]; do sleep 0.1; done
	sleep 0.1
done
`, "\n", "\r\n")), "an argument")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "Both GPUs are in use. It is next in line.")
	b.WaitText("#job-detail", guestHandle)
	b.Pictures("job-waiting")
	l.gpulab(t, 0, []string{"jobs"}, "train", "waiting: Both GPUs are in use. It is next in line.")
	if got := a.workloads(t); strings.Count(got, "True") != 2 || !strings.Contains(got, "user-cleo") {
		t.Errorf("Kueue knows of\n%s", got)
	}

	ben.stop(t, "Second")
	began := time.Now()
	b.WaitText("#job-state", "Running")
	t.Logf("from the stop to the job that runs: %s", time.Since(began).Round(100*time.Millisecond))
	b.WaitText("#job-log", "line 3")
	b.Pictures("job-running")
	home := a.homeOf(t, "cleo")
	a.MustRun(a.ctx, "touch", home+"/seen")
	said := l.gpulab(t, 0, []string{"logs", "-f", "train"}, "begun on job-"+number+" in /home/cleo with an argument", "line 1\n", "line 40\n", "succeeded")
	if strings.Count(said, "line 7\n") != 1 {
		t.Errorf("who follows the log sees:\n%s", said)
	}
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-log", "line 40")
	b.Pictures("job-succeeded")
	if got := a.MustRun(a.ctx, "cat", home+"/result.txt"); got != "result\n" {
		t.Errorf("the job has written %q", got)
	}
	log := home + "/out/train-" + number + ".log"
	if got := a.MustRun(a.ctx, "cat", log); !strings.HasSuffix(got, "line 39\nline 40\n") {
		t.Errorf("the log in the home is %q", got)
	}
	if owner := a.MustRun(a.ctx, "stat", "-c", "%u", home, log); len(strings.Fields(owner)) != 2 || strings.Fields(owner)[0] != strings.Fields(owner)[1] {
		t.Errorf("the home and the log belong to %s", owner)
	}
	a.eventually(t, "its GPU is free", func() bool { return strings.Count(a.workloads(t), "launch-") == 1 })
	l.gpulab(t, 0, []string{"jobs"}, "succeeded: It has ended well.")
	a.browser.For(t).Open(pages + "/audit")
	a.browser.For(t).WaitText("main", "submitted a job")
}

// givesWay: a job that offered it saves its state and leaves its GPU to a notebook
// that waits, goes on where it was when that is free, and everybody is told.
func (j *jobs) givesWay(t *testing.T, a *appliance) {
	l := j.terminal
	number := l.submit(t, "--preemptible", l.script(t, "patient.sh", `#GPULAB --gpus=1
trap 'echo $n >state; echo "saved $n"; sleep 2; exit' TERM
n=$(cat state 2>/dev/null || echo 0)
until [ -e well-done ]; do n=$((n + 1)); echo "step $n"; sleep 0.3 & wait $!; done
`))
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-log", "step 2")
	ben := a.guest.For(t).Tab()
	began := time.Now()
	launch(ben, "gpu", "Wants")
	ben.WaitText("#launch-state", "A job of cleo gives way: its GPU is free in 30 s at the latest.")
	b.WaitText("#job-state", "It gave way to "+guestHandle+" at ")
	t.Logf("the job had given way %s after the notebook was asked for", time.Since(began).Round(100*time.Millisecond))
	waitJupyterLab(ben, guestHandle)
	t.Logf("and that was open after %s", time.Since(began).Round(100*time.Millisecond))
	b.WaitText("#job-state", "It is next in line.")
	b.WaitText("#job-detail", "gave way once, nothing lost")
	b.WaitText("#job-detail", "and had saved its state.")
	b.Pictures("job-gave-way")
	l.gpulab(t, 0, []string{"jobs"}, "waiting, try 2 of 2:", "It gave way to "+guestHandle)
	j.computers[guestHandle].stop(t, "Wants")
	b.WaitText("#job-state", "Running")
	a.eventually(t, "it goes on", func() bool {
		_, again, _ := strings.Cut(l.gpulab(t, 0, []string{"logs", number}), "; try 2 of 2]\n")
		return strings.Contains(again, "step ")
	})
	a.MustRun(a.ctx, "touch", a.homeOf(t, "cleo")+"/well-done")
	b.WaitText("#job-state", "It has succeeded")
	said := l.gpulab(t, 0, []string{"logs", number}, "[gpulab: it gave way to "+guestHandle+", launch ")
	if n := strings.Count(said, "step 1\n"); n != 1 {
		t.Errorf("it began %d times anew:\n%s", n, said)
	}
	a.browser.For(t).Open(pages + "/audit")
	a.browser.For(t).WaitText("main", "let a job give way to somebody who waited")
	if got := a.MustGpulab(a.ctx, "report", "--json"); !strings.Contains(strings.ReplaceAll(got, " ", ""), `"preempted":1,`) {
		t.Errorf("the report says %s", got)
	}
}

// beyondQuota: a job waits for what its owner's quota has left, and not at all for
// what it never allows.
func (j *jobs) beyondQuota(t *testing.T, a *appliance) {
	l := j.terminal
	a.MustGpulab(a.ctx, "quota", "set", "user:cleo", "gpus", "1")
	defer a.MustGpulab(a.ctx, "quota", "unset", "user:cleo", "gpus")
	l.gpulab(t, 9, []string{"submit", "--gpus", "2", l.script(t, "one.sh", "echo one\nuntil [ -e enough ]; do sleep 0.2; done\n")}, "your quota for GPUs at once is 1")
	first := l.submit(t, "--gpus", "1", "one.sh")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + first)
	b.WaitText("#job-log", "one")
	second := l.submit(t, "--gpus", "1", "one.sh")
	b.Open(pages + "/jobs/" + second)
	b.WaitText("#job-state", "It waits for your quota. Your quota for GPUs at once is 1")
	a.MustRun(a.ctx, "touch", a.homeOf(t, "cleo")+"/enough")
	b.WaitText("#job-state", "It has succeeded")
}

// cancelled: a job that is cancelled has time to save its state, and its GPU goes
// to the next one.
func (j *jobs) cancelled(t *testing.T, a *appliance) {
	l := j.terminal
	first := l.submit(t, "--gpus", "1", l.script(t, "long.sh", "trap 'echo saved >saved.txt; exit 0' TERM\necho begun\nsleep 600 & wait\n"))
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + first)
	b.WaitText("#job-log", "begun")
	second := l.submit(t, "--gpus", "1", "--name", "next", l.script(t, "next.sh", "echo next; sleep 600\n"))
	l.gpulab(t, 0, []string{"jobs"}, "waiting: Both GPUs are in use.")
	b.Click("#job-actions", "Cancel long")
	b.Click("dialog[open]", "Cancel it")
	b.WaitText("#job-state", "Cancelled")
	if got := a.MustRun(a.ctx, "cat", a.homeOf(t, "cleo")+"/saved.txt"); got != "saved\n" {
		t.Errorf("it has saved %q", got)
	}
	b.Open(pages + "/jobs/" + second)
	b.WaitText("#job-log", "next")
	l.gpulab(t, 0, []string{"cancel", "next"}, "is being cancelled")
	b.WaitText("#job-state", "Cancelled")
	a.eventually(t, "both are gone", func() bool {
		return !strings.Contains(a.MustGpulab(a.ctx, "kubectl", "-n", "user-cleo", "get", "pods", "-o", "name"), "job-")
	})
}
