package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// A new sandbox of a directory has what the caller requests. For an existing one that differs the
// request fails.
func TestEnsureDir(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *gateway.Options) { o.Dirs = hostdir.Rules{Roots: []string{root}} })
	ensure := func(code int, says string, flags ...string) {
		t.Helper()
		got, out, errs := w.command(append([]string{"ensure", "--dir", dir}, flags...)...)
		if got != code || !strings.Contains(errs, says) {
			t.Fatalf("%q: %d, %q, %q; want %d and %q", flags, got, out, errs, code, says)
		}
	}
	created := func() lifecycle.Info {
		t.Helper()
		all, err := w.hub.List(t.Context(), alice)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	ensure(0, "new sandbox project-", "--image=example/one")
	first := created()
	if first.Image != "example/one" || first.Dir != dir {
		t.Errorf("%+v", first)
	}
	ensure(0, "", "--image=docker.io/example/one:latest")
	ensure(0, "")
	ensure(125,
		"image is example/one, not example/two; omit the flag, or recreate the sandbox with --wipe",
		"--image=example/two")
	ensure(125, "example.com is not allowed", "--allow=example.com")
	ensure(2, "--network \"open\"", "--network=open")
	if again := created(); again.ID != first.ID {
		t.Error("a refusal made another sandbox")
	}
	ensure(0, "new sandbox project-", "--wipe", "--image=example/two")
	if last := created(); last.ID == first.ID || last.Image != "example/two" {
		t.Errorf("%+v", last)
	}
	ensure(0, "new sandbox project-", "--wipe")
}

// The error names the limits that differ, and no others.
func TestMismatchOfLimits(t *testing.T) {
	info := lifecycle.Info{Name: "x", Limits: sandbox.DefaultLimits}
	err := (dirOptions{limits: sandbox.Limits{Memory: 1 << 30,
		PIDs: sandbox.DefaultLimits.PIDs}}).mismatch(info)
	if err == nil || !strings.Contains(err.Error(), "memory is 2g, not 1g") ||
		strings.Contains(err.Error(), "pids") {
		t.Error(err)
	}
}

// The requested image is known even if setup commands made another image from it.
func TestMismatchOfMadeImage(t *testing.T) {
	info := lifecycle.Info{Name: "x", Image: "sandboxd-setup/abc", ImageOf: "setup: true",
		Labels: map[string]string{labelImage: "example/one"}, Limits: sandbox.DefaultLimits}
	if err := (dirOptions{image: "example/one"}).mismatch(info); err != nil {
		t.Error(err)
	}
	if err := (dirOptions{image: "example/two"}).mismatch(info); err == nil {
		t.Error("another image is not said")
	}
}
