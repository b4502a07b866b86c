package notebooks

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpulab/gpulab/internal/users"
)

func (h *house) submit(u users.User, r JobRequest) Launch {
	h.t.Helper()
	l, err := h.service.Submit(h.t.Context(), u, r)
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// ends lets a job's pod end, and returns how that was told.
func (h *house) ends(l Launch, change func(*PodInfo)) Launch {
	h.t.Helper()
	h.is(l.ID, Running)
	h.lab.pod(h.podOf(l), func(p *PodInfo) {
		p.Ready, p.Finished, p.Exited, p.ExitReason, p.Ended = false, true, true, "Error", time.Now()
		change(p)
	})
	return h.is(l.ID, Ended)
}

func command(args ...string) Program { return Program{Args: args} }

// A job stands in the line of notebooks, runs when one of them has ended, and
// leaves the GPU to the next one when its program ends.
func TestJobInLine(t *testing.T) {
	h := newHouse(t, 2)
	first, second := h.running(h.alice, "gpu", "One"), h.running(h.bob, "gpu", "Two")
	job := h.submit(h.alice, JobRequest{Program: command("python", "train.py"), GPUs: new(1), Name: "Train it"})
	h.until(job.ID, "next in line", func(l Launch) bool { return l.State == Waiting && l.Position == 1 && len(l.Holders) == 2 })
	third := h.launch(h.bob, "gpu", "Three")
	h.until(third.ID, "behind it", func(l Launch) bool { return l.Position == 2 })
	if job.Name != "train-it" || job.URL != "" || job.Job.Output != fmt.Sprintf("jobs/train-it-%d.log", job.ID) || job.Job.Limit != DefaultJobLimit {
		t.Errorf("the job is %+v, %+v", job, job.Job)
	}

	if err := h.service.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	running := h.is(job.ID, Running)
	if running.Node != "node1" || len(running.GPUUUIDs) != 1 || running.Pod != fmt.Sprintf("job-%d", job.ID) {
		t.Errorf("it runs as %+v", running)
	}
	if got := h.get(third.ID).State; got != Waiting {
		t.Errorf("who is behind it is %s", got)
	}
	ended := h.ends(job, func(p *PodInfo) { p.ExitReason, p.ExitCode = "Completed", 0 })
	if ended.EndCode != EndSucceeded || ended.Finished() != "succeeded" || *ended.Job.ExitCode != 0 {
		t.Errorf("it ended as %+v", ended)
	}
	h.is(third.ID, Running)
	if len(h.lab.created) != 1 || h.hub.called("POST /users/alice/servers/train-it") != 0 {
		t.Errorf("%d pods were made", len(h.lab.created))
	}

	for jobs, want := range map[bool]int64{true: job.ID, false: first.ID} {
		list, err := h.service.List(t.Context(), h.alice.ID)
		if jobs {
			list, err = h.service.Jobs(t.Context(), h.alice.ID)
		}
		if err != nil || len(list) != 1 || list[0].ID != want {
			t.Errorf("listed: %+v, %v", list, err)
		}
	}
	_ = second
}

// Why a job ended is said in words.
func TestJobEnds(t *testing.T) {
	h := newHouse(t, 4)
	for _, c := range []struct {
		name       string
		end        func(*PodInfo)
		code, says string
		finished   string
	}{
		{"exit code", func(p *PodInfo) { p.ExitCode, p.ExitMessage = 3, "working\nValueError: no data\n" }, EndExited, "Its program ended with exit code 3. Its last line was: ValueError: no data", "failed"},
		{"no such program", func(p *PodInfo) { p.ExitCode = 127 }, EndExited, "exit code 127. A program was not found.", "failed"},
		{"out of memory", func(p *PodInfo) { p.ExitCode, p.ExitReason, p.MemoryLimit = 137, "OOMKilled", 1<<30 }, EndOutOfMemory, "more memory than its limit of 1 GiB", "failed"},
		{"a part of it was out of memory", func(p *PodInfo) { p.ExitCode, p.ExitReason = 0, "OOMKilled" }, EndSucceeded, "It has ended well.", "succeeded"},
		{"time limit", func(p *PodInfo) { p.ExitCode, p.StatusReason = 143, "DeadlineExceeded" }, EndTimeLimit, "It ran into its time limit of 2 min and was ended.", "timed out"},
		{"time limit, as the container tells it", func(p *PodInfo) { p.ExitCode, p.Started = 143, time.Now().Add(-3*time.Minute) }, EndTimeLimit, "time limit of 2 min", "timed out"},
		{"evicted", func(p *PodInfo) {
			p.ExitCode, p.StatusReason, p.StatusMessage = 137, "Evicted", "The node was low on resource: memory."
		}, EndEvicted, "Its machine ran short of memory or disk", "failed"},
		{"machine", func(p *PodInfo) { p.Exited, p.StatusReason = false, "NodeShutdown" }, EndInterrupted, "its machine was shut down", "failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.t = t
			got := h.ends(h.submit(h.alice, JobRequest{Program: command("x"), Limit: 2 * time.Minute}), c.end)
			if got.EndCode != c.code || !strings.Contains(got.Reason, c.says) || got.Finished() != c.finished {
				t.Errorf("got %s: %q, %s", got.EndCode, got.Reason, got.Finished())
			}
		})
	}
}

