package structure

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/gpulab/gpulab/"
	root   = "../.."
)

// pkg is what go list says of a package of this module.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	CgoFiles   []string
	Imports    []string
}

// list runs go list in the repository's root.
func list(t *testing.T, env string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	return output
}

// packages returns the packages of this module by their path within it. Cgo
// is on, so that those files are seen too.
func packages(t *testing.T) map[string]pkg {
	t.Helper()
	found := map[string]pkg{}
	decoder := json.NewDecoder(bytes.NewReader(list(t, "CGO_ENABLED=1", "-tags", "e2e", "-json=ImportPath,Dir,Name,GoFiles,CgoFiles,Imports", "./...")))
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

var code = regexp.MustCompile("`([^`]+)`")

// table reads a table of architecture.md: the name in the first column of each
// row, and those in the last.
func table(t *testing.T, heading string) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), heading+"\n")
	if !found {
		t.Fatalf("no table %q in docs/architecture.md", heading)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		name := code.FindStringSubmatch(cells[0])
		if name == nil {
			continue // the line below the heading
		}
		last := cells[len(cells)-1]
		if strings.TrimSpace(last) == "everything" {
			rows[name[1]] = []string{"*"}
			continue
		}
		rows[name[1]] = []string{}
		for _, match := range code.FindAllStringSubmatch(last, -1) {
			rows[name[1]] = append(rows[name[1]], match[1])
		}
	}
	return rows
}

func TestImportsFollowTheTable(t *testing.T) {
	may := table(t, "| package | one responsibility | may import |")
	for path, p := range packages(t) {
		allowed, listed := may[path]
		if !listed {
			t.Errorf("%s is not in the table of docs/architecture.md", path)
			continue
		}
		for _, imported := range p.Imports {
			own, isOwn := strings.CutPrefix(imported, module)
			if isOwn && own != "internal/version" && !slices.Contains(allowed, own) && !slices.Contains(allowed, "*") {
				t.Errorf("%s imports %s, which the table of docs/architecture.md does not allow", path, own)
			}
		}
	}
}

func TestHeavyLibrariesHaveOneHome(t *testing.T) {
	homes := table(t, "| library | used by |")
	for path, p := range packages(t) {
		for _, imported := range p.Imports {
			for library, allowed := range homes {
				if (imported == library || strings.HasPrefix(imported, library+"/")) && !slices.Contains(allowed, path) {
					t.Errorf("%s imports %s, whose home is %s", path, imported, strings.Join(allowed, ", "))
				}
			}
		}
	}
}

// TestPureGo: the program that must not be taken down by a driver has no way
// to NVIDIA's library, nor to any other through cgo.
func TestPureGo(t *testing.T) {
	deps := strings.Fields(string(list(t, "CGO_ENABLED=0", "-deps", "./cmd/gpulab")))
	for _, dep := range deps {
		if dep == "runtime/cgo" || strings.HasPrefix(dep, "github.com/NVIDIA/go-nvml") {
			t.Errorf("cmd/gpulab depends on %s", dep)
		}
	}
}

// TestPackageDocs: every package says what it is.
func TestPackageDocs(t *testing.T) {
	for path, p := range packages(t) {
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if !slices.ContainsFunc(append(p.GoFiles, p.CgoFiles...), func(file string) bool {
			return strings.HasPrefix(packageDoc(t, filepath.Join(p.Dir, file)), want)
		}) {
			t.Errorf("%s has no package comment that begins with %q", path, want)
		}
	}
}

// packageDoc returns the comment above a file's package clause.
func packageDoc(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	if file.Doc == nil || ast.IsGenerated(file) {
		return ""
	}
	return file.Doc.Text()
}

// drawers are names of packages that say nothing about what is in them.
var drawers = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib"}

func TestNamesOfPackages(t *testing.T) {
	for path, p := range packages(t) {
		if slices.Contains(drawers, p.Name) {
			t.Errorf("%s: a package is named for what it is about", path)
		}
	}
}

// unfinished is what nobody should find in a finished program.
var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b|not (yet )?implemented`)

func TestNothingUnfinished(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "node_modules", "vendor", "bin", "testdata", "output", "nvidia-device-plugin"}, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !slices.Contains([]string{".go", ".templ", ".js", ".css", ".sh", ".yaml", ".yml", ".py", ".md", ".c"}, filepath.Ext(path)):
			return nil
		case strings.HasSuffix(path, "structure_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for number, line := range strings.Split(string(content), "\n") {
			if unfinished.MatchString(line) {
				t.Errorf("%s:%d: %s", strings.TrimPrefix(path, root+"/"), number+1, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
