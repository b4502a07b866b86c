// Command build builds gpulab and everything that it brings along:
//
//	go run ./packaging/build [-version V] [-small] [-own] [-out FILE] [runtime] [images] [clients] [program]
//
// Without names it builds all four, side by side where they do not need each other. What was built before and has not
// changed is taken from the user's cache folder.
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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// archive is where the program embeds the runtime bundle from.
const archive = "assets/bundle/runtime.tar.zst"

type options struct {
	version string
	out     string
	small   bool
	own     bool
	parts   []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.version, "version", "", "version of this build")
	flag.StringVar(&o.out, "out", "bin/gpulab", "write the program to `file`")
	flag.BoolVar(&o.small, "small", false, "pack the runtime bundle as small as possible, for a release; takes minutes")
	flag.BoolVar(&o.own, "own", false, "of the clients, build the one for this machine's system and those built before")
	flag.Parse()
	o.parts = flag.Args()
	// Compilers end soon. Four times the memory for their garbage takes a fifth off their time.
	if os.Getenv("GOGC") == "" {
		_ = os.Setenv("GOGC", "400")
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	all := []string{"runtime", "images", "clients", "program"}
	for _, name := range o.parts {
		if !slices.Contains(all, name) {
			return fmt.Errorf("there is no part %q; the parts are %s", name, strings.Join(all, ", "))
		}
	}
	if len(o.parts) == 0 {
		o.parts = all
	}
	tools, err := os.MkdirTemp("", "gpulab-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tools)
	b := &build{options: o, told: progress.New(os.Stdout), tools: tools}
	defer b.told.Close()
	return b.run(ctx)
}

// build is one run.
type build struct {
	options
	told  *progress.Reporter
	tools string // folder of the programs that build the parts
}

func (b *build) run(ctx context.Context) error {
	if cache, err := os.UserCacheDir(); err == nil && b.wanted("runtime") {
		if _, err := os.Stat(filepath.Join(cache, "gpulab", "parts")); os.IsNotExist(err) {
			b.told.Line("Everything is built from source, which takes about 17 minutes on two processors.")
			b.told.Line("Later builds take what has not changed from %s.", filepath.Join(cache, "gpulab"))
		}
	}
	parts, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	fork := func(what func(context.Context) error) {
		all.Go(func() {
			if err := what(parts); err != nil {
				stop(err)
			}
		})
	}
	fork(func(ctx context.Context) error {
		if err := b.runtime(ctx); err != nil {
			return err
		}
		// After k3s, which takes all processors as well. The version leaves out the commit, so that the clients change
		// only with their code, and tests that embed them need not run again after every commit.
		version, _, _ := strings.Cut(b.version, "+")
		return b.helper(ctx, "clients", "clients", "-version", version, fmt.Sprintf("-own=%t", b.own))
	})
	fork(func(ctx context.Context) error { return b.helper(ctx, "images", "images/build", "-out", "bin/images") })
	if b.wanted("program") {
		fork(func(ctx context.Context) error {
			// Modules come while the processors are busy with other parts. Where that fails, building the program says why.
			_ = gobuild.Gpulab(b.version, b.out).Download(ctx, b.told.Go(io.Discard))
			return nil
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := context.Cause(parts); err != nil {
		return err
	}
	return b.program(ctx)
}

func (b *build) wanted(part string) bool { return slices.Contains(b.parts, part) }

func (b *build) runtime(ctx context.Context) error {
	flags := []string{"-out", archive}
	if b.small {
		flags = []string{"-small", "-out", b.bundle()}
	}
	return b.helper(ctx, "runtime", "runtime/build", flags...)
}

// bundle is the archive that the program embeds.
func (b *build) bundle() string {
	if b.small {
		return filepath.Join(filepath.Dir(b.out), filepath.Base(archive))
	}
	return archive
}

// helper builds the program that builds a part, and runs it.
func (b *build) helper(ctx context.Context, part, folder string, args ...string) error {
	if !b.wanted(part) {
		return nil
	}
	program := filepath.Join(b.tools, part)
	said := b.told.Go(nil)
	cmd := gobuild.Command(ctx, "go", "build", "-o", program, "./packaging/"+folder)
	cmd.Stderr = said
	err := cmd.Run()
	_ = said.Close()
	if err != nil {
		return failed(ctx, part, err)
	}
	cmd = gobuild.Command(ctx, program, args...)
	cmd.WaitDelay *= 2 // the program ends its own first
	ended := b.told.Show(cmd)
	err = cmd.Run()
	ended()
	return failed(ctx, part, err)
}

var errInterrupted = errors.New("interrupted; what was built so far is kept")

// failed names a part that could not be built; its program has said why.
func failed(ctx context.Context, part string, err error) error {
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("%s: %w", part, err)
	}
	return nil
}

// program builds gpulab.
func (b *build) program(ctx context.Context) error {
	if !b.wanted("program") {
		return nil
	}
	compiling := gobuild.Gpulab(b.version, b.out)
	if b.small {
		overlay, err := b.overlay()
		if err != nil {
			return err
		}
		compiling.Flags = append(compiling.Flags, "-overlay", overlay)
	}
	shown := b.told.Begin("gpulab")
	defer shown.Failed()
	if err := compiling.Run(ctx, shown, os.Stderr); err != nil {
		return failed(ctx, "gpulab", err)
	}
	info, err := os.Stat(b.out)
	if err != nil {
		return err
	}
	shown.Done("%.0f MB, %s", float64(info.Size())/1e6, b.out)
	return nil
}

// overlay makes Go embed the bundle of a release, and leaves the checkout's as it is.
func (b *build) overlay() (string, error) {
	from, err := filepath.Abs(archive)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(b.bundle())
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {from: to}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(b.tools, "overlay.json")
	return file, os.WriteFile(file, text, 0o644)
}
