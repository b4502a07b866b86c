package audit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryActionHasWords reads gpulab's own code: whatever is recorded is one of Actions, and each of
// these is recorded somewhere.
func TestEveryActionHasWords(t *testing.T) {
	recorded := map[string]string{}   // action → where
	own := map[string]*ast.FuncDecl{} // of this package's audit.go, for the others
	passing := map[string]bool{"Record": true, "RecordIn": true}
	files := map[string]*ast.File{}
	for _, root := range []string{"..", "../../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			files[path] = file
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && takesAction(f) {
					passing[f.Name.Name] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	addFunctions(own, files["../audit/audit.go"])
	for path, file := range files {
		actionsIn(t, path, file, own, passing, recorded)
	}
	if len(recorded) < 15 {
		t.Fatalf("only %d actions were found", len(recorded))
	}
	for action, where := range recorded {
		if Words(action) == action {
			t.Errorf("%s records %q, which actions.go has no words for", where, action)
		}
	}
	seen := map[string]bool{}
	for _, a := range Actions() {
		if recorded[a.Name] == "" {
			t.Errorf("nothing records %q", a.Name)
		}
		if seen[a.Name] || a.Words == "" || strings.HasSuffix(a.Words, ".") {
			t.Errorf("%q comes twice or has no words", a.Name)
		}
		seen[a.Name] = true
	}
}

var actionPattern = regexp.MustCompile(`^[a-z]+(-[a-z]+)*(\.[a-z]+(-[a-z]+)*)*$`)

// takesAction says of a function that it records what it is given, or hands it on.
func takesAction(f *ast.FuncDecl) bool {
	for _, p := range f.Type.Params.List {
		typ, ok := p.Type.(*ast.Ident)
		if ok && typ.Name == "string" && slices.ContainsFunc(p.Names, func(n *ast.Ident) bool { return n.Name == "action" }) {
			return true
		}
	}
	return false
}

// actionsIn finds the actions of Entry literals and of calls of functions that take an action. An action that is no
// literal comes from the function around it, or from the function of this file or of audit.go that returns it.
func actionsIn(t *testing.T, path string, file *ast.File, own map[string]*ast.FuncDecl, passing map[string]bool, recorded map[string]string) {
	functions := maps.Clone(own)
	addFunctions(functions, file)
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Body == nil || passing[name] || name == "note" {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			var action ast.Expr
			switch n := n.(type) {
			case *ast.CompositeLit:
				action = entryAction(n)
			case *ast.CallExpr:
				action = auditArgument(n, passing)
			}
			if action == nil {
				return true
			}
			found := 0
			for _, text := range literals(action, f, functions) {
				if actionPattern.MatchString(text) {
					recorded[text] = path + ": " + name
					found++
				}
			}
			if found == 0 {
				t.Errorf("%s: what %s records cannot be told: write it as a literal", path, name)
			}
			return true
		})
	}
}

func addFunctions(to map[string]*ast.FuncDecl, file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			to[f.Name.Name] = f
		}
	}
}

func entryAction(lit *ast.CompositeLit) ast.Expr {
	name := ""
	switch typ := lit.Type.(type) {
	case *ast.Ident:
		name = typ.Name
	case *ast.SelectorExpr:
		name = typ.Sel.Name
	}
	if name != "Entry" {
		return nil
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Action" {
				if field, ok := kv.Value.(*ast.SelectorExpr); ok && field.Sel.Name == "Action" {
					return nil // a copy of an entry
				}
				return kv.Value
			}
		}
	}
	return nil
}

// auditArgument is the action in s.RecordIn(r, v, action, …), l.RecordIn(ctx, action, …) and s.record(ctx, tx, who,
// action, …).
func auditArgument(call *ast.CallExpr, passing map[string]bool) ast.Expr {
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !passing[fun.Sel.Name] {
		return nil
	}
	for _, arg := range call.Args[1:] {
		switch arg := arg.(type) {
		case *ast.BasicLit:
			return arg
		case *ast.CallExpr:
			return arg
		case *ast.CompositeLit:
			return nil // an Entry, found by itself
		case *ast.Ident:
			if arg.Name == "action" {
				return arg
			}
			if arg.Name == "e" || arg.Name == "entry" {
				return nil
			}
		}
	}
	return nil
}

func literals(action ast.Expr, around *ast.FuncDecl, functions map[string]*ast.FuncDecl) []string {
	var in ast.Node = around.Body
	switch action := action.(type) {
	case *ast.BasicLit:
		in = action
	case *ast.CallExpr:
		name := ""
		switch fun := action.Fun.(type) {
		case *ast.Ident:
			name = fun.Name
		case *ast.SelectorExpr:
			name = fun.Sel.Name
		}
		if functions[name] != nil {
			in = functions[name].Body
		}
	}
	var list []string
	ast.Inspect(in, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && (in == action || strings.Contains(text, ".")) {
				list = append(list, text)
			}
		}
		return true
	})
	return list
}
