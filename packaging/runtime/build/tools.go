package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/packaging/progress"
)

// tool is something of the build machine that ends up in what is built, or
// decides it. Its version is part of the hash of the parts that use it.
type tool struct {
	name    string
	version []string // the command that prints it
	install string   // Debian packages that bring it
}

var (
	gcc        = tool{"gcc", []string{"gcc", "--version"}, "gcc libc6-dev"}
	glibc      = tool{"the C library", []string{"getconf", "GNU_LIBC_VERSION"}, "libc-bin"}
	libseccomp = tool{"libseccomp", []string{"pkg-config", "--modversion", "libseccomp"}, "libseccomp-dev pkg-config"}
	gnuMake    = tool{"make", []string{"make", "--version"}, "make"}

	// zstdTool packs better than the library that unpacks.
	zstdTool = tool{"zstd", []string{"zstd", "--version"}, "zstd"}

	// nvmlHeader is what the simulated driver is compiled against.
	nvmlHeader = tool{"NVML's header", []string{"go", "list", "-m", "github.com/NVIDIA/go-nvml"}, "golang-go"}
)

// versions asks each tool once.
type versions struct {
	root  string // of the repository
	known map[string]string
}

// of is the first line of what the tool says about its version.
func (v versions) of(ctx context.Context, t tool) (string, error) {
	if said, known := v.known[t.name]; known {
		return said, nil
	}
	said, err := output(ctx, v.root, t.version...)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("%s is needed to build it and not there; run: sudo apt-get install %s", t.name, t.install)
	}
	said, _, _ = strings.Cut(said, "\n")
	v.known[t.name] = said
	return said, nil
}

// output is what a command prints, trimmed.
func output(ctx context.Context, dir string, args ...string) (string, error) {
	return outputEnv(ctx, dir, nil, args...)
}

// outputEnv is output of a command that has an environment of its own.
func outputEnv(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	command := gobuild.Command(ctx, args[0], args[1:]...)
	command.Dir, command.Env = dir, env
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", commandError(ctx, args, stderr.String(), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// run runs a step in dir, to fill the folder out. Of one that compiles Go, shown tells how many packages are done.
func (s step) run(ctx context.Context, dir, out string, shown progress.Part) error {
	var said bytes.Buffer
	env := append(neutralEnviron(), s.Env...)
	args := make([]string, len(s.Args))
	for i, arg := range s.Args {
		args[i] = strings.ReplaceAll(arg, outWord, out)
	}
	var err error
	if s.build != nil {
		build := *s.build
		build.Dir, build.Env, build.Out = dir, env, strings.ReplaceAll(build.Out, outWord, out)
		err = build.Run(ctx, shown, &said)
	} else {
		command := gobuild.Command(ctx, args[0], args[1:]...)
		command.Dir, command.Env, command.Stdout, command.Stderr = dir, env, &said, &said
		err = command.Run()
	}
	if err != nil {
		return commandError(ctx, args, said.String(), err)
	}
	return nil
}

// neutralEnviron is the environment without what would change what compilers
// make: a cached part may not depend on who built it.
func neutralEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		return strings.HasPrefix(name, "CGO_") || name == "GOEXPERIMENT" ||
			slices.Contains([]string{"CFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "MFLAGS"}, name)
	})
}

// commandError says what a failed command was and the end of what it printed.
func commandError(ctx context.Context, args []string, said string, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; what was built so far is kept")
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if len(lines) > shownLines {
		lines = append([]string{"…"}, lines[len(lines)-shownLines:]...)
	}
	return fmt.Errorf("%s: %w\n  %s", strings.Join(args, " "), err, strings.Join(lines, "\n  "))
}

const (
	outWord    = "OUT_FOLDER" // in a step's arguments
	shownLines = 30           // of a failed command's output
)
