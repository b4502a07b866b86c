package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

//go:embed loop.py
var loopScript []byte

//go:embed requirements.txt
var requirements []byte

// ready is the line by which a part says that it has seen all processes.
type ready struct {
	Ready bool
	Probe int `json:",omitempty"` // its process
	// WithoutMonitor is the process's memory in MiB before there was a monitor.
	WithoutMonitor float64 `json:",omitempty"`
}

// outcome is the line by which a part says what it has done.
type outcome struct {
	Samples  int
	Complete int // samples with every process, named, with memory and share
	Example  json.RawMessage
}

// part is a process that watches.
type part struct {
	cmd   *exec.Cmd
	out   *bufio.Reader
	ready ready
}

func startPart(ctx context.Context, cmd *exec.Cmd) (*part, error) {
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	p := &part{cmd: cmd, out: bufio.NewReader(stdout)}
	timer := time.AfterFunc(30*time.Second, p.kill)
	defer timer.Stop()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	if err == nil && !p.ready.Ready {
		err = fmt.Errorf("it ended at once: %s", line)
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("%s did not become ready within 30 s: %w", cmd, errors.Join(err, ctx.Err()))
	}
	return p, nil
}

func (p *part) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// end asks the part to end and returns what it has done.
func (p *part) end() (outcome, error) {
	var o outcome
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return o, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(line, &o)
}

// watch is gpulab's side: the monitor, which runs the probe.
func watch(ctx context.Context, probe, library, processes string) error {
	expected, err := strconv.Atoi(processes)
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	r := ready{Ready: true, WithoutMonitor: resident(os.Getpid())}
	var done outcome
	var last gpu.Snapshot
	var m *gpu.Monitor
	m = gpu.NewMonitor(gpu.MonitorConfig{
		ProbePath: probe, Library: library, Interval: time.Second,
		Publish: func(s gpu.Snapshot) {
			last = s
			if s.Error != "" {
				return
			}
			done.Samples++
			if complete(s) != expected {
				return
			}
			if done.Complete++; done.Complete == 1 {
				r.Probe = m.Probe().PID
				_ = json.NewEncoder(os.Stdout).Encode(r)
			}
		},
	})
	if err := m.Run(ctx); err != nil {
		return err
	}
	if len(last.GPUs) > 0 {
		done.Example, _ = json.Marshal(last.GPUs[0])
	}
	return json.NewEncoder(os.Stdout).Encode(done)
}

// complete counts the processes about which everything is known.
func complete(s gpu.Snapshot) int {
	n := 0
	for _, g := range s.GPUs {
		for _, p := range g.Processes {
			if p.UnixUser == "root" && p.Name != "" && p.MemoryUsed != nil && p.SMUtilization != nil && *p.SMUtilization > 0 {
				n++
			}
		}
	}
	return n
}

// cpuTime is the processor time that the process's threads have used, to the
// nanosecond; the ticks of /proc/PID/stat would be too coarse.
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

// resident is a process's memory in MiB.
func resident(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024
		}
	}
	return 0
}

// installNvitop makes a Python environment with nvitop in the cache folder,
// once per lock file.
func installNvitop(ctx context.Context) (python, version string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256(requirements)
	dir := filepath.Join(cache, "gpulab", "bench-sampling-"+hex.EncodeToString(sum[:6]))
	python = filepath.Join(dir, "bin", "python")
	complete, lock := filepath.Join(dir, "complete"), filepath.Join(dir, "requirements.txt")
	if _, err := os.Stat(complete); err != nil {
		for _, args := range [][]string{
			{"python3", "-m", "venv", "--clear", dir},
			{python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes", "-r", lock},
			{"touch", complete},
		} {
			if args[0] == python {
				if err := os.WriteFile(lock, requirements, 0o600); err != nil {
					return "", "", err
				}
			}
			if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
				return "", "", fmt.Errorf("%s: %w (python3 with venv is needed)\n%s", strings.Join(args, " "), err, out)
			}
		}
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import nvitop; print(nvitop.__version__)").Output()
	if err != nil {
		return "", "", fmt.Errorf("nvitop in %s: %w", dir, err)
	}
	return python, strings.TrimSpace(string(out)), nil
}
