//go:build cgo

// Command gpulab-probe asks NVIDIA's management library what the GPUs of this
// machine do, and writes a gpu.Snapshot as one line of JSON each second.
//
// It is a program of its own because the library belongs to the driver: it may
// be missing, older than expected, crash or hang, and must not take gpulab
// with it. Every call is optional, a call that not every driver has is looked
// up first, and a GPU that hangs is left behind, so that it stalls only its own
// readings.
//
// With -limits it sets how much of a GPU's memory control groups may take
// instead, where the driver can keep such limits, and ends.
//
// Build it with CGO_ENABLED=1 and -ldflags "-extldflags=-Wl,-z,lazy": the
// library's functions are bound when they are first called, after it has been
// loaded at run time. The result needs nothing but libc.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitFailed = 1 // said on standard error
	exitUsage  = 2
	exitDriver = 3 // no driver, or one that cannot be asked
	exitOthers = 4 // there are other GPUs now than at the start
)

func main() {
	runtime.GOMAXPROCS(1)  // there is one thing to do at a time, and waking others is not free
	debug.SetGCPercent(25) // of garbage there is little, but 4 MB of it would double the size of this process
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	library  string
	pace     pace
	patience time.Duration
	sysfs    string
	procfs   string
	kmsg     string
	cgroups  string
	limits   bool
	once     bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("gpulab-probe", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.library, "lib", "libnvidia-ml.so.1", "NVIDIA's management library, a name or a `path`")
	f.DurationVar(&o.pace.interval, "interval", time.Second, "`time` between two samples")
	f.DurationVar(&o.pace.slow, "slow", 10*time.Second, "`time` between two readings of what hardly changes")
	f.DurationVar(&o.pace.restAfter, "rest-after", 30*time.Second,
		"`time` without work after which a card that may power itself down is left alone")
	f.DurationVar(&o.pace.rest, "rest", 20*time.Second, "`time` for which it is then left alone")
	f.StringVar(&o.sysfs,
		"sysfs", "", "`folder` of the kernel's view of devices; default /sys, and none for simulated GPUs")
	f.StringVar(&o.procfs, "procfs", "", "`folder` in which the driver tells of its cards, beside -sysfs")
	f.StringVar(&o.kmsg, "kmsg", "", "`file` of the kernel's log, or none; default /dev/kmsg, and the simulated "+
		"driver's for simulated GPUs")
	f.DurationVar(&o.patience, "patience", 3*time.Second, "`time` after which a GPU that does not answer is reported")
	f.StringVar(&o.cgroups, "cgroups", "/sys/fs/cgroup", "`folder` in which control groups are mounted")
	f.BoolVar(&o.limits, "limits", false, "read memory limits from standard input, a list as JSON, set them, write "+
		"what was wrong with each, and end")
	f.BoolVar(&o.once, "once", false, "write one sample, indented, and end")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.pace.interval < 50*time.Millisecond || o.pace.slow < o.pace.interval || o.patience <= 0 {
		err := errors.New("gpulab-probe: no arguments besides flags, an interval of at least 50ms, and slow at least the " +
			"interval")
		fmt.Fprintln(stderr, err)
		return o, err
	}
	return o, nil
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdin *os.File, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}
	d, err := openDriver(o.library)
	if err != nil {
		fmt.Fprintln(stderr, "gpulab-probe:", err)
		return exitDriver
	}
	d.cgroups = o.cgroups
	switch {
	case o.limits:
		err = d.setMemoryLimits(stdin, stdout)
	case o.once:
		err = writeOnce(ctx, newProbe(d, o, stderr), stdout)
	default:
		err = writeSamples(endWith(ctx, stdin), newProbe(d, o, stderr), stdout)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "gpulab-probe:", err)
	if errors.As(err, new(otherGPUs)) {
		return exitOthers
	}
	return exitFailed
}

// otherGPUs is the reason to end when there are other GPUs than at the start.
type otherGPUs struct{ error }

// writeSamples writes a line for each interval until ctx ends, or nobody reads.
func writeSamples(ctx context.Context, p *probe, stdout io.Writer) error {
	// The driver may hang, so it is never asked by the one who writes.
	others := make(chan error, 1)
	go func() { others <- p.awaitChange(ctx) }()
	lines := json.NewEncoder(stdout)
	tick := time.NewTicker(p.pace.interval)
	defer tick.Stop()
	p.read()
	p.awaitFirst(ctx, p.pace.interval)
	for {
		if err := lines.Encode(p.snapshot(time.Now())); errors.Is(err, syscall.EPIPE) {
			return nil // the reader has gone
		} else if err != nil {
			return fmt.Errorf("writing a sample: %w", err)
		}
		go p.watchLinks()
		select {
		case <-ctx.Done():
			return nil
		case err := <-others:
			if err == nil {
				return nil
			}
			return otherGPUs{err}
		case <-tick.C:
		}
		p.read()
	}
}

// writeOnce writes one sample for a person to read.
func writeOnce(ctx context.Context, p *probe, stdout io.Writer) error {
	p.read()
	p.awaitFirst(ctx, p.patience)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watchLinks()
	}()
	select {
	case <-watched:
	case <-time.After(p.patience):
	case <-ctx.Done():
	}
	p.read() // what was counted on the links belongs to the next sample
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	return out.Encode(p.snapshot(time.Now()))
}

// endWith returns a context that ends when stdin does. The one who started us
// holds the other end, so it closes even if that one is killed. Standard input
// that is no pipe says nothing about anybody.
func endWith(ctx context.Context, stdin *os.File) context.Context {
	info, err := stdin.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx
}