// Before its program runs, a job can fail for its image; and its pod can vanish
// with its machine. It is not run a second time.
func TestJobInterrupted(t *testing.T) {
	h := newHouse(t, 1)
	job := h.submit(h.alice, JobRequest{Program: command("x")})
	h.is(job.ID, Running)
	h.lab.edit(func() { clear(h.lab.pods) })
	if got := h.is(job.ID, Ended); got.EndCode != EndInterrupted || len(h.lab.created) != 1 {
		t.Errorf("got %s: %q, %d pods", got.EndCode, got.Reason, len(h.lab.created))
	}
	h.lab.edit(func() { h.lab.broken = true })
	job = h.submit(h.alice, JobRequest{Program: command("x")})
	if got := h.is(job.ID, Ended); got.EndCode != EndFailed || !strings.Contains(got.Reason, "image") {
		t.Errorf("got %s: %q", got.EndCode, got.Reason)
	}
}

func TestJobCancelled(t *testing.T) {
	h := newHouse(t, 1)
	running := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	h.is(running.ID, Running)
	waiting := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	last := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1)})
	for _, id := range []int64{waiting.ID, running.ID} {
		if err := h.service.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := h.is(id, Ended); got.EndCode != EndCancelled || got.Finished() != "cancelled" || got.Job.ExitCode != nil {
			t.Errorf("cancelled, it is %+v", got)
		}
	}
	h.is(last.ID, Running)
}

// A restart of gpulab makes no second pod, whenever it comes.
func TestJobSurvivesRestart(t *testing.T) {
	h := newHouse(t, 1)
	job := h.submit(h.alice, JobRequest{Program: command("x"), GPUs: new(1)})
	h.is(job.ID, Running)
	waiting := h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(1)})
	h.reopen(nil)
	h.is(job.ID, Running)
	h.end()
	h.lab.pod(h.podOf(job), func(p *PodInfo) { p.Finished, p.Exited, p.Ready = true, true, false })
	h.open(nil)
	if got := h.is(job.ID, Ended); got.EndCode != EndSucceeded {
		t.Errorf("it ended as %s: %s", got.EndCode, got.Reason)
	}
	h.is(waiting.ID, Running)
	if len(h.lab.created) != 2 {
		t.Errorf("%d pods were made for two jobs", len(h.lab.created))
	}
}

