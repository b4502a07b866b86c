package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
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

// mechanism is the code that shapes layers: a change to it rebuilds them.
//
//go:embed tree.go root.go debian.go parts.go
var mechanism embed.FS

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
	files, err := mechanism.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		code, err := mechanism.ReadFile(f.Name())
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
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w%s", name, err, tail(logFile))
	}
	l, err := writeLayer(t, filepath.Join(work, "layer.blob"))
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

// content makes what a part adds, below work, which must outlive the result.
func (b *builder) content(ctx context.Context, p part, below []layer, work string, log io.Writer) (tree, []string, error) {
	switch p.kind {
	case debian:
		return b.debianContent(ctx, p, below, work, log)
	case goProgram:
		t, err := b.goContent(ctx, p, work, log)
		return t, nil, err
	}
	dir := filepath.Join(work, "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, nil, err
	}
	for _, l := range below {
		if err := unpack(l.path, dir); err != nil {
			return nil, nil, err
		}
	}
	call := invocation{
		args: []string{"/bin/sh", "/src/install.sh"},
		bind: []bind{
			{from: filepath.Join(b.source, p.folder), to: "/src"},
			{from: filepath.Join(b.cache.dir, "pip"), to: "/run/build/pip", write: true},
		},
		env: []string{"PIP_CACHE_DIR=/run/build/pip", "PIP_NO_INPUT=1", "PIP_DISABLE_PIP_VERSION_CHECK=1",
			"PIP_ROOT_USER_ACTION=ignore", "PIP_PROGRESS_BAR=off"},
		net: true, log: log,
	}
	if isGoModule(filepath.Join(b.source, p.folder)) {
		if err := b.lendGo(ctx, p, &call); err != nil {
			return nil, nil, err
		}
	}
	if p.kind == fromRoot {
		t, err := b.changes(ctx, dir, below, call)
		return t, nil, err
	}
	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, nil, err
	}
	call.bind = append(call.bind, bind{from: out, to: "/out", write: true})
	if err := (root{dir}).run(ctx, call); err != nil {
		return nil, nil, err
	}
	t, err := readTree(out)
	return t, nil, err
}

// changes runs call in a root and returns what it changed.
func (b *builder) changes(ctx context.Context, dir string, below []layer, call invocation) (tree, error) {
	if err := (root{dir}).run(ctx, call); err != nil {
		return nil, err
	}
	for _, mountpoint := range []string{"src"} {
		if err := os.Remove(filepath.Join(dir, mountpoint)); err != nil {
			return nil, err
		}
	}
	lower, err := stacked(below)
	if err != nil {
		return nil, err
	}
	t, err := readTree(dir)
	if err != nil {
		return nil, err
	}
	return t.diff(lower), nil
}

// stacked is the tree that layers give together.
func stacked(layers []layer) (tree, error) {
	t := tree{}
	for _, l := range layers {
		if err := t.overlay(l.path); err != nil {
			return nil, fmt.Errorf("reading %s: %w", l.Created, err)
		}
	}
	return t, nil
}

// debianContent installs the packages of a part and of the layers below into a
// fresh root; what the layers below do not have is the part. Two whole installs
// need no package manager inside the images.
func (b *builder) debianContent(ctx context.Context, p part, below []layer, work string, log io.Writer) (tree, []string, error) {
	dir := filepath.Join(work, "root")
	got, err := b.debootstrap(ctx, dir, append(slices.Clone(p.on), p.folder), false, log)
	if err != nil {
		return nil, nil, err
	}
	for _, lower := range p.on {
		lock, err := readAptLock(filepath.Join(b.source, lower, "packages.lock"))
		if err != nil {
			return nil, nil, err
		}
		got = got.without(lock)
	}
	lock, err := readAptLock(filepath.Join(b.source, p.folder, "packages.lock"))
	if err != nil {
		return nil, nil, err
	}
	lower, err := stacked(below)
	if err != nil {
		return nil, nil, err
	}
	t, err := readTree(dir)
	if err != nil {
		return nil, nil, err
	}
	return t.diff(lower), lock.drift(got), nil
}

// lendGo makes this machine's Go usable in a root, with the part's modules
// already fetched, so that only the C compiler and the libc are the root's.
func (b *builder) lendGo(ctx context.Context, p part, call *invocation) error {
	folder := filepath.Join(b.source, p.folder)
	if err := execute(ctx, call.log, goEnv(), "go", "-C", folder, "mod", "download"); err != nil {
		return err
	}
	out, err := output(ctx, folder, "go", "env", "GOROOT", "GOMODCACHE", "GOCACHE")
	if err != nil {
		return err
	}
	dirs := strings.Split(out, "\n")
	if len(dirs) != 3 {
		return fmt.Errorf("go env answered %q", out)
	}
	call.bind = append(call.bind,
		bind{from: dirs[0], to: "/run/build/go"},
		bind{from: dirs[1], to: "/run/build/mod"},
		bind{from: dirs[2], to: "/run/build/go-cache", write: true})
	call.env = append(call.env, "PATH=/run/build/go/bin:/usr/bin:/bin", "GOROOT=/run/build/go", "GOMODCACHE=/run/build/mod",
		"GOCACHE=/run/build/go-cache", "GOPATH=/tmp/go", "GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly", "GOTELEMETRY=off")
	return nil
}

// goEnv is this machine's environment, less what would change a program.
func goEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "GOFLAGS" && name != "CGO_ENABLED" && name != "GOARCH" && name != "GOOS" {
			env = append(env, e)
		}
	}
	return append(env, "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=amd64", "GOWORK=off")
}

// goContent builds a Go program without cgo; such a build is the same on every
// machine. The program lies at the top of the image, its licence beside it.
func (b *builder) goContent(ctx context.Context, p part, work string, log io.Writer) (tree, error) {
	folder, out := filepath.Join(b.source, p.folder), filepath.Join(work, "out")
	if err := execute(ctx, log, append(goEnv(), "CGO_ENABLED=0"), "go", "-C", folder, "list", "-deps", p.main); err != nil {
		return nil, err
	}
	mod, err := output(ctx, folder, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", p.module)
	if err != nil {
		return nil, err
	}
	version, moduleDir, ok := strings.Cut(mod, " ")
	if !ok {
		return nil, fmt.Errorf("%s is not in the module cache: go list answered %q", p.module, mod)
	}
	args := []string{"-C", folder, "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X k8s.io/client-go/pkg/version.gitVersion=" + version,
		"-o", filepath.Join(out, p.folder), p.main}
	if err := execute(ctx, log, append(goEnv(), "CGO_ENABLED=0"), "go", args...); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(out, "tmp"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(out, "tmp"), 0o777|os.ModeSticky); err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(moduleDir, "LICENSE"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(out, "licenses"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(out, "licenses", path.Base(p.module)), licence, 0o644); err != nil {
		return nil, err
	}
	return readTree(out)
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
