package notebooks

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runJob runs the runner as a pod does, with bounds that are soon met.
func runJob(t *testing.T, home string, spec jobSpec) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	spec.ID, spec.Name, spec.Head, spec.Most, spec.Cut = 7, "test", 200, 1000, logCut
	if spec.Output == "" {
		spec.Output = "jobs/test-7.log"
	}
	if spec.Args == nil {
		spec.Args = []string{}
	}
	spec.File = cmp.Or(spec.File, "test")
	spec.Try = max(spec.Try, 1)
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("python3", "-I", "-c", jobRunner)
	c.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "GPULAB_JOB=" + base64.StdEncoding.EncodeToString(text)}
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, &said
}

func exitCode(c *exec.Cmd) int {
	_ = c.Wait() // the code says it
	return c.ProcessState.ExitCode()
}

func TestJobRunner(t *testing.T) {
	for _, c := range []struct {
		name string
		spec jobSpec
		code int
		log  string
	}{
		{"command", jobSpec{Args: []string{"printf", "%s|", "a b", "$(id)", "c\nd", "'\""}}, 0, "a b|$(id)|c\nd|'\"|"},
		{"script", jobSpec{Script: "echo \"$0 $1 $GPULAB_JOB_ID $PYTHONUNBUFFERED ${GPULAB_JOB-none}\"; echo oops >&2; exit 3", Args: []string{"x y"}}, 3, "/tmp/.gpulab-job/script/test x y 7 1 none\noops\n"},
		{"shebang", jobSpec{Script: "#!/usr/bin/env python3\nprint(6 * 7)\n"}, 0, "42\n"},
		{"no such program", jobSpec{Args: []string{"nosuch"}}, 127, "gpulab: nosuch: there is no such program\n"},
		{"no such folder", jobSpec{Args: []string{"true"}, Dir: "away"}, 72, "gpulab: there is no folder away in the home\n"},
		{"a folder", jobSpec{Args: []string{"pwd"}, Dir: "work"}, 0, "HOME/work\n"},
		{"signal", jobSpec{Script: "kill -9 $$"}, 137, ""},
		{"what is left behind", jobSpec{Script: "sleep 100 & echo done"}, 0, "done\n"},
		{"silent", jobSpec{Script: "exec >&- 2>&-; sleep 0.3; exit 4"}, 4, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := t.TempDir()
			if err := os.Mkdir(filepath.Join(home, "work"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd, said := runJob(t, home, c.spec)
			if code := exitCode(cmd); code != c.code {
				t.Errorf("exit code %d: %s", code, said)
			}
			got, err := os.ReadFile(filepath.Join(home, "jobs/test-7.log"))
			if want := strings.ReplaceAll(c.log, "HOME", home); err != nil || string(got) != want {
				t.Errorf("the log is %q, %v; want %q", got, err, want)
			}
		})
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, said := runJob(t, home, jobSpec{Args: []string{"true"}, Output: "file/x.log"})
	if code := exitCode(cmd); code != 73 || !strings.Contains(said.String(), "the file file/x.log cannot be written") {
		t.Errorf("a log that cannot be: %d, %s", code, said)
	}
}

// Another try goes on in the same file, and knows how much of it is not kept.
func TestJobRunnerTries(t *testing.T) {
	home := t.TempDir()
	for try, want := range []string{
		"say 1\n", "say 1\n\n[gpulab: try 2]\nsay 2\n",
	} {
		cmd, said := runJob(t, home, jobSpec{Args: []string{"bash", "-c", "echo say $GPULAB_JOB_TRY; [ $SLURM_JOB_ID = $GPULAB_JOB_ID ]"}, Try: try + 1, Line: fmt.Sprintf("\n[gpulab: try %d]\n", try+1)})
		if code := exitCode(cmd); code != 0 {
			t.Fatalf("exit code %d: %s", code, said)
		}
		if got, err := os.ReadFile(filepath.Join(home, "jobs/test-7.log")); err != nil || string(got) != want {
			t.Errorf("the log is %q, %v", got, err)
		}
	}
	total := int64(len("say 1\n\n[gpulab: try 2]\nsay 2\n"))
	for try := 3; try < 6; try++ {
		line := fmt.Sprintf("\n[gpulab: try %d]\n", try)
		cmd, said := runJob(t, home, jobSpec{Args: []string{"seq", "1000", "1299"}, Try: try, Line: line})
		if code := exitCode(cmd); code != 0 {
			t.Fatalf("exit code %d: %s", code, said)
		}
		total += int64(len(line)) + 300*5
		file, err := os.Open(filepath.Join(home, "jobs/test-7.log"))
		if err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		part, err := readPart(file, info.Size(), 200, -10)
		if err != nil || part.Next != total || string(part.Data) != "1298\n1299\n" || info.Size() > 1400 {
			t.Errorf("after try %d the log of %d bytes ends with %q at %d, want %d, %v", try, info.Size(), part.Data, part.Next, total, err)
		}
		_ = file.Close()
	}
}

// SIGTERM reaches the program and what it has started, which have time to end.
func TestJobRunnerTerminated(t *testing.T) {
	home := t.TempDir()
	cmd, _ := runJob(t, home, jobSpec{Script: "trap 'echo saving; sleep 0.3; echo saved; exit 5' TERM\necho begun\nsleep 100 & wait\n"})
	log := filepath.Join(home, "jobs/test-7.log")
	if !eventually(func() bool { text, _ := os.ReadFile(log); return string(text) == "begun\n" }) {
		t.Fatal("it did not begin")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code := exitCode(cmd)
	if text, err := os.ReadFile(log); code != 5 || err != nil || string(text) != "begun\nsaving\nsaved\n" {
		t.Errorf("exit code %d, log %q, %v", code, text, err)
	}
}

// A job whose program exits with 0 on SIGTERM is not done. A job whose program exited before SIGTERM is done,
// even while a process that it left behind still writes.
func TestJobRunnerSaved(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		code   int
	}{
		"saved":         {"trap 'echo saved; exit 0' TERM\necho begun\nsleep 100 & wait\n", exitSaved},
		"exited before": {"echo begun\n(trap '' TERM; until [ -e ~/go ]; do echo on; sleep 0.05; done) &\necho $$ >~/pid\n", 0},
		"not saved":     {"echo begun\nexec sleep 100\n", 143},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			cmd, _ := runJob(t, home, jobSpec{Script: c.script, Saved: exitSaved})
			log := filepath.Join(home, "jobs/test-7.log")
			if !eventually(func() bool { text, _ := os.ReadFile(log); return strings.HasPrefix(string(text), "begun\n") }) {
				t.Fatal("it did not begin")
			}
			if c.code == 0 && !eventually(func() bool {
				pid, _ := os.ReadFile(filepath.Join(home, "pid"))
				_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)))
				return len(pid) > 0 && errors.Is(err, fs.ErrNotExist)
			}) {
				t.Fatal("it did not end")
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(home, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(cmd); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
		})
	}
}

