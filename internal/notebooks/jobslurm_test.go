package notebooks

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

// slurmScript is a script as people bring it from a Slurm cluster.
const slurmScript = `#!/bin/bash
#SBATCH --job-name=mnist --partition=gpu --account=lab7
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=16G
#SBATCH --gres=gpu:1 --error=mnist.err --mail-type=END,FAIL
module load cuda/12.4
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
cd "$SLURM_SUBMIT_DIR"
srun python3 -c 'print("done")'
`

// sized gives the lab profiles of several sizes, in no order.
func (h *house) sized() {
	h.service.mu.Lock()
	defer h.service.mu.Unlock()
	h.service.cfg.Profiles = []Profile{
		{Slug: "cpu", Title: "CPU", CPUs: 1, Memory: "1Gi"},
		{Slug: "gpu-huge", Title: "GPU, huge", CPUs: 16, Memory: "64Gi", GPUs: 1},
		{Slug: "gpu", Title: "GPU", CPUs: 4, Memory: "8Gi", GPUs: 1},
		{Slug: "gpu-large", Title: "GPU, large", CPUs: 8, Memory: "32Gi", GPUs: 1},
		{Slug: "gpu-wide", Title: "GPU, wide", CPUs: 32, Memory: "32Gi", GPUs: 1},
		{Slug: "cpu-large", Title: "CPU, large", CPUs: 8, Memory: "16Gi"},
	}
}

// A Slurm script runs unchanged, and its owner reads what of it has no effect.
func TestSlurmScript(t *testing.T) {
	h := newHouse(t, 2)
	h.sized()
	h.service.cfg.MailTrouble = func(users.User) string { return "this lab has no mail server." }
	l := h.submit(h.alice, JobRequest{File: "mnist.sh", Program: Program{Script: slurmScript}})
	kept, err := h.service.Get(t.Context(), l.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []Launch{l, kept} {
		if l.Title != "mnist" || l.Profile != "gpu-large" || l.GPUs != 1 || l.Job.Errors != "mnist.err" || l.Job.Output != fmt.Sprintf("jobs/mnist-%d.log", l.ID) || !slices.Equal(l.Job.Mail, []string{MailEnd, MailFail}) {
			t.Errorf("it is %+v, %+v", l, l.Job)
		}
		if want := []string{"gpulab ignores these options: --partition=gpu, --account=lab7, --nodes=1 and --ntasks=1.", "No mail is sent: this lab has no mail server."}; !slices.Equal(l.Job.Notes, want) {
			t.Errorf("its notes are %q", l.Job.Notes)
		}
	}
	again := h.ends(l, func(p *PodInfo) { p.ExitCode = 1 })
	again, err = h.service.Again(t.Context(), h.alice, again.ID)
	if err != nil || again.Job.Errors != "mnist.err" || len(again.Job.Notes) != 2 || len(again.Job.Mail) != 2 {
		t.Errorf("again, it is %+v, %v", again.Job, err)
	}
	spec := l.spec(Program{Script: slurmScript}, Profile{Slug: "gpu-large", CPUs: 8, Memory: "32Gi"}, Environment{})
	if spec.Tools == nil || spec.Env["SLURM_CPUS_PER_TASK"] != "8" || spec.Env["SLURM_MEM_PER_NODE"] != "32768" || spec.Env["SLURM_GPUS"] != "1" || spec.Errors != "mnist.err" {
		t.Errorf("the runner is told %+v", spec)
	}
	if spec := l.spec(Program{Script: "#!/bin/bash\n#GPULAB --gpus=1\ntrue\n"}, Profile{CPUs: 8}, Environment{}); spec.Tools != nil || len(spec.Env) > 0 {
		t.Errorf("a script that is not for Slurm is told %+v", spec)
	}
}

// One answer names all that a job cannot have.
func TestSlurmRefused(t *testing.T) {
	h := newHouse(t, 2)
	h.sized()
	script := "#!/bin/bash\n#SBATCH --nodes=4 -p gpu --begin=now+1hour\n#SBATCH --mem=999G --constraint=a100 -n 8\n#SBATCH --gres=gpu:1 --frobnicate now\n#SBATCH --dependency=afternotok:9 --time=99-0\n#SBATCH --output=/etc/x\nsrun x\n#GPULAB --gpus=1\n"
	_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: Program{Script: script}})
	if err == nil {
		t.Fatal("it was taken")
	}
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{
		"Line 2: --nodes=4: a job here is one program on one machine.",
		"Line 2: gpulab does not support --begin: a job starts when its turn has come;",
		"Line 3: gpulab does not support --constraint: a profile says",
		"Line 3: -n 8: a job here is one program on one machine.",
		"Line 4: gpulab does not support --frobnicate now. Remove it.",
		"Line 5: ",
		"Line 8: directives must come before the first command, which is in line 7.",
		"A job's time limit is between 10 s and 30 d.",
		"The output file of a job has to lie in the home, /home/alice, and /etc/x does not.",
		"Line 3: no profile of this lab with a GPU has 999 GiB of memory. The largest is gpu-huge, which has 16 cores and 64 GiB of memory.",
	} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is not %q:\n%s", i, want, err)
		}
	}
	if len(lines) != 10 {
		t.Errorf("it says\n%s", err)
	}
	if list, err := h.service.Jobs(t.Context(), h.alice.ID); err != nil || len(list) > 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
}

