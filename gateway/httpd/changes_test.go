package httpd

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// repo makes a git repository with one commit of the file a, in a directory whose name a shell
// would expand.
func repo(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "it's $(touch expanded)")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "a", "one\ntwo\n")
	git(t, dir, "init", "-q", "-b", "work")
	git(t, dir, "add", "a")
	git(t, dir, "commit", "-q", "-m", "first")
	return dir
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir,
		"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v, %s", args, err, out)
	}
}

// The changes are those since the clone began, or since the last commit. The repository's fsmonitor
// and diff programs do not run for them.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	s, dir := w.login(wire.RightDrive), repo(t)
	of := func(dir string) string { return "/page/changes/demo?path=" + url.QueryEscape(dir) }
	put(t, dir, "a", "one\n2\n")
	put(t, dir, "new \x1b[31m", "")
	put(t, dir, ".gitattributes", "a diff=evil\n")
	evil := "touch " + filepath.Join(t.TempDir(), "ran")
	for key, value := range map[string]string{"core.fsmonitor": evil, "diff.external": evil,
		"diff.evil.command": evil, "diff.evil.textconv": evil} {
		git(t, dir, "config", key, value)
	}
	got := w.pageCall(s, "GET", of(dir), "")
	for _, want := range []string{"## work", ` M a`, `-two\n+2`, `?? `, `"cut":false`} {
		if got.status != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("%d %s, want %s", got.status, got.body, want)
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(evil, "touch ")); err == nil {
		t.Error("a program of the configuration ran")
	}
	for _, key := range []string{"core.fsmonitor", "diff.external", "diff.evil.command",
		"diff.evil.textconv"} {
		git(t, dir, "config", "--unset", key)
	}
	git(t, dir, "update-ref", "refs/sandboxd/base", "HEAD")
	git(t, dir, "commit", "-q", "-a", "-m", "second")
	if got := w.pageCall(s, "GET", of(dir), ""); !strings.Contains(got.body, `-two\n+2`) {
		t.Errorf("since the clone began: %d %s", got.status, got.body)
	}
	git(t, dir, "update-ref", "-d", "refs/sandboxd/base")
	if got := w.pageCall(s, "GET", of(dir), ""); strings.Contains(got.body, `+2`) {
		t.Errorf("since the last commit: %d %s", got.status, got.body)
	}
	put(t, dir, "a", strings.Repeat("long\n", 400_000))
	if got := w.pageCall(s, "GET", of(dir), ""); got.status != http.StatusOK ||
		!strings.Contains(got.body, `"cut":true`) || len(got.body) > 2<<20 {
		t.Errorf("a long difference: %d, %d bytes", got.status, len(got.body))
	}
	empty := t.TempDir()
	git(t, empty, "init", "-q", "-b", "none")
	if got := w.pageCall(s, "GET", of(empty), ""); got.status != http.StatusOK ||
		!strings.Contains(got.body, "No commits yet on none") {
		t.Errorf("without a commit: %d %s", got.status, got.body)
	}
	for dir, want := range map[string]int{t.TempDir(): http.StatusNotFound,
		"/none": http.StatusNotFound, "a": http.StatusBadRequest, "/a\x00": http.StatusBadRequest} {
		if got := w.pageCall(s, "GET", of(dir), ""); got.status != want {
			t.Errorf("%q: %d %s", dir, got.status, got.body)
		}
	}
	if got := w.pageCall(w.login(wire.RightWatch), "GET", of(dir), ""); got.status !=
		http.StatusForbidden {
		t.Errorf("a watcher: %d %s", got.status, got.body)
	}
}

// A person sees what has changed in a directory, as text.
func TestPageChanges(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	dir := repo(t)
	put(t, dir, "a", "one\n<img src=x onerror=\"window.wrong.push('run')\">\n")
	b := newTab(browser, t, 1100, 600)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	valueOf[bool](b, fmt.Sprintf(`location.hash = "demo~main/files" + encodeURIComponent(%q), true`,
		dir))
	b.until("the directory", fmt.Sprintf(`document.querySelector("#path").textContent === %q`, dir))
	b.click("#changes")
	b.until("both lines", `[...document.querySelectorAll("#preview span")].some((e) => e.className === "added" && e.textContent.includes("<img")) &&
		[...document.querySelectorAll("#preview .deleted")].some((e) => e.textContent === "-two\n")`)
	b.shoot("changes")
	b.fine()
}
