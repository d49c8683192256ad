package agent

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// Without guest binaries, a static sandboxd in $PATH is the guest.
func TestFindGuest(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	static, err := openssh.Guest(dir) // any static program will do
	if err != nil {
		t.Fatal(err)
	}
	sandboxd := filepath.Join(dir, "sandboxd")
	if err := os.Symlink("/bin/sh", sandboxd); err != nil {
		t.Fatal(err)
	}
	if got, err := findGuest(runtime.GOARCH); err == nil {
		t.Errorf("got %q where sandboxd is not static", got)
	}
	if err := os.Rename(static, sandboxd); err != nil {
		t.Fatal(err)
	}
	if got, err := findGuest(runtime.GOARCH); got != sandboxd || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, sandboxd)
	}
	beside := filepath.Join(dir, "sandboxd-guest-linux-"+runtime.GOARCH)
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := findGuest(runtime.GOARCH); got != beside || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, beside)
	}
}
