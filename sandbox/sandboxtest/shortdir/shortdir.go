// Package shortdir gives tests a directory for unix sockets, whose paths have at most 107 bytes
// (sun_path, unix(7)). t.TempDir has the name of the test in its path and goes below TMPDIR, which
// may be long by itself.
package shortdir

import (
	"os"
	"testing"
)

// most is how long the directory for temporary files may be to be used. Programs put as much again
// below what they are given: ssh's ControlPath, an agent's socket, an engine's.
const most = 32

// New returns an empty directory below Parent that is removed when t has ended.
func New(t testing.TB) string {
	t.Helper()
	dir, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Make is New without a test. The caller removes the directory.
func Make() (string, error) { return os.MkdirTemp(Parent(), "sbx") }

// Parent is the directory for temporary files, or /tmp where that has a long name.
func Parent() string {
	if dir := os.TempDir(); len(dir) <= most {
		return dir
	}
	return "/tmp"
}