// specOf returns what the runner in a job's pod is told.
func specOf(t *testing.T, p *corev1.Pod) (spec jobSpec) {
	t.Helper()
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == "GPULAB_JOB" {
			text, err := base64.StdEncoding.DecodeString(e.Value)
			if err == nil {
				err = json.Unmarshal(text, &spec)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	return spec
}

// The pod is as safe as a notebook's, and what it runs arrives as it was written.
func TestJobPod(t *testing.T) {
	h := newHouse(t, 2)
	script := "#!/bin/bash\necho \"$$ $(HOME) 'x'\"\n"
	job := h.submit(h.alice, JobRequest{Program: Program{Script: script, Args: []string{"a b", "$(id)", "c\nd"}, Dir: "work"}, GPUs: new(2), Limit: time.Hour})
	h.is(job.ID, Running)
	p := h.lab.created[0]
	c := p.Spec.Containers[0]
	spec := specOf(t, p)
	if spec.Script != script || fmt.Sprintf("%q", spec.Args) != `["a b" "$(id)" "c\nd"]` || spec.Dir != "work" || spec.Output != job.Job.Output {
		t.Errorf("the runner is told %+v", spec)
	}
	if strings.Contains(jobRunner, "$(") {
		t.Error("Kubernetes would read $( in the runner")
	}
	sc := c.SecurityContext
	if *p.Spec.ActiveDeadlineSeconds != 3600 || p.Spec.RestartPolicy != corev1.RestartPolicyNever || *p.Spec.AutomountServiceAccountToken || *sc.RunAsUser != int64(h.alice.UID) ||
		*sc.AllowPrivilegeEscalation || !*sc.RunAsNonRoot || fmt.Sprint(sc.Capabilities.Drop) != "[ALL]" || p.Spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || p.Namespace != "user-alice" {
		t.Errorf("the pod is %+v, %+v", p.Spec, sc)
	}
	limits := c.Resources.Limits
	if gpus := limits[gpuResource]; gpus.Value() != 2 || limits.Cpu().Value() != 1 || limits.Memory().Value() != 1<<30 || c.Image != "gpulab.local/notebook:1" {
		t.Errorf("it gets %v of %s", limits, c.Image)
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "https_proxy" }) {
		t.Errorf("its environment is %v", c.Env)
	}
	for name, want := range map[string]string{"USER": "alice", "LOGNAME": "alice", "TZ": "Asia/Tokyo", "GPULAB_USER_NAME": "alice"} {
		if !slices.Contains(c.Env, corev1.EnvVar{Name: name, Value: want}) {
			t.Errorf("%s is not %s in %v", name, want, c.Env)
		}
	}
	for _, name := range []string{"OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS", "PYTHON_CPU_COUNT"} {
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == name && e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil && e.ValueFrom.ResourceFieldRef.Resource == "limits.cpu"
		}) {
			t.Errorf("%s is not the limit of processors in %v", name, c.Env)
		}
	}
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GPULAB_USER_EMAIL" }) {
		t.Errorf("somebody without an address has one: %v", c.Env)
	}
	if d := p.Spec.DNSConfig; d == nil || len(d.Options) != 1 || d.Options[0].Name != "ndots" || *d.Options[0].Value != "1" {
		t.Errorf("it looks names up with %+v", d)
	}
}

