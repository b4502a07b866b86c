// Package part runs the parts of a benchmark as processes of their own, so that
// what each of them costs can be told apart. A part is the benchmark's own
// program, started with the arguments "part-NAME CONFIG"; it prints a line of
// JSON once it works, and is then told what to do line by line.
package part

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
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// patience is how long a part may take until it works.
const patience = 2 * time.Minute

// Part is a process that is told what to do line by line.
type Part[R any] struct {
	// Ready is what the part said once it worked.
	Ready R

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts the part NAME, its configuration in a file in dir, and waits
// until it works.
func Start[R any](ctx context.Context, dir, name string, config any) (*Part[R], error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, name+".json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "part-"+name, file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Part[R]{cmd: cmd, in: in, out: bufio.NewReader(out)}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := p.answer(&p.Ready); err != nil {
		p.Kill()
		return nil, fmt.Errorf("the %s did not become ready within %s: %w", name, patience, errors.Join(err, ctx.Err()))
	}
	return p, nil
}

// Config reads what this part was started with.
func Config[C any](file string) (config C, err error) {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return config, err
	}
	return config, json.Unmarshal(text, &config)
}

// PID is the part's process.
func (p *Part[R]) PID() int { return p.cmd.Process.Pid }

// Kill ends the part.
func (p *Part[R]) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Tell tells the part something that it does not answer.
func (p *Part[R]) Tell(what string) error {
	_, err := fmt.Fprintln(p.in, what)
	return err
}

// Ask tells the part something and reads its answer.
func (p *Part[R]) Ask(what string, answer any) error {
	if err := p.Tell(what); err != nil {
		return err
	}
	return p.answer(answer)
}

func (p *Part[R]) answer(into any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

// CPUWhile is how much processor time each of the processes takes per second,
// over a time of d.
func CPUWhile(ctx context.Context, d time.Duration, pids ...int) ([]float64, error) {
	used := make([]float64, len(pids))
	began := time.Now()
	for i, pid := range pids {
		before, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		used[i] = -before.Seconds()
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(d):
	}
	took := time.Since(began).Seconds()
	for i, pid := range pids {
		after, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		used[i] = (used[i] + after.Seconds()) / took
	}
	return used, nil
}

// cpuTime is the processor time that the process's threads have used. Go's
// threads seldom end, and the ticks of /proc/PID/stat would be too coarse.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("process %d has no /proc/%d/task/*/schedstat: it has ended, or this kernel does not count", pid,
			pid)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// Resident is a process's memory in MB (10⁶ bytes); 0 once it has ended.
func Resident(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024 / 1e6
		}
	}
	return 0
}

// Profile writes this process's processor profile to a file until
// [pprof.StopCPUProfile]; nothing where file is empty.
func Profile(file string) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(filepath.Clean(file))
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(f)
}
