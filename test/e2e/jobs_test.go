//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestJobs is a lab whose people submit jobs from a page, from a terminal and from JupyterLab. Whoever submitted one
// is told how it ended, and has what it said.
//
//test:about internal/notebooks
func TestJobs(t *testing.T) {
	t.Parallel()
	a := ready(t, jobsConfig)
	j := newJobs(t, a)
	a.live(t, []chapter{
		{"refused", j.refused, false},
		{"how they end", j.ends, false},
		{"what they find", j.finds, false},
		{"a notebook as a job", j.notebook, false},
		{"a manifest of Kubernetes", j.manifest, false},
		{"a script of Slurm", j.slurm, false},
		{"scripts and notebooks by their names", j.byName, false},
		{"nothing is left", j.nothingLeft, false},
	})
}

// jobsConfig has a launch card so small that many jobs run at once.
var jobsConfig = strings.NewReplacer("sampling: 1s", "sampling: 1s, minimumRun: 3s",
	"profiles:\n", "profiles:\n  - {slug: small, title: Small, cpus: 1, memory: 256Mi, cpuRequest: 0.01, memoryRequest: 64Mi}\n",
	"queue:", "  - {slug: large, title: Large, cpus: 4, memory: 16Gi, gpus: 1, cpuRequest: 0.01, memoryRequest: 128Mi}\nqueue:").Replace(queueConfig)

// jobs are those of a student, beside other people's notebooks.
type jobs struct {
	computers
	cleo     *lab.Browser
	terminal *laptop // hers
}

// newJobs makes the student's account, and waits until the lab gives GPUs away.
func newJobs(t *testing.T, a *appliance) *jobs {
	t.Helper()
	j := &jobs{cleo: a.welcome(t, "cleo", "Cleo", studentPassword("cleo"))}
	j.computers = newComputers(t, a, adminHandle, guestHandle, "cleo")
	j.terminal = j.computers["cleo"]
	a.waitKueue(t)
	return j
}

var submittedJob = regexp.MustCompile(`Job (\d+) `)

// submit submits a job, and returns its number.
func (l *laptop) submit(t *testing.T, args ...string) string {
	t.Helper()
	number := submittedJob.FindStringSubmatch(l.gpulab(t, 0, append([]string{"submit"}, args...)))
	if number == nil {
		t.Fatalf("submit %v names no job", args)
	}
	return number[1]
}

// homeOf is the folder of somebody's home on the machine.
func (a *appliance) homeOf(t *testing.T, handle string) string {
	t.Helper()
	path := a.MustGpulab(a.ctx, "kubectl", "get", "pv", "-o", `jsonpath={range .items[?(@.spec.claimRef.namespace=="user-`+handle+`")]}{.spec.claimRef.name} {.spec.hostPath.path}{"\n"}{end}`)
	for line := range strings.Lines(path) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "home" {
			return f[1]
		}
	}
	t.Fatalf("no home of %s among\n%s", handle, path)
	return ""
}

// notebooksOf is the origin of a person's notebooks. Its port follows from the number
// that names their home's folder, too.
func (a *appliance) notebooksOf(t *testing.T, handle string) string {
	t.Helper()
	id, err := strconv.Atoi(filepath.Base(a.homeOf(t, handle)))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s:%d", pages, 21000+id-1)
}

// refused: a job that the lab can never run is refused at once, and the answer says what the lab has. No job is left.
// TestJobRefused of internal/notebooks has the other reasons.
func (j *jobs) refused(t *testing.T, a *appliance) {
	l := j.computers[guestHandle]
	b := a.guest.For(t).Tab()
	b.Open(pages + "/jobs")
	b.WaitText("#jobs", "You have no job")
	b.Pictures("jobs-empty")
	l.gpulab(t, 9, []string{"submit", l.script(t, "nine.sh", "#SBATCH --gres=gpu:9\ntrue\n")},
		"It asks for 9 GPUs, but no machine of this lab has more than 2.")
	b.Fill("Script", "#!/bin/bash\n#SBATCH --nodes=4\ntrue")
	b.Click("main", "Submit")
	b.WaitText("main", "Line 2: --nodes=4: a job here is one program on one machine.")
	l.gpulab(t, 0, []string{"jobs"}, "There is no job.")
}

