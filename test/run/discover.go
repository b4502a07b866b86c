package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// test is one top-level test.
type test struct {
	Name    string
	Package string // its folder, in the repository
	File    string
	Parts   []string // its chapters and named subtests, as its file has them
	About   []string // folders whose change it is about
	Gate    bool
	Alone   bool
	Helper  bool
	Older   bool // needs the program of the revision that the change begins at
	Touched bool // by the change
}

// packages maps each folder of tests to its build tag and to the files and folders of the repository that each of its
// tests reads. The list leaves out the sources of gpulab: tests that run gpulab depend on bin, which is built from
// them.
var packages = map[string]struct {
	tag   string
	reads []string
	built bool // the tests run the programs in bin
}{
	"test/deb": {tag: "deb", built: true},
	"test/e2e": {tag: "e2e", built: true},
	"test/jupyterlab": {tag: "e2e", reads: []string{
		"packaging/images/notebook", "packaging/simdriver", "internal/environments/program",
		"test/jupyterlab/testdata", "test/jupyterlab/server_test.go", "test/jupyterlab/connection_test.go",
	}},
}

// discover finds the tests in their sources. Tests whose files need a further
// build tag, a virtual machine's, are not among them.
func discover(root string) ([]test, error) {
	var tests []test
	for folder, p := range packages {
		files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		if err != nil {
			return nil, err
		}
		parts := map[string][]string{} // of the functions of the package that list chapters
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			if !builds(file, p.tag) {
				continue
			}
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if t, is, err := read(d); err != nil {
						return nil, fmt.Errorf("%s: %w", path, err)
					} else if is {
						t.Package, t.File = folder, filepath.Join(folder, filepath.Base(path))
						t.Parts = chapters(d)
						t.About = slices.Concat(t.About, p.reads)
						tests = append(tests, t)
					}
				case *ast.GenDecl: // a list of chapters that tests share
					for _, spec := range d.Specs {
						if v, is := spec.(*ast.ValueSpec); is {
							parts[v.Names[0].Name] = chapters(v)
						}
					}
				}
			}
		}
		for i, t := range tests {
			if t.Package != folder {
				continue
			}
			for j := len(t.Parts) - 1; j >= 0; j-- {
				if name, is := strings.CutPrefix(t.Parts[j], "\x00"); is {
					tests[i].Parts = slices.Replace(tests[i].Parts, j, j+1, parts[name]...)
				}
			}
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return strings.Compare(a.Name+a.Package, b.Name+b.Package) })
	return tests, nil
}

// builds tells whether a file is part of the build with a tag.
func builds(file *ast.File, tag string) bool {
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, c := range group.List {
			if expression, err := constraint.Parse(c.Text); err == nil {
				return expression.Eval(func(t string) bool { return t == tag || t == "linux" || t == "unix" })
			}
		}
	}
	return true
}

// read reads a test's declaration. It is false for other functions.
func read(d *ast.FuncDecl) (test, bool, error) {
	t := test{Name: d.Name.Name}
	if d.Recv != nil || !strings.HasPrefix(t.Name, "Test") || t.Name == "TestMain" {
		return t, false, nil
	}
	if d.Doc == nil {
		return t, true, nil
	}
	for _, c := range d.Doc.List {
		directive, is := strings.CutPrefix(c.Text, "//test:")
		if !is {
			continue
		}
		switch words := strings.Fields(directive); words[0] {
		case "gate":
			t.Gate = true
		case "alone":
			t.Alone = true
		case "helper":
			t.Helper = true
		case "older":
			t.Older = true
		case "about":
			t.About = words[1:]
		default:
			return t, true, fmt.Errorf("%s: there is no //test:%s", t.Name, words[0])
		}
	}
	return t, true, nil
}

// chapters lists the names of the chapters and subtests that a declaration
// holds, in their order. A list of chapters that stands elsewhere is given by
// its name behind a zero byte.
func chapters(n ast.Node) []string {
	var names []string
	name := func(e ast.Expr) bool {
		literal, is := e.(*ast.BasicLit)
		if !is || literal.Kind != token.STRING {
			return false
		}
		text, err := strconv.Unquote(literal.Value)
		names = append(names, text)
		return err == nil
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if id, is := n.Type.(*ast.Ident); is && id.Name == "chapter" && len(n.Elts) > 0 {
				return !name(n.Elts[0])
			}
			if array, is := n.Type.(*ast.ArrayType); is {
				if id, is := array.Elt.(*ast.Ident); is && id.Name == "chapter" {
					for _, e := range n.Elts {
						if c, is := e.(*ast.CompositeLit); is && len(c.Elts) > 0 {
							name(c.Elts[0])
						}
					}
					return false
				}
			}
		case *ast.CallExpr:
			if f, is := n.Fun.(*ast.SelectorExpr); is && f.Sel.Name == "Run" && len(n.Args) == 2 {
				return !name(n.Args[0])
			}
			if f, is := n.Fun.(*ast.SelectorExpr); is && f.Sel.Name == "Concat" {
				for _, e := range n.Args {
					if id, is := e.(*ast.Ident); is {
						names = append(names, "\x00"+id.Name)
					} else {
						names = append(names, chapters(e)...)
					}
				}
				return false
			}
		}
		return true
	})
	return names
}

// inputs returns the files, besides the test program, that the results of the tests in a folder depend on.
func inputs(root, folder string) ([]string, error) {
	var files []string
	trees := packages[folder].reads
	if packages[folder].built {
		bin := os.Getenv("GPULAB_BIN")
		if bin == "" {
			bin = filepath.Join(root, "bin")
		}
		files = append(files, filepath.Join(bin, "gpulab"), filepath.Join(bin, "images/images.json"))
		trees = []string{filepath.Join(folder, "testdata")}
	}
	for _, tree := range trees {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				files = append(files, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}
