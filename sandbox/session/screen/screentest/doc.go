// Package screentest runs the terminals that ours is compared with: xterm.js in a process of node,
// and a pane of a real tmux. It knows nothing of our own screen, so that its tests can use it.
package screentest

import (
	"os"
	"path/filepath"
	"testing"
)

// missing skips the test for want of a reference terminal. Where nothing may be skipped, it fails.
func missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
		t.Fatalf("%s, a reference terminal, is not installed: %v; scripts/setup test installs it",
			what, err)
	}
	t.Skipf("%s, a reference terminal, is not installed: %v", what, err)
}

// root is the folder of the module that the test belongs to.
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
