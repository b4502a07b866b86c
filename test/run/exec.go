package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// mostFailures is how many tests may fail before none is run again. A few that fail once in a hundred
// runs must not hold up everybody; the report names them.
const mostFailures = 4

// testTimeout is how long one test may take, as go test has it.
const testTimeout = "75m"

// compiled is a package's test program, with the results for it.
type compiled struct {
	program string
	record  *record
}

// compile builds the test programs of the packages that the tests are in, into a folder.
func (s *suite) compile(ctx context.Context, into string, tests []test) (map[string]compiled, error) {
	built := map[string]compiled{}
	for _, t := range tests {
		if _, done := built[t.Package]; done {
			continue
		}
		program := filepath.Join(into, filepath.Base(t.Package)+".test")
		cmd := exec.CommandContext(ctx,
			"go", "test", "-c", "-tags", packages[t.Package].tag, "-o", program, "./"+t.Package)
		cmd.Dir, cmd.Stderr = s.root, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w", t.Package, err)
		}
		files, err := inputs(s.root, t.Package)
		if err != nil {
			return nil, err
		}
		r, err := openRecord(s.root, append(files, program))
		if err != nil {
			return nil, err
		}
		built[t.Package] = compiled{program, r}
	}
	return built, nil
}

// runAll runs the tests, and prints a table of what came of them.
func (s *suite) runAll(ctx context.Context, chosen []test) error {
	folder, err := os.MkdirTemp("", "gpulab-test-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	built, err := s.compile(ctx, folder, chosen)
	if err != nil {
		return err
	}
	var (
		ended   []result
		waiting []turn
	)
	for _, t := range chosen {
		if before, passed := built[t.Package].record.passed(t.Name); passed && !s.again && s.repeat == 1 {
			before.Before = true
			ended = append(ended, before)
			continue
		}
		for n := range s.repeat {
			waiting = append(waiting, turn{t, n + 1})
		}
	}
	fmt.Fprintf(s.out, "%d tests, of which %d have passed with these programs before; changes since %s\n",
		len(chosen), len(ended), s.base)
	defer func() {
		if s.earlier.remove != nil {
			s.earlier.remove()
		}
	}()
	results, left := s.runSome(ctx, waiting, built)
	ended = append(ended, results...)
	failed := s.failed(ended)
	if len(failed) > 0 && len(failed) <= mostFailures && s.repeat == 1 && ctx.Err() == nil {
		// Alone, so that what was wrong by chance has the whole machine the second time.
		for _, t := range chosen {
			if r, is := failed[t.Name]; is {
				s.begins(t, r.Attempt+1)
				ended = append(ended, s.runOne(ctx, t, built[t.Package], r.Attempt+1))
			}
		}
		failed = s.failed(ended)
	}
	shared := map[string]bool{}
	for _, t := range chosen {
		_, is := failed[t.Name]
		// An upgrade to the revision before says nothing about one to this.
		if is && !t.Older && !t.Touched && !t.Gate && s.rest && len(shared) < 2 && ctx.Err() == nil {
			shared[t.Name] = s.failsBefore(ctx, t)
		}
	}
	s.report(ended, left, failed, shared)
	for name := range failed {
		if !shared[name] {
			return fmt.Errorf("%d of %d tests failed", len(failed), len(chosen))
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.gate && len(left) == 0 {
		return s.notePassed(ctx)
	}
	return nil
}

// failed are the tests whose last attempt failed, with -repeat those of which any did.
func (s *suite) failed(results []result) map[string]result {
	failed := map[string]result{}
	for _, r := range results {
		if !r.Passed && !r.Interrupted {
			failed[r.Name] = r
		} else if s.repeat == 1 {
			delete(failed, r.Name)
		}
	}
	return failed
}

// turn is one run of a test.
type turn struct {
	test
	attempt int
}

// runSome runs tests side by side. It returns those that were not started, too.
func (s *suite) runSome(ctx context.Context, waiting []turn, built map[string]compiled) (ended []result, left []test) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		slots = make(chan struct{}, s.parallel)
	)
	start := func(t turn, need int) {
		for range need {
			slots <- struct{}{}
		}
		if ctx.Err() != nil || !t.Gate && !s.until.IsZero() && time.Now().After(s.until) {
			mu.Lock()
			left = append(left, t.test)
			mu.Unlock()
			for range need {
				<-slots
			}
			return
		}
		s.begins(t.test, t.attempt)
		group.Go(func() {
			r := s.runOne(ctx, t.test, built[t.Package], t.attempt)
			mu.Lock()
			ended = append(ended, r)
			mu.Unlock()
			for range need {
				<-slots
			}
		})
	}
	for _, alone := range []bool{false, true} {
		for _, t := range waiting {
			if t.Alone == alone {
				need := 1
				if alone {
					need = s.parallel
				}
				start(t, need)
			}
		}
	}
	group.Wait()
	return ended, left
}

// printing is held while a test's output is printed, so that two do not mix.
var printing sync.Mutex

// begins says that a test begins.
func (s *suite) begins(t test, attempt int) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Fprintf(s.out, "... %s begins, attempt %d, %s\n", t.Name, attempt, time.Now().Format(time.TimeOnly))
}