// A job gets the smallest profile that has the cores and the memory that it asks for.
func TestJobSize(t *testing.T) {
	h := newHouse(t, 2)
	h.sized()
	for script, want := range map[string]string{
		"#SBATCH --mem=1G":   "cpu",
		"#SBATCH --mem=1025": "cpu-large",
		"#SBATCH -c 2":       "cpu-large",
		"#SBATCH --mem-per-cpu=2G --cpus-per-task=8": "cpu-large",
		"#SBATCH --mem=0":                               "cpu",
		"#SBATCH --gpus=1":                              "gpu-huge", // as before, the first
		"#SBATCH --gpus=1 --mem=1M":                     "gpu",
		"#SBATCH --gpus=1 --mem=8388608K":               "gpu",
		"#SBATCH --gpus=1 --mem=9GB":                    "gpu-large",
		"#SBATCH --gpus=1 -c16":                         "gpu-wide",
		"#SBATCH --gpus=1 --cpus-per-gpu=16":            "gpu-wide",
		"#SBATCH --gpus=1 --mem-per-gpu=33G":            "gpu-huge",
		"#SBATCH --gpus=1 -c 17 --mem=33G":              "Line 1: no profile of this lab with a GPU has 17 cores and 33 GiB of memory. The largest is gpu-wide, which has 32 cores and 32 GiB of memory. Ask for less, or ask an admin for a larger profile.",
		"#SBATCH --mem=17G":                             "Line 1: no profile of this lab without a GPU has 17 GiB of memory. The largest is cpu-large, which has 8 cores and 16 GiB of memory. Ask for less, or ask an admin for a larger profile.",
		"#SBATCH --mem=9999999T":                        "Line 1: --mem=9999999T is not an amount of memory. Write a number followed by M, G or T, such as --mem=8G.",
		"#SBATCH --mem=lots":                            "Line 1: --mem=lots is not an amount of memory. Write a number followed by M, G or T, such as --mem=8G.",
		"#SBATCH --mem-per-cpu=8000000T -c 1000":        "Line 1: no profile of this lab without a GPU has 1000 cores and ",
		"#SBATCH --cpus-per-task=some":                  "Line 1: --cpus-per-task=some is not a number of cores. Write, for example, --cpus-per-task=4.",
		"#SBATCH --profile=gpu --mem=9G":                "Line 1: the job asks for 9 GiB of memory, and the profile gpu has 4 cores and 8 GiB of memory. Ask for less, or leave the profile out.",
		"#SBATCH --profile=gpu-large --gpus=1 --mem=9G": "gpu-large",
	} {
		l, err := h.service.Submit(t.Context(), h.bob, JobRequest{Program: Program{Script: script + "\ntrue\n"}})
		if got := l.Profile; err != nil && !strings.HasPrefix(err.Error(), want) || err == nil && got != want {
			t.Errorf("%s: %s, %v, want %s", script, got, err, want)
		}
	}
	l, err := h.service.Submit(t.Context(), h.bob, JobRequest{Program: command("true"), CPUs: 5, Memory: 3 << 30, GPUs: new(1)})
	if err != nil || l.Profile != "gpu-large" {
		t.Errorf("a command gets %s, %v", l.Profile, err)
	}
}

