package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestBuildsForOtherSystems: the program builds for what people have on their desks, without C, as packaging/clients
// builds it.
func TestBuildsForOtherSystems(t *testing.T) {
	for _, system := range []string{"darwin/arm64", "windows/amd64"} {
		name, arch, _ := strings.Cut(system, "/")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", os.DevNull, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+name, "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}

// TestStaysSmall: nothing of the lab's own side, such as its database or Kubernetes, comes along to a laptop.
func TestStaysSmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, heavy := range []string{"k8s.io/", "modernc.org/", "github.com/danielgtaylor/huma", "github.com/a-h/templ", "github.com/gpulab/gpulab/internal/users", "github.com/gpulab/gpulab/internal/notebooks"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("it depends on %s", dep)
			}
		}
	}
}
