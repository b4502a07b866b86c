package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// eventually waits up to a minute for cond.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("did not happen within a minute: %s", what)
}

// run starts the child and returns a function that ends it and waits.
func run(t *testing.T, c *Child) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run did not return within a minute of its context's end")
		}
	}
	t.Cleanup(stop)
	return stop
}

func sh(script string) Spec {
	return Spec{Name: "test", Path: "/bin/sh", Args: []string{"-c", script}, MinBackoff: 10 * time.Millisecond, StopTimeout: 300 * time.Millisecond, KillGroup: true}
}

func TestRestartsAKilledChild(t *testing.T) {
	c := New(sh("exec sleep 60"))
	run(t, c)
	eventually(t, "the first start", func() bool { return c.State().Running })
	first := c.State().PID
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new process", func() bool { s := c.State(); return s.Running && s.PID != first })
	if got := c.State(); got.Restarts != 1 || !strings.Contains(got.LastExit, "killed") {
		t.Errorf("state after the restart: %+v", got)
	}
}

// What has to be done before each start is; while it fails nothing is started.
func TestBefore(t *testing.T) {
	var calls atomic.Int32
	spec := sh("exec sleep 60")
	spec.Before = func() error {
		if calls.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	c := New(spec)
	run(t, c)
	eventually(t, "the first start", func() bool { return c.State().Running })
	if n := calls.Load(); n != 3 {
		t.Errorf("started after %d calls", n)
	}
	if err := syscall.Kill(c.State().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a call before the next start", func() bool { return calls.Load() == 4 && c.State().Running })
}

func TestStopEndsTheWholeGroupEvenIfItIgnoresSIGTERM(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "grandchild")
	c := New(sh(fmt.Sprintf(`trap "" TERM; sh -c 'trap "" TERM; echo $$ > %s; while :; do sleep 0.05; done' & wait; sleep 60`, pidFile)))
	stop := run(t, c)
	eventually(t, "the grandchild", func() bool { b, _ := os.ReadFile(pidFile); return len(b) > 1 })
	var pid int
	b, _ := os.ReadFile(pidFile)
	_, _ = fmt.Sscan(string(b), &pid)
	stop()
	// A kill takes effect after the call that asks for it.
	eventually(t, "the grandchild's end", func() bool { return startTicks(pid) == "" })
}

func TestKeepsTheLastLinesAndPassesStdoutOn(t *testing.T) {
	spec := sh(`for i in 1 2 3; do echo out $i; echo err $i >&2; done; exec sleep 60`)
	lines := make(chan string, 10)
	spec.Stdout = func(b []byte) { lines <- string(b) }
	c := New(spec)
	run(t, c)
	for i := 1; i <= 3; i++ {
		if got, want := <-lines, fmt.Sprintf("out %d", i); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	eventually(t, "the last log lines", func() bool { return strings.Join(c.LastLines(2), ",") == "err 2,err 3" })
}

func TestLinesOfAnyLength(t *testing.T) {
	huge := strings.Repeat("x", maxLine+70000)
	var lengths []int
	scanLines(strings.NewReader("a\r\n\n"+huge+"\nbc\n"+huge[:100000]+"\nlast"), func(line []byte) {
		lengths = append(lengths, len(line))
	})
	if want := []int{1, 0, maxLine, 2, 100000, 4}; !slices.Equal(lengths, want) {
		t.Errorf("lines of %d bytes, want %d", lengths, want)
	}
}

func TestBackoffGrows(t *testing.T) {
	c := New(sh("exit 3"))
	run(t, c)
	eventually(t, "some restarts", func() bool { return c.State().Restarts >= 3 })
	if got := c.State().LastExit; got != "exit status 3" {
		t.Errorf("last exit is %q", got)
	}
	time.Sleep(200 * time.Millisecond)
	// 10+20+40+80+160… ms: in under a second no more than 7 starts fit.
	if got := c.State().Restarts; got > 7 {
		t.Errorf("%d restarts: the pause does not grow", got)
	}
}

// TestLeftover runs a child, abandons it as a killed owner would, and looks at
// what the next owner does with it.
func TestLeftover(t *testing.T) {
	for _, tc := range []struct {
		name  string
		adopt bool
		args  string
		keeps bool
	}{
		{"adopted when asked and unchanged", true, "exec sleep 61", true},
		{"ended when the command changed", true, "exec sleep 62", false},
		{"ended when adopting is off", false, "exec sleep 61", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			spec := sh("exec sleep 61")
			spec.PIDFile, spec.LogFile = filepath.Join(dir, "pid"), filepath.Join(dir, "log")
			old := New(spec)
			p, err := old.start()
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(300 * time.Millisecond) // so that it is older than who takes it over
			spec.Adopt, spec.Args = tc.adopt, []string{"-c", tc.args}
			c := New(spec)
			stop := run(t, c)
			eventually(t, "a running child", func() bool { return c.State().Running })
			if got := c.State(); (got.PID == p.pid) != tc.keeps || got.Adopted != tc.keeps {
				t.Errorf("state %+v, left-behind process %d", got, p.pid)
			} else if began := got.Since.Sub(p.since).Abs(); tc.keeps && began > 100*time.Millisecond {
				t.Errorf("it is said to have begun %s after it did", began)
			}
			stop()
			if startTicks(p.pid) != "" {
				t.Error("the left-behind process still runs after the stop")
			}
		})
	}
}

func TestStrangerWithARecycledNumberIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	spec := sh("exec sleep 60")
	spec.PIDFile = filepath.Join(dir, "pid")
	stranger := New(sh("exec sleep 60"))
	run(t, stranger)
	eventually(t, "the stranger", func() bool { return stranger.State().Running })
	if err := os.WriteFile(spec.PIDFile, fmt.Appendf(nil, `{"pid":%d,"start":"1","boot":%q}`, stranger.State().PID, bootID()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := New(spec)
	run(t, c)
	eventually(t, "the child", func() bool { return c.State().Running })
	if startTicks(stranger.State().PID) == "" || stranger.State().Restarts > 0 {
		t.Error("a process that was never ours was ended")
	}
}
