package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// TestPortableDaemon runs a daemon that is compiled of the files for other systems than Linux, for
// which an engine counts as one on another machine. It cannot run what calls macOS itself: files
// whose names end in _darwin.go.
func TestPortableDaemon(t *testing.T) {
	requireEngine(t)
	dir := shortdir.New(t)
	program := filepath.Join(dir, "sandboxd")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", portable(t),
		"-ldflags=-X=main.system=darwin", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir,
		"SANDBOXD_STATE=" + dir + "/the state", "SANDBOXD_GUEST_DIR=" + guestBinaries,
		"DOCKER_HOST=" + os.Getenv("DOCKER_HOST"),
		"SANDBOXD_SSH=127.0.0.1:0", "SANDBOXD_HTTP=127.0.0.1:0"}
	call := func(want string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env, cmd.Dir = env, dir
		out, _ := cmd.CombinedOutput() // want says whether it failed
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s: got\n%s\nwant %s", strings.Join(args, " "), out, want)
		}
		return string(out)
	}
	t.Cleanup(func() {
		// Another test may use the volume of the guest.
		cmd := exec.Command("sh", "-c", `"$0" rm --all -f && "$0" down &&
			sum=$(sha256sum "$SANDBOXD_GUEST_DIR"/sandboxd-guest-linux-$1 | cut -c1-12) &&
			{ docker volume rm sandboxd-guest-$sum >/dev/null 2>&1 || true; }`, program,
			runtime.GOARCH)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})

	call(`(?m)^ok +link +through the engine`, "doctor")
	call("ready in", "up")
	var status daemonStatus
	must(t, json.Unmarshal([]byte(call(`"pid"`, "daemon", "status", "--json")), &status))
	call("web ready", "new", "web", "--image", "sandboxd/busybox:latest")
	call(`filtered \(proxy\)`, "describe", "web")
	call("begun", "run", "web", "--", "cd /tmp; A=1; echo begun")
	call("name\\?.*\n.*waits for", "run", "web", "--", "echo 'name?'; read x; echo hello $x")
	call("hello ann", "type", "web", "ann")
	pidfd, err := unix.PidfdOpen(status.PID, 0)
	must(t, err)
	defer unix.Close(pidfd)
	must(t, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1) // its end
	must(t, err)
	call("ready in", "up")
	call("as before: 1 in /tmp", "run", "web", "--", "echo as before: $A in $PWD")
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("copied\n"), 0o600))
	call("", "cp", "file", "web:/root/")
	call("web stopped", "stop", "web")
	call("web started", "start", "web")
	call("copied", "exec", "web", "cat", "/root/file")
	call("two ready", "fork", "web", "two")
	call("copied", "exec", "two", "cat", "/root/file")
	must(t, os.Mkdir(filepath.Join(dir, "work"), 0o700))
	call("not supported", "new", "three", "--image", "sandboxd/busybox:latest", "--mount", "work")
	call("needs Linux", "images", "ls")
	call("as before", "log", "web")
	call("(?m)^inside", "ssh", "web", "echo inside")
}

// portable returns an overlay for go build that replaces the files for Linux by those for macOS. A
// package that needs Linux as a whole stays: the product does not import it elsewhere.
func portable(t *testing.T) string {
	linux, other := filesOf(t, "linux"), filesOf(t, "darwin")
	dir := t.TempDir()
	replace := make(map[string]string)
	put := func(path string, text []byte) {
		to := filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		must(t, os.WriteFile(to, text, 0o600))
		replace[path] = to
	}
	constraint := regexp.MustCompile(`(?m)^//go:build .*\n`)
	clause := regexp.MustCompile(`(?m)^package \w+\n`)
	for pkg, files := range other {
		for _, f := range files {
			// Files of the system itself do not compile here.
			if !slices.Contains(linux[pkg], f) && !strings.HasSuffix(f, "_darwin.go") {
				text, err := os.ReadFile(filepath.Join(pkg, f))
				must(t, err)
				put(filepath.Join(pkg, f), constraint.ReplaceAll(text, nil))
			}
		}
		for _, f := range linux[pkg] {
			twin := strings.Replace(f, "_linux.go", "_darwin.go", 1)
			if !slices.Contains(files, f) && !slices.Contains(files, twin) {
				text, err := os.ReadFile(filepath.Join(pkg, f))
				must(t, err)
				put(filepath.Join(pkg, f), clause.Find(text))
			}
		}
	}
	if len(replace) < 20 {
		t.Fatalf("only %d files differ", len(replace))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	path := filepath.Join(dir, "overlay.json")
	must(t, os.WriteFile(path, text, 0o600))
	return path
}

// filesOf returns the files of the product's packages for an operating system, by directory.
func filesOf(t *testing.T, system string) map[string][]string {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Dir,GoFiles,ImportPath",
		".")
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	out, err := cmd.Output()
	must(t, err)
	all := make(map[string][]string)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var pkg struct {
			Dir, ImportPath string
			GoFiles         []string
		}
		must(t, d.Decode(&pkg))
		if strings.HasPrefix(pkg.ImportPath, "github.com/sandboxd/sandboxd/") {
			all[pkg.Dir] = pkg.GoFiles
		}
	}
	return all
}
