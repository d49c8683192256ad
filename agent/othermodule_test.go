package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFromAnotherModule builds and runs a program of another module that requires this one.
func TestFromAnotherModule(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	copyFile := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyFile(filepath.Join("testdata", "othermodule", "main.go"), "main.go")
	copyFile(filepath.Join(root, "go.sum"), "go.sum")
	module := "module example.com/othermodule\n\ngo 1.26\n\nrequire github.com/sandboxd/sandboxd " +
		"v0.0.0\n\nreplace github.com/sandboxd/sandboxd => " +
		root + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", "program", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	o := world.options()
	program := exec.CommandContext(
		bounded(t),
		filepath.Join(dir, "program"),
		"ssh://"+world.addr,
		o.Identity,
		o.KnownHosts[0],
	)
	out, err := program.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "from another module") ||
		!strings.HasPrefix(string(out), "dead: ") {
		t.Errorf("got %q, %v", out, err)
	}
}