// ends: how a job ended is said in words and by the exit code; what it runs
// arrives as it was written.
func (j *jobs) ends(t *testing.T, a *appliance) {
	l := j.terminal
	run := func(code int, args []string, words ...string) func() {
		return func() {
			began := time.Now()
			l.gpulab(t, code, append([]string{"run"}, args...), words...)
			t.Logf("run %.40q ended after %s", args, time.Since(began).Round(100*time.Millisecond))
		}
	}
	// They run at the same time: the time limit takes 10 s, the shortest allowed.
	atOnce(t,
		run(0, []string{"--", "printf", "%s|", "a b", "$(id)", "'\"", "two\nlines"}, "a b|$(id)|'\"|two\nlines|"),
		run(7, []string{"--", "bash", "-c", "echo the reason; exit 7"},
			"the reason", "Its program ended with exit code 7. Its last line was: the reason"),
		run(127, []string{"--", "nosuch"}, "there is no such program"),
		run(124, []string{"--time", "10s", "--name", "endless", "--", "sleep", "300"},
			"timed out: It ran into its time limit of 10 s and was ended."),
		run(137, []string{"--profile", "small", "--name", "greedy",
			"--", "python3", "-c", "x = bytearray(1 << 30)\nprint('never')"},
			"It used more memory than its limit of 256 MiB and was ended by the system."))
	// What is no text does a terminal no harm; a page shows what it can.
	l.script(t, "binary.sh", `printf '\033]0;title\007\033[31mred\033[0m\000\377 10%%\r100%%\n'`)
	number := l.submit(t, "--name", "binary", "binary.sh")
	long := l.submit(t, "--name", "long", l.script(t, "long.sh", "seq 1 3000000\n"))
	l.gpulab(t, 0, []string{"logs", "-f", number}, "\x1b]0;title\x07") // into a file, as it is
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-log", "100%")
	if text := b.Text("#job-log"); strings.Contains(text, "title") || strings.Contains(text, " 10%") {
		t.Errorf("the page shows %q", text)
	}
	b.Open(pages + "/jobs")
	b.WaitText("#jobs", "timed out")
	b.WaitText("#jobs", "It used more memory than its limit")
	b.Pictures("jobs")
	// A long log is kept with its beginning and its end.
	said := l.gpulab(t, 0, []string{"logs", "-f", long})
	if !strings.Contains(said, "\n3000000\n") {
		t.Errorf("the end of a long log is not shown: …%.200s", said[max(0, len(said)-200):])
	}
	size := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%s", a.homeOf(t, "cleo")+"/jobs/long-"+long+".log"))
	if len(size) != 7 && len(size) != 8 || size > "10600000" && len(size) == 8 {
		t.Errorf("a log of 22 MB takes %s bytes", size)
	}
	if said := l.gpulab(t, 0, []string{"logs", long}, "bytes are left out here"); !strings.HasPrefix(said, "1\n2\n3\n") {
		t.Errorf("a long log begins with %.40q", said)
	}
}

// finds: a job knows its owner, the number of cores that it may use, and the lab's time
// zone. A person's own git settings override those of the account.
func (j *jobs) finds(t *testing.T, a *appliance) {
	zone := strings.TrimSpace(a.MustRun(a.ctx, "readlink", "/etc/localtime"))
	a.MustRun(a.ctx, "ln", "-sfn", "/usr/share/zoneinfo/Asia/Tokyo", "/etc/localtime")
	defer a.MustRun(a.ctx, "ln", "-sfn", zone, "/etc/localtime")
	j.terminal.gpulab(t, 0, []string{"run", "--profile", "small", "--", "sh", "-ec", `
		TZ=America/New_York date -d 2026-01-15T12:00Z +%Z%z
		date +%Z
		python3 -c "import getpass, os; print(getpass.getuser(), *(os.environ[n] for n in ('LOGNAME', 'OMP_NUM_THREADS', 'NUMEXPR_MAX_THREADS')))"
		nproc
		OMP_NUM_THREADS=3 nproc
		git init -q /tmp/work && cd /tmp/work && export EMAIL=cleo@example.org && git commit -q --allow-empty -m first && git log --format='by %an'
		git config --global user.name Own && git commit -q --allow-empty -m second && git log -1 --format='then by %an'
		git config --global --unset user.name`},
		"EST-0500\nJST\ncleo cleo 1 1\n1\n3\nby Cleo\nthen by Own\n")
}

// manifest: that of a plain Kubernetes Job becomes a job as any other, and what such
// a one cannot have is refused.
func (j *jobs) manifest(t *testing.T, _ *appliance) {
	l := j.terminal
	const pod = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: plain}\nspec:\n  template:\n    spec:\n"
	l.gpulab(t, 9, []string{"submit", l.script(t, "root.yaml", pod+"      hostPID: true\n      containers: [{command: [nsenter]}]\n")},
		"Line 7: spec.template.spec.hostPID is not supported in a job. It runs as you, without further rights.")
	number := l.submit(t, l.script(t, "plain.yaml", pod+"      containers:\n        - command: [bash, -c, 'echo \"$MODE of $(id -un), $NVIDIA_VISIBLE_DEVICES\"']\n          env: [{name: MODE, value: quiet}]\n          resources: {limits: {nvidia.com/gpu: 1, memory: 1Gi}}\n"))
	l.gpulab(t, 0, []string{"logs", "-f", number}, "quiet of ")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("main", "plain")
	b.Open(pages + "/jobs")
	b.Fill("Script", pod+"      serviceAccountName: default\n")
	b.Click("main", "Submit")
	b.WaitText("main", "Line 7: spec.template.spec.serviceAccountName is not supported in a job. Jobs have no access to the cluster.")
}

