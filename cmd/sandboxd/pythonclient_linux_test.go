package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pythonDir has the Python client.
const pythonDir = "../../agent/sdk/python"

// TestPythonClient runs the client's own tests, which start a daemon with `sandboxd up`, and what
// checks its types and its style.
func TestPythonClient(t *testing.T) {
	python, err := filepath.Abs(filepath.Join(pythonDir, ".venv/bin/python"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatalf("%v; run scripts/setup test-slow", err)
		}
		t.Skipf("%v; run scripts/setup test-slow", err)
	}
	cache := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"types", []string{"-m", "mypy", "--cache-dir", cache}},
		{"style", []string{"-m", "ruff", "check", "--no-cache"}},
		{"format", []string{"-m", "ruff", "format", "--check", "--no-cache"}},
		{"tests", []string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp",
			filepath.Join(t.TempDir(), "py")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), python, tt.args...)
			cmd.Dir = pythonDir
			cmd.Env = append(os.Environ(), "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1",
				"HOME="+t.TempDir(), "SANDBOXD_GUEST_DIR="+guestBinaries)
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
