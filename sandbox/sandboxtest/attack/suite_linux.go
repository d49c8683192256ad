package attack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Suite describes a backend to the attacks, which are tests. Its containers run on this machine.
type Suite struct {
	// Open returns a backend. Its sandboxes must be removed when t ends.
	Open func(t *testing.T) sandbox.Backend
	// Spec is the sandbox to boot; its image has Bash, Perl and Python, as the default one. ID is
	// set for each.
	Spec sandbox.Spec
	// State is where the backend keeps the keys of sandboxes, and Dirs are the directories of this
	// machine, without that of images, in which it keeps what sandboxes mount.
	State func(b sandbox.Backend) guestconfig.State
	Dirs  func(b sandbox.Backend) []string
	// Names returns the paths on this machine of the files that are /etc/hosts and others inside.
	Names func(t *testing.T, b sandbox.Backend, inst sandbox.Instance) []string
	// Gone fails t if something is left of the sandbox id, which was destroyed.
	Gone func(t *testing.T, b sandbox.Backend, id string)
	// Has reports whether a sandbox, which may have stopped, has a file.
	Has func(t *testing.T, b sandbox.Backend, inst sandbox.Instance, path string) bool
}

// Run tests all attacks.
func (a Suite) Run(t *testing.T) {
	t.Run("MemoryOfPID1", a.MemoryOfPID1)
	t.Run("Signals", a.Signals)
	t.Run("Start", a.Start)
	t.Run("Mounts", a.Mounts)
	t.Run("Socket", a.Socket)
	t.Run("ForkBomb", a.ForkBomb)
	t.Run("Memory", a.Memory)
	t.Run("Reserve", a.Reserve)
	t.Run("Kernel", a.Kernel)
	t.Run("Terminals", a.Terminals)
	t.Run("Self", a.Self)
}

// boot boots a sandbox with what spec has besides a.Spec, and logs in.
func (a Suite) boot(t *testing.T, limits sandbox.Limits) (sandbox.Backend, sandbox.Instance,
	*ssh.Client) {
	t.Helper()
	b := a.Open(t)
	spec := a.Spec
	spec.ID, spec.Limits = fmt.Sprintf("t%x", time.Now().UnixNano()), limits
	inst, err := b.Boot(soon(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	return b, inst, login(t, b, inst)
}

func (a Suite) keys(t *testing.T, b sandbox.Backend, inst sandbox.Instance) guestconfig.Keys {
	t.Helper()
	k, err := a.State(b).ReadKeys(inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// trees describes the directories from which sandboxes mount.
func (a Suite) trees(t *testing.T, b sandbox.Backend) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, dir := range a.Dirs(b) {
		maps.Copy(all, tree(t, dir))
	}
	return all
}

// soon bounds one call of a backend.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func login(t *testing.T, b sandbox.Backend, inst sandbox.Instance) *ssh.Client {
	t.Helper()
	peer, err := b.Dial(soon(t), inst)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Login(t, peer)
}

var sh, mustSh = sandboxtest.Sh, sandboxtest.MustSh

func control(t *testing.T, b sandbox.Backend, inst sandbox.Instance) *connect.Control {
	t.Helper()
	peer, err := b.Dial(soon(t), inst)
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect.OpenControl(soon(t), peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func health(t *testing.T, c *connect.Control) string {
	t.Helper()
	reply, err := c.Do(soon(t), wire.Control{Do: "health"})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Health
}

// fails runs commands that must all fail, each for one of the given reasons.
func fails(t *testing.T, c *ssh.Client, commands []string, reasons ...string) {
	t.Helper()
	for _, command := range commands {
		out, err := sh(t, c, command)
		var exit *ssh.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("%s: got %q, error %v; want it to fail", command, out, err)
			continue
		}
		known := false
		for _, reason := range reasons {
			known = known || strings.Contains(out, reason)
		}
		if !known {
			t.Errorf("%s: failed with %q, want one of %q", command, out, reasons)
		}
	}
}

// Python wraps a program in a command; calls of the C library are the shortest way to a system
// call.
func Python(program string) string {
	return "python3 - <<'EOF'\nimport ctypes, os, sys, socket\nlibc = ctypes.CDLL(None, " +
		"use_errno=True)\n" +
		"def must(n):\n    if n < 0: sys.exit(os.strerror(ctypes.get_errno()))\n" + program +
		"\nEOF"
}

// tree describes the visible state of a directory on this machine, without access times.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	seen := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		var sum [sha256.Size]byte
		if e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(data)
		}
		seen[path] = fmt.Sprintf("%o %d:%d %d links, %d bytes, %d.%d, %x", st.Mode, st.Uid, st.Gid,
			st.Nlink, st.Size, st.Mtim.Sec, st.Mtim.Nsec, sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}
