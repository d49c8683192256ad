// Package shortdir gives tests a directory for unix sockets, whose paths have at most 107 bytes
// (sun_path, unix(7)). The path of t.TempDir contains the name of the test and TMPDIR, which may be
// long.
package shortdir

import (
	"os"
	"testing"
)

// most is the longest usable path of the directory for temporary files. Programs add as much again:
// ssh's ControlPath, an agent's socket, an engine's.
const most = 32

// New returns an empty directory below Parent that is removed when t ends.
func New(t testing.TB) string {
	t.Helper()
	dir, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Make is like New, without a test. The caller removes the directory.
func Make() (string, error) { return os.MkdirTemp(Parent(), "sbx") }

// Parent returns the directory for temporary files, or /tmp if its path is too long.
func Parent() string {
	if dir := os.TempDir(); len(dir) <= most {
		return dir
	}
	return "/tmp"
}
