package client

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
)

// signedIn is the program of somebody who has signed in.
func signedIn(t *testing.T, s *server) *App {
	t.Helper()
	a := newApp(t, s.decide("ben", true))
	if code, out, errs := a.run(t, "yes\n", "login", strings.TrimPrefix(s.URL, "https://")); code != ExitOK {
		t.Fatalf("login: exit code %d\n%s%s", code, out, errs)
	}
	return a
}

// soon does something to a launch once it is there.
func (s *server) soon(id int64, edit func(*notebooks.Launch)) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !s.Notebooks.Move(id, edit); {
		time.Sleep(10 * time.Millisecond)
	}
}

func ended(code string, exit *int) func(*notebooks.Launch) {
	return func(l *notebooks.Launch) {
		l.State, l.EndCode, l.Reason, l.Job.ExitCode = notebooks.Ended, code, "So it ended.", exit
	}
}

// TestJobs: a script is submitted, followed, found again and cancelled.
func TestJobs(t *testing.T) {
	s := newServer(t)
	a := signedIn(t, s)
	a.wants(t, []string{"jobs"}, "There is no job")
	script := filepath.Join(t.TempDir(), "train.sh")
	if err := os.WriteFile(script, []byte("echo hi\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, ExitUsage, []string{"submit", script + "x"}, "cannot be read", "no such file", "gpulab run -- COMMAND")
	a.refuses(t, ExitUsage, []string{"submit"}, "gpulab submit --help")
	a.refuses(t, ExitRefused, []string{"submit", "--time", "soon", script}, `"soon" is not a time limit`)
	a.wants(t, []string{"submit", "--gpus", "1", script, "--epochs", "3"}, "Job 1 (train.sh) is submitted: waiting: It is next in line.", "gpulab logs -f 1", s.URL+"/jobs/1")
	a.wants(t, []string{"jobs"}, "train.sh", "waiting")
	a.wants(t, []string{"ps"}, "No notebook runs")
	if code, out, errs := a.run(t, "", "logs", "1"); code != ExitOK || out != "" || !strings.Contains(errs, "job 1 has no log: waiting") {
		t.Errorf("its log: %d, %q, %q", code, out, errs)
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		s.Notebooks.Say("one\n")
		s.soon(1, func(l *notebooks.Launch) { l.State = notebooks.Running })
		time.Sleep(300 * time.Millisecond)
		s.Notebooks.Say("two\x1b]0;x\x07\n")
		s.soon(1, ended(notebooks.EndSucceeded, new(0)))
	}()
	if code, out, errs := a.run(t, "", "logs", "-f", "TRAIN.sh"); code != ExitOK || out != "one\ntwo\x1b]0;x\x07\n" || !strings.Contains(errs, "[job 1: succeeded: So it ended.]") {
		t.Errorf("followed: %d, %q, %q", code, out, errs)
	}
	a.wants(t, []string{"cancel", "1"}, "Job 1 had ended before")
	a.wants(t, []string{"submit", script})
	a.wants(t, []string{"cancel", "2"}, "Job 2 (train.sh) is being cancelled")
	a.refuses(t, ExitRefused, []string{"submit", "--after", "train", script}, "is not a list of jobs")
	a.wants(t, []string{"submit", "--retries", "2", script}, "waiting, try 1 of 3")
	a.wants(t, []string{"submit", "--name", "sweep", "--array", "0-9%2", script}, "Job 4 (sweep)", "gpulab jobs --array 4")
	s.Notebooks.Move(3, func(l *notebooks.Launch) { l.Job.ArrayJob, l.Job.ArrayTask = 4, 7 })
	a.wants(t, []string{"jobs", "--array", "4"}, "4_7")
	a.wants(t, []string{"logs", "4_7"}, "two")
	a.wants(t, []string{"cancel", "4_7"}, "Job 4_7 is being cancelled.")
	a.refuses(t, ExitRefused, []string{"cancel", "4_10"}, "no such element")
	a.refuses(t, ExitRefused, []string{"logs", "4_8"}, "has no element 8 that has been in line")
	a.refuses(t, ExitRefused, []string{"cancel", "other"}, `no job called "other"`)
	a.refuses(t, ExitRefused, []string{"logs", "99"}, "There is no such job", "is somebody else's")
}

// TestSlurmJob: gpulab submit prints what of a script has no effect, and all that is refused, line by line.
func TestSlurmJob(t *testing.T) {
	a := signedIn(t, newServer(t))
	script := filepath.Join(t.TempDir(), "old.sh")
	write := func(text string) {
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("#SBATCH --partition=gpu\nsrun x\n")
	code, out, errs := a.run(t, "", "submit", "--error", "x.err", "--mem", "16G", "--cpus", "4", "--mail-type", "END", script)
	if code != ExitOK || errs != "Note: gpulab ignores these options: --partition=gpu.\n" || strings.Contains(out, "ignores") || !strings.Contains(out, "jobs/job-1.log, its errors in x.err\n") {
		t.Errorf("submitted: %d, %q, %q", code, out, errs)
	}
	write("#SBATCH --nodes=2\n#SBATCH --begin=now\ntrue\n")
	a.refuses(t, ExitRefused, []string{"submit", script}, "Line 1: --nodes=2.\nLine 2: --begin.")
	a.refuses(t, ExitRefused, []string{"submit", "--mem", "lots", script}, "is not an amount of memory")
}

// TestWithoutOutputs: a notebook is sent without the outputs of its cells, and otherwise unchanged.
func TestWithoutOutputs(t *testing.T) {
	const cells = `{"cell_type": "code", "execution_count": 3, "outputs": [{"data": "%s"}], "source": ["a < b && c\n", "é"], "metadata": {"tags": ["x"]}}, {"cell_type": "markdown", "source": "![](attachment:a.png)", "attachments": {"a.png": {}}}`
	long := strings.Replace(cells, "%s", strings.Repeat("x", 1<<20), 1)
	got, err := withoutOutputs([]byte("\ufeff" + `{"nbformat": 4, "cells": [` + long + `], "metadata": {"kernelspec": {"name": "torch.2"}}}`))
	want := `{"cells":[{"cell_type":"code","execution_count":null,"metadata":{"tags":["x"]},"outputs":[],"source":["a < b && c\n","é"]},{"cell_type":"markdown","source":"![](attachment:a.png)"}],"metadata":{"kernelspec":{"name":"torch.2"}},"nbformat":4}` + "\n"
	if err != nil || string(got) != want {
		t.Errorf("it is %s, %v\nwant %s", got, err, want)
	}
	if got, err := withoutOutputs([]byte(`{"nbformat": 3, "worksheets": []}`)); err != nil || string(got) != `{"nbformat": 3, "worksheets": []}` {
		t.Errorf("an old one is %s, %v", got, err)
	}
	if _, err := withoutOutputs([]byte("print(1)")); err == nil {
		t.Error("a script is taken for a notebook")
	}
	a := signedIn(t, newServer(t))
	file := filepath.Join(t.TempDir(), "big.ipynb")
	if err := os.WriteFile(file, []byte(`{"nbformat": 4, "cells": [{"cell_type": "code", "source": "`+strings.Repeat("x", 70<<10)+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, ExitUsage, []string{"submit", file}, "longer than 64 KiB without its outputs", "gpulab cp")
}

// TestRun: a command's words and exit code are those of the program here.
func TestRun(t *testing.T) {
	s := newServer(t)
	a := signedIn(t, s)
	for i, c := range []struct {
		end  func(*notebooks.Launch)
		code int
		says string
	}{
		{ended(notebooks.EndSucceeded, new(0)), 0, ""},
		{ended(notebooks.EndExited, new(3)), 3, "failed: So it ended."},
		{ended(notebooks.EndTimeLimit, nil), 124, "timed out"},
		{ended(notebooks.EndOutOfMemory, nil), 137, "failed"},
		{ended(notebooks.EndFailed, nil), ExitNotStarted, "failed"},
		{ended(notebooks.EndCancelled, nil), 130, "cancelled"},
		{ended(notebooks.EndDependency, nil), ExitNotStarted, "not run: So it ended."},
		{ended(notebooks.EndInterrupted, nil), ExitFailure, "failed"},
	} {
		id := int64(i + 1)
		go func() {
			s.soon(id, func(l *notebooks.Launch) { l.State = notebooks.Running })
			s.soon(id, c.end)
		}()
		code, out, errs := a.run(t, "", "run", "--", "python", "-c", "x")
		if code != c.code || out != "" || !strings.Contains(errs, c.says) || (c.says == "") != !strings.Contains(errs, "gpulab: job") {
			t.Errorf("%d: exit code %d, want %d: %q, %q", i, code, c.code, out, errs)
		}
	}
}

// TestRunInterrupted: Ctrl-C asks.
func TestRunInterrupted(t *testing.T) {
	s := newServer(t)
	a := signedIn(t, s)
	for i, c := range []struct {
		typed, says string
		code        int
		state       notebooks.State
	}{
		{"y\n", "job 1 is being cancelled", 130, notebooks.Ended},
		{"l\n", "job 2 goes on by itself; `gpulab logs -f 2` shows it", 130, notebooks.Running},
		{"", "job 3 goes on by itself", 130, notebooks.Running},
		{"n\n", "", 0, notebooks.Ended},
	} {
		id := int64(i + 1)
		ctx, interrupt := context.WithCancel(t.Context())
		go func() {
			s.soon(id, func(l *notebooks.Launch) { l.State = notebooks.Running })
			time.Sleep(200 * time.Millisecond)
			interrupt()
			if c.typed == "n\n" {
				time.Sleep(200 * time.Millisecond)
				s.soon(id, ended(notebooks.EndSucceeded, new(0)))
			}
		}()
		code, _, errs := a.runIn(t, ctx, c.typed, "run", "--", "sleep", "100")
		l, err := s.Notebooks.Get(t.Context(), id)
		if code != c.code || !strings.Contains(errs, c.says) || !strings.Contains(errs, "[y]es, [n]o") || err != nil || l.State != c.state {
			t.Errorf("%q: exit code %d, %q; the job is %s, %v", c.typed, code, errs, l.State, err)
		}
		interrupt()
	}
}

// TestTerminalSafe: a terminal gets text and colours, however they are cut.
func TestTerminalSafe(t *testing.T) {
	const said = "a\x1b[1;31mred\x1b[0m\r\n\x1b]0;title\x07\x1b[2J\x00b\xff\u202eé\x9b\x1bcz\t\u0085\n"
	const want = "a\x1b[1;31mred\x1b[0m\r\n]0;title[2Jb\ufffdé\ufffdcz\t\n"
	for size := 1; size <= len(said); size++ {
		var out bytes.Buffer
		w := &saneWriter{out: &out}
		for at := 0; at < len(said); at += size {
			if _, err := w.Write([]byte(said[at:min(len(said), at+size)])); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != want {
			t.Fatalf("in pieces of %d: %q, want %q", size, out.String(), want)
		}
	}
}