func TestSlurmDirectives(t *testing.T) {
	left := func(words string) string { return "gpulab ignores these options: " + words + "." }
	for script, want := range map[string]string{
		"-e x.err --export=ALL,A=1,B=two=2": "errors x.err, env map[A:1 B:two=2], notes " + left("--export=ALL"),
		"--export=NONE":                     "errors , env map[], notes " + left("--export=NONE"),
		"--export=HOME,A=1":                 "errors , env map[A:1], notes --export copies no variables from the computer that submits the job. Write HOME=VALUE for HOME.",
		"-v --exclusive -p gpu --qos=high --comment 'a b' --nice=100 -N 1-4 -n1": "errors , env map[], notes " + left("-v, --exclusive, -p gpu, --qos=high, --comment a b, --nice=100, -N 1-4 and -n1"),
		"--mail-type=none":               "errors , env map[], mail [NONE], notes ",
		"--mail-type=all":                "errors , env map[], mail [BEGIN END FAIL], notes ",
		"--mail-type=FAIL,TIME_LIMIT_80": "errors , env map[], mail [FAIL], notes No mail is sent for TIME_LIMIT_80 of --mail-type.",
		"--mail-type=SOON":               "Line 1: --mail-type=SOON: The types of mail are BEGIN, END, FAIL, TIME_LIMIT, ALL and NONE.",
		"--export=A-B=1":                 "Line 1: --export=A-B=1: A-B is not a valid variable name. Write --export=NAME=VALUE.",
		"--partition":                    "errors , env map[], notes " + left("--partition"),
		"--input=/dev/null":              "errors , env map[], notes ",
		"-o /dev/null --error=/dev/null": "errors , env map[], notes " + left("-o /dev/null and --error=/dev/null"),
		"--input=data":                   "Line 1: --input=data: a job has no standard input.",
		"--error":                        "Line 1: --error needs a value, such as --error=train.err.",
		"--mem":                          "Line 1: --mem needs a value, such as --mem=8G.",
		"word":                           "Line 1: gpulab does not support word.",
	} {
		r := JobRequest{Program: Program{Script: "#SBATCH " + script + "\ntrue\n"}}
		err := r.prepare("ada")
		got := fmt.Sprintf("errors %s, env %v, ", r.Errors, r.Env)
		if r.Mail != nil {
			got += fmt.Sprintf("mail %v, ", r.Mail)
		}
		got += "notes " + strings.Join(r.notes, "|")
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.HasPrefix(got, want)) {
			t.Errorf("%s:\n%s, want\n%s", script, got, want)
		}
	}
}

// Names of files follow Slurm's patterns, may have letters of any writing system, and are as short as a file system needs.
func TestJobFiles(t *testing.T) {
	element := &Job{ArrayJob: 40, ArrayTask: 3}
	for _, c := range []struct {
		pattern, name string
		element       *Job
		want          string
	}{
		{"", "Übung-訓練-🚀", nil, "jobs/übung-訓練-🚀-7.log"},
		{"", "U\u0308bung", element, "jobs/übung-40_3.log"},
		{"", "2nd try / final", nil, "jobs/2nd-try-final-7.log"},
		{"", "../..", nil, "jobs/job-7.log"},
		{"", strings.Repeat("訓", 80), nil, "jobs/" + strings.Repeat("訓", 53) + "-7.log"},
		{"slurm.%N.%j.out", "x", nil, "slurm.lab.7.out"},
		{"%x_%u_%4j_%A%%.out", "a/b", nil, "a-b_ada_0007_7%.out"},
		{"%x/%A_%4a.out", "訓練", element, "訓練/40_0003.out"},
	} {
		got, err := outputFile(c.pattern, "ada", c.name, 7, c.element)
		if got != c.want || err != nil {
			t.Errorf("%q of %q: %q, %v, want %q", c.pattern, c.name, got, err, c.want)
		}
	}
	for _, pattern := range []string{"%a.log", "%q", "%", "%12"} {
		if got, err := outputFile(pattern, "ada", "x", 7, nil); err == nil {
			t.Errorf("%q became %q", pattern, got)
		}
	}
}

