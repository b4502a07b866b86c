package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// Every pod that gpulab makes says how names are looked up in it. Left out, each of the
// network's search domains is asked before the name itself.
func TestPodsSayHowNamesAreLookedUp(t *testing.T) {
	pods := 0
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.CompositeLit)
				if !ok || len(literal.Elts) == 0 {
					return true
				}
				if kind, ok := literal.Type.(*ast.SelectorExpr); !ok || kind.Sel.Name != "PodSpec" {
					return true
				}
				pods++
				if !slices.ContainsFunc(literal.Elts, func(e ast.Expr) bool {
					pair, ok := e.(*ast.KeyValueExpr)
					if !ok {
						return false
					}
					key, ok := pair.Key.(*ast.Ident)
					return ok && key.Name == "DNSConfig"
				}) {
					t.Errorf("%s: the pod has no DNSConfig", files.Position(literal.Pos()))
				}
				return true
			})
		}
	}
	if pods < 4 {
		t.Errorf("only %d pods were found", pods)
	}
}
