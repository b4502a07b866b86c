package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const repository = "../.."

var update = flag.Bool("update", false, "write testdata/tests.txt anew")

// TestNoneIsLost compares the tests and chapters with the list in testdata: one that is taken out, moved or renamed
// shows in the difference of that file.
func TestNoneIsLost(t *testing.T) {
	tests, err := discover(repository)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, one := range tests {
		lines = append(lines, one.Package+" "+one.Name)
		for _, part := range one.Parts {
			lines = append(lines, one.Package+" "+one.Name+"/"+part)
		}
	}
	const path = "testdata/tests.txt"
	now := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(listed)) {
		if !slices.Contains(lines, strings.TrimSuffix(line, "\n")) {
			t.Errorf("there is no %s any more", strings.TrimSpace(line))
		}
	}
	if string(listed) != now && !t.Failed() {
		t.Errorf("%s does not list every test: run `go test ./test/run -update`", path)
	}
}

// TestDirectives: every test has a name of its own, and says only what can be.
func TestDirectives(t *testing.T) {
	tests, err := discover(repository)
	if err != nil {
		t.Fatal(err)
	}
	seen, gate := map[string]bool{}, 0
	for _, one := range tests {
		if seen[one.Name] {
			t.Errorf("two tests are called %s: results are kept by name", one.Name)
		}
		seen[one.Name] = true
		if one.Gate {
			gate++
		}
		for _, folder := range one.About {
			if _, err := os.Stat(filepath.Join(repository, folder)); err != nil {
				t.Errorf("%s is about %s, which is not there", one.Name, folder)
			}
		}
		if !one.Gate && !one.Helper && len(one.About) == 0 {
			t.Errorf("%s says neither //test:gate nor what it is //test:about", one.Name)
		}
	}
	if gate == 0 || len(tests) < 20 {
		t.Errorf("%d tests, %d of them in the gate", len(tests), gate)
	}
}

// TestArguments: the arguments of test-all are those of this program, not of the unit tests.
func TestArguments(t *testing.T) {
	cmd := exec.Command("go", "tool", "task", "--dry", "--verbose", "test-all", "--", "-shard", "2/5")
	cmd.Dir = repository
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, want := range []string{`(?m)test/unit\.sh\s*$`, `(?m)go run \./test/run -shard 2/5$`} {
		if !regexp.MustCompile(want).Match(said) {
			t.Errorf("it does not run %s:\n%s", want, said)
		}
	}
}

