package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTestCache: two clones at the same place share the results of a test that opens a file, and one in which the file
// has been changed runs it again.
func TestTestCache(t *testing.T) {
	origin := filepath.Join(t.TempDir(), "origin")
	t.Setenv("GOFLAGS", "-trimpath")
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	sh := func(dir, script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	if err := os.MkdirAll(filepath.Join(origin, "testdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		// Results of earlier runs of this very test must not count.
		"go.mod": "module example" + filepath.Base(filepath.Dir(filepath.Dir(origin))) + "\n\ngo 1.26\n", "testdata/a": t.TempDir(), "x.go": "package x\n",
		"x_test.go": "package x\n\nimport (\"os\"; \"testing\")\n\nfunc TestX(t *testing.T) { _, _ = os.ReadDir(\"testdata\"); _, _ = os.ReadFile(\"testdata/a\"); _, _ = os.ReadDir(\"bin/images\"); _, _ = os.ReadFile(\"bin/images/b\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(origin, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sh(origin, "git init -q; git config user.email a@b.example; git config user.name A; git add -A; git commit -qm one")
	clone := filepath.Join(filepath.Dir(origin), "clone")
	test := func(change string) string {
		sh(filepath.Dir(origin), "rm -rf clone; git clone -q origin clone")
		sh(clone, "mkdir -p bin/images; echo built >bin/images/b; echo bin >.git/info/exclude; "+change)
		if err := run(clone); err != nil {
			t.Fatal(err)
		}
		if status := sh(clone, "git status --porcelain"); (status == "") == strings.Contains(change, "testdata") {
			t.Errorf("git status after %q: %s", change, status)
		}
		return sh(clone, "go test ./...")
	}
	if out := test("true"); strings.Contains(out, "(cached)") {
		t.Fatalf("the first clone: %s", out)
	}
	if out := test("true"); !strings.Contains(out, "(cached)") {
		t.Errorf("the second clone runs the test again: %s", out)
	}
	if out := test("echo else >bin/images/b"); strings.Contains(out, "(cached)") {
		t.Errorf("a clone with another build does not run the test: %s", out)
	}
	if out := test("echo other >testdata/a"); strings.Contains(out, "(cached)") {
		t.Errorf("a clone with another file does not run the test: %s", out)
	}
}
