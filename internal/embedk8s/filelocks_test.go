package embedk8s

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// takeLocks takes locks on files, in one of three ways, and says so.
const takeLocks = `
import fcntl, os, struct, sys, tempfile
way, count = sys.argv[1], int(sys.argv[2])
folder = tempfile.mkdtemp(dir=sys.argv[3])
if way == "flock":
    kept = [open(os.path.join(folder, "many"), "w") for _ in range(count)]
    for f in kept:
        fcntl.flock(f, fcntl.LOCK_SH)
else:
    f = open(os.path.join(folder, "one"), "w+")
    for i in range(count):
        call = fcntl.F_OFD_SETLK if way == "ofd" else fcntl.F_SETLK
        fcntl.fcntl(f, call, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
print("taken", flush=True)
sys.stdin.read()
`

// A pod that takes more locks on files than a pod may have loses the processes that hold them; others keep theirs.
func TestFileLocksOfAPod(t *testing.T) {
	base, files := t.TempDir(), t.TempDir()
	take := func(way, uid string, count int) *exec.Cmd {
		cmd := exec.Command("prlimit", "--nofile=8192", "python3", "-c", takeLocks, way, strconv.Itoa(count), files)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = stdin.Close(), cmd.Wait() })
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "taken\n" {
			t.Fatalf("%s: %q, %v", way, line, err)
		}
		if uid != "" {
			group := filepath.Join(base, "burstable", "pod"+uid, "container")
			if err := os.MkdirAll(group, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Appendln(nil, cmd.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return cmd
	}
	uid := func(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", n) }
	const limit = 3000
	b := &PodBounds{logs: t.TempDir(), cgroups: func() []string { return []string{base} }, maxFileLocks: limit}
	now := time.Now()
	look := func() {
		t.Helper()
		now = now.Add(2 * locksPause)
		if _, err := b.look(now); err != nil {
			t.Error(err)
		}
	}
	alive := func(cmd *exec.Cmd) bool { return cmd.Process.Signal(syscall.Signal(0)) == nil }
	within, outside := take("posix", uid(1), limit-500), take("posix", "", limit+500)
	for i, way := range []string{"posix", "ofd", "flock"} {
		beyond := take(way, uid(2+i), limit+100)
		look()
		if err := beyond.Wait(); beyond.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s: %v, want it killed", way, err)
		}
	}
	look()
	if !alive(within) || !alive(outside) {
		t.Errorf("a pod within its bound lives: %v, a process of the machine: %v", alive(within), alive(outside))
	}
}
