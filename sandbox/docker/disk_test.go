package docker

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Disk finds files wherever a sandbox may write, also in the engine's own files and in removed
// files that are open.
func TestDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip(
			"a daemon that is not root's has the engine's own measure, which knows neither holes " +
				"nor files without a name")
	}
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	if inst.Limits.Disk != sandbox.DefaultLimits.Disk {
		t.Errorf("got limits %+v", inst.Limits)
	}
	c := login(t, b, inst)
	measure := func() sandbox.DiskUsage {
		t.Helper()
		got, err := b.Disk(t.Context(), inst, sandbox.DiskUsage{})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	base := measure()
	if base.Bytes > 1<<20 {
		t.Errorf("at first: got %+v, want next to nothing", base)
	}
	grown := func(what string, want int64) {
		t.Helper()
		got := measure()
		if d := got.Bytes - base.Bytes; d < want-64<<10 || d > want+1<<20 {
			t.Errorf("%s: got %d bytes more, want %d", what, d, want)
		}
		base = got
	}
	mustSh(t, c, "dd if=/dev/zero of=/tmp/x bs=1M count=20 2>/dev/null")
	grown("a file", 20<<20)
	mustSh(t, c, "dd if=/dev/zero of=/etc/hosts bs=1M count=10 2>/dev/null")
	grown("a file of the engine's", 10<<20)
	mustSh(t, c, "truncate -s 8796093022208 /tmp/sparse")
	grown("a hole of 8 TiB", 0)
	mustSh(t, c, "dd if=/dev/zero of=/dev/shm/x bs=1M count=10 2>/dev/null")
	grown("memory", 0)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(
		"exec 3>/tmp/nameless; rm /tmp/nameless; dd if=/dev/zero bs=1M count=30 >&3 2>/dev/null; " +
			"echo there; read -r x"); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(out, new(string)); err != nil {
		t.Fatal(err)
	}
	grown("a file without a name", 30<<20)
	if err := errors.Join(in.Close(), ignoreExit(s.Wait())); err != nil {
		t.Fatal(err)
	}
	grown("after its end", -30<<20)
	mustSh(t, c, "rm /tmp/x /tmp/sparse; seq 1 3000 | (cd /tmp && xargs touch)")
	files := base.Files
	grown("empty files", -20<<20)
	if d := base.Files - files; d != 2998 {
		t.Errorf("got %d files more, want 2998", d)
	}

	// The engine measures where the daemon cannot.
	b.meter.mu.Lock()
	p := b.meter.places[inst.ID]
	b.meter.places[inst.ID] = places{ref: p.ref}
	b.meter.mu.Unlock()
	if got := measure(); got.Bytes > 1<<20 || got.Files != 0 {
		t.Errorf("by the engine: got %+v", got)
	}
	mustSh(t, c, "dd if=/dev/zero of=/tmp/x bs=1M count=20 2>/dev/null")
	if got := measure(); got.Bytes < 20<<20 || got.Bytes > 21<<20 {
		t.Errorf("by the engine: got %+v, want 20 MiB", got)
	}
	if room, err := b.meter.Room(t.Context()); err != nil || room <= 0 {
		t.Errorf("room: got %d, %v", room, err)
	}
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Disk(t.Context(), inst, sandbox.DiskUsage{}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("disk of a removed sandbox: got error %v, want %v", err, sandbox.ErrGone)
	}
	if _, err := b.Usage(t.Context(), inst); err == nil {
		t.Error("usage of a removed sandbox: got no error")
	}
}

// ignoreExit returns err unless it is the exit code of a command.
func ignoreExit(err error) error {
	if err == nil || strings.Contains(err.Error(), "exited with status") {
		return nil
	}
	return err
}
