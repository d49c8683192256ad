package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestExportedFunctions checks two rules for packages that other modules import. No parameter is a
// bare bool, which is unreadable at the call. No function returns nil, nil.
func TestExportedFunctions(t *testing.T) {
	for _, dir := range []string{".", "../sandbox"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range tree.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() {
					checkFunction(t, fset, f)
				}
			}
		}
	}
}

func checkFunction(t *testing.T, fset *token.FileSet, f *ast.FuncDecl) {
	for _, p := range f.Type.Params.List {
		if isIdent(p.Type, "bool") {
			t.Errorf("%s: %s takes a bare bool", fset.Position(f.Pos()), f.Name)
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) == 2 && isIdent(n.Results[0], "nil") && isIdent(n.Results[1], "nil") {
				t.Errorf("%s: %s returns nil, nil", fset.Position(n.Pos()), f.Name)
			}
		}
		return true
	})
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
