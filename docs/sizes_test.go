package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxMethods = 40  // of a type
	maxLines   = 600 // of a Go file
)

// TestSizes holds types and files to a size that a reader can keep in mind.
func TestSizes(t *testing.T) {
	methods := make(map[string]int)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".git"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go":
			return nil
		}
		text := read(t, path)
		if n := strings.Count(text, "\n"); n > maxLines {
			t.Errorf("%s: %d lines; the limit is %d", path, n, maxLines)
		}
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv != nil {
				pkg := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../"))
				methods[pkg+"."+receiver(d.Recv.List[0].Type)]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s: %d methods; the limit is %d", name, n, maxMethods)
		}
	}
	if methods["gateway.Hub"] == 0 {
		t.Error("no methods of gateway.Hub: is the walk right?")
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}
