package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A part is how one layer is made. It is described by data only, so that its
// cache key can be computed without making it.
type part struct {
	folder string   // its sources, below packaging/images; also its name
	on     []string // the layers of the root it is made in, lowest first
	kind   kind
	module string // for goProgram: the module that it is made from, as in its go.mod
	main   string // for goProgram: the main package
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
	progress progress
	done     map[string]layer
	drift    []string
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
	k.add(p.folder, fmt.Sprint(p.kind), p.module, p.main)
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
	}
	return k.sum(), nil
}

func isGoModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// layer returns a part, made now if neither this run nor the cache has it.
func (b *builder) layer(ctx context.Context, name string) (layer, error) {
	if l, ok := b.done[name]; ok {
		return l, nil
	}
	key, err := b.key(ctx, name)
	if err != nil {
		return layer{}, err
	}
	l, ok := b.cache.get(key)
	if ok {
		b.progress.cached(name, l)
	} else if l, err = b.makeLayer(ctx, name, key); err != nil {
		return layer{}, err
	}
	for _, d := range l.Drift {
		b.progress.note("%s: %s", name, d)
	}
	b.drift = append(b.drift, l.Drift...)
	b.done[name] = l
	return l, nil
}

// makeLayer makes a part in a temporary folder and stores it under key.
func (b *builder) makeLayer(ctx context.Context, name, key string) (layer, error) {
	p := parts[name]
	below, err := b.layers(ctx, p.on)
	if err != nil {
		return layer{}, err
	}
	began := time.Now()
	b.progress.begin(name)
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
	t, drift, err := b.content(ctx, p, below, work, log)
	if ctx.Err() != nil {
		return layer{}, ctx.Err()
	}
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w%s", name, err, tail(logFile))
	}
	l, err := writeLayer(ctx, t, filepath.Join(work, "layer.blob"))
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w", name, err)
	}
	l.Drift, l.Created = drift, "gpulab "+name
	if l, err = b.cache.put(key, l); err != nil {
		return layer{}, fmt.Errorf("%s: storing in the cache: %w", name, err)
	}
	b.progress.made(name, l, time.Since(began))
	return l, nil
}

func (b *builder) layers(ctx context.Context, names []string) ([]layer, error) {
	var out []layer
	for _, name := range names {
		l, err := b.layer(ctx, name)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
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
