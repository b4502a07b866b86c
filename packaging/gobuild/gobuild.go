// Package gobuild compiles Go programs for the builds in packaging, and shows how far each is.
package gobuild

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/packaging/progress"
)

// Flags make a program that is the same wherever it is built and carries nothing for a debugger. Compilers that write
// no DWARF need a tenth less time; stack traces of panics do not come from it. Programs share compiled packages only
// while their flags are the same.
var Flags = []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}

// PureGo are the build tags of programs for Linux: names and users are looked up without the C library. A program with
// cgo then shares the compiled net, and all that imports it, with one without.
const PureGo = "netgo,osusergo"

// Build is one run of go build.
type Build struct {
	Dir      string   // where it runs; empty for this process's folder
	Env      []string // nil for this process's
	Flags    []string // beyond the package's Flags
	Packages []string
	Out      string // a file, or a folder that ends with "/"
	For      string // what one of several builds of a part is for, shown before its status; may be empty
}

// Gpulab returns the build of gpulab with its runtime bundle, to run in the root of the repository. An empty version
// makes a development build.
func Gpulab(version, out string) Build {
	flags := "-s -w"
	if version != "" {
		flags += " -X github.com/gpulab/gpulab/internal/version.Version=" + version
	}
	return Build{
		Env:      append(os.Environ(), "CGO_ENABLED=0"),
		Flags:    []string{"-tags", "bundle," + PureGo, "-ldflags", flags},
		Packages: []string{"./cmd/gpulab"},
		Out:      out,
	}
}

// Args are the arguments of the go command.
func (b Build) Args() []string {
	return slices.Concat([]string{"build", "-v", "-o", b.Out}, Flags, b.Flags, b.Packages)
}

// Run compiles. The status of shown is how many packages are compiled; compile errors go to log.
func (b Build) Run(ctx context.Context, shown progress.Part, log io.Writer) error {
	total, err := b.count(ctx, shown.Go(log))
	if err != nil {
		return err
	}
	said := shown.Build(b.For, total, log)
	defer said.Close()
	return b.command(ctx, nil, said, b.Args()).Run() // it prints nothing to its standard output
}

// Download fetches the modules that the build needs, and compiles nothing. It closes said, which gets what the go
// command prints.
func (b Build) Download(ctx context.Context, said io.WriteCloser) error {
	_, err := b.count(ctx, said)
	return err
}

// count returns how many packages the build consists of.
func (b Build) count(ctx context.Context, said io.WriteCloser) (int, error) {
	defer said.Close()
	var list bytes.Buffer
	args := slices.Concat([]string{"list", "-deps", "-f", "."}, Flags, b.Flags, b.Packages)
	err := b.command(ctx, &list, said, args).Run()
	return bytes.Count(list.Bytes(), []byte("\n")), err
}

func (b Build) command(ctx context.Context, stdout, stderr io.Writer, args []string) *exec.Cmd {
	cmd := Command(ctx, "go", args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = b.Dir, b.Env, stdout, stderr
	return cmd
}

// Command is a program that ends when ctx does, with all that it started: compilers would go on otherwise. A program
// that ignores SIGTERM is killed after 10 s.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
