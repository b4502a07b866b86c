// Command live measures how fast a changed value is on the pages, and what it
// costs to keep many of them live: from the change in the driver, and from the
// sample of the GPU, to a browser that has the new fragment of the page, with 1,
// 50 and 500 pages open.
//
// Eight simulated GPUs with ten processes each are watched by gpulab's probe and
// monitor, as in the product, and every value moves every second. The simulated
// driver begins anew every two seconds, a little later each time: so its changes
// fall everywhere between two samples. What the monitor
// publishes goes into the fleet, the history and the pages as in the product;
// people, sessions, launches and history are in real databases, and the pages
// are read over TLS and HTTP/2. Every page is another person's, on a connection
// of its own; of five, three show all GPUs, one is the home page, and one shows
// one GPU. There is no cluster: the launches wait, and this program says whose
// pods the GPUs' processes are in (every process is another student's).
//
// The pages' server and the readers are processes of their own, so that their
// processor time can be told apart; they share the machine's processors. A page
// has a value when the event that brings it has arrived whole and decrypted;
// painting is the browser's.
//
// Run it as root, for the simulated driver's device nodes, with: go run
// ./test/bench/live. It needs a C compiler and make.
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
	"github.com/gpulab/gpulab/test/bench/part"
)

const (
	gpus      = 8
	processes = 10 // on each GPU
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "live:", err)
		os.Exit(1)
	}
}

// run is the whole measurement or one of its parts.
func run(ctx context.Context, args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case "part-server":
			return serve(ctx, args[1])
		case "part-readers":
			return read(ctx, args[1])
		}
	}
	var b bench
	flags := flag.NewFlagSet("live", flag.ContinueOnError)
	flags.DurationVar(&b.duration, "duration", 20*time.Second, "length of one measurement")
	pages := flags.String("pages", "1,50,500", "how many pages are open, one measurement each")
	flags.StringVar(&b.profile, "profile", "", "also write the server's processor profile of the last measurement to "+
		"this file")
	asJSON := flags.Bool("json", false, "print the figures as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for word := range strings.SplitSeq(*pages, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("-pages: %q is no number of pages", word)
		}
		b.pages = append(b.pages, n)
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

// bench is one measurement for each number of pages.
type bench struct {
	duration time.Duration
	pages    []int
	profile  string
}

// Figures are what was measured.
type Figures struct {
	Processors int
	LoadBefore string  // the machine's, over 1, 5 and 15 minutes
	IdleCPU    float64 // processor seconds per second of the server without pages
	Rows       []Row
}

// Row is one number of pages. Delays are in milliseconds.
type Row struct {
	Pages         int
	P50, P99, Max float64 // from the sample to the page
	ChangeP50     float64 // from the change in the driver to the page
	ChangeP99     float64
	PublishP99    float64 // of it until the monitor has published the sample
	CPU           float64 // processor seconds per second of the server
	ReadersCPU    float64 // the same of all pages' readers
	Memory        float64 // MB (10⁶ bytes) resident of the server
	Bytes         float64 // per page and second, before encryption
	Missed        float64 // share of new values that a page did not get before the next
	Values        int     // that were waited for
}

func (b bench) measure(ctx context.Context) (f *Figures, err error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, err
	}
	f = &Figures{Processors: runtime.NumCPU(), LoadBefore: strings.Join(strings.Fields(string(load))[:3], " ")}
	dir, err := os.MkdirTemp("", "gpulab-bench-live-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	root, probe, err := build(ctx, dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- drive(ctx, root) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-stopped)
	}()
	if err := occupy(ctx, root); err != nil {
		return nil, err
	}
	changed := newChanges(simdriver.StateFile(root))
	go changed.follow(ctx)
	server, err := part.Start[ready](ctx, dir, "server", config{
		Dir: filepath.Join(dir, "data"), Probe: probe, Library: simdriver.Library(root), People: slices.Max(b.pages),
		Profile: b.profile,
	})
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	idle, err := part.CPUWhile(ctx, 5*time.Second, server.PID())
	if err != nil {
		return nil, err
	}
	f.IdleCPU = idle[0]
	for _, pages := range b.pages {
		fmt.Fprintf(os.Stderr, "%d pages\n", pages)
		row, err := b.watch(ctx, dir, server, pages, changed)
		if err != nil {
			return nil, fmt.Errorf("with %d pages: %w", pages, err)
		}
		f.Rows = append(f.Rows, row)
	}
	return f, nil
}

// build makes the simulated driver and the probe, as they are shipped.
func build(ctx context.Context, dir string) (root, probe string, err error) {
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
	return root, probe, simdriver.Install(ctx, driver, root, gpus)
}

// marks is how many seconds pass until a GPU's use is the same again. It is how
// a page's value is led back to its sample.
const marks = 97

// occupy puts processes on the GPUs and moves every GPU's use once a second.
func occupy(ctx context.Context, root string) error {
	var script strings.Builder
	for g := range gpus {
		for n := range processes {
			cmd := exec.CommandContext(ctx, "sleep", "3600")
			if err := cmd.Start(); err != nil {
				return err
			}
			fmt.Fprintf(&script, "gpu %d process %d sm %d memory %dMiB\n", g, cmd.Process.Pid, 1+n%9, 300+100*n)
		}
		for second := range 3600 {
			fmt.Fprintf(&script, "at %ds gpu %d use %d\n", second, g, 1+second%marks)
		}
	}
	return simdriver.Play(root, script.String())
}

