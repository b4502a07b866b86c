package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// A part is how one layer is made. It is described by data only, so that its
// cache key can be computed without making it.
type part struct {
	folder string   // its sources, below packaging/images; also its name
	on     []string // the layers of the root it is made in, lowest first
	kind   kind
	of     program // for goProgram
}

// program is a statically linked Go program.
type program struct {
	main   string // its package
	module string // the module it comes from, unless that is the folder's own
	name   string // in the image, at its top
	flags  string // of the linker, with VERSION for the module's version
	// patches are of modules it is built from.
	patches []gobuild.Patch
}

// kind is the way a part is made.
type kind int

const (
	debian    kind = iota // packages.txt on top of the layers below
	fromRoot              // what install.sh changes in a root
	compiled              // what install.sh puts into /out
	goProgram             // one static Go program, built on this machine
)

// builder makes parts once each and remembers them.
type builder struct {
	source   string
	cache    *cache
	progress *progress.Reporter

	mu    sync.Mutex
	begun map[string]*outcome
	drift []string
	// At most one Go program is built at a time, which takes all processors, and one other part, which takes one.
	compiling, making sync.Mutex
}

// outcome is a layer that is made, or was, by one of those who want it.
type outcome struct {
	ended chan struct{}
	layer layer
	err   error
	made  bool // not from the cache
}

// mechanism is the code that shapes layers: a change to it rebuilds those of
// the kinds that it serves.
//
//go:embed tree.go root.go debian.go make.go
var mechanism embed.FS

// mechanismOf names the files of mechanism that a kind of part depends on.
func mechanismOf(k kind) []string {
	switch k {
	case debian:
		return []string{"debian.go", "root.go", "tree.go"}
	case goProgram:
		return []string{"make.go", "tree.go"}
	}
	return []string{"make.go", "root.go", "tree.go"}
}

// key names a part's result by everything that shapes it.
func (b *builder) key(ctx context.Context, name string) (string, error) {
	p := parts[name]
	k := &keyer{}
	k.add(p.folder, fmt.Sprint(p.kind), p.of.module, p.of.main, p.of.name, p.of.flags)
	for _, change := range p.of.patches {
		k.add(fmt.Sprintf("%+v", change))
	}
	for _, lower := range p.on {
		sum, err := b.key(ctx, lower)
		if err != nil {
			return "", err
		}
		k.add(sum)
	}
	for _, file := range mechanismOf(p.kind) {
		code, err := mechanism.ReadFile(file)
		if err != nil {
			return "", err
		}
		k.add(string(code))
	}
	folder := filepath.Join(b.source, p.folder)
	if err := k.addTree(folder); err != nil {
		return "", err
	}
	if isGoModule(folder) {
		version, err := output(ctx, folder, "go", "env", "GOVERSION")
		if err != nil {
			return "", err
		}
		k.add(version)
		k.add(gobuild.Flags...)
		k.add(gobuild.PureGo)
	}
	return k.sum(), nil
}

func isGoModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// layer returns a part, made now if neither this run nor the cache has it. Parts may be asked for side by side.
func (b *builder) layer(ctx context.Context, name string) (layer, error) {
	b.mu.Lock()
	o, begun := b.begun[name]
	if !begun {
		o = &outcome{ended: make(chan struct{})}
		b.begun[name] = o
	}
	b.mu.Unlock()
	if begun {
		<-o.ended
		return o.layer, o.err
	}
	defer close(o.ended)
	o.layer, o.made, o.err = b.obtain(ctx, name)
	return o.layer, o.err
}

func (b *builder) obtain(ctx context.Context, name string) (l layer, made bool, err error) {
	key, err := b.key(ctx, name)
	if err != nil {
		return layer{}, false, err
	}
	l, cached := b.cache.get(key)
	if cached {
		b.progress.Cached(name)
	} else if l, err = b.makeLayer(ctx, name, key); err != nil {
		return layer{}, false, err
	}
	for _, d := range l.Drift {
		b.progress.Line("%s: %s", name, d)
	}
	b.mu.Lock()
	b.drift = append(b.drift, l.Drift...)
	b.mu.Unlock()
	return l, !cached, nil
}

// makeLayer makes a part in a temporary folder and stores it under key.
func (b *builder) makeLayer(ctx context.Context, name, key string) (l layer, err error) {
	p := parts[name]
	below, err := b.layers(ctx, p.on)
	if err != nil {
		return layer{}, err
	}
	lane := &b.making
	if isGoModule(filepath.Join(b.source, p.folder)) {
		lane = &b.compiling
	}
	lane.Lock()
	defer lane.Unlock()
	if ctx.Err() != nil {
		return layer{}, ctx.Err()
	}
	shown := b.progress.Begin(name)
	defer func() {
		if err != nil {
			shown.Failed()
		}
	}()
	logFile := filepath.Join(b.cache.dir, "logs", name+".log")
	log, err := os.Create(logFile)
	if err != nil {
		return layer{}, err
	}
	defer log.Close()
	work, err := b.cache.temp(name)
	if err != nil {
		return layer{}, err
	}
	defer os.RemoveAll(work)
	t, drift, err := b.content(ctx, p, below, work, log, shown)
	if ctx.Err() != nil {
		return layer{}, ctx.Err()
	}
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w%s", name, err, tail(logFile))
	}
	shown.Status("packing")
	l, err = writeLayer(ctx, t, filepath.Join(work, "layer.blob"))
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w", name, err)
	}
	l.Drift, l.Created = drift, "gpulab "+name
	if l, err = b.cache.put(key, l); err != nil {
		return layer{}, fmt.Errorf("%s: storing in the cache: %w", name, err)
	}
	shown.Done("%s (%s compressed)", megabytes(l.Tar), megabytes(l.Size))
	return l, nil
}

// layers returns the named parts, in this order, made side by side.
func (b *builder) layers(ctx context.Context, names []string) ([]layer, error) {
	out, errs := make([]layer, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { out[i], errs[i] = b.layer(ctx, name) })
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// tail is the end of a log as the last part of an error, with where the rest is.
func tail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil || len(data) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = lines[max(0, len(lines)-12):]
	return "\n  " + strings.Join(lines, "\n  ") + "\n  (all of it: " + file + ")"
}

func megabytes(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f MB", float64(n)/1e6)
}
