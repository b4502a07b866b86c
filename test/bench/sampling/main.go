// Command sampling measures what it costs to watch eight GPUs with ten
// processes each, once a second: gpulab's probe and monitor beside a loop over
// the API of nvitop from PyPI, with the same readings from the same simulated
// library, in one run and at the same time.
//
// gpulab's side is its probe, a process of its own, and a program around the
// monitor, which runs the probe, decodes its samples and finds out whose each
// process is. In the product that second part belongs to gpulab's one process;
// its share of the memory is what came on top of a program that only has
// gpulab's libraries.
//
// Run it as root, for the simulated driver's device nodes, with: go run
// ./test/bench/sampling. It needs a C compiler, make and python3 with venv;
// nvitop is installed into the user's cache folder from the requirements beside
// this file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sampling:", err)
		os.Exit(1)
	}
}

// run is the whole measurement, or the monitor's side of it, which is a process
// of its own so that its time and memory can be told apart.
func run(ctx context.Context, args []string) error {
	if len(args) == 4 && args[0] == "part-monitor" {
		return watch(ctx, args[1], args[2], args[3])
	}
	var b bench
	flags := flag.NewFlagSet("sampling", flag.ContinueOnError)
	flags.DurationVar(&b.duration, "duration", 20*time.Second, "length of one measurement")
	flags.IntVar(&b.rounds, "rounds", 3, "measurements; the median counts")
	flags.IntVar(&b.gpus, "gpus", 8, "simulated GPUs")
	flags.IntVar(&b.processes, "processes", 10, "processes on each GPU")
	asJSON := flags.Bool("json", false, "print the figures as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	figures, err := b.measure(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(figures)
	}
	figures.print()
	return nil
}

// bench is one measurement of both.
type bench struct {
	duration        time.Duration
	rounds          int
	gpus, processes int
}

// Figures are what was measured, medians over the rounds.
type Figures struct {
	Processors, GPUs, Processes int
	Nvitop                      string // version
	Peer, Own                   Side
	// Probe and Monitor are the two processes of Own.
	Probe, Monitor Side
	// MonitorShare is what of Monitor.Memory came with the monitor.
	MonitorShare float64
}

// Side is one way to watch.
type Side struct {
	CPU    float64 // milliseconds of processor time per second
	Memory float64 // MiB resident
}

func (b bench) measure(ctx context.Context) (f *Figures, err error) {
	dir, err := os.MkdirTemp("", "gpulab-bench-sampling-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	python, version, err := installNvitop(ctx)
	if err != nil {
		return nil, err
	}
	root, probe, err := b.build(ctx, dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- simdriver.Run(ctx, root) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-stopped)
	}()
	if err := b.occupy(ctx, root); err != nil {
		return nil, err
	}
	total := b.gpus * b.processes
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	own, err := startPart(ctx, exec.CommandContext(ctx, self, "part-monitor", probe, simdriver.Library(root),
		fmt.Sprint(total)))
	if err != nil {
		return nil, err
	}
	defer own.kill()
	loop := filepath.Join(dir, "loop.py")
	if err := os.WriteFile(loop, loopScript, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, loop, fmt.Sprint(total), "1")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(simdriver.Library(root)))
	peer, err := startPart(ctx, cmd)
	if err != nil {
		return nil, err
	}
	defer peer.kill()
	f = &Figures{Processors: runtime.NumCPU(), GPUs: b.gpus, Processes: b.processes, Nvitop: version}
	if err := b.watchBoth(ctx, f, own, peer); err != nil {
		return nil, err
	}
	return f, errors.Join(b.judge("nvitop's loop", peer), b.judge("gpulab", own))
}

