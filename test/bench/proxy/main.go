// Command proxy measures gpulab's proxy beside JupyterHub's stock proxy, npm's
// configurable-http-proxy, in one run: requests and WebSocket round trips per
// second, processor time per request, resident memory.
//
// Both route by the same 200 routes, to the same backends, under one load
// generator, in turns. gpulab's proxy does all it does in the lab: it finds the
// visitor's session in gpulab's database, checks the owner, takes the target from
// the pods and cleans the headers both ways. The stock proxy authorises nobody.
// Both speak plain HTTP here, so that routing is compared and not TLS libraries.
//
// Run it with: go run ./test/bench/proxy. It needs node and npm; the stock proxy
// is installed into the user's cache folder from the lock file beside this one.
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
	"syscall"
	"time"
)

const routeCount = 200

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

// run starts one of the parts, each a process of its own so that its time and
// memory can be told apart, or the whole measurement.
func run(ctx context.Context, args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case "part-backend":
			return serveBackend(ctx, args[1])
		case "part-gpulab":
			return serveGpulab(ctx, args[1])
		case "part-load":
			return makeLoad(ctx, args[1])
		}
	}
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	b := bench{}
	flags.DurationVar(&b.duration, "duration", 6*time.Second, "length of one measurement")
	flags.IntVar(&b.rounds, "rounds", 3, "measurements of each kind and proxy; the median counts")
	flags.IntVar(&b.connections, "connections", 40, "connections of the load generator, each one person's")
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

// bench is one measurement of both proxies.
type bench struct {
	duration    time.Duration
	rounds      int
	connections int
}

// Figures are what was measured, medians over the rounds.
type Figures struct {
	Processors int
	Node       string
	Routes     int
	Stock, Own Side
}

// Side is one proxy.
type Side struct {
	Requests     float64 // per second
	CPU          float64 // microseconds of processor time per request
	P99          float64 // milliseconds
	RoundTrips   float64 // WebSocket messages there and back, per second
	RoundTripCPU float64 // microseconds
	IdleMemory   float64 // MiB resident after the routes are set
	Memory       float64 // MiB resident after all load
	Share        float64 // MiB of Memory that came with the proxy
}

func (b bench) measure(ctx context.Context) (*Figures, error) {
	dir, err := os.MkdirTemp("", "gpulab-bench-proxy-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	script, node, err := installStock(ctx)
	if err != nil {
		return nil, err
	}
	backend, err := startPart(ctx, dir, "backend", partConfig{})
	if err != nil {
		return nil, err
	}
	defer backend.stop()
	own, err := startPart(ctx, dir, "gpulab", partConfig{Backend: backend.ready.Address, Dir: filepath.Join(dir, "data")})
	if err != nil {
		return nil, err
	}
	defer own.stop()
	stock, err := startStock(ctx, script)
	if err != nil {
		return nil, err
	}
	defer stock.stop()
	figures := &Figures{Processors: runtime.NumCPU(), Node: node, Routes: routeCount}
	for _, p := range []*process{stock, own} {
		if err := addRoutes(ctx, p, backend.ready.Address); err != nil {
			return nil, err
		}
	}
	figures.Stock.IdleMemory, figures.Own.IdleMemory = stock.resident(), own.resident()
	return figures, b.inTurns(ctx, dir, figures, stock, own)
}

// inTurns measures both proxies in turns, so that whatever else the machine
// does falls on both.
func (b bench) inTurns(ctx context.Context, dir string, f *Figures, stock, own *process) error {
	sides := []struct {
		process *process
		side    *Side
	}{{stock, &f.Stock}, {own, &f.Own}}
	samples := make([]struct{ rate, cpu, p99, trips, tripCPU []float64 }, len(sides))
	for round := range b.rounds {
		for i, s := range sides {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, b.rounds, s.process.name)
			for _, webSocket := range []bool{false, true} {
				got, err := b.load(ctx, dir, s.process, own.ready.Cookies, webSocket)
				if err != nil {
					return fmt.Errorf("load on %s: %w", s.process.name, err)
				}
				if webSocket {
					samples[i].trips = append(samples[i].trips, got.Rate)
					samples[i].tripCPU = append(samples[i].tripCPU, got.cpu)
				} else {
					samples[i].rate = append(samples[i].rate, got.Rate)
					samples[i].cpu = append(samples[i].cpu, got.cpu)
					samples[i].p99 = append(samples[i].p99, got.P99)
				}
			}
		}
	}
	for i, s := range sides {
		s.side.Requests, s.side.CPU, s.side.P99 = median(samples[i].rate), median(samples[i].cpu), median(samples[i].p99)
		s.side.RoundTrips, s.side.RoundTripCPU = median(samples[i].trips), median(samples[i].tripCPU)
		s.side.Memory = s.process.resident()
		s.side.Share = s.side.Memory - s.process.ready.WithoutProxy
	}
	return nil
}

func (f *Figures) print() {
	fmt.Printf("%d routes, %d processors shared by proxy, backend and load generator; node %s; medians\n\n", f.Routes,
		f.Processors, f.Node)
	fmt.Printf("%-40s %14s %14s %10s\n", "", "stock proxy", "gpulab", "ratio")
	defer fmt.Println("\nIn the lab the proxy is part of gpulab's one process, which holds database and accounts anyway:" +
		"\nthe last row counts what came on top of them. The stock proxy is a process of its own.")
	for _, row := range []struct {
		name       string
		stock, own float64
	}{
		{"requests/s", f.Stock.Requests, f.Own.Requests},
		{"processor time per request, µs", f.Stock.CPU, f.Own.CPU},
		{"99th percentile, ms", f.Stock.P99, f.Own.P99},
		{"WebSocket round trips/s", f.Stock.RoundTrips, f.Own.RoundTrips},
		{"processor time per round trip, µs", f.Stock.RoundTripCPU, f.Own.RoundTripCPU},
		{"resident with routes, idle, MiB", f.Stock.IdleMemory, f.Own.IdleMemory},
		{"resident after load, MiB", f.Stock.Memory, f.Own.Memory},
		{"of it with the proxy, MiB", f.Stock.Share, f.Own.Share},
	} {
		fmt.Printf("%-40s %14.1f %14.1f %9.2fx\n", row.name, row.stock, row.own, row.own/row.stock)
	}
}

var errNoRequests = errors.New("nothing got through")
