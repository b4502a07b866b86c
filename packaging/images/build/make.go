package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// content makes what a part adds, below work, which must outlive the result.
func (b *builder) content(
	ctx context.Context, p part, below []layer, work string, log io.Writer, shown progress.Part,
) (tree, []string, error) {
	switch p.kind {
	case debian:
		return b.debianContent(ctx, p, below, work, log)
	case goProgram:
		t, err := b.goContent(ctx, p, work, log, shown)
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
		network: true, log: log,
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
	if err := os.Remove(filepath.Join(dir, "src")); err != nil { // the place where the sources were seen
		return nil, err
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
	call.env = append(call.env, "PATH=/run/build/go/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOROOT=/run/build/go",
		"GOMODCACHE=/run/build/mod", "GOCACHE=/run/build/go-cache", "GOGC="+os.Getenv("GOGC"), "GOPATH=/tmp/go", "GOPROXY=off",
		"GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly "+strings.Join(gobuild.Flags, " ")+" -tags="+gobuild.PureGo, "GOTELEMETRY=off")
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
// machine. The program lies at the top of the image, its licence in a folder.
func (b *builder) goContent(ctx context.Context, p part, work string, log io.Writer, shown progress.Part) (tree, error) {
	folder, out := filepath.Join(b.source, p.folder), filepath.Join(work, "out")
	env := append(goEnv(), "CGO_ENABLED=0")
	flags := "-s -w"
	if p.of.module != "" {
		if err := execute(ctx, log, env, "go", "-C", folder, "mod", "download", p.of.module); err != nil {
			return nil, err
		}
		mod, err := output(ctx, folder, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", p.of.module)
		if err != nil {
			return nil, err
		}
		version, moduleDir, ok := strings.Cut(mod, " ")
		if !ok {
			return nil, fmt.Errorf("%s is not in the module cache: go list answered %q", p.of.module, mod)
		}
		flags += " " + strings.ReplaceAll(p.of.flags, "VERSION", version)
		licence, err := os.ReadFile(filepath.Join(moduleDir, "LICENSE"))
		if err != nil {
			return nil, err
		}
		licences := filepath.Join(out, "licenses")
		if err := os.MkdirAll(licences, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(licences, path.Base(p.of.module)), licence, 0o644); err != nil {
			return nil, err
		}
	}
	modfile, remove, err := gobuild.ApplyPatches(ctx, folder, p.of.patches)
	if err != nil {
		return nil, err
	}
	defer remove()
	buildFlags := []string{"-tags", gobuild.PureGo, "-ldflags", flags}
	if modfile != "" {
		buildFlags = append(buildFlags, "-modfile="+modfile)
	}
	build := gobuild.Build{
		Dir: folder, Env: env, Flags: buildFlags,
		Packages: []string{p.of.main}, Out: filepath.Join(out, p.of.name),
	}
	if err := build.Run(ctx, shown, log); err != nil {
		return nil, err
	}
	temporary := filepath.Join(out, "tmp")
	if err := os.Mkdir(temporary, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(temporary, 0o777|os.ModeSticky); err != nil {
		return nil, err
	}
	return readTree(out)
}
