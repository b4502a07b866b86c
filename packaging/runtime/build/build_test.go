package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/packaging/runtime/manifest"
)

// A workshop is a folder of sources with a part made from it. Building it
// leaves a mark outside, so a test can count how often it was built.
type workshop struct {
	t           *testing.T
	root, cache string
	part        part
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	w := &workshop{t: t, root: t.TempDir(), cache: filepath.Join(t.TempDir(), "parts")}
	w.write("src/hello.txt", "hello")
	w.part = part{name: "greeting", dir: "src", version: "v1", steps: []step{w.copies("program")}}
	return w
}

// copies is a step that makes a file of the sources.
func (w *workshop) copies(name string) step {
	return step{Args: []string{"sh", "-c", "echo built >>" + w.root + "/log; cat hello.txt >" + outWord + "/" + name}}
}

func (w *workshop) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) open() *cache {
	w.t.Helper()
	c, err := openCache(w.t.Context(), w.cache)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *workshop) obtain() entry {
	w.t.Helper()
	c := w.open()
	defer c.close()
	e, err := c.obtain(w.t.Context(), w.root, w.part, noVersions())
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func noVersions() versions { return versions{known: map[string]string{}} }

// timesBuilt is how often the part's steps ran.
func (w *workshop) timesBuilt() int {
	w.t.Helper()
	log, err := os.ReadFile(w.root + "/log")
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return bytes.Count(log, []byte("\n"))
}

func TestPartIsBuiltAgainWhenAnInputChanged(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *workshop)
		again  bool
	}{
		{"nothing", func(*workshop) {}, false},
		{"a source", func(w *workshop) { w.write("src/hello.txt", "bye") }, true},
		{"a new source", func(w *workshop) { w.write("src/deep/x.go", "package x") }, true},
		{"a test", func(w *workshop) { w.write("src/x_test.go", "package x") }, false},
		{"test data", func(w *workshop) { w.write("src/testdata/x", "") }, false},
		{"an explanation", func(w *workshop) { w.write("src/README.md", "") }, false},
		{"another part's source", func(w *workshop) { w.write("other/x.go", "package x") }, false},
		{"a flag", func(w *workshop) { w.part.steps[0].Env = []string{"CGO_ENABLED=0"} }, true},
		{"a version", func(w *workshop) { w.part.version = "v2" }, true},
		{"a compiler", func(w *workshop) { w.part.tools = []tool{{name: "echo", version: []string{"echo", "12.3"}}} }, true},
		{"the checkout", func(w *workshop) {
			moved := w.root + "-moved"
			if err := os.Rename(w.root, moved); err != nil {
				w.t.Fatal(err)
			}
			w.root = moved
			w.t.Cleanup(func() { os.RemoveAll(moved) })
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorkshop(t)
			first := w.obtain()
			test.change(w)
			before := w.timesBuilt()
			second := w.obtain()
			if again := w.timesBuilt() > before; again != test.again || (first.dir != second.dir) != test.again {
				t.Errorf("built again: %v, want %v (%s, then %s)", again, test.again, first.dir, second.dir)
			}
		})
	}
}

func TestDamagedPartIsBuiltAgain(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"altered":    func(dir string) error { return os.WriteFile(dir+"/program", []byte("hellp"), 0o755) },
		"cut short":  func(dir string) error { return os.Truncate(dir+"/program", 1) },
		"removed":    func(dir string) error { return os.Remove(dir + "/program") },
		"list gone":  func(dir string) error { return os.Remove(dir + "/" + sumsName) },
		"list empty": func(dir string) error { return os.Truncate(dir+"/"+sumsName, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t)
			e := w.obtain()
			if err := damage(e.dir); err != nil {
				t.Fatal(err)
			}
			w.obtain()
			if got, err := os.ReadFile(e.dir + "/program"); err != nil || string(got) != "hello" {
				t.Errorf("the cache holds %q (%v), want hello", got, err)
			}
			if w.timesBuilt() != 2 {
				t.Errorf("built %d times, want 2", w.timesBuilt())
			}
		})
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	w := newWorkshop(t)
	w.part.steps = append(w.part.steps, step{Args: []string{"sh", "-c", "echo no such type; exit 3"}})
	c := w.open()
	defer c.close()
	_, err := c.obtain(t.Context(), w.root, w.part, noVersions())
	if err == nil || !strings.Contains(err.Error(), "no such type") {
		t.Errorf("error %v, want what the step printed", err)
	}
	w.part.steps = []step{{Args: []string{"true"}}}
	if _, err := c.obtain(t.Context(), w.root, w.part, noVersions()); err == nil {
		t.Error("a build that makes nothing succeeded")
	}
	w.part.tools = []tool{{name: "frobnicator", version: []string{"frobnicator-is-not-there"}, install: "frob"}}
	if _, err := c.obtain(t.Context(), w.root, w.part, noVersions()); err == nil || !strings.Contains(err.Error(), "apt-get install frob") {
		t.Errorf("error %v, want what to install", err)
	}
	if left, _ := filepath.Glob(w.cache + "/*-*"); len(left) > 0 {
		t.Errorf("left in the cache: %v", left)
	}
}