// The first line of a script, or the extension of its file, chooses the program that reads it.
func TestScriptReaders(t *testing.T) {
	for _, c := range []struct{ file, script, reader, path string }{
		{"train.py", "print(1)\n", "python3", "train.py"},
		{"train.py", "#!/usr/bin/env python3.12\nprint(1)\n", "", "train"},
		{"Fit.R", "print(1)\n", "Rscript", "Fit.R"},
		{"fit.jl", "#SBATCH --gpus=1\nprintln(1)\n", "julia", "fit.jl"},
		{"train.sh", "echo\n", "", "train"},
		{"", "echo\n", "", "job"},
		{"nb.ipynb", `{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "torch.2"}}, "cells": []}`, notebookReader, "nb.ipynb"},
		{"", `{"cells": [{"cell_type": "code"}], "nbformat": 4}`, notebookReader, "notebook.ipynb"},
	} {
		r := JobRequest{File: c.file, Program: Program{Script: c.script}}
		if err := r.prepare("ada"); err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		spec := Launch{Title: r.Name, Job: &Job{}}.spec(r.Program, Profile{}, Environment{})
		if r.Reader != c.reader || spec.Reader != c.reader || spec.File != c.path {
			t.Errorf("%s is read by %q from %q", c.file, spec.Reader, spec.File)
		}
	}
	for name, r := range map[string]JobRequest{
		"gpulab cannot read this notebook": {File: "a.ipynb", Program: Program{Script: "hello"}},
		"a notebook gets none":             {File: "a.ipynb", Program: Program{Script: `{"nbformat": 4}`, Args: []string{"x"}}},
		"run-notebook NOTEBOOK":            {File: "a.ipynb", Program: Program{Script: strings.Repeat(" ", MaxScript+1)}},
		"has no commands":                  {File: "a.py", Program: Program{Script: "# nothing\n"}},
		"longer than 64 KiB. Ke":           {File: "a.py", Program: Program{Script: strings.Repeat("x", MaxScript+1)}},
	} {
		if err := r.prepare("ada"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := newHouse(t, 1)
	l := h.submit(h.alice, JobRequest{File: "train.py", Program: Program{Script: "print(1)\n"}})
	if p, err := h.service.Program(t.Context(), l.ID); err != nil || p.Reader != "python3" {
		t.Errorf("it runs %+v, %v", p, err)
	}
	h.service.mu.Lock()
	h.service.cfg.Environment = func(name string) (Environment, error) {
		if name != "torch/2" {
			return Environment{}, &JobError{"There is none."}
		}
		return Environment{"torch/2", "/environments/torch/2", "ENVIRONMENT"}, nil
	}
	h.service.mu.Unlock()
	for kernel, want := range map[string]string{"torch.2": "torch/2", "python3": "", "mine.1": ""} {
		l := h.submit(h.alice, JobRequest{File: "nb.ipynb", Program: Program{Script: `{"nbformat": 4, "metadata": {"kernelspec": {"name": "` + kernel + `"}}, "cells": []}`}})
		if l.Job.Environment != want || l.Title != "nb" {
			t.Errorf("a notebook of the kernel %s runs in %q", kernel, l.Job.Environment)
		}
	}
}

// An array's elements get Slurm's variables.
func TestSlurmArray(t *testing.T) {
	a, err := ParseArray("4-10:2%3")
	if err != nil {
		t.Fatal(err)
	}
	if env, want := a.slurmEnv(), map[string]string{"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_MAX": "10", "SLURM_ARRAY_TASK_STEP": "2"}; !maps.Equal(env, want) {
		t.Errorf("got %v", env)
	}
	h := newHouse(t, 1)
	h.submit(h.alice, JobRequest{Program: Program{Script: "#SBATCH --array=5 --error=%x-%A_%a.err\ntrue\n"}})
	var spec jobSpec
	if !eventually(func() (made bool) {
		h.lab.edit(func() {
			if made = len(h.lab.created) > 0; made {
				spec = specOf(t, h.lab.created[0])
			}
		})
		return made
	}) {
		t.Fatal("no pod was made")
	}
	if spec.Env["SLURM_ARRAY_TASK_COUNT"] != "1" || spec.Env["SLURM_ARRAY_TASK_ID"] != "5" || !strings.HasSuffix(spec.Errors, "_5.err") {
		t.Errorf("the runner is told %+v", spec)
	}
}

// The script runs to its end, and the tools that it calls say what to write instead.
func TestSlurmTools(t *testing.T) {
	run := func(script string) (code int, log, errs string) {
		t.Helper()
		home := t.TempDir()
		spec := jobSpec{Script: script, File: "test", Errors: "test.err", Tools: &jobTools{slurmNames, slurmTools}, Env: map[string]string{"SLURM_CPUS_PER_TASK": "4"}}
		cmd, _ := runJob(t, home, spec)
		code = exitCode(cmd)
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(home, name))
			if err != nil {
				t.Error(err)
			}
			return strings.ReplaceAll(string(text), home, "HOME")
		}
		return code, read("jobs/test-7.log"), read("test.err")
	}
	const says = "module: this lab has no modules, and "
	if code, log, errs := run(slurmScript); code != 0 || log != "done\n" || !strings.HasPrefix(errs, says+"cuda/12.4 is not loaded.") {
		t.Errorf("the script: %d, %q, %q", code, log, errs)
	}
	for name, c := range map[string]struct {
		script, log, errs string
		code              int
	}{
		"modules":      {"module purge; module list; ml; module load a b && module load a c; ml b d; ml purge; echo $?", "0\n", says + "a|" + says + "b|" + says + "c|" + says + "d", 0},
		"set -e":       {"set -euo pipefail\nmodule --force purge; module use /x; module load a; echo on", "on\n", says + "a", 0},
		"srun":         {"srun -n1 --cpu-bind=cores -lu -c $SLURM_CPUS_PER_TASK --mpi pmix --gres=gpu:1 --exclusive printf '%s|' 'a b' -n 2", "a b|-n|2|", "", 0},
		"its code":     {"srun bash -c 'exit 5'", "", "", 5},
		"four of them": {"srun -n 4 true", "", "srun: --ntasks=4: a job here is one program on one machine.", 1},
		"two machines": {"srun --nodes=2 true", "", "srun: --nodes=2: a job", 1},
		"no program":   {"srun -n1", "", "srun: no program was named", 1},
		"none such":    {"srun nosuch", "", "srun: nosuch: there is no such program", 127},
		"its files":    {"srun -o s-%j-%t.out --export=ALL,X=1 sh -c 'echo $X; echo no >&2'; cat s-7-0.out; srun -D / pwd", "1\nno\n/\n", "", 0},
		"a pipe":       {"yes | srun head -n 1; srun yes | head -n 1", "y\ny\n", "", 0},
		"names":        {"echo $SLURM_JOB_ID $SLURM_JOBID $SLURM_NTASKS $SLURM_NNODES $SLURM_PROCID $SLURM_SUBMIT_DIR $SLURM_CPUS_PER_TASK", "7 7 1 1 0 HOME 4\n", "", 0},
		"hosts":        {"test \"$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\" = \"$(hostname)\"; echo $?", "0\n", "", 0},
	} {
		for _, shell := range []string{"#!/bin/bash\n", "#!/bin/bash -l\n"} {
			code, log, errs := run(shell + "PATH=$PATH:/usr/bin:/bin\n" + c.script + "\n")
			heads := slices.Collect(strings.Lines(errs))
			want := strings.FieldsFunc(c.errs, func(r rune) bool { return r == '|' })
			if code != c.code || log != c.log || len(heads) != len(want) {
				t.Errorf("%s: %d, %q, %q", name, code, log, errs)
				continue
			}
			for i := range want {
				if !strings.HasPrefix(heads[i], want[i]) {
					t.Errorf("%s: %q", name, errs)
				}
			}
		}
	}
}

