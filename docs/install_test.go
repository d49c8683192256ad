package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestInstall runs scripts/install on what make build made: programs, manual pages and completions
// are where shells and man(1) look, and nothing is left after --remove.
func TestInstall(t *testing.T) {
	if _, err := os.Stat("../bin/sandboxd"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("nothing is built: make build")
	}
	prefix := filepath.Join(t.TempDir(), "usr")
	install := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "../scripts/install", append(args, prefix)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("install %q: %v\n%s", args, err, out)
		}
	}
	install()
	files := filesBelow(t, prefix)
	for _, want := range []string{
		"bin/sandboxd",
		"libexec/sandboxd/sandboxd-guest-linux-amd64",
		"libexec/sandboxd/sandboxd-guest-linux-arm64",
		"share/bash-completion/completions/sandboxd",
		"share/fish/vendor_completions.d/sandboxd.fish",
		"share/man/man1/sandboxd.1",
		"share/man/man1/sandboxd-run.1",
		"share/zsh/site-functions/_sandboxd",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("%s is missing", want)
		}
	}
	install("--remove")
	if left := filesBelow(t, prefix); len(left) > 0 {
		t.Errorf("left after --remove: %q", left)
	}
}

// filesBelow lists the files below dir by their paths in it; one that is empty fails the test.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() == 0 {
			t.Errorf("%s is empty", path)
		}
		files = append(files, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
