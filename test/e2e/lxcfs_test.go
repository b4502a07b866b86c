//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// seen is what programs of a container find out about it.
type seen struct {
	Free, Top, Psutil int // total memory, in MiB
	Processors        [3]int
	Elapsed           int // seconds since the container's first process was started
}

// askContainer prints a seen, for the programs of Debian and of Python that people use.
const askContainer = `import json, os, re, subprocess, psutil
def out(*args): return subprocess.run(args, capture_output=True, text=True, check=True).stdout
free = int(out("free", "-m").splitlines()[1].split()[1])
top = int(float(re.search(r"MiB Mem : *([0-9.]+) total", out("top", "-b", "-n", "1")).group(1)))
cpus = [out("grep", "-c", "^processor", "/proc/cpuinfo"), os.cpu_count(), out("nproc")]
print(json.dumps({"Free": free, "Top": top, "Psutil": psutil.virtual_memory().total >> 20,
  "Processors": [int(n) for n in cpus], "Elapsed": int(out("ps", "-o", "etimes=", "-p", "1"))}))
`

func readSeen(t *testing.T, text string) (s seen) {
	t.Helper()
	if err := json.Unmarshal([]byte(text[strings.Index(text, "{"):strings.LastIndex(text, "}")+1]), &s); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s
}

// TestContainersSeeTheirLimits checks what free, top and Python say of memory and processors in notebooks and jobs,
// while LXCFS, which serves these figures, is killed, hangs, is missing and comes back.
//
//test:about internal/lxcfs
func TestContainersSeeTheirLimits(t *testing.T) {
	t.Parallel()
	a := ready(t, `
lab: Small notebooks
gpus: simulated
simulatedGPUs: 1
profiles:
  - slug: cpu
    title: Small
    cpus: 1
    memory: 1000Mi
`)
	own := seen{Free: 1000, Top: 1000, Psutil: 1000, Processors: [3]int{1, 1, 1}}
	machine := readSeen(t, a.MustRun(a.ctx, "python3", "-c", strings.ReplaceAll(strings.ReplaceAll(askContainer,
		", psutil", ""), "psutil.virtual_memory().total >> 20", "free")))
	if machine.Free <= 1000 || machine.Processors[0] < 2 {
		t.Fatalf("this machine is too small to tell a container's limits from its own: %+v", machine)
	}
	ignoreTime := func(s seen) seen { s.Elapsed = 0; return s }
	machine.Processors[1], machine.Processors[2] = 1, 1 // these follow PYTHON_CPU_COUNT and OMP_NUM_THREADS
	k := work(a.guest, guestHandle, "Ben's")
	l := newLaptopFor(t, a, a.guest.Tab(), guestHandle, "launch")
	notebook := func() seen { t.Helper(); return readSeen(t, k.run(t, askContainer)) }
	job := func() seen {
		t.Helper()
		return readSeen(t, l.gpulab(t, 0, []string{"run", "--profile", "cpu", "--", "python3", "-c", askContainer}))
	}
	check := func(when string, got, want seen) {
		t.Helper()
		if got.Elapsed > 3600 {
			t.Errorf("%s: ps says that the container has run for %d seconds", when, got.Elapsed)
		}
		if ignoreTime(got) != ignoreTime(want) {
			t.Errorf("%s: programs see %+v, want %+v", when, got, want)
		}
	}
	// becomes waits for what programs should see. For up to a second after LXCFS ends, its files cannot be read.
	becomes := func(when string, want seen) {
		t.Helper()
		var last string
		a.within(t, 20*time.Second, when, func() bool {
			got, err := k.try(askContainer)
			last = fmt.Sprint(got, err)
			return err == nil && got.Error == "" && ignoreTime(readSeen(t, got.Output)) == ignoreTime(want)
		})
		t.Log(when, last)
	}
	check("a notebook", notebook(), own)
	check("a job, from its first program on", job(), own)
	if state, seen, _ := a.doctor(t, "lxcfs").of(t, "lxcfs"); state != "ok" {
		t.Errorf("the doctor says %s: %s", state, seen)
	}

	const pid = "/run/gpulab-lxcfs.pid"
	before := a.MustRun(a.ctx, "cat", pid)
	a.Kill(a.ctx, "TERM", "gpulab")
	a.init(t)
	if after := a.MustRun(a.ctx, "cat", pid); after != before {
		t.Errorf("LXCFS was process %s before gpulab was started again, and is now %s", before, after)
	}
	check("after gpulab was started again", notebook(), own)

	a.Kill(a.ctx, "KILL", "lxcfs")
	becomes("LXCFS was killed", own)
	a.Kill(a.ctx, "STOP", "lxcfs")
	becomes("LXCFS hung", own)

	a.MustRun(a.ctx, "mv", "/usr/bin/lxcfs", "/usr/bin/lxcfs.away")
	a.Kill(a.ctx, "KILL", "lxcfs")
	becomes("LXCFS is gone", machine)
	check("a job without LXCFS", job(), machine)
	if state, seen, next := a.doctor(t, "lxcfs").of(t, "lxcfs"); state != "warn" || next != "apt-get install lxcfs" {
		t.Errorf("without LXCFS the doctor says %s: %s %s", state, seen, next)
	}
	a.MustRun(a.ctx, "mv", "/usr/bin/lxcfs.away", "/usr/bin/lxcfs")
	becomes("LXCFS was installed", own)
	check("a job again", job(), own)
}