func TestInterruptedBuildEndsItsChildren(t *testing.T) {
	w := newWorkshop(t)
	w.part.steps = []step{{Args: []string{"sh", "-c", "sleep 60 & echo $! >" + w.root + "/pid; wait"}}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c := w.open()
	defer c.close()
	if _, err := c.obtain(ctx, w.root, w.part, noVersions()); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v, want that it was interrupted", err)
	}
	pid, err := os.ReadFile(w.root + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	if state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat"); err == nil && !bytes.Contains(state, []byte(") Z ")) {
		t.Errorf("a child runs on: %s", state)
	}
}

func TestTwoBuildsAtOnce(t *testing.T) {
	w := newWorkshop(t)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			c, err := openCache(t.Context(), w.cache)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.close()
			if _, err := c.obtain(t.Context(), w.root, w.part, noVersions()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if w.timesBuilt() != 1 {
		t.Errorf("built %d times, want once", w.timesBuilt())
	}
}

func TestCacheForgets(t *testing.T) {
	w := newWorkshop(t)
	kept := w.obtain()
	w.write("src/hello.txt", "bye")
	old := w.obtain()
	long := time.Now().Add(-unusedAfter - time.Hour)
	if err := os.Chtimes(old.dir, long, long); err != nil {
		t.Fatal(err)
	}
	unfinished := filepath.Join(w.cache, tempPrefix+"greeting-1")
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{kept.dir: true, old.dir: false, unfinished: false}
	for age := range keptArchives + 2 {
		archive := filepath.Join(w.cache, fmt.Sprintf("%s-%d", archivePart, age))
		used := time.Now().Add(-time.Duration(age) * time.Hour)
		if err := errors.Join(os.Mkdir(archive, 0o755), os.Chtimes(archive, used, used)); err != nil {
			t.Fatal(err)
		}
		want[archive] = age < keptArchives
	}
	c := w.open()
	defer c.close()
	if err := c.prune(time.Now().Add(-unusedAfter)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range want {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", dir, err == nil, want)
		}
	}
}

func TestPack(t *testing.T) {
	w := newWorkshop(t)
	w.part.steps = []step{w.copies("k3s"), w.copies("libx.so.1")}
	w.part.folder = "simdriver"
	inFolder := w.obtain()
	w.part.folder, w.part.name, w.part.steps = "", "other", []step{w.copies("k3s")}
	flat := w.obtain()
	c := w.open()
	defer c.close()

	archive, err := c.pack(t.Context(), []entry{inFolder, flat}, noVersions(), false)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "assets", archiveName)
	if err := archive.install(out); err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	names, table := unpack(t, packed)
	const want = "manifest.json k3s simdriver/k3s simdriver/libx.so.1 containerd ctr kubectl"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the archive holds\n%s, want\n%s", got, want)
	}
	list, err := manifest.Decode(table)
	if err != nil {
		t.Fatal(err)
	}
	if f := list.Files[2]; f.Mode != 0o644 || f.Size != 5 || f.Version != "v1" {
		t.Errorf("the manifest says %+v", f)
	}

	// Packed anew and in another order, it is the same to the last byte.
	if err := os.RemoveAll(archive.dir); err != nil {
		t.Fatal(err)
	}
	again, err := c.pack(t.Context(), []entry{flat, inFolder}, noVersions(), false)
	if err != nil {
		t.Fatal(err)
	}
	if again.Files[archiveName] != archive.Files[archiveName] {
		t.Errorf("packed twice: %+v, then %+v", archive.Files, again.Files)
	}
}

func unpack(t *testing.T, packed []byte) (names []string, table []byte) {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderMaxWindow(64<<20)) // as internal/embedk8s has it
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, table
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s carries owner %d and time %v", header.Name, header.Uid, header.ModTime)
		}
		if len(names) == 0 {
			if table, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		names = append(names, header.Name)
	}
}

func TestK3sVersion(t *testing.T) {
	version, err := k3sVersion("../k3s/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version, "v1.") || !strings.Contains(version, "+k3s") {
		t.Errorf("version %q, want one like v1.35.0+k3s3", version)
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	for _, want := range []string{"version.Version=" + version, "gitMajor=" + major, "gitMinor=" + minor, "UpstreamGolang=go"} {
		if flags := k3sVersionFlags(version); !strings.Contains(flags, want) {
			t.Errorf("link flags %q lack %q", flags, want)
		}
	}
	if _, err := k3sVersion("../cni/go.mod"); err == nil {
		t.Error("found a version of k3s in a module without it")
	}
}

// The hash of a program of the main module follows what it imports, and no
// more of the repository than that.
func TestPackagesAreHashedWithWhatTheyImport(t *testing.T) {
	w := newWorkshop(t)
	w.write("go.mod", "module example.com/m\n\ngo 1.26\n")
	w.write("cmd/p/main.go", "package main\n\nimport \"example.com/m/used\"\n\nfunc main() { used.F() }\n")
	w.write("used/used.go", "package used\n\nfunc F() {}\n")
	w.write("unused/unused.go", "package unused\n")
	w.part = part{name: "p", dir: ".", packages: []string{"./cmd/p"},
		steps: []step{goBuild{packages: []string{"./cmd/p"}}.step()}}
	key := func() string {
		t.Helper()
		k, err := w.part.key(t.Context(), w.root, noVersions())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key()
	w.write("unused/unused.go", "package unused\n\nvar X int\n")
	if key() != first {
		t.Error("the hash follows a package that is not imported")
	}
	w.write("used/used.go", "package used\n\nfunc F() { println() }\n")
	if key() == first {
		t.Error("the hash does not follow an imported package")
	}
}
