// Command build makes the runtime bundle: everything native that gpulab runs
// on a node, built from pinned sources and packed into one archive that the
// release binary embeds.
//
//	go run ./packaging/runtime/build
//
// Run it from the repository. Built parts are kept in the user's cache folder
// under the hash of what they are made from, so only a part whose sources,
// flags or compilers changed is built again, in whatever checkout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var opts options
	flag.StringVar(&opts.out, "out", "assets/bundle/runtime.tar.zst", "write the archive to `file`, relative to the repository")
	flag.StringVar(&opts.cache, "cache", "", "keep built parts in `folder` (default gpulab/parts in the user's cache folder)")
	flag.BoolVar(&opts.small, "small", false, "pack as small as zstd can, which takes minutes: for a release")
	flag.Parse()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "runtime bundle:", err)
		os.Exit(1)
	}
}

type options struct {
	out, cache string
	small      bool
}

// run builds what is not cached, packs it and puts the archive where the
// assets package embeds it. It may run any number of times at once.
func run(ctx context.Context, opts options) error {
	root, err := repository(ctx)
	if err != nil {
		return err
	}
	if opts.cache == "" {
		if opts.cache, err = defaultCache(); err != nil {
			return err
		}
	}
	c, err := openCache(ctx, opts.cache)
	if err != nil {
		return err
	}
	defer c.close()

	c.progress = progress.New(os.Stdout)
	defer c.progress.Close()
	list, err := parts(root)
	if err != nil {
		return err
	}
	var entries []entry
	have := versions{root: root, known: map[string]string{}}
	for _, p := range list {
		e, err := c.obtain(ctx, root, p, have)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		entries = append(entries, e)
	}
	archive, err := c.pack(ctx, entries, have, opts.small)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	out := opts.out
	if !filepath.IsAbs(out) {
		out = filepath.Join(root, out)
	}
	if err := archive.install(out); err != nil {
		return err
	}
	return c.prune(time.Now().Add(-unusedAfter))
}

// repository is the checkout this runs in.
func repository(ctx context.Context) (string, error) {
	gomod, err := output(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	root := filepath.Dir(gomod)
	if _, err := os.Stat(filepath.Join(root, "packaging", "runtime", "k3s", "go.mod")); err != nil {
		return "", errors.New("run it from the gpulab repository: go run ./packaging/runtime/build")
	}
	return root, nil
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
