// Package screentest runs the reference terminals for our screen: xterm.js in a node process, and a
// pane of a real tmux. It does not import our screen, so that its tests can use it.
package screentest

import (
	"os"
	"path/filepath"
	"testing"
)

// missing skips the test because a reference terminal is not installed, or fails it if no test may
// be skipped.
func missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
		t.Fatalf("%s, a reference terminal, is not installed: %v; scripts/setup test installs it",
			what, err)
	}
	t.Skipf("%s, a reference terminal, is not installed: %v", what, err)
}

// root returns the directory of the test's module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = up
	}
}