// runOne runs one test to its end, prints what it said, and keeps the result.
func (s *suite) runOne(ctx context.Context, t test, c compiled, attempt int) result {
	log := filepath.Join(s.root, "test/output", t.Name+"."+strconv.Itoa(attempt), "output.txt")
	var env []string
	if t.Older {
		env = append(env, "GPULAB_OLDER="+s.older(ctx))
	}
	r, err := runTest(ctx, s.root, t, c.program, log, attempt, env...)
	if err != nil {
		r.Passed = false
		fmt.Fprintln(os.Stderr, t.Name+":", err)
	}
	if ctx.Err() != nil {
		r.Interrupted = true // it has neither passed nor failed
		return r
	}
	if err := c.record.add(r); err != nil {
		fmt.Fprintln(os.Stderr, "test/run: keep the result:", err)
	}
	printing.Lock()
	defer printing.Unlock()
	if said, err := os.Open(log); err == nil {
		_, _ = io.Copy(s.out, said)
		said.Close()
	}
	return r
}

// event is what test2json says of a test.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// runTest runs one test of a program and writes its output to a file. env is added to this process's environment.
func runTest(
	ctx context.Context, root string, t test, program, log string, attempt int, env ...string,
) (result, error) {
	r := result{Name: t.Name, Package: t.Package, Attempt: attempt, Log: log, At: time.Now()}
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return r, err
	}
	file, err := os.Create(log)
	if err != nil {
		return r, err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", t.Package,
		program, "-test.v=test2json", "-test.run", "^"+t.Name+"$", "-test.timeout", testTimeout, "-test.paniconexit0")
	cmd.Dir = filepath.Join(root, t.Package)
	cmd.Env = append(append(os.Environ(), "PWD="+cmd.Dir, "GPULAB_TEST_OUTPUT="+filepath.Dir(log)), env...)
	cmd.Stderr = file
	// One group, so that the test ends with the program that reads what it says.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	lines := bufio.NewReader(stdout)
	for {
		line, readErr := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(bytes.TrimSpace(line), &e) == nil {
			r.note(e, file)
		}
		if readErr != nil {
			break
		}
	}
	err = cmd.Wait()
	r.Seconds = time.Since(r.At).Seconds()
	r.Passed = r.Passed && err == nil
	if err == nil && r.Tests == 0 {
		err = fmt.Errorf("there is no such test in %s", program)
	}
	return r, err
}

// note takes over what an event says.
func (r *result) note(e event, log io.Writer) {
	if e.Output != "" {
		_, _ = io.WriteString(log, e.Output)
	}
	if e.Test == "" {
		return
	}
	switch e.Action {
	case "run":
		r.Tests++
	case "attr":
		if seconds, err := strconv.ParseFloat(e.Value, 64); err == nil && e.Key == "waited" {
			r.Waited = max(r.Waited, seconds)
		}
	case "skip":
		r.Skipped = append(r.Skipped, e.Test)
	case "pass", "fail":
		if !strings.Contains(e.Test, "/") {
			r.Passed = e.Action == "pass"
		}
	}
}