func TestJobRefused(t *testing.T) {
	h := newHouse(t, 2)
	for name, c := range map[string]struct {
		r    JobRequest
		want string
	}{
		"nothing":          {JobRequest{}, "nothing to run"},
		"more than any":    {JobRequest{Program: command("x"), GPUs: new(3)}, "It asks for 3 GPUs, but no machine of this lab has more than 2."},
		"in the script":    {JobRequest{Program: Program{Script: "#SBATCH --gres=gpu:9\ntrue\n"}}, "It asks for 9 GPUs, but no machine of this lab has more than 2."},
		"negative":         {JobRequest{Program: command("x"), GPUs: new(-1)}, "a negative number of GPUs"},
		"no such profile":  {JobRequest{Program: command("x"), Profile: "h100"}, `This lab has no profile "h100". It has cpu, gpu, gpu2, gpu9.`},
		"profile, no GPU":  {JobRequest{Program: command("x"), Profile: "cpu", GPUs: new(1)}, "The profile cpu has no GPU"},
		"profile, one GPU": {JobRequest{Program: command("x"), Profile: "gpu", GPUs: new(0)}, "The profile gpu has a GPU"},
		"only comments":    {JobRequest{Program: Program{Script: "#!/bin/sh\n\n# later\n"}}, "The script has no commands, only comments."},
		"binary":           {JobRequest{Program: Program{Script: "\x7fELF\x00"}}, "is not a text file."},
		"too long":         {JobRequest{Program: Program{Script: strings.Repeat("x", MaxScript+1)}}, "longer than 64"},
		"long command":     {JobRequest{Program: command(strings.Repeat("x", maxArgs))}, "Put it in a script"},
		"elsewhere":        {JobRequest{Program: command("x"), Output: "/etc/passwd"}, "has to lie in the home, /home/alice, and /etc/passwd does not."},
		"up":               {JobRequest{Program: command("x"), Output: "a/../../bob/log"}, "has to lie in the home"},
		"a folder":         {JobRequest{Program: command("x"), Output: "logs/"}, "is a folder"},
		"pattern":          {JobRequest{Program: command("x"), Output: "%q.log"}, "%j is the job's number"},
		"time":             {JobRequest{Program: command("x"), Limit: 365 * 24 * time.Hour}, "time limit is between 10 s and 30 d"},
		"name":             {JobRequest{Program: command("x"), Name: "a\nb"}, "visible"},
		"long file":        {JobRequest{Program: command("x"), Output: strings.Repeat("x", 251)}, "longer than 250 bytes"},
		"unknown":          {JobRequest{Program: Program{Script: "#!/bin/sh\n#SBATCH --bbf=4G\ntrue\n"}}, "Line 2: gpulab does not support --bbf=4G."},
		"no value":         {JobRequest{Program: Program{Script: "#GPULAB --time\ntrue\n"}}, "Line 1: --time needs a value, such as --time=2:00:00."},
		"model":            {JobRequest{Program: Program{Script: "#SBATCH --gres=gpu:a100:2\ntrue\n"}}, "names the GPU model a100"},
		"gres":             {JobRequest{Program: Program{Script: "#SBATCH --gres=tmpdir:2\ntrue\n"}}, "does not ask for GPUs"},
		"too late":         {JobRequest{Program: Program{Script: "true\n#GPULAB --gpus=1\n"}}, "Line 2: directives must come before the first command, which is in line 1."},
		"quotes":           {JobRequest{Program: Program{Script: "#SBATCH -J 'a b\ntrue\n"}}, "a closing quotation mark ' is missing"},
	} {
		_, err := h.service.Submit(t.Context(), h.alice, c.r)
		var refusal *JobError
		var obstacle *ObstacleError
		if err == nil || !errors.As(err, &refusal) && !errors.As(err, &obstacle) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range maxJobs {
		h.submit(h.bob, JobRequest{Program: command("x"), GPUs: new(2)})
	}
	if _, err := h.service.Submit(t.Context(), h.bob, JobRequest{Program: command("x")}); !errors.Is(err, ErrTooManyJobs) {
		t.Errorf("one more: %v", err)
	}
	h.launch(h.bob, "cpu", "A notebook") // that has a bound of its own
}

func TestDirectives(t *testing.T) {
	for _, c := range []struct {
		script string
		want   string // of what is asked for
	}{
		{"#!/bin/bash\n#SBATCH --job-name=\"my job\" --gres=gpu:2\n#SBATCH -t 1-2:30 # at most\n\n#SBATCH --output=out/%x-%j.log\npython x.py\n#SBATCH --mem=1", "my job|2|26h30m0s|out/my job-7.log||"},
		{"#GPULAB --gpus=1\n#GPULAB --time 90m\n#GPULAB --profile=gpu -D work\ntrue", "job|1|1h30m0s|jobs/job-7.log|gpu|work"},
		{"\ufeff#!/bin/sh\r\n#SBATCH -G1 -t30\r\necho hi\r\n", "job|1|30m0s|jobs/job-7.log||"},
		{"#SBATCHING is not a directive\n#SBATCH --gres gpu\ntrue", "job|1|24h0m0s|jobs/job-7.log||"},
	} {
		r := JobRequest{Program: Program{Script: c.script}}
		if err := r.prepare("ada"); err != nil {
			t.Errorf("%q: %v", c.script, err)
			continue
		}
		file, err := outputFile(r.Output, "ada", r.Name, 7, nil)
		if got := fmt.Sprintf("%s|%d|%s|%s|%s|%s", r.Name, *r.GPUs, r.Limit, file, r.Profile, r.Dir); got != c.want || err != nil || strings.Contains(r.Script, "\r") {
			t.Errorf("%q: got %s, %v", c.script, got, err)
		}
	}
	// What is asked for otherwise comes first.
	r := JobRequest{Program: Program{Script: "#SBATCH --gpus=4 --time=1 -J other -o x --profile gpu9\ntrue"}, GPUs: new(1), Limit: time.Hour, Name: "mine", Output: "/home/ada/y", Profile: "gpu"}
	if err := r.prepare("ada"); err != nil || *r.GPUs != 1 || r.Limit != time.Hour || r.Name != "mine" || r.Output != "/home/ada/y" || r.Profile != "gpu" {
		t.Errorf("got %+v, %v", r, err)
	}
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Minute, "1:30": 90 * time.Second, "2:00:00": 2 * time.Hour, "1-12": 36 * time.Hour, "3d": 72 * time.Hour, "2h30m": 150 * time.Minute,
		"": 0, "-5": 0, "0": 0, "1:2:3:4": 0, "soon": 0, "1-": 24 * time.Hour, "99999999999999999999": 0, "-1h": 0,
	} {
		if got, err := ParseJobTime(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
}

// Again asks for the same once more, with a log of its own.
func TestJobAgain(t *testing.T) {
	h := newHouse(t, 2)
	first := h.submit(h.alice, JobRequest{Program: Program{Script: "echo hi\n", Args: []string{"a"}}, GPUs: new(2), Limit: time.Hour, Name: "Twice"})
	h.ends(first, func(p *PodInfo) { p.ExitCode = 1 })
	again, err := h.service.Again(t.Context(), h.alice, first.ID)
	if err != nil {
		t.Fatal(err)
	}
	program, err := h.service.Program(t.Context(), again.ID)
	if err != nil || program.Script != "echo hi\n" || len(program.Args) != 1 || again.GPUs != 2 || again.Job.Limit != time.Hour || again.Job.Output != fmt.Sprintf("jobs/twice-%d.log", again.ID) {
		t.Errorf("again, it is %+v, %+v: %+v, %v", again, again.Job, program, err)
	}
	notebook := h.launch(h.alice, "cpu", "")
	if _, err := h.service.Again(t.Context(), h.alice, notebook.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("a notebook again: %v", err)
	}
}

// Again takes the names of files as they were asked for, of jobs from before as far as their names tell them.
func TestJobAgainNamesItsFiles(t *testing.T) {
	h := newHouse(t, 2)
	for _, tc := range []struct{ output, errors, again, againErrors string }{
		{"runs/%x-%j.log", "runs/%4j-100%%.err", "runs/train-%d.log", "runs/%04d-100%%.err"},
		{"same.log", "same.err", "same.log", "same.err"},
		{"", "%j.err", "jobs/train-%d.log", "%d.err"},
	} {
		l := h.submit(h.alice, JobRequest{Program: command("x"), Name: "train", Output: tc.output, Errors: tc.errors})
		for _, before := range []bool{false, true} {
			l = h.ends(l, func(p *PodInfo) { p.ExitCode = 1 })
			if before {
				if _, err := h.db.ExecContext(t.Context(), "UPDATE jobs SET output_as = NULL, errors_as = NULL"); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			if l, err = h.service.Again(t.Context(), h.alice, l.ID); err != nil {
				t.Fatal(err)
			}
			named := func(format string) string {
				if !strings.Contains(strings.ReplaceAll(format, "%%", ""), "%") {
					return strings.ReplaceAll(format, "%%", "%")
				}
				return fmt.Sprintf(format, l.ID)
			}
			if l.Job.Output != named(tc.again) || l.Job.Errors != named(tc.againErrors) {
				t.Errorf("%+v, before %v: job %d writes %s and %s", tc, before, l.ID, l.Job.Output, l.Job.Errors)
			}
		}
	}
}

// A script of the largest size fits into the pod's environment; what does not fit is refused when it is submitted.
func TestJobSizeInItsPod(t *testing.T) {
	h := newHouse(t, 1)
	script := func(line string) string {
		return "#!/bin/bash\n" + strings.Repeat(line+"\n", (MaxScript-20)/(len(line)+1))
	}
	h.is(h.submit(h.alice, JobRequest{Program: Program{Script: script("cat <<<'<a>&<b>&<c>' >x")}}).ID, Running)
	p := h.lab.created[0]
	for _, e := range p.Spec.Containers[0].Env {
		if len(e.Name)+len(e.Value)+2 > maxVariable {
			t.Errorf("%s has %d bytes", e.Name, len(e.Value))
		}
	}
	_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: Program{Script: script(`echo \"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"`)}})
	if no := (*JobError)(nil); !errors.As(err, &no) || !strings.Contains(no.Text, "Linux allows 128 KiB") || !strings.Contains(no.Text, "gpulab cp") {
		t.Errorf("it is refused for %v", err)
	}
}

// A job of an environment runs where that is, sees them and cannot
// change them; what is gone by then it says.
func TestJobInAnEnvironment(t *testing.T) {
	h := newHouse(t, 2)
	if _, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: command("x"), Environment: "torch"}); err == nil || err.Error() != "This lab has no environments." {
		t.Errorf("without any: %v", err)
	}
	gone := false
	h.service.mu.Lock()
	h.service.cfg.EnvironmentsMount = "/environments"
	h.service.cfg.LackingEnvironment = func(id string) []string { return []string{"without-" + id} }
	h.service.cfg.UnfitForEnvironment = func(id string) []string { return []string{"too-old-for-" + id} }
	h.service.cfg.Environment = func(name string) (Environment, error) {
		if name != "torch" && name != "torch/2" || gone {
			return Environment{}, &JobError{"There is none."}
		}
		return Environment{"torch/2", "/environments/torch/2", "ENVIRONMENT"}, nil
	}
	h.service.mu.Unlock()
	l, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: Program{Script: "#GPULAB --env=torch\ntrue\n"}})
	if err != nil || l.Job.Environment != "torch/2" {
		t.Fatalf("%+v, %v", l.Job, err)
	}
	if need := h.service.need(l); !slices.Equal(need.Lacking, []string{"without-torch/2"}) || need.Only != "" {
		t.Errorf("it may not run on %q, and only on %q", need.Lacking, need.Only)
	}
	onGPU := l
	onGPU.GPUs = 1
	if need := h.service.need(onGPU); !slices.Equal(need.Unfit, []string{"too-old-for-torch/2"}) || need.Thing != "environment" {
		t.Errorf("with a GPU it cannot use those of %q, because of its %s", need.Unfit, need.Thing)
	}
	if need := h.service.need(l); len(need.Unfit) > 0 {
		t.Errorf("without a GPU it cannot use those of %q", need.Unfit)
	}
	pod, err := h.service.jobPod(l, Program{Args: []string{"x"}}, podOptions{UID: 1000, Models: "http://models.example"})
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/environments" && m.ReadOnly }) ||
		!slices.Contains(c.Env, corev1.EnvVar{Name: "ENVIRONMENT", Value: "torch/2"}) ||
		!slices.Contains(c.Env, corev1.EnvVar{Name: "HF_ENDPOINT", Value: "http://models.example"}) ||
		!slices.Contains(c.Env, corev1.EnvVar{Name: "HF_HUB_DISABLE_XET", Value: "1"}) {
		t.Errorf("it has %+v, %+v", c.VolumeMounts, c.Env)
	}
	gone = true
	if _, err := h.service.Again(t.Context(), h.alice, l.ID); err == nil || err.Error() != "There is none." {
		t.Errorf("again, without it: %v", err)
	}
}