// Of a long log the beginning and the end are kept, and who follows it sees each
// line once, or reads how much was left out.
func TestLongJobLog(t *testing.T) {
	home := t.TempDir()
	cmd, said := runJob(t, home, jobSpec{Script: "for i in $(seq 1 300); do echo line $i; sleep 0.002; done"})
	log := filepath.Join(home, "jobs/test-7.log")
	read := func(from int64) LogPart {
		file, err := os.Open(log)
		if err != nil {
			return LogPart{From: from, Next: from}
		}
		defer func() { _ = file.Close() }()
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 2000 { // it is cut after a write has made it too long
			t.Errorf("the file has %d bytes", info.Size())
		}
		part, err := readPart(file, info.Size(), 200, from)
		if err != nil {
			t.Fatal(err)
		}
		return part
	}
	follow := func(done func() bool) string {
		var b strings.Builder
		for at := int64(0); ; {
			last := done()
			for {
				part := read(at)
				if part.LeftOut > 0 {
					fmt.Fprintf(&b, "<%d>", part.LeftOut)
				}
				b.Write(part.Data)
				if at = part.Next; len(part.Data) == 0 {
					break
				}
			}
			if last {
				return b.String()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	ended := make(chan int, 1)
	go func() { ended <- exitCode(cmd) }()
	live := follow(func() bool { return len(ended) > 0 })
	if code := <-ended; code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	var all strings.Builder
	for i := range 300 {
		fmt.Fprintf(&all, "line %d\n", i+1)
	}
	if live != all.String() && !strings.Contains(live, "<") {
		t.Errorf("who followed saw %q", live)
	}
	if live == "" || !strings.HasSuffix(live, "line 300\n") {
		t.Errorf("who followed saw %d bytes", len(live))
	}
	later := follow(func() bool { return true })
	begin, end, cut := strings.Cut(later, "<")
	var left int
	if _, err := fmt.Sscanf(end, "%d>", &left); err != nil || !cut || len(begin) != 200 || !strings.HasPrefix(all.String(), begin) {
		t.Fatalf("the log is %q", later)
	}
	_, end, _ = strings.Cut(end, ">")
	if !strings.HasPrefix(end, "line ") || !strings.HasSuffix(all.String(), end) || len(begin)+left+len(end) != all.Len() {
		t.Errorf("%d left out of %d, then %q", left, all.Len(), end)
	}
	tail := read(-9)
	if string(tail.Data) != "line 300\n" {
		t.Errorf("the end is %q", tail.Data)
	}
}

// The home belongs to somebody who may wish others ill.
func TestHostileJobLog(t *testing.T) {
	outside, home := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600), os.Symlink(secret, filepath.Join(home, "link")), os.Symlink(outside, filepath.Join(home, "away")),
		syscall.Mkfifo(filepath.Join(home, "pipe"), 0o600), os.Mkdir(filepath.Join(home, "folder"), 0o700), os.WriteFile(filepath.Join(home, "fine"), []byte("fine"), 0o600),
		os.Symlink("fine", filepath.Join(home, "inside")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"link", "away/secret", "pipe", "folder", "none", "../" + filepath.Base(outside) + "/secret"} {
		if part, err := readLog(home, name, 0); !errors.Is(err, ErrNoLog) || len(part.Data) > 0 {
			t.Errorf("%s: %q, %v", name, part.Data, err)
		}
	}
	for _, name := range []string{"fine", "inside"} {
		if part, err := readLog(home, name, 0); err != nil || string(part.Data) != "fine" {
			t.Errorf("%s: %q, %v", name, part.Data, err)
		}
	}
}
