//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestJobs is a lab whose people submit jobs from a page and from a terminal,
// beside notebooks, in the same line.
//
//test:about internal/notebooks internal/queue
func TestJobs(t *testing.T) {
	t.Parallel()
	var j jobs
	ready(t, jobsConfig).live(t, []chapter{
		{"set up", j.setUp, true},
		{"refused", j.refused, false},
		{"behind two notebooks", j.behindNotebooks, true},
		{"how they end", j.ends, false},
		{"a notebook as a job", j.notebook, false},
		{"one after the other", j.after, false},
		{"tried again", j.triedAgain, false},
		{"an array", j.array, false},
		{"a manifest of Kubernetes", j.manifest, false},
		{"gives way", j.givesWay, false},
		{"services", j.services, false},
		{"beyond a quota", j.beyondQuota, false},
		{"cancelled", j.cancelled, true},
		{"gpulab is killed", j.gpulabKilled, true},
		{"nothing is left", j.nothingLeft, false},
	})
}

// TestManyJobs is a lab with two hundred jobs in line.
//
//test:about internal/notebooks internal/queue
func TestManyJobs(t *testing.T) {
	t.Parallel()
	var j jobs
	ready(t, jobsConfig).live(t, []chapter{
		{"set up", j.setUp, true},
		{"two hundred in line", j.twoHundred, false},
	})
}

// jobsConfig has a launch card so small that many jobs run at once.
var jobsConfig = strings.NewReplacer("sampling: 1s", "sampling: 1s, minimumRun: 3s",
	"profiles:\n", "profiles:\n  - {slug: small, title: Small, cpus: 1, memory: 256Mi, cpuRequest: 0.01, memoryRequest: 64Mi}\n").Replace(queueConfig)

// jobs is what the chapters of TestJobs hand on.
type jobs struct {
	cleo     *lab.Browser
	terminal *laptop // hers
}

func (j *jobs) setUp(t *testing.T, a *appliance) {
	j.cleo = a.welcome(t, "cleo", "Cleo", studentPassword("cleo"))
	j.terminal = newLaptopFor(t, a, j.cleo.For(t).Tab(), "cleo", "launch")
	a.eventually(t, "Kueue is ready", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "deployment", "kueue-controller-manager", "-o", "jsonpath={.status.readyReplicas}") == "1"
	})
	page := j.cleo.For(t).Tab()
	page.Open(pages + "/jobs")
	page.WaitText("#jobs", "You have no job")
	page.Pictures("jobs-empty")
}

