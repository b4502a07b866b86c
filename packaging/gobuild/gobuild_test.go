package gobuild

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/packaging/progress"
)

// module writes a module with one program, and returns the build of it.
func module(t *testing.T, program string) Build {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "main.go": program} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Build{
		Dir: dir, Env: append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="), Packages: []string{"."}, Out: filepath.Join(dir, "m"),
	}
}

func part(t *testing.T) progress.Part {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	r := progress.New(out)
	t.Cleanup(func() {
		r.Close()
		_ = out.Close()
	})
	return r.Begin("m")
}

// A program compiled without DWARF still names files and lines in its panics, and not the folder that it was built in.
func TestPanicsNameTheirLines(t *testing.T) {
	b := module(t, "package main\n\nfunc main() {\n\tpanic(\"ended\")\n}\n")
	var log bytes.Buffer
	if err := b.Run(t.Context(), part(t), &log); err != nil {
		t.Fatal(err, log.String())
	}
	said, err := exec.CommandContext(t.Context(), b.Out).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "example.com/m/main.go:4") {
		t.Errorf("the panic says %q", said)
	}
	program, err := os.ReadFile(b.Out)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(program, []byte(b.Dir)) {
		t.Error("the program names the folder that it was built in")
	}
	if args := b.Args(); !slices.Contains(args, "-gcflags=all=-dwarf=false") {
		t.Errorf("the compilers write debugging data: %q", args)
	}
}

func TestFaultIsInTheLog(t *testing.T) {
	b := module(t, "package main\n\nfunc main() { missing() }\n")
	var log bytes.Buffer
	if err := b.Run(t.Context(), part(t), &log); err == nil || !strings.Contains(log.String(), "undefined: missing") {
		t.Errorf("the build ends with %v, its log is %q", err, log.String())
	}
}

// A command that is interrupted ends with what it has started.
func TestInterruptedCommandLeavesNothing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "child")
	cmd := Command(ctx, "sh", "-c", "sleep 1000 & echo $! >"+file+".new && mv "+file+".new "+file+" && wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child []byte
	for end := time.Now().Add(time.Minute); len(child) == 0; time.Sleep(10 * time.Millisecond) {
		if child, _ = os.ReadFile(file); time.Now().After(end) {
			t.Fatal("the child did not start")
		}
	}
	stop()
	if cmd.Wait() == nil {
		t.Error("the command ended well")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the child goes on")
		}
	}
}
