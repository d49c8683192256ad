package clone

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

// local is a sandbox whose commands run on this machine. Its git is the first in path, so that a
// test can replace it.
type local struct {
	t    *testing.T
	path string // directories before those of PATH
	home string
	seen *bytes.Buffer // standard input of git; may be nil
}

func (l local) Exec(ctx context.Context, c agent.Cmd) (agent.Exit, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", c.Command)
	cmd.Dir = l.home
	cmd.Env = []string{"HOME=" + l.home, "PATH=" + l.path + ":" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if c.Stdin != nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			return agent.Exit{}, err
		}
		go func() { // ends with the command
			defer in.Close()
			var b [4096]byte
			for {
				n, err := c.Stdin.Read(b[:])
				if l.seen != nil {
					l.seen.Write(b[:n])
				}
				if n > 0 {
					if _, err := in.Write(b[:n]); err != nil {
						return
					}
				}
				if err != nil {
					return
				}
			}
		}()
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return agent.Exit{Code: max(exit.ExitCode(), 1)}, nil
	}
	return agent.Exit{}, err
}

// world is a repository of this machine with a commit, and a sandbox.
type world struct {
	t    *testing.T
	top  string // the repository
	dir  string // its clone in the sandbox
	box  local
	repo repository
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, top: filepath.Join(root, "project"),
		dir: filepath.Join(root, "box", "project")}
	for _, dir := range []string{w.top, filepath.Join(root, "box"), filepath.Join(root, "home")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", filepath.Join(root, "home"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(root, "home"))
	w.box = local{t: t, home: filepath.Join(root, "box"), path: filepath.Join(root, "bin")}
	w.repo = repository{w.top}
	w.git("init", "-q", "-b", "main")
	w.git("config", "user.name", "Ann Example")
	w.git("config", "user.email", "ann@example.com")
	w.write("README", "one\n")
	w.git("add", ".")
	w.git("commit", "-q", "-m", "one")
	return w
}

// git runs git in the repository of this machine and returns its output.
func (w *world) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.top
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// inside runs a shell command in the clone in the sandbox and returns its output.
func (w *world) inside(command string) string {
	w.t.Helper()
	var out bytes.Buffer
	exit, err := w.box.Exec(w.t.Context(), agent.Cmd{Stdout: &out, Stderr: &out,
		Command: "set -e; cd " + w.dir + "; " + command})
	if err != nil || exit.Code != 0 {
		w.t.Fatalf("%s: %v, %v: %s", command, exit, err, out.String())
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func (w *world) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.top, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// clone copies the repository into the sandbox.
func (w *world) clone(o Options) *Clone {
	w.t.Helper()
	o.Dir = w.dir
	s, err := Open(w.t.Context(), w.top, o)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := s.Copy(w.t.Context(), "web", "id1", w.box)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) fetch(c *Clone) *Fetched {
	w.t.Helper()
	f, err := c.Fetch(w.t.Context(), w.box, MaxFetch)
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// state returns all that a clone must not change in the repository: index, work tree and stash.
func (w *world) state() string {
	w.t.Helper()
	index, err := os.ReadFile(filepath.Join(w.top, ".git", "index"))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(index) + w.git("stash", "list") +
		w.git("for-each-ref", "refs/heads", "refs/stash")
}

// program makes an executable of the sandbox that comes before others of its name.
func program(w *world, name, script string) {
	w.t.Helper()
	if err := os.MkdirAll(w.box.path, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.box.path, name), []byte("#!/bin/sh\n"+script+"\n"),
		0o755); err != nil {
		w.t.Fatal(err)
	}
}