// slurm: a Slurm script is accepted unchanged and runs to its end, and its owner reads what of it has no effect. A script
// that asks for what the lab does not have gets one answer that names all of it.
func (j *jobs) slurm(t *testing.T, a *appliance) {
	l := j.terminal
	l.script(t, "mnist.sh", `#!/bin/bash
#SBATCH --job-name=mnist --partition=gpu --account=lab7
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=16G
#SBATCH --gres=gpu:1 --error=mnist.err --mail-type=END,FAIL
module load cuda/12.4
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
cd "$SLURM_SUBMIT_DIR"
srun python3 -c 'print("done")'
`)
	said := l.gpulab(t, 0, []string{"submit", "mnist.sh"}, "(mnist) is submitted", "its errors in mnist.err",
		"Note: gpulab ignores these options: --partition=gpu, --account=lab7, --nodes=1 and --ntasks=1.", "Note: No mail is sent: this lab has no mail server.")
	number := submittedJob.FindStringSubmatch(said)[1]
	// What the job says of its state may come before it.
	if log := l.gpulab(t, 0, []string{"logs", "-f", number}); !strings.Contains("\n"+log, "\ndone\n") {
		t.Errorf("its log is %q", log)
	}
	if errs := a.MustRun(a.ctx, "cat", a.homeOf(t, "cleo")+"/mnist.err"); !strings.HasPrefix(errs, "module: this lab has no modules, and cuda/12.4 is not loaded.") {
		t.Errorf("its errors are %q", errs)
	}
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("main", "gpulab ignores these options: --partition=gpu")
	b.WaitText("main", "Large")
	// A login shell resets PATH.
	login := l.submit(t, l.script(t, "login.sh", "#!/bin/bash -l\n#SBATCH --mem=1G -c 2\nmodule load x\nsrun echo \"$SLURM_CPUS_PER_TASK cores, $SLURM_MEM_PER_NODE\"\n"))
	l.gpulab(t, 0, []string{"logs", "-f", login}, "2 cores, 2048", "and x is not loaded")
	l.gpulab(t, 9, []string{"submit", l.script(t, "wide.sh", "#SBATCH --nodes=4 -n 8\n#SBATCH --gpus=1 --mem=1T\ntrue\n")},
		"Line 1: --nodes=4: a job here", "Line 1: -n 8: a job here", "Line 2: no profile of this lab with a GPU has 1024 GiB of memory. The largest is large, which has 4 cores and 16 GiB of memory.")
}

// byName: Python runs a Python script, a notebook runs from top to bottom into a copy, and names keep letters of any
// writing system.
func (j *jobs) byName(t *testing.T, a *appliance) {
	l, home := j.terminal, a.homeOf(t, "cleo")
	book := func(name, code string) string {
		return l.script(t, name, `{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "cells": [`+
			`{"id": "a", "cell_type": "code", "metadata": {}, "execution_count": 9, "outputs": [{"output_type": "stream", "name": "stdout", "text": "of before"}], "source": "`+code+`"}]}`)
	}
	python := l.submit(t, "--name", "Übung-訓練-🚀", l.script(t, "train.py", "import os, sys\nprint('says', sys.argv[1:], os.environ['GPULAB_JOB_NAME'])\n"), "--epochs", "3")
	good := l.submit(t, "--profile", "cpu", book("nb.ipynb", "print('ran', 6 * 7)"))
	bad := l.submit(t, "--profile", "cpu", book("bad.ipynb", "1 / 0"))
	l.gpulab(t, 0, []string{"logs", "-f", python}, "says ['--epochs', '3'] Übung-訓練-🚀")
	a.MustRun(a.ctx, "test", "-s", home+"/jobs/übung-訓練-🚀-"+python+".log")
	l.gpulab(t, 0, []string{"logs", "-f", good}, "ran 42")
	if text := a.MustRun(a.ctx, "cat", home+"/nb."+good+".ipynb"); !strings.Contains(text, "ran 42") || strings.Contains(text, "of before") {
		t.Errorf("the copy is %s", text)
	}
	l.gpulab(t, 0, []string{"logs", "-f", bad}, "ZeroDivisionError: division by zero", "cell 1 of 1 failed", "exit code 1")
	a.MustRun(a.ctx, "test", "!", "-e", home+"/nb.ipynb") // the submitted notebook is not put in the home
}
