//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// initArgs set up a lab with simulated GPUs and no question.
var initArgs = []string{"init", "--yes", "--gpus", "simulated"}

// testInitInterrupted interrupts init in every stage, by turns politely and by
// killing it together with the service it has started, and runs it again until
// it gets through. Whatever it was doing, the next run goes on from there.
func testInitInterrupted(t *testing.T, a *appliance) {
	interrupted := map[string]bool{}
	for round := 0; ; round++ {
		if round > 30 {
			t.Fatalf("init did not get through in %d runs; stages interrupted: %v", round, interrupted)
		}
		stage, result := interruptInit(t, a, round, interrupted)
		if stage != "" {
			interrupted[stage] = true
			t.Logf("interrupted in %q after %s", stage, result.Took.Round(100*time.Millisecond))
			continue
		}
		if result.Code != 0 {
			t.Fatalf("init after %d interruptions: exit code %d\n%s%s", round, result.Code, result.Stdout, result.Stderr)
		}
		checkSummary(t, a, result)
		break
	}
	if len(interrupted) < 4 {
		t.Errorf("init was interrupted only in %v", interrupted)
	}
}

// stageLine is a line of init's progress: a mark, the stage's name, its time.
var stageLine = regexp.MustCompile(`^[·✓] (\S[^0-9]*?) +[0-9.]+ s`)

// interruptInit runs init until it has finished a stage it was not interrupted
// after before. It returns that stage, or "" when init has ended by itself.
func interruptInit(t *testing.T, a *appliance, round int, before map[string]bool) (string, lab.Result) {
	t.Helper()
	cmd := a.Command(a.ctx, a.Binary(), initArgs...)
	var output watched
	stages := make(chan string, 64)
	output.onLine = func(line string) {
		if match := stageLine.FindStringSubmatch(line); match != nil {
			stages <- match[1]
		}
	}
	cmd.Stdout, cmd.Stderr = &output, &output
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its exit code tells
	}()
	for {
		select {
		case <-ended:
			return "", lab.Result{Stdout: output.String(), Code: cmd.ProcessState.ExitCode(), Took: time.Since(began)}
		case stage := <-stages:
			if before[stage] {
				continue
			}
			if round%2 == 0 {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // as Ctrl-C does
			} else {
				a.Kill(a.ctx, "KILL", "gpulab")
			}
			<-ended
			return stage, lab.Result{Stdout: output.String(), Code: cmd.ProcessState.ExitCode(), Took: time.Since(began)}
		}
	}
}

// checkSummary checks the last lines of init and keeps the link they hold.
func checkSummary(t *testing.T, a *appliance, result lab.Result) {
	t.Helper()
	for _, part := range []string{"is ready", "simulated", pages, "SHA-256", "gpulab ca --trust", "no systemd here: have `" + a.Binary() + " serve` run"} {
		if !strings.Contains(result.Stdout, part) {
			t.Errorf("%q is not in what init printed:\n%s", part, result.Stdout)
		}
	}
	a.link = findLink(t, result.Stdout)
	a.ca = []byte(a.MustGpulab(a.ctx, "ca"))
	if !a.status(t).Ready {
		t.Error("init said that the lab is ready, status does not")
	}
	a.dropQuotas(t)
}

// dropQuotas takes away the quotas that a new lab begins with: on a test host they are small, and lives launch much.
func (a *appliance) dropQuotas(t *testing.T) {
	t.Helper()
	list := a.MustGpulab(a.ctx, "quota", "list")
	config := a.MustRun(a.ctx, "sed", "/^ *#/d", "/etc/gpulab/config.yaml")
	for _, kind := range []string{"notebooks", "cpus", "memory"} {
		// A launch card without a bound of this kind would be refused: then there is no such quota.
		if strings.Count(config, "slug: ") > strings.Count(config, kind+": ") && kind != "notebooks" {
			continue
		}
		if !strings.Contains(list, kind) {
			t.Errorf("a new lab has no quota for %s:\n%s", kind, list)
		}
		a.MustGpulab(a.ctx, "quota", "unset", "everybody", kind)
	}
}

// testInitAgain: a second init changes nothing, says so, and is quick.
func testInitAgain(t *testing.T, a *appliance) {
	var before []int
	a.eventually(t, "what was interrupted has ended, and one gpulab runs", func() bool {
		before = a.Processes(a.ctx, "gpulab")
		return len(before) == 1
	})
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 || !strings.Contains(result.Stdout, "nothing changed") {
		t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	if result.Took > 2*time.Minute {
		t.Errorf("it took %s", result.Took)
	}
	if after := a.Processes(a.ctx, "gpulab"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("gpulab was %v and is %v: an init that changes nothing restarts nothing", before, after)
	}
	// What the messages name is a command.
	if got := a.MustRun(a.ctx, "sh", "-c", "cd / && gpulab version"); !strings.Contains(got, "gpulab") {
		t.Errorf("gpulab version says %q", got)
	}
	// An administrator's own network namespaces hide none of the pods'.
	a.MustRun(a.ctx, "ip", "netns", "add", "own")
	a.link = findLink(t, a.MustGpulab(a.ctx, "admin-link"))
	for _, gpu := range a.gpus(t) {
		if !gpu.Simulated {
			t.Errorf("the GPU %s is not marked as simulated", gpu.UUID)
		}
	}
}

// watched collects output and calls onLine with each whole line.
type watched struct {
	mu      sync.Mutex
	all     bytes.Buffer
	partial []byte
	onLine  func(string)
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	w.partial = append(w.partial, p...)
	for {
		line, rest, found := bytes.Cut(w.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		w.onLine(string(line))
		w.partial = rest
	}
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}
