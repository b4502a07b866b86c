package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// config is what a part is started with.
type config struct {
	// Of the head.
	Dir, Profile string
	Machines     int
	// Of the machines.
	Door    netip.AddrPort
	Lab     []byte // its authority, PEM
	Members []member
}

// ready is the line by which a part says that it works.
type ready struct {
	Door    netip.AddrPort
	Lab     []byte
	Members []member
}

// member is a machine that belongs to the pool, with key and certificate as PEM.
type member struct {
	Name             string
	Key, Certificate []byte
}

// part is a process that is told what to do line by line.
type part struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ready ready
}

func startPart(ctx context.Context, dir, name string, cfg config) (*part, error) {
	text, err := json.Marshal(cfg)
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
	p := &part{cmd: cmd, in: in, out: bufio.NewReader(out)}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := p.answer(&p.ready); err != nil {
		p.kill()
		return nil, fmt.Errorf("the %s did not become ready within a minute: %w", name, errors.Join(err, ctx.Err()))
	}
	return p, nil
}

func readConfig(file string) (cfg config, err error) {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return cfg, err
	}
	return cfg, json.Unmarshal(text, &cfg)
}

func (p *part) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *part) tell(what string) error {
	_, err := fmt.Fprintln(p.in, what)
	return err
}

// ask tells the part something and reads its answer.
func (p *part) ask(what string, answer any) error {
	if err := p.tell(what); err != nil {
		return err
	}
	return p.answer(answer)
}

func (p *part) answer(into any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

// cpuWhile is how much processor time each of the parts takes per second.
func cpuWhile(ctx context.Context, d time.Duration, parts ...*part) ([]float64, error) {
	used := make([]float64, len(parts))
	began := time.Now()
	for i, p := range parts {
		before, err := cpuTime(p.cmd.Process.Pid)
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
	for i, p := range parts {
		after, err := cpuTime(p.cmd.Process.Pid)
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
		return 0, fmt.Errorf("process %d has no /proc/%d/task/*/schedstat: it has ended, or this kernel does not count", pid, pid)
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

// resident is a process's memory in MB (10⁶ bytes).
func resident(pid int) float64 {
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