// script writes a file on the student's own computer.
func (l *laptop) script(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// gpulab runs a command there, and wants an exit code and some words.
func (l *laptop) gpulab(t *testing.T, code int, args []string, words ...string) string {
	t.Helper()
	cmd, said := l.command(args...)
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("gpulab %v: exit code %d, want %d (%v)\n%s", args, got, code, err, said)
	}
	for _, word := range words {
		if !strings.Contains(said.String(), word) {
			t.Errorf("gpulab %v does not say %q:\n%s", args, word, said)
		}
	}
	return said.String()
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

// refused: what cannot be is refused at once, with what there is.
func (j *jobs) refused(t *testing.T, _ *appliance) {
	l := j.terminal
	for name, c := range map[string]struct {
		script string
		args   []string
		words  string
	}{
		"gpus":    {"#SBATCH --gres=gpu:9\ntrue\n", nil, "It asks for 9 GPUs, but no machine of this lab has more than 2."},
		"profile": {"true\n", []string{"--profile", "h100"}, `This lab has no profile "h100". It has small, cpu, gpu, many.`},
		"mem":     {"#!/bin/bash\n#SBATCH --mem=4G\ntrue\n", nil, "Line 2: --mem=4G is nothing that gpulab knows."},
		"nothing": {"#!/bin/bash\n# later\n", nil, "The script has no command in it, only comments."},
		"binary":  {"\x7fELF\x00\x00", nil, "This is no text of a script."},
	} {
		l.gpulab(t, 9, append(append([]string{"submit"}, c.args...), l.script(t, name+".sh", c.script)), c.words)
	}
	l.gpulab(t, 2, []string{"submit", "missing.sh"}, "no such file")
	l.gpulab(t, 9, []string{"run", "--output", "/etc/passwd", "--", "true"}, "has to lie in the home, /home/cleo, and /etc/passwd does not.")
	l.gpulab(t, 0, []string{"jobs"}, "There is no job.")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs")
	b.Fill("Script", "#!/bin/bash\n#SBATCH --nodes=4\ntrue")
	b.Click("main", "Submit")
	b.WaitText("main", "Line 2: --nodes=4 is nothing that gpulab knows.")
}

// behindNotebooks: a job waits for a GPU that two notebooks have, and runs when
// one of them ends; what it says is on its page and in the terminal, and stays in
// the home.
func (j *jobs) behindNotebooks(t *testing.T, a *appliance) {
	ada, ben := a.browser.For(t), a.guest.For(t)
	launch(ada, "gpu", "First")
	waitJupyterLab(ada, adminHandle)
	launch(ben, "gpu", "Second")
	waitJupyterLab(ben, guestHandle)

	l := j.terminal
	// As an editor on Windows leaves it.
	number := l.submit(t, l.script(t, "train.sh", strings.ReplaceAll(`#!/bin/bash
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=00:10:00 --output=out/%x-%j.log
echo "begun on $(hostname) in $PWD with $1"
echo result >result.txt
for i in $(seq 1 40); do echo "line $i"; sleep 0.5; done
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

	stopNotebook(t, a.guest, "Second")
	began := time.Now()
	b.WaitText("#job-state", "Running")
	t.Logf("from the stop to the job that runs: %s", time.Since(began).Round(100*time.Millisecond))
	b.WaitText("#job-log", "line 3")
	if text := b.Text("#job-log"); strings.Contains(text, "line 40") {
		t.Errorf("the log is not live:\n%s", text)
	}
	b.Pictures("job-running")
	said := l.gpulab(t, 0, []string{"logs", "-f", "train"}, "begun on job-"+number+" in /home/cleo with an argument", "line 1\n", "line 40\n", "succeeded")
	if strings.Count(said, "line 7\n") != 1 {
		t.Errorf("who follows the log sees:\n%s", said)
	}
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-log", "line 40")
	b.Pictures("job-succeeded")
	home := a.homeOf(t, "cleo")
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

// ends: how a job ended is said in words and by the exit code; what it runs
// arrives as it was written.
func (j *jobs) ends(t *testing.T, a *appliance) {
	l := j.terminal
	l.gpulab(t, 0, []string{"run", "--", "printf", "%s|", "a b", "$(id)", "'\"", "two\nlines"}, "a b|$(id)|'\"|two\nlines|")
	l.gpulab(t, 7, []string{"run", "--", "bash", "-c", "echo the reason; exit 7"}, "the reason", "Its program ended with exit code 7. Its last line was: the reason")
	l.gpulab(t, 127, []string{"run", "--", "nosuch"}, "there is no such program")
	began := time.Now()
	l.gpulab(t, 124, []string{"run", "--time", "10s", "--name", "endless", "--", "sleep", "300"}, "timed out: It ran into its time limit of 10 s and was ended.")
	t.Logf("a job with 10 s ended after %s", time.Since(began).Round(time.Second))
	l.gpulab(t, 137, []string{"run", "--profile", "small", "--name", "greedy", "--", "python3", "-c", "x = bytearray(1 << 30)\nprint('never')"}, "It used more memory than its limit of 256 MiB and was ended by the system.")
	// What is no text does a terminal no harm; a page shows what it can.
	number := l.submit(t, "--name", "binary", l.script(t, "binary.sh", `printf '\033]0;title\007\033[31mred\033[0m\000\377 10%%\r100%%\n'`))
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
	long := l.submit(t, "--name", "long", l.script(t, "long.sh", "seq 1 3000000\n"))
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

// after: jobs wait for each other, outside of the line; who needs one that fails
// is not run.
func (j *jobs) after(t *testing.T, a *appliance) {
	l := j.terminal
	l.gpulab(t, 9, []string{"submit", "--after", "4711", l.script(t, "after.sh", "echo after; date\n")}, "You have no job 4711")
	l.gpulab(t, 9, []string{"submit", "--dependency", "afternotok:1", "after.sh"}, "nothing that a job can wait for")
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
	l.gpulab(t, 9, []string{"submit", "--array", "0-", l.script(t, "sweep.sh", "#SBATCH --output=sweep/%A-%a.log\necho \"element $SLURM_ARRAY_TASK_ID of $GPULAB_ARRAY_JOB_ID\"\nuntil [ -e sweep-on ]; do sleep 0.2; done\n")}, "names no elements of an array")
	l.gpulab(t, 9, []string{"submit", "--array", "0-5000", "sweep.sh"}, "1000 elements at most")
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

// manifest: that of a plain Kubernetes Job becomes a job as any other, and what such
// a one cannot have is refused.
func (j *jobs) manifest(t *testing.T, _ *appliance) {
	l := j.terminal
	const pod = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: plain}\nspec:\n  template:\n    spec:\n"
	l.gpulab(t, 9, []string{"submit", l.script(t, "root.yaml", pod+"      hostPID: true\n      containers: [{command: [nsenter]}]\n")},
		"Line 7: spec.template.spec.hostPID is nothing that a job here can have. It runs as you, without further rights.")
	number := l.submit(t, l.script(t, "plain.yaml", pod+"      containers:\n        - command: [bash, -c, 'echo \"$MODE of $(id -un), $NVIDIA_VISIBLE_DEVICES\"']\n          env: [{name: MODE, value: quiet}]\n          resources: {limits: {nvidia.com/gpu: 1, memory: 1Gi}}\n"))
	l.gpulab(t, 0, []string{"logs", "-f", number}, "quiet of ")
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-state", "It has succeeded")
	b.WaitText("main", "plain")
	b.Open(pages + "/jobs")
	b.Fill("Script", pod+"      serviceAccountName: default\n")
	b.Click("main", "Submit")
	b.WaitText("main", "Line 7: spec.template.spec.serviceAccountName is nothing that a job here can have. Jobs have no access to the cluster.")
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
	stopNotebook(t, a.guest, "Wants")
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

// gpulabKilled: a job goes on without gpulab, and is not run twice.
func (j *jobs) gpulabKilled(t *testing.T, a *appliance) {
	l := j.terminal
	number := l.submit(t, "--gpus", "1", "--name", "steady", l.script(t, "steady.sh", "echo run >>runs.txt\nfor i in $(seq 1 60); do echo \"step $i\"; sleep 1; done\n"))
	b := j.cleo.For(t).Tab()
	b.Open(pages + "/jobs/" + number)
	b.WaitText("#job-log", "step 3")
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	if result := a.Gpulab(a.ctx, initArgs...); result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	b.Patient(2*time.Minute).WaitText("#job-state", "It has succeeded")
	b.WaitText("#job-log", "step 60")
	if got := a.MustRun(a.ctx, "cat", a.homeOf(t, "cleo")+"/runs.txt"); got != "run\n" {
		t.Errorf("it ran as often as this: %q", got)
	}
	// Once more, from its page.
	b.Click("#job-actions", "Run again steady")
	b.WaitFor("the page of another job", fmt.Sprintf(`location.pathname.startsWith("/jobs/") && location.pathname !== "/jobs/%s"`, number))
	b.WaitText("#job-log", "step 2")
	l.gpulab(t, 0, []string{"cancel", "steady"}, "is being cancelled")
	b.WaitText("#job-state", "Cancelled")
}

// nothingLeft: when all have ended, neither Kueue nor Kubernetes knows of any.
func (j *jobs) nothingLeft(t *testing.T, a *appliance) {
	stopNotebook(t, a.browser, "First")
	a.eventually(t, "Kueue knows of nothing", func() bool { return strings.TrimSpace(a.workloads(t)) == "" })
	if pods := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/component=job", "-o", "name"); pods != "" {
		t.Errorf("left: %s", pods)
	}
}

// twoHundred: as many as two people may have in line keep their places when gpulab
// is killed, and are told of them again at once.
func (j *jobs) twoHundred(t *testing.T, a *appliance) {
	people := []*laptop{j.terminal, newLaptopFor(t, a, a.guest.For(t).Tab(), guestHandle, "launch")}
	numbers := make([]string, len(people))
	for i, l := range people {
		numbers[i] = l.submit(t, "--gpus", "1", "--name", "many", "--array", "1-120", l.script(t, "many.sh", "sleep 600\n"))
	}
	// Of each one's hundred that are released, two in all have the GPUs.
	const inLine = 2*100 - 2
	standing := func() {
		said := ""
		defer func() {
			if t.Failed() {
				t.Log(said)
			}
		}()
		a.eventually(t, "all have a place", func() bool {
			places := map[int]bool{}
			for i, l := range people {
				cmd, out := l.command("jobs", "--array", numbers[i], "--json")
				var got struct{ Jobs []struct{ Position int } }
				if err := cmd.Run(); err != nil {
					said = out.String()
					return false
				}
				if err := json.Unmarshal(out.Bytes(), &got); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				for _, job := range got.Jobs {
					places[job.Position] = true
				}
			}
			for n := range inLine {
				if !places[n+1] {
					said = fmt.Sprintf("nobody is at place %d, of %d", n+1, len(places))
					return false
				}
			}
			return true
		})
	}
	// Made anew, they would be behind whoever came after them.
	workloads := func() []string {
		list := strings.Fields(a.MustGpulab(a.ctx, "kubectl", "get", "workloads", "-A", "-o", "jsonpath={.items[*].metadata.uid}"))
		slices.Sort(list)
		return list
	}
	began := time.Now()
	standing()
	t.Logf("%d had a place %s after they were submitted", inLine, time.Since(began).Round(100*time.Millisecond))
	before := workloads()
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	a.MustGpulab(a.ctx, initArgs...)
	began = time.Now()
	standing()
	t.Logf("and again %s after gpulab was back", time.Since(began).Round(100*time.Millisecond))
	if after := workloads(); len(before) != inLine+2 || !slices.Equal(before, after) {
		t.Errorf("Kueue had %d launches, and has %d, of which some are new", len(before), len(after))
	}
	for i, l := range people {
		l.gpulab(t, 0, []string{"cancel", numbers[i]}, "cancelled")
	}
	a.eventually(t, "Kueue knows of none", func() bool { return strings.TrimSpace(a.workloads(t)) == "" })
}
