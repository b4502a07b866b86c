// Command run runs the tests of labs (test/e2e), of machines that install the packages (test/deb) and of the notebook
// image's JupyterLab (test/jupyterlab). Each top-level test is a process of its own, two at a time. A test that has
// passed with the same programs and input files does not run again.
//
// A line in a test's doc comment says how it is run:
//
//	//test:gate          it is one of those that `go tool task test` runs
//	//test:alone         nothing else runs at the same time
//	//test:about a b     a change of one of these folders makes it run first
//	//test:older         GPULAB_OLDER is the path of the program from before the change
//	//test:helper        it is a process of another test
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	gate, rest, again, list bool
	shard                   string
	repeat, parallel        int
	run, base               string
	budget                  time.Duration
}

func main() {
	var o options
	flag.BoolVar(&o.gate, "gate", false, "run the gate: the tests marked //test:gate, and those that the change touches")
	flag.BoolVar(&o.rest, "rest", false, "run the tests that are not in the gate; without -gate and -rest, all of them")
	flag.StringVar(&o.shard, "shard", "", "run the i-th of n parts only, as i/n; count/n takes the part by the number "+
		"of commits")
	flag.StringVar(&o.run, "run", "", "run only the tests whose name matches this expression")
	flag.StringVar(&o.base,
		"base", "", "the revision that the change begins at (default: the last that passed, or the parent)")
	flag.BoolVar(&o.again, "again", false, "run what has passed with these programs, too")
	flag.IntVar(&o.repeat, "repeat", 1, "run each test this often, passed before or not")
	flag.IntVar(&o.parallel, "parallel", 2, "how many run at the same time")
	flag.DurationVar(&o.budget, "budget", 0, "start no further test outside the gate after this time; those that were "+
		"left out are named")
	flag.BoolVar(&o.list, "list", false, "print every test and chapter, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "test/run:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	s := suite{root: root, options: o, out: os.Stdout}
	if s.tests, err = discover(root); err != nil {
		return err
	}
	if o.list {
		for _, t := range s.tests {
			fmt.Fprintln(s.out, t.Name)
			for _, part := range t.Parts {
				fmt.Fprintf(s.out, "%s/%s\n", t.Name, part)
			}
		}
		return nil
	}
	if o.budget > 0 {
		s.until = time.Now().Add(o.budget)
	}
	chosen, err := s.choose(ctx)
	if err != nil {
		return err
	}
	return s.runAll(ctx, chosen)
}

// suite is one run.
type suite struct {
	options
	root    string
	tests   []test
	out     *os.File
	until   time.Time // when to start no further test outside the gate; zero for never
	base    string    // the revision that the change begins at
	earlier earlier
}

// choose picks the tests that the command line asks for, in the order in which they run.
func (s *suite) choose(ctx context.Context) ([]test, error) {
	only, err := regexp.Compile(s.run)
	if err != nil {
		return nil, err
	}
	part, of, err := s.part(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := s.change(ctx)
	if err != nil {
		return nil, err
	}
	var touched, others []test
	rank := 0
	for _, t := range s.tests {
		inShard := false
		if !t.Gate {
			inShard = rank%of == part
			rank++
		}
		t.Touched = touches(t, changed)
		switch {
		case t.Helper || !only.MatchString(t.Name):
		case t.Touched && (!t.Gate || !s.rest || s.gate):
			touched = append(touched, t)
		case t.Gate && (s.gate || !s.rest), !t.Gate && (s.rest || !s.gate) && inShard:
			others = append(others, t)
		}
	}
	return append(touched, others...), nil
}

// part reads -shard: which part of how many, counted from 0.
func (s *suite) part(ctx context.Context) (part, of int, err error) {
	if s.shard == "" {
		return 0, 1, nil
	}
	first, second, found := strings.Cut(s.shard, "/")
	of, err = strconv.Atoi(second)
	if !found || err != nil || of < 1 {
		return 0, 0, fmt.Errorf("-shard %q is not i/n", s.shard)
	}
	if first == "count" {
		if first, err = output(ctx, s.root, "git", "rev-list", "--count", "HEAD"); err != nil {
			return 0, 0, err
		}
		part, err = strconv.Atoi(first)
		return part % of, of, err
	}
	if part, err = strconv.Atoi(first); err != nil || part < 1 || part > of {
		return 0, 0, fmt.Errorf("-shard %q: the first number is not from 1 to %d", s.shard, of)
	}
	return part - 1, of, nil
}

// output runs a command to its end and returns what it printed, without the last newline.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}