// TestShards: the parts together are all of the rest, and no test is in two.
func TestShards(t *testing.T) {
	tests, err := discover(repository)
	if err != nil {
		t.Fatal(err)
	}
	const parts = 5
	for i := range tests { // a change would put some into every part
		tests[i].About, tests[i].File = nil, ""
	}
	var all []string
	for part := range parts {
		s := suite{root: repository, tests: tests, options: options{rest: true, shard: string(rune('1'+part)) + "/5", base: "HEAD"}}
		chosen, err := s.choose(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range chosen {
			if slices.Contains(all, one.Name) {
				t.Errorf("%s is in two parts", one.Name)
			}
			all = append(all, one.Name)
		}
	}
	for _, one := range tests {
		if want := !one.Gate && !one.Helper; slices.Contains(all, one.Name) != want {
			t.Errorf("%s is in a part: %v, want %v", one.Name, !want, want)
		}
	}
	for _, shard := range []string{"0/3", "4/3", "1", "x/3", "1/0"} {
		s := suite{root: repository, options: options{shard: shard}}
		if _, _, err := s.part(t.Context()); err == nil {
			t.Errorf("-shard %s is taken", shard)
		}
	}
}

// little is a repository with a few tests, which end as files in it say.
const little = `//go:build e2e

package e2e

import ("os"; "testing"; "os/exec")

func try(t *testing.T) {
	out, _ := exec.Command("sh", "-c", "echo x >>../../" + t.Name() + ".runs; wc -l <../../" + t.Name() + ".runs").Output()
	t.Log("run", string(out))
	t.Attr("waited", "1.5")
}

//test:gate
func TestGood(t *testing.T) { try(t); t.Run("a part", func(*testing.T) {}) }

// TestOnce fails the first time.
//
//test:gate
func TestOnce(t *testing.T) {
	try(t)
	if data, _ := os.ReadFile("../../TestOnce.runs"); len(data) == 2 { t.Error("this once") }
}

//test:about internal/bad
func TestBad(t *testing.T) { try(t); if _, err := os.Stat("../../good"); err != nil { t.Error("still bad") } }

//test:about internal/new
func TestNew(t *testing.T) { try(t); if _, err := os.Stat("../../broken"); err == nil { t.Error("broken now") } }
`

// world makes a repository of the little tests, with a cache of its own.
func world(t *testing.T) (root string, shell func(script string)) {
	t.Helper()
	root = t.TempDir()
	if cache, err := exec.Command("go", "env", "GOCACHE").Output(); err == nil {
		t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("GPULAB_BIN", "")
	t.Setenv("GOFLAGS", "-trimpath") // what other tests have compiled
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	for path, content := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n", "bin/gpulab": "1", "bin/images/images.json": "{}",
		".gitignore": "*.runs\ntest/output\n", "test/e2e/e2e.go": "package e2e\n", "test/e2e/little_test.go": little,
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shell = func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	shell("git init -q; git config user.email a@b.example; git config user.name A; git add -A; git commit -qm first")
	return root, shell
}

// suiteOf runs the suite of a repository, and returns what it printed.
func suiteOf(t *testing.T, root string, o options) (string, error) {
	t.Helper()
	return suiteWithin(t.Context(), t, root, o)
}

func suiteWithin(ctx context.Context, t *testing.T, root string, o options) (string, error) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s := suite{root: root, options: o, out: out}
	if s.repeat == 0 {
		s.repeat = 1
	}
	s.parallel = 2
	if s.tests, err = discover(root); err != nil {
		t.Fatal(err)
	}
	chosen, err := s.choose(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	failure := s.runAll(ctx, chosen)
	printed, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(printed), failure
}

// row is a test's line of the table, with single spaces.
func row(printed, name string) string {
	for line := range strings.Lines(printed) {
		if words := strings.Fields(line); len(words) > 3 && words[0] == name && regexp.MustCompile(`^\d+$`).MatchString(words[1]) {
			words[2] = "s" // how long it took
			return strings.Join(words, " ")
		}
	}
	return ""
}

// TestRun runs little suites: what failed is run again, what passed is not, and what failed before the change does not
// count.
func TestRun(t *testing.T) {
	root, shell := world(t)
	printed, err := suiteOf(t, root, options{gate: true})
	if err != nil {
		t.Fatalf("the gate: %v\n%s", err, printed)
	}
	if got := row(printed, "TestGood"); got != "TestGood 2 s 2 1 passed" {
		t.Errorf("the row of a test that passes: %q", got)
	}
	for _, want := range []string{"FLAKY: TestOnce failed once and then passed", "TestOnce.1/output.txt", "TestOnce.2/output.txt", "\nok  \tgithub.com/gpulab/gpulab/test/e2e\t"} {
		if !strings.Contains(printed, want) {
			t.Errorf("the gate does not say %q:\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "TestBad") {
		t.Errorf("the gate ran the rest:\n%s", printed)
	}

	printed, err = suiteOf(t, root, options{})
	if err == nil || row(printed, "TestBad") != "TestBad 1 s 2 2 FAILED" || !strings.Contains(printed, "still bad") {
		t.Errorf("all: %v\n%s", err, printed)
	}
	if row(printed, "TestGood") != "TestGood 2 s 2 1 passed before" {
		t.Errorf("what passed was run again:\n%s", printed)
	}
	if !strings.Contains(printed, "\nFAIL\tgithub.com/gpulab/gpulab/test/e2e\t") {
		t.Errorf("it does not end like go test:\n%s", printed)
	}
	shell("touch good")
	if printed, err = suiteOf(t, root, options{}); err != nil || row(printed, "TestNew") != "TestNew 1 s 2 1 passed before" {
		t.Errorf("all, after it was put right: %v\n%s", err, printed)
	}
	shell("echo 2 >bin/gpulab; rm good")
	if printed, err = suiteOf(t, root, options{run: "Bad", repeat: 3}); err == nil || strings.Count(printed, "still bad") != 3 {
		t.Errorf("another gpulab, three times: %v\n%s", err, printed)
	}
	if _, err = suiteOf(t, root, options{run: "Good", budget: 1}); err != nil {
		t.Errorf("a budget: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "TestNew.runs")); err != nil {
		t.Error("TestNew did not run")
	}
}

// TestTouched: what the change is about comes first, in the gate and in every part.
func TestTouched(t *testing.T) {
	root, shell := world(t)
	shell("mkdir -p internal/new internal/bad; echo x >internal/new/x.go; echo x >internal/bad/x_test.go; git add -A; git commit -qm second")
	printed, err := suiteOf(t, root, options{gate: true, base: "HEAD~1"})
	if err != nil || row(printed, "TestNew") == "" || row(printed, "TestBad") != "" {
		t.Errorf("the gate of a change: %v\n%s", err, printed)
	}
	if first := strings.Index(printed, "... TestNew begins"); first < 0 || first > strings.Index(printed, "... TestGood begins") {
		t.Errorf("it does not come first:\n%s", printed)
	}
}

// withBuild gives the repository a `go tool task build`, and commits it.
const withBuild = `mkdir -p tool/task
	cat >tool/task/main.go <<end
package main

import "os"

func main() {
	_ = os.MkdirAll("bin/images", 0o755)
	_ = os.WriteFile("bin/gpulab", []byte("1"), 0o644)
	_ = os.WriteFile("bin/images/images.json", nil, 0o644)
}
end
	printf '\ntool example/tool/task\n' >>go.mod; git add -A; git commit -qm tool
`

// TestOlder: a test that asks for it gets the program of the revision before the change, also when nothing has changed
// since the last one that passed.
func TestOlder(t *testing.T) {
	root, shell := world(t)
	shell(withBuild + `cat >test/e2e/older_test.go <<end
//go:build e2e

package e2e

import ("os"; "testing")

//test:older
//test:about internal/old
func TestOlder(t *testing.T) {
	if data, _ := os.ReadFile(os.Getenv("GPULAB_OLDER")); string(data) != "1" { t.Error("not the program before") }
}
end
		echo 2 >bin/gpulab; git add -f -A; git commit -qm third`)
	for _, base := range []string{"HEAD~1", "HEAD"} {
		if printed, err := suiteOf(t, root, options{run: "Older", base: base, again: true}); err != nil {
			t.Errorf("from %s: %v\n%s", base, err, printed)
		}
	}
	shell("git checkout -q --orphan alone; git commit -qm alone")
	if printed, err := suiteOf(t, root, options{run: "Older", again: true}); err == nil {
		t.Errorf("without an earlier revision:\n%s", printed)
	}
	// A failure is never one of before: the upgrade to the revision before is another test.
	shell(`sed -i 's/!= .1./== "1"/' test/e2e/older_test.go; git commit -qam fourth
		echo x >note; git add note; git commit -qm fifth`)
	if printed, err := suiteOf(t, root, options{run: "Older", rest: true, base: "HEAD~1"}); err == nil {
		t.Errorf("the upgrade fails:\n%s", printed)
	}
	if trees, _ := exec.Command("git", "-C", root, "worktree", "list").Output(); strings.Count(string(trees), "\n") != 1 {
		t.Errorf("worktrees are left:\n%s", trees)
	}
}

// TestInterrupted: a test that was running when somebody interrupted the run has not failed, and runs again.
func TestInterrupted(t *testing.T) {
	root, shell := world(t)
	shell(`cat >test/e2e/long_test.go <<end
//go:build e2e

package e2e

import ("os"; "testing"; "time")

//test:about internal/long
func TestLong(t *testing.T) {
	if _, err := os.Stat("../../good"); err != nil {
		os.WriteFile("../../begun.runs", nil, 0o644)
		time.Sleep(time.Hour)
	}
}
end
		git add -A; git commit -qm second`)
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(root, "begun.runs")); err == nil || t.Context().Err() != nil {
				interrupt()
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	printed, err := suiteWithin(ctx, t, root, options{run: "Long"})
	if err == nil || row(printed, "TestLong") != "TestLong 1 s 0 1 interrupted" || strings.Contains(printed, "\nok ") {
		t.Errorf("interrupted: %v\n%s", err, printed)
	}
	shell("touch good")
	if printed, err = suiteOf(t, root, options{run: "Long"}); err != nil || row(printed, "TestLong") != "TestLong 1 s 0 1 passed" {
		t.Errorf("once more: %v\n%s", err, printed)
	}
}

// TestFailsBefore: a failure that the revision before shares is told, and does not fail the run; one that the change
// made does.
func TestFailsBefore(t *testing.T) {
	root, shell := world(t)
	shell(withBuild + "echo x >note; git add -A; git commit -qm third")
	printed, err := suiteOf(t, root, options{rest: true, base: "HEAD~1"})
	if err != nil || !strings.Contains(printed, "FAILS WITHOUT THE CHANGE TOO: TestBad") || row(printed, "TestBad") != "TestBad 1 s 2 2 FAILED, AS BEFORE THE CHANGE" {
		t.Errorf("what failed before: %v\n%s", err, printed)
	}
	shell("touch good broken; git add -A; git commit -qm fourth; rm -rf bin; mkdir -p bin/images; echo 3 >bin/gpulab; echo >bin/images/images.json")
	printed, err = suiteOf(t, root, options{rest: true, base: "HEAD~1"})
	if err == nil || row(printed, "TestNew") != "TestNew 1 s 2 2 FAILED" {
		t.Errorf("what the change broke: %v\n%s", err, printed)
	}
	if trees, _ := exec.Command("git", "-C", root, "worktree", "list").Output(); strings.Count(string(trees), "\n") != 1 {
		t.Errorf("worktrees are left:\n%s", trees)
	}
}