// A login shell resets PATH, but still finds the job's programs and its environment.
func TestJobInLoginShell(t *testing.T) {
	home, venv := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{filepath.Join(home, ".bash_profile"): "PATH=/usr/bin:/bin\n", filepath.Join(venv, "bin/tool"): "#!/bin/sh\necho of the environment\n"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	cmd, said := runJob(t, home, jobSpec{Script: "#!/bin/bash -l\nsrun tool; bash -c 'srun tool'; echo $PATH\n", File: "test", Venv: venv, Tools: &jobTools{slurmNames, slurmTools}})
	if code := exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	got, err := os.ReadFile(filepath.Join(home, "jobs/test-7.log"))
	if want := "of the environment\nof the environment\n" + venv + "/bin:/usr/bin:/bin:/tmp/.gpulab-job/bin\n"; err != nil || string(got) != want {
		t.Errorf("it says %q, %v, want %q", got, err, want)
	}
}

// A Python script finds modules in the folder in which it runs, and a notebook's copy goes there.
func TestJobReaders(t *testing.T) {
	home := t.TempDir()
	for name, text := range map[string]string{"work/helper.py": "word = 'found'\n", "bin/run-notebook": "#!/bin/sh\ncat \"$1\"; echo \"$1 $2\"\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		spec jobSpec
		want string
	}{
		{jobSpec{Script: "import helper, sys\nprint(helper.word, sys.argv)\n", File: "train.py", Reader: "python3", Dir: "work", Args: []string{"--x"}}, "found ['/tmp/.gpulab-job/script/train.py', '--x']\n"},
		{jobSpec{Script: "{}\n", File: "Übung.ipynb", Reader: notebookReader, Dir: "work", Env: map[string]string{"PATH": home + "/bin:" + os.Getenv("PATH")}}, "{}\n/tmp/.gpulab-job/script/Übung.ipynb " + home + "/work\n"},
		{jobSpec{Script: "x", File: "x.jl", Reader: "julia-that-is-not-there"}, "gpulab: julia-that-is-not-there: there is no such program\n"},
	} {
		cmd, _ := runJob(t, home, c.spec)
		_ = exitCode(cmd)
		if got, err := os.ReadFile(filepath.Join(home, "jobs/test-7.log")); err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v, want %q", c.spec.File, got, err, c.want)
		}
	}
}

// Standard error goes to a file of its own at once, and its last line is in the reason for a failure.
func TestJobErrors(t *testing.T) {
	home := t.TempDir()
	cmd, said := runJob(t, home, jobSpec{Script: "echo out; echo wrong >&2; exec 2>&-; sleep 0.3; echo more; exit 3", File: "test", Errors: "logs/x.err"})
	if code := exitCode(cmd); code != 3 {
		t.Errorf("exit code %d: %s", code, said)
	}
	for name, want := range map[string]string{"jobs/test-7.log": "out\nmore\n", "logs/x.err": "wrong\n"} {
		if got, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", name, got, err)
		}
	}
	cmd, said = runJob(t, home, jobSpec{Args: []string{"true"}, Errors: "jobs/test-7.log/x"})
	if code := exitCode(cmd); code != 73 || !strings.Contains(said.String(), "the file jobs/test-7.log/x cannot be written") {
		t.Errorf("a file that cannot be: %d, %s", code, said)
	}
}
