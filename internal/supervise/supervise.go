// Package supervise keeps one child process running.
//
// Lifecycle: New describes the child, Run starts it and keeps it running until
// its context ends, then stops it in order: SIGTERM to the child alone or to
// its group, SIGKILL to the group when StopTimeout has passed. Run returns only
// when no process of the child's is left for it to own. A second Run on the
// same Child is an error.
//
// A process that an earlier, killed owner left behind is found through PIDFile
// and either adopted (watched and stopped like an own child) or ended first,
// as Spec.Adopt says.
//
// The package imports no other package of gpulab.
package supervise

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec describes a child process. The zero value of every optional field works.
type Spec struct {
	// Name is what people read in logs and in `gpulab status`.
	Name string
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is the whole environment; nil inherits ours.
	Env []string
	// Dir is the working directory.
	Dir string
	// Stdout receives each line of standard output. Nil treats standard
	// output like standard error: as log lines.
	Stdout func(line []byte)
	// LogFile receives the child's output. The child writes to it directly, so
	// that a child which outlives us never writes into a broken pipe. Without
	// a file only the last lines are kept, in memory.
	LogFile string
	// Before is called before each start, nil for nothing. While it fails the child
	// is not started, and tried again as after a failure of its own.
	Before func() error
	// StopTimeout is how long SIGTERM may take before SIGKILL. Default 10 s.
	StopTimeout time.Duration
	// PIDFile records the running child, so that the next owner finds it.
	PIDFile string
	// Adopt keeps a child that a killed owner left running, when it was
	// started from the same Path with the same Args; otherwise it is ended.
	Adopt bool
	// KillGroup sends signals to the child's whole process group. Off for a
	// child whose own children must outlive it (k3s: shims and pods).
	KillGroup bool
	// HoldStdin gives the child a pipe that closes when we die, however we
	// die, so that a child that watches its input ends with us.
	HoldStdin bool
	// MinBackoff and MaxBackoff bound the pause before a restart. It doubles
	// with each failure and is reset by a run longer than a minute.
	// Defaults 500 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
}

// State is what a child is doing.
type State struct {
	Running  bool
	PID      int
	Since    time.Time // when the process was started, by whomever
	Restarts int
	// Adopted says that this process was started by an earlier owner.
	Adopted bool
	// LastExit tells how the previous run ended, "" if there was none.
	LastExit string
}

// Child is one supervised process.
type Child struct {
	spec Spec

	mu      sync.Mutex
	state   State
	lines   ring
	started bool
	kick    context.CancelFunc
}

// New returns a child that is not running yet.
func New(spec Spec) *Child {
	if spec.StopTimeout == 0 {
		spec.StopTimeout = 10 * time.Second
	}
	if spec.MinBackoff == 0 {
		spec.MinBackoff = 500 * time.Millisecond
	}
	if spec.MaxBackoff == 0 {
		spec.MaxBackoff = 30 * time.Second
	}
	return &Child{spec: spec, lines: ring{size: 50}}
}

// State returns what the child is doing now.
func (c *Child) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// LastLines returns up to n of the child's latest log lines, oldest first.
func (c *Child) LastLines(n int) []string {
	if c.spec.LogFile != "" {
		return tail(c.spec.LogFile, n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.last(n)
}

// Restart stops the running process in order and starts it anew.
func (c *Child) Restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kick != nil {
		c.kick()
	}
}

// Run keeps the child running until ctx ends, then stops it. The error is nil
// after an orderly stop.
func (c *Child) Run(ctx context.Context) error {
	c.mu.Lock()
	if c.started {
		c.mu.Unlock()
		return fmt.Errorf("%s is supervised already", c.spec.Name)
	}
	c.started = true
	c.mu.Unlock()

	adopted, err := c.settleLeftover()
	if err != nil {
		return err
	}
	backoff := c.spec.MinBackoff
	for {
		began := time.Now()
		exit := c.runOnce(ctx, adopted)
		adopted = nil
		if ctx.Err() != nil {
			return nil
		}
		c.ended(exit)
		if errors.Is(exit, errRestart) {
			backoff = c.spec.MinBackoff
			continue
		}
		if time.Since(began) > time.Minute {
			backoff = c.spec.MinBackoff
		}
		slog.Warn("child process ended; starting it again", "child", c.spec.Name, "exit", exit, "in", backoff)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, c.spec.MaxBackoff)
	}
}

