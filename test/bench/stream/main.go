// Command stream measures what it costs a head to hear fifty machines: each with
// eight GPUs and four processes on each, one reading a second over TLS with
// certificates on both sides, and every value moving.
//
// The head is gpulab's own receiving code in a process of its own: the door
// for machines, the list of those that belong to the pool in a real database,
// the fleet, the history on disk, and a reader who watches the fleet as a page
// does. Not in it are Kubernetes and the web pages, which test/bench/live
// measures. The machines are gpulab's own clients, each with a connection of its own.
//
// Beside it, as the ratio, the same with one machine. Run it with:
// go run ./test/bench/stream.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/test/bench/part"
)

const (
	gpus      = 8
	processes = 4 // on each GPU
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stream:", err)
		os.Exit(1)
	}
}

// run is the whole measurement or one of its parts.
func run(ctx context.Context, args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case "part-head":
			return serve(ctx, args[1])
		case "part-machines":
			return report(ctx, args[1])
		}
	}
	var b bench
	flags := flag.NewFlagSet("stream", flag.ContinueOnError)
	flags.DurationVar(&b.duration, "duration", 30*time.Second, "length of one measurement")
	flags.IntVar(&b.machines, "machines", 50, "machines")
	flags.StringVar(&b.profile, "profile", "", "also write the head's processor profile to this file")
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

type bench struct {
	duration time.Duration
	machines int
	profile  string
}

// Figures are what was measured.
type Figures struct {
	Processors int
	LoadBefore string // the machine's, over 1, 5 and 15 minutes
	Rows       []Row
}

// Row is one number of machines.
type Row struct {
	Machines    int
	CPU         float64 // processor seconds per second of the head
	Memory      float64 // MB (10⁶ bytes) resident of the head
	MachinesCPU float64 // processor seconds per second of all machines together
	Received    float64 // bytes per second and machine that the head reads, encrypted
	Sent        float64 // the same of what it writes
	Readings    float64 // per second and machine
	Late        float64 // milliseconds until the slowest reading was in the fleet
}

func (b bench) measure(ctx context.Context) (*Figures, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, err
	}
	f := &Figures{Processors: runtime.NumCPU(), LoadBefore: strings.Join(strings.Fields(string(load))[:3], " ")}
	for _, n := range []int{1, b.machines} {
		profile := ""
		if n == b.machines {
			profile = b.profile
		}
		row, err := b.hear(ctx, n, profile)
		if err != nil {
			return nil, fmt.Errorf("with %d machines: %w", n, err)
		}
		f.Rows = append(f.Rows, row)
	}
	return f, nil
}

// hear lets a number of machines report to a head, and measures.
func (b bench) hear(ctx context.Context, machines int, profile string) (Row, error) {
	r := Row{Machines: machines}
	dir, err := os.MkdirTemp("", "gpulab-bench-stream-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	head, err := part.Start[ready](ctx, dir, "head",
		config{Dir: filepath.Join(dir, "data"), Machines: machines, Profile: profile})
	if err != nil {
		return r, err
	}
	defer head.Kill()
	others, err := part.Start[ready](ctx, dir, "machines",
		config{Door: head.Ready.Door, Lab: head.Ready.Lab, Members: head.Ready.Members})
	if err != nil {
		return r, err
	}
	defer others.Kill()
	select { // until nothing of connecting is left
	case <-ctx.Done():
		return r, ctx.Err()
	case <-time.After(5 * time.Second):
	}
	var before, after heard
	if err := head.Ask("begin", &before); err != nil {
		return r, err
	}
	began := time.Now()
	cpu, err := part.CPUWhile(ctx, b.duration, head.PID(), others.PID())
	if err != nil {
		return r, err
	}
	r.Memory = part.Resident(head.PID())
	if err := head.Ask("end", &after); err != nil {
		return r, err
	}
	took := time.Since(began).Seconds() * float64(machines)
	r.CPU, r.MachinesCPU, r.Late = cpu[0], cpu[1], after.Late
	r.Readings = float64(after.Readings-before.Readings) / took
	r.Received, r.Sent = float64(after.Received-before.Received)/took, float64(after.Sent-before.Sent)/took
	switch {
	case after.Refused > 0:
		return r, fmt.Errorf("%d readings were refused", after.Refused)
	case after.Nodes != machines:
		return r, fmt.Errorf("%d machines were heard", after.Nodes)
	case r.Readings < 0.9:
		return r, errors.New("readings were missed: this machine is too busy to measure on")
	}
	return r, nil
}

func (f *Figures) print() {
	fmt.Printf("Machines with %d GPUs and %d processes on each, one reading a second, every value moving; %d "+
		"processors for all; load %s before\n\n",
		gpus, processes, f.Processors, f.LoadBefore)
	fmt.Printf("%9s %20s %10s %16s %21s %12s %12s\n", "machines", "CPU, s per s", "head's MB", "readings per",
		"bytes per machine, s", "slowest", "head's CPU")
	fmt.Printf("%9s %10s %9s %10s %16s %10s %10s %12s %12s\n", "", "head", "machines", "resident", "machine and s",
		"to head", "back", "reading, ms", "per machine")
	for _, r := range f.Rows {
		fmt.Printf("%9d %10.3f %9.3f %10.1f %16.2f %10.0f %10.0f %12.1f %12.4f\n", r.Machines, r.CPU, r.MachinesCPU, r.Memory,
			r.Readings, r.Received, r.Sent, r.Late, r.CPU/float64(r.Machines))
	}
	one, all := f.Rows[0], f.Rows[len(f.Rows)-1]
	fmt.Printf("\n%d machines cost %.1f × the processor time and %.2f × the memory of %d.\n", all.Machines,
		all.CPU/one.CPU, all.Memory/one.Memory, one.Machines)
	fmt.Printf("Goals: head < 1 core (%s), < 200 MB (%s).\n", verdict(all.CPU < 1), verdict(all.Memory < 200))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}
