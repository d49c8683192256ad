// Package docs holds the documentation to the code: what architecture.md draws is what the compiler
// sees.
package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sandboxd/sandboxd/"

// TestLayers compares the layers block of architecture.md with go list: a package or an import that
// nobody drew fails, and so does an arrow that nobody uses. Imports of tests are free.
func TestLayers(t *testing.T) {
	drawn := readLayers(t)
	real := readImports(t)
	for _, pkg := range sortedKeys(real) {
		arrows, ok := drawn[pkg]
		if !ok {
			t.Errorf("package %s is not drawn in architecture.md", pkg)
			continue
		}
		for _, to := range real[pkg] {
			if !slices.Contains(arrows, to) {
				t.Errorf("%s imports %s, an arrow that nobody drew", pkg, to)
			}
		}
	}
	for _, pkg := range sortedKeys(drawn) {
		if _, ok := real[pkg]; !ok {
			t.Errorf("architecture.md draws package %s, which does not exist", pkg)
			continue
		}
		for _, to := range drawn[pkg] {
			if !slices.Contains(real[pkg], to) {
				t.Errorf("architecture.md draws %s -> %s, an arrow that nobody uses", pkg, to)
			}
		}
	}
}

// TestWalls holds the rules that no drawing may loosen.
func TestWalls(t *testing.T) {
	backends := []string{"sandbox/docker", "sandbox/host", "sandbox/kubernetes", "sandbox/oci",
		"sandbox/sandboxtest"}
	servers := []string{"gateway/sshd", "gateway/httpd"}
	for pkg, imports := range readImports(t) {
		for _, to := range imports {
			switch {
			case strings.HasPrefix(pkg, "sandbox") && strings.HasPrefix(to, "gateway"):
				t.Errorf("%s, inside a sandbox or below it, knows %s", pkg, to)
			case slices.Contains(backends, pkg) && slices.Contains(backends, to):
				t.Errorf("backend %s knows backend %s", pkg, to)
			case slices.Contains(servers, to) && pkg != "cmd/sandboxd":
				t.Errorf("%s knows the server %s", pkg, to)
			case pkg == "sandbox/session" && to == "sandbox":
				t.Errorf("a session knows what sandboxes are made of")
			}
		}
	}
}

// readLayers reads lines `package -> imports… what it is` of the layers block. Imports end at two
// blanks.
func readLayers(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("concepts/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```layers\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal("architecture.md has no layers block")
	}
	layers := make(map[string][]string)
	for line := range strings.Lines(block) {
		pkg, rest, ok := strings.Cut(strings.TrimRight(line, "\n"), " ->")
		if !ok {
			t.Fatalf("layers: %q has no arrow", line)
		}
		imports, _, _ := strings.Cut(rest, "  ")
		layers[pkg] = strings.Fields(imports)
	}
	return layers
}

// readImports asks go list for every package of the module and of the one in scripts, and which
// others of the two it imports.
func readImports(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, dir := range []string{"..", "../scripts"} {
		maps.Copy(all, importsIn(t, dir))
	}
	return all
}

// importsIn returns the imports of the packages of the module in dir.
func importsIn(t *testing.T, dir string) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-C", dir, "-json=ImportPath,Imports,GoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("go list: %w", err))
	}
	all := make(map[string][]string)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct {
			ImportPath       string
			Imports, GoFiles []string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(pkg.GoFiles) == 0 { // only tests
			continue
		}
		ours := []string{}
		for _, to := range pkg.Imports {
			if short, ok := strings.CutPrefix(to, module); ok {
				ours = append(ours, short)
			}
		}
		all[strings.TrimPrefix(pkg.ImportPath, module)] = ours
	}
	return all
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