// build makes the simulated driver and the probe, as they are shipped.
func (b bench) build(ctx context.Context, dir string) (root, probe string, err error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", "", err
	}
	repository := filepath.Dir(strings.TrimSpace(string(mod)))
	driver, probe := filepath.Join(dir, "driver"), filepath.Join(dir, "gpulab-probe")
	for _, args := range [][]string{
		{"make", "-C", filepath.Join(repository, "packaging/simdriver"), "OUT=" + driver},
		{"go", "build", "-C", repository, "-trimpath", "-ldflags=-s -w -extldflags=-Wl,-z,lazy", "-o", probe,
			"./cmd/gpulab-probe"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	root = filepath.Join(dir, "root")
	return root, probe, simdriver.Install(ctx, driver, root, b.gpus)
}

// occupy starts the processes and puts them on the GPUs.
func (b bench) occupy(ctx context.Context, root string) error {
	var script strings.Builder
	for g := range b.gpus {
		for n := range b.processes {
			cmd := exec.CommandContext(ctx, "sleep", "3600")
			if err := cmd.Start(); err != nil {
				return err
			}
			fmt.Fprintf(&script, "gpu %d process %d sm %d memory %dMiB\n", g, cmd.Process.Pid, 1+n%9, 300+100*n)
		}
	}
	return simdriver.Play(root, script.String())
}

// watchBoth measures both over the same seconds.
func (b bench) watchBoth(ctx context.Context, f *Figures, own, peer *part) error {
	const probe, monitor, nvitop = 0, 1, 2
	pids := []int{probe: own.ready.Probe, monitor: own.cmd.Process.Pid, nvitop: peer.cmd.Process.Pid}
	var cpu, memory [3][]float64
	for round := range b.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.rounds)
		var before [3]time.Duration
		began := time.Now()
		for i, pid := range pids {
			var err error
			if before[i], err = cpuTime(pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(b.duration):
		}
		took := time.Since(began).Seconds()
		for i, pid := range pids {
			after, err := cpuTime(pid)
			if err != nil {
				return err
			}
			cpu[i] = append(cpu[i], float64((after-before[i]).Microseconds())/1000/took)
			memory[i] = append(memory[i], resident(pid))
		}
	}
	side := func(i int) Side { return Side{CPU: median(cpu[i]), Memory: median(memory[i])} }
	f.Probe, f.Monitor, f.Peer = side(probe), side(monitor), side(nvitop)
	f.Own = Side{CPU: f.Probe.CPU + f.Monitor.CPU, Memory: f.Probe.Memory + f.Monitor.Memory}
	f.MonitorShare = f.Monitor.Memory - own.ready.WithoutMonitor
	return nil
}

// judge ends a part and checks that it has done its work: a sample a second,
// and in each of them every process.
func (b bench) judge(name string, p *part) error {
	done, err := p.end()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if want := int(float64(b.rounds) * b.duration.Seconds()); done.Complete < want*95/100 {
		return fmt.Errorf("%s took only %d whole samples in %d s: %s", name, done.Complete, want, done.Example)
	}
	return nil
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

func (f *Figures) print() {
	fmt.Printf("%d GPUs with %d processes each, once a second; %d processors; nvitop %s; medians\n\n", f.GPUs, f.Processes,
		f.Processors, f.Nvitop)
	fmt.Printf("%-44s %12s %12s %10s\n", "", "nvitop", "gpulab", "ratio")
	for _, row := range []struct {
		name      string
		peer, own float64
	}{
		{"processor time, ms per second", f.Peer.CPU, f.Own.CPU},
		{"resident memory, MiB", f.Peer.Memory, f.Own.Memory},
		{"of it with probe and monitor, MiB", f.Peer.Memory, f.Probe.Memory + f.MonitorShare},
	} {
		fmt.Printf("%-44s %12.2f %12.2f %9.2fx\n", row.name, row.peer, row.own, row.peer/row.own)
	}
	fmt.Printf("\ngpulab's probe alone: %.2f ms and %.1f MiB; the program around the monitor: %.2f ms and %.1f MiB, "+
		"%.1f MiB of it with the monitor.\n",
		f.Probe.CPU, f.Probe.Memory, f.Monitor.CPU, f.Monitor.Memory, f.MonitorShare)
}
