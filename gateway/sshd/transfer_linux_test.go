package sshd

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// randomFile creates a file that cannot be compressed and that a text mode would change.
func randomFile(t testing.TB, path string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	rand.Read(b)
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
	return b
}

func sameFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d sent", filepath.Base(path), len(got),
			len(want))
	}
}

// mustRun runs a program that must succeed.
func mustRun(t testing.TB, w *world, name string, args ...string) string {
	t.Helper()
	got := outcome(t, w.command(need(t, name), args...), "")
	if got.exit != 0 {
		t.Fatalf("%s %q: exit %d\n%s%s", name, args, got.exit, got.stdout, got.stderr)
	}
	return got.stdout
}

func TestCopies(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	want := randomFile(t, w.file("up"), 3<<20+17)
	opts := w.sshOptions("alice")
	remoteShell := "ssh " + strings.Join(opts, " ")

	t.Run("scp by sftp", func(t *testing.T) {
		mustRun(t, w, "scp", append(opts, "-s", w.file("up"), "demo@127.0.0.1:one")...)
		mustRun(t, w, "scp", append(opts, "-s", "demo@127.0.0.1:one", w.file("down-s"))...)
		sameFile(t, w.file("down-s"), want)
	})
	t.Run("scp by rcp", func(t *testing.T) {
		mustRun(t, w, "scp", append(opts, "-O", "-p", w.file("up"), "demo@127.0.0.1:two")...)
		mustRun(t, w, "scp", append(opts, "-O", "-p", "demo@127.0.0.1:two", w.file("down-o"))...)
		sameFile(t, w.file("down-o"), want)
		if info, err := os.Stat(w.file("down-o")); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, err %v", info.Mode(), err)
		}
	})
	t.Run("sftp", func(t *testing.T) {
		batch := w.command(need(t, "sftp"), append(opts, "-b", "-", "demo@127.0.0.1")...)
		got := outcome(t, batch, "put up three\nget three down-sftp\nls -l three\n")
		if got.exit != 0 {
			t.Fatalf("got %+v", got)
		}
		sameFile(t, w.file("down-sftp"), want)
	})
	t.Run("rsync", func(t *testing.T) {
		mustRun(t, w, "rsync", "-a", "-e", remoteShell, w.file("up"), "demo@127.0.0.1:four")
		mustRun(t, w, "rsync", "-a", "-e", remoteShell, "demo@127.0.0.1:four", w.file("down-rsync"))
		sameFile(t, w.file("down-rsync"), want)
	})
	t.Run("git clone and push", func(t *testing.T) {
		setup := `git init -q -b main repo && cd repo && git config receive.denyCurrentBranch updateInstead &&
			git config user.email a@b && git config user.name A && echo one >f && git add f && git commit -q -m one`
		if got := outcome(t, w.ssh("alice", "demo@127.0.0.1", setup), ""); got.exit != 0 {
			t.Fatalf("got %+v", got)
		}
		git := func(args ...string) {
			t.Helper()
			c := w.command(need(t, "git"), args...)
			c.Env = append(c.Env, "GIT_SSH_COMMAND="+remoteShell)
			if got := outcome(t, c, ""); got.exit != 0 {
				t.Fatalf("git %q: %+v", args, got)
			}
		}
		git("clone", "-q", "demo@127.0.0.1:repo", "clone")
		sameFile(t, w.file("clone/f"), []byte("one\n"))
		git("-C", "clone", "-c", "user.email=a@b", "-c", "user.name=A", "commit", "-q",
			"--allow-empty", "-m", "two")
		git("-C", "clone", "push", "-q", "origin", "main")
		if got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "git -C repo log --format=%s"),
			""); got.stdout != "two\none\n" {
			t.Errorf("log after push: %+v", got)
		}
	})
}

// Bulk data in both directions at once on one channel, byte for byte.
func TestBulk(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	want := randomFile(t, w.file("bulk"), 24<<20)
	c := w.ssh("alice", "demo@127.0.0.1", "tee /dev/stderr")
	in, err := os.Open(w.file("bulk"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c.Stdin = in
	got := outcome(t, c, "")
	if got.exit != 0 || got.stdout != string(want) || got.stderr != string(want) {
		t.Errorf("exit %d, %d and %d bytes came back of %d", got.exit, len(got.stdout),
			len(got.stderr), len(want))
	}
}
