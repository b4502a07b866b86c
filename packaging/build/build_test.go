package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestUnknownPartNamesTheParts(t *testing.T) {
	err := run(t.Context(), options{parts: []string{"images", "programme"}})
	const want = `there is no part "programme"; the parts are runtime, images, clients, program`
	if err == nil || err.Error() != want {
		t.Errorf("the build ends with %v, want %s", err, want)
	}
}

// A build that is interrupted says so, rather than name the part that was at work.
func TestInterruptedBuild(t *testing.T) {
	t.Chdir("../..")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := run(ctx, options{parts: []string{"program"}, out: filepath.Join(t.TempDir(), "gpulab")})
	if !errors.Is(err, errInterrupted) {
		t.Errorf("the build ends with %v", err)
	}
}

// A release embeds the bundle that was packed for it, without touching the one in the checkout.
func TestReleaseEmbedsItsOwnBundle(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"main.go": "package main\n\nimport (\n\t_ \"embed\"\n\t\"fmt\"\n)\n\n//go:embed " + archive +
			"\nvar bundle string\n\nfunc main() { fmt.Print(bundle) }\n",
		archive:                       "fast",
		"bin/release/runtime.tar.zst": "small",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := build{options: options{out: "bin/release/gpulab", small: true}, tools: t.TempDir()}
	overlay, err := b.overlay()
	if err != nil {
		t.Fatal(err)
	}
	for want, flags := range map[string][]string{"fast": nil, "small": {"-overlay", overlay}} {
		cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"run"}, flags...), ".")...)
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		if got, err := cmd.CombinedOutput(); err != nil || string(got) != want {
			t.Errorf("with the flags %q the program holds %q, %v", flags, got, err)
		}
	}
}
