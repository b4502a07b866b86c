//go:build e2e

package jupyterlab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// imagePython runs Python of the image's locks, with the image's own modules.
func imagePython(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	image := notebookImage(t)
	venv := jupyterVenv(t, image)
	for i, arg := range args {
		args[i] = strings.Replace(arg, "IMAGE", filepath.Join(image, "files"), 1)
	}
	cmd := exec.Command(filepath.Join(venv, "bin/python"), args...)
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(os.Environ(), "HOME="+dir, "PATH="+filepath.Join(venv, "bin")+":"+os.Getenv("PATH"), "JUPYTER_RUNTIME_DIR="+t.TempDir(),
		"PYTHONPATH="+filepath.Join(image, "modules"), "PYTHONDONTWRITEBYTECODE=1", "GPULAB_JOB_ID=7")
	return cmd
}

func TestOutputsKept(t *testing.T) { tryModule(t, "outputs") }

func TestHomesUsed(t *testing.T) { tryModule(t, "home") }

func TestTrashKept(t *testing.T) { tryModule(t, "trash") }

// tryModule runs a test of one of the image's modules.
func tryModule(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	script, err := filepath.Abs("testdata/" + name + ".py")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := imagePython(t, t.TempDir(), script).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPythonOfHome(t *testing.T) { tryModule(t, "python") }

func TestMeterReads(t *testing.T) { tryModule(t, "meter") }

// In an environment of the lab, which is read-only, pip says what to do instead. Elsewhere it works as always.
func TestPipInEnvironment(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("testdata/pip.py")
	if err != nil {
		t.Fatal(err)
	}
	program := t.TempDir()
	if err := os.CopyFS(program, os.DirFS(filepath.Join(lab.Repository(t), "internal/environments/program"))); err != nil {
		t.Fatal(err)
	}
	cmd := imagePython(t, t.TempDir(), script, program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A notebook runs as a job: the copy beside it has what there was when a cell
// fails, when the kernel dies and when the job is ended.
func TestRunNotebook(t *testing.T) {
	first := "import os, time\nprint('in', os.getcwd(), flush=True)"
	for name, c := range map[string]struct {
		cells []string
		code  int
		says  string
		ends  bool // once the copy has what the first cell printed
		apart bool // the notebook lies elsewhere than it runs
	}{
		"well":   {[]string{first, "", "6 * 7"}, 0, "\n42\n", false, false},
		"apart":  {[]string{first}, 0, "outputs go to my.7.ipynb\n", false, true},
		"fails":  {[]string{first, "1 / 0", "print('never')"}, 1, "cell 2 of 3 failed: ZeroDivisionError: division by zero\n", false, false},
		"dies":   {[]string{first, "os.kill(os.getpid(), 9)"}, 1, "cell 2 of 2 failed: the kernel died\n", false, false},
		"ended":  {[]string{first + "\ntime.sleep(600)"}, 143, "\nin ", true, false},
		"absent": {nil, 2, "cannot be read: No such file or directory\n", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := jupyter{home: t.TempDir()}
			if c.cells != nil {
				j.write(t, "my.ipynb", c.cells...)
			}
			args := []string{"IMAGE/usr/local/bin/run-notebook", "my.ipynb"}
			if c.apart {
				elsewhere := filepath.Join(t.TempDir(), "my.ipynb")
				if err := os.Rename(filepath.Join(j.home, "my.ipynb"), elsewhere); err != nil {
					t.Fatal(err)
				}
				args = []string{args[0], elsewhere, j.home}
			}
			cmd := imagePython(t, j.home, args...)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if c.ends {
				for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
					if text, _ := os.ReadFile(filepath.Join(j.home, "my.7.ipynb")); bytes.Contains(text, []byte(`"in /`)) {
						break
					}
				}
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			_ = cmd.Wait()
			out := said.String()
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d, it says\n%s", code, out)
			}
			if c.cells == nil {
				return
			}
			if got := j.read(t, "my.7.ipynb")[0].text(); got != "in "+j.home+"\n" {
				t.Errorf("the copy has %q", got)
			}
			if c.apart {
				return
			}
			if got := j.read(t, "my.ipynb"); got[0].text() != "" {
				t.Errorf("the notebook has changed: %+v", got)
			}
		})
	}
}