// watch opens the pages and measures.
func (b bench) watch(ctx context.Context, dir string, server *part.Part[ready], pages int, c *changes) (Row, error) {
	readers, err := part.Start[ready](ctx, dir, "readers",
		config{
			Address: server.Ready.Address, CA: server.Ready.CA, UUIDs: server.Ready.UUIDs, Cookies: server.Ready.Cookies[:pages],
		})
	if err != nil {
		return Row{}, err
	}
	defer readers.Kill()
	select { // until nothing of connecting is left
	case <-ctx.Done():
		return Row{}, ctx.Err()
	case <-time.After(3 * time.Second):
	}
	if pages == b.pages[len(b.pages)-1] {
		if err := server.Tell("profile"); err != nil {
			return Row{}, err
		}
	}
	begin := time.Now()
	cpu, err := part.CPUWhile(ctx, b.duration, server.PID(), readers.PID())
	if err != nil {
		return Row{}, err
	}
	end := time.Now()
	select { // the last values arrive
	case <-ctx.Done():
		return Row{}, ctx.Err()
	case <-time.After(2 * time.Second):
	}
	memory := part.Resident(server.PID())
	var seen arrivals
	if err := readers.Ask("", &seen); err != nil {
		return Row{}, fmt.Errorf("the readers: %w", err)
	}
	var samples []sample
	if err := server.Ask("samples", &samples); err != nil {
		return Row{}, fmt.Errorf("the server: %w", err)
	}
	row := Row{Pages: pages, CPU: cpu[0], ReadersCPU: cpu[1], Memory: memory}
	return row, row.judge(samples, seen, c, begin, end)
}

// judge compares when values changed and were sampled with when they were on the pages.
func (r *Row) judge(samples []sample, seen arrivals, c *changes, begin, end time.Time) error {
	var delays, sinceChange, publish []float64
	for _, s := range samples {
		if s.Published.Before(begin) || s.Published.After(end) {
			continue
		}
		publish = append(publish, milliseconds(s.Published.Sub(s.Sampled)))
		r.Values += seen.Shows[s.UUID]
		for _, at := range seen.At[s.key()] {
			// The same value comes again only after marks seconds.
			if d := time.UnixMicro(at).Sub(s.Sampled); d > -time.Second && d < marks/2*time.Second {
				delays = append(delays, milliseconds(d))
				sinceChange = append(sinceChange, milliseconds(time.UnixMicro(at).Sub(c.before(s.Sampled, s.Use))))
			}
		}
	}
	if len(delays) == 0 {
		return errors.New("no page has got a new value")
	}
	slices.Sort(delays)
	slices.Sort(publish)
	slices.Sort(sinceChange)
	r.ChangeP50, r.ChangeP99 = sinceChange[len(sinceChange)/2], sinceChange[len(sinceChange)*99/100]
	r.P50, r.P99, r.Max = delays[len(delays)/2], delays[len(delays)*99/100], delays[len(delays)-1]
	r.PublishP99 = publish[len(publish)*99/100]
	r.Missed = max(0, 1-float64(len(delays))/float64(r.Values))
	seconds, bytes := 0, 0
	for second := begin.Unix() + 1; second < end.Unix(); second++ {
		seconds++
		bytes += seen.Bytes[second]
	}
	r.Bytes = float64(bytes) / float64(seconds) / float64(r.Pages)
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (f *Figures) print() {
	fmt.Printf("%d GPUs with %d processes each, sampled every 0.9 s, every value moving; %d processors for all; load "+
		"%s before\n\n",
		gpus, processes, f.Processors, f.LoadBefore)
	fmt.Printf("%6s %18s %27s %12s %18s %12s %12s %8s\n", "pages", "driver to page, ms", "sample to page, ms",
		"of it until", "CPU, s per s", "server's, ms", "bytes per", "missed")
	fmt.Printf("%6s %9s %8s %9s %8s %8s %12s %9s %8s %12s %12s %8s\n", "", "p50", "p99", "p50", "p99", "max", "published",
		"server", "readers", "per page", "page and s", "")
	for _, r := range f.Rows {
		fmt.Printf("%6d %9.1f %8.1f %9.1f %8.1f %8.1f %12.1f %9.3f %8.3f %12.2f %12.0f %7.2f%%\n", r.Pages, r.ChangeP50,
			r.ChangeP99, r.P50, r.P99, r.Max, r.PublishP99, r.CPU, r.ReadersCPU,
			(r.CPU-f.IdleCPU)/float64(r.Pages)*1000, r.Bytes, r.Missed*100)
	}
	last := f.Rows[len(f.Rows)-1]
	fmt.Printf("\nWithout pages the server takes %.3f s of processor time per second; with %d it has %.0f MB.\n",
		f.IdleCPU, last.Pages, last.Memory)
	fmt.Println("A change in the driver waits up to a second for its sample, half a second in the mean.")
}