// earlier is the program of the revision before the change, built when a test first needs it.
type earlier struct {
	once    sync.Once
	program string
	remove  func()
}

// older is the path of gpulab as it was before the change, "" if it cannot be built. It is built from s.base, or from
// HEAD~1 if nothing differs from s.base. GPULAB_OLDER may name another one.
func (s *suite) older(ctx context.Context) string {
	if named := os.Getenv("GPULAB_OLDER"); named != "" {
		return named
	}
	s.earlier.once.Do(func() {
		revision := s.base
		if same, err := output(ctx, s.root, "git", "diff", "--name-only", revision, "HEAD"); err != nil || same == "" {
			revision = "HEAD~1"
		}
		tree, remove, err := s.checkOut(ctx, revision)
		s.earlier.remove = remove
		if err == nil {
			err = buildIn(ctx, tree)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "test/run: gpulab as it was before the change:", err)
			return
		}
		s.earlier.program = filepath.Join(tree, "bin/gpulab")
	})
	return s.earlier.program
}

// trees is where revisions are checked out. A test host has a /tmp of its own.
const trees = "/var/tmp/gpulab-before-"

// checkOut checks out a revision into a folder of its own. remove deletes it.
func (s *suite) checkOut(ctx context.Context, revision string) (tree string, remove func(), err error) {
	left, _ := filepath.Glob(trees + "*")
	for _, folder := range left { // by a run that was killed
		owner, _, _ := strings.Cut(strings.TrimPrefix(folder, trees), "-")
		if pid, err := strconv.Atoi(owner); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(folder)
		}
	}
	_, _ = output(ctx, s.root, "git", "worktree", "prune")
	folder, err := os.MkdirTemp(filepath.Dir(trees), fmt.Sprintf("%s%d-", filepath.Base(trees), os.Getpid()))
	if err != nil {
		return "", func() {}, err
	}
	tree = filepath.Join(folder, "tree")
	remove = func() {
		_, _ = output(context.WithoutCancel(ctx), s.root, "git", "worktree", "remove", "--force", tree)
		_ = os.RemoveAll(folder)
	}
	_, err = output(ctx, s.root, "git", "worktree", "add", "--detach", tree, revision)
	return tree, remove, err
}

// buildIn builds the programs and images of a tree.
func buildIn(ctx context.Context, tree string) error {
	build := gobuild.Command(ctx, "go", "tool", "task", "build")
	build.Dir, build.Stdout, build.Stderr = tree, os.Stderr, os.Stderr
	build.Env = append(os.Environ(), "PWD="+tree)
	if err := build.Run(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	return nil
}

// failsBefore tells whether a test fails in the revision that the change begins at, too: then the change has not broken
// it.
func (s *suite) failsBefore(ctx context.Context, t test) bool {
	fmt.Fprintf(s.out, "... %s failed; does it fail at %s as well?\n", t.Name, s.base)
	tree, remove, err := s.checkOut(ctx, s.base)
	defer remove()
	if err == nil && packages[t.Package].built {
		err = buildIn(ctx, tree)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/run: the revision before:", err)
		return false
	}
	there, err := discover(tree)
	if err != nil {
		return false
	}
	for _, old := range there {
		if old.Name != t.Name || old.Package != t.Package {
			continue
		}
		before := suite{root: tree, out: s.out}
		built, err := before.compile(ctx, filepath.Dir(tree), []test{old})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return false
		}
		log := filepath.Join(s.root, "test/output", t.Name+".before", "output.txt")
		r, err := runTest(ctx, tree, old, built[old.Package].program, log, 1)
		return err != nil && r.Tests > 0 && ctx.Err() == nil
	}
	return false // a new test
}