var errRestart = errors.New("restart asked for")

// runOnce runs the process (or watches the adopted one) until it ends or ctx does.
func (c *Child) runOnce(ctx context.Context, adopted *process) error {
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.kick = cancel
	c.mu.Unlock()

	p := adopted
	if p == nil {
		var err error
		if p, err = c.start(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.state = State{
		Running: true, PID: p.pid, Since: p.since, Restarts: c.state.Restarts, Adopted: adopted != nil,
		LastExit: c.state.LastExit,
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.state.Running, c.state.PID = false, 0
		c.mu.Unlock()
	}()

	go c.keepLogSmall(p.done)
	select {
	case <-p.done:
		removeFile(c.spec.PIDFile)
		return p.exit()
	case <-runCtx.Done():
	}
	p.stop(c.spec.KillGroup, c.spec.StopTimeout)
	removeFile(c.spec.PIDFile)
	return errRestart
}

// start launches the process in a group of its own.
func (c *Child) start() (*process, error) {
	if c.spec.Before != nil {
		if err := c.spec.Before(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.spec.Name, err)
		}
	}
	cmd := exec.Command(c.spec.Path, c.spec.Args...)
	cmd.Env, cmd.Dir = c.spec.Env, c.spec.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	logs, err := c.output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.spec.Name, err)
	}
	defer logs.Close()
	cmd.Stderr = logs
	if c.spec.Stdout == nil {
		cmd.Stdout = logs
	}
	var stdout io.ReadCloser
	if c.spec.Stdout != nil {
		if stdout, err = cmd.StdoutPipe(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.spec.Name, err)
		}
	}
	if c.spec.HoldStdin {
		if _, err := cmd.StdinPipe(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.spec.Name, err)
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s could not be started: %w", c.spec.Name, err)
	}
	p := &process{pid: cmd.Process.Pid, since: time.Now(), done: make(chan struct{})}
	if err := c.record(p.pid); err != nil {
		slog.Warn("the child's process number could not be written down", "child", c.spec.Name, "err", err)
	}
	go func() {
		defer close(p.done)
		if stdout != nil {
			scanLines(stdout, c.spec.Stdout)
		}
		p.err = cmd.Wait()
	}()
	return p, nil
}

// ended notes how a run ended.
func (c *Child) ended(exit error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Restarts++
	c.state.LastExit = "ended without an error"
	if exit != nil {
		c.state.LastExit = exit.Error()
	}
}

// output opens what the child's log lines are written to: the log file, or a
// pipe from which the last lines are kept.
func (c *Child) output() (*os.File, error) {
	if c.spec.LogFile != "" {
		return OpenLog(c.spec.LogFile)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		defer r.Close()
		scanLines(r, func(line []byte) {
			c.mu.Lock()
			c.lines.add(string(line))
			c.mu.Unlock()
		})
	}()
	return w, nil
}

// maxLine is how much of a line is passed on, in bytes.
const maxLine = 4 << 20

// scanLines calls fn with each line of r until r ends. Of a line longer than
// maxLine it passes the beginning: a child must neither fill our memory nor
// block on us.
func scanLines(r io.Reader, fn func([]byte)) {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part[:min(len(part), maxLine-len(line))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == nil || len(line) > 0 {
			fn(bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")))
		}
		if err != nil {
			return
		}
		line = line[:0]
		if cap(line) > 1<<20 {
			line = nil
		}
	}
}

// ring keeps the last size lines.
type ring struct {
	size  int
	lines []string
}

func (r *ring) add(s string) {
	r.lines = append(r.lines, s)
	if len(r.lines) > r.size {
		r.lines = r.lines[len(r.lines)-r.size:]
	}
}

func (r *ring) last(n int) []string {
	n = min(n, len(r.lines))
	return append([]string(nil), r.lines[len(r.lines)-n:]...)
}
