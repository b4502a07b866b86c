// Command build makes gpulab's container images from Debian packages, PyPI
// packages and Go modules, without a container registry or a container engine,
// and writes them as one OCI layout.
//
//	go run ./packaging/images/build -out bin/images
//
// Every layer is made once and kept in the user's cache folder under a key of
// everything that shapes it; README.md beside this folder tells the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gpulab/gpulab/packaging/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "images: stopped; finished layers are kept, so the next run goes on from here")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	out     string   // folder of the OCI layout
	source  string   // the packaging/images folder
	only    []string // names of images; empty means all
	locked  bool     // a package at another version than the lock's is an error
	refresh bool     // write the locks anew instead of building
	check   bool     // inspect and try the layout instead of building
}

func parse(args []string) (options, error) {
	var o options
	var only string
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", filepath.Join("bin", "images"), "folder to write the OCI layout to")
	flags.StringVar(&o.source, "source", filepath.Join("packaging", "images"), "folder of the images' sources")
	flags.StringVar(&only, "only", "", "comma-separated names of the images to build; others already in the layout stay")
	flags.BoolVar(&o.locked, "locked", false, "fail where Debian no longer serves a locked version")
	flags.BoolVar(&o.refresh, "refresh", false, "take today's versions and write the lock files; builds nothing")
	flags.BoolVar(&o.check, "check", false, "inspect the layout and run its programs as a person would; builds nothing")
	if err := flags.Parse(args); err != nil {
		return o, flag.ErrHelp
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; flags only, see -h", flags.Arg(0))
	}
	for _, name := range strings.Split(only, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.only = append(o.only, name)
		}
	}
	return o, nil
}

// run is the program without its process: it returns instead of exiting.
func run(ctx context.Context, args []string, stdout *os.File) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	wanted, err := imagesNamed(o.only)
	if err != nil {
		return err
	}
	if o.source, err = filepath.Abs(o.source); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.source, "base", "packages.txt")); err != nil {
		return fmt.Errorf("%s is not the folder of the images' sources; run this in the repository's root or give -source", o.source)
	}
	if err := ready(o); err != nil {
		return err
	}
	store, err := openCache()
	if err != nil {
		return err
	}
	release, err := store.lock(ctx, stdout)
	if err != nil {
		return err
	}
	defer release()

	b := &builder{source: o.source, cache: store, progress: progress.New(stdout), begun: map[string]*outcome{}}
	defer b.progress.Close()
	switch {
	case o.refresh:
		return b.refresh(ctx)
	case o.check:
		return b.check(ctx, o.out)
	}
	return b.buildAll(ctx, o, wanted)
}

// ready says in one sentence what this machine lacks.
func ready(o options) error {
	if os.Geteuid() != 0 {
		return errors.New("root is needed to unpack Debian packages with their owners; run this as root")
	}
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("images are built for amd64 only, and compiled where they run; this machine is %s", runtime.GOARCH)
	}
	var missing []string
	for program, pkg := range map[string]string{"mmdebstrap": "mmdebstrap", "ip": "iproute2", "unshare": "util-linux", "chroot": "coreutils", "dpkg-query": "dpkg", compress[0]: "zstd"} {
		if !have(program) {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	if _, err := os.Stat(debianKeyring); err != nil {
		missing = append(missing, "debian-archive-keyring")
	}
	if len(missing) > 0 && !o.check {
		return fmt.Errorf("missing here: %s; install with apt, or run packaging/prerequisites.sh build", strings.Join(missing, ", "))
	}
	return nil
}

// buildAll makes the wanted images and publishes them in o.out.
func (b *builder) buildAll(ctx context.Context, o options, wanted []image) error {
	built, errs := make([]builtImage, len(wanted)), make([]error, len(wanted))
	// The first failure ends the others.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for i, spec := range wanted {
		all.Go(func() {
			if built[i], errs[i] = b.image(ctx, spec); errs[i] != nil {
				stop(fmt.Errorf("image %s: %w", spec.name, errs[i]))
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if o.locked && len(b.drift) > 0 {
		return fmt.Errorf("%d packages differ from the locks (listed above); run with -refresh and look at the difference", len(b.drift))
	}
	changed, err := publish(o.out, built)
	if err != nil {
		return fmt.Errorf("writing %s: %w", o.out, err)
	}
	if err := b.cache.prune(); err != nil {
		return fmt.Errorf("pruning %s: %w", b.cache.dir, err)
	}
	if changed {
		b.progress.Line("%-12s %d of %d written to %s", "images", len(built), len(images), o.out)
	}
	return nil
}
