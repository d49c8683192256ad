//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// The modes of an inner terminal count: a shell that is about to edit its line changes them just
// before it waits for a key, and so between two steps of one reading.
func TestInnerModes(t *testing.T) {
	t.Parallel()
	needs(t, "script")
	x := open(t, "script", "-qc", "cat", "/dev/null")
	x.until("cat reads", func(f session.Facts) bool {
		return f.Blocked && slices.Contains(f.Argv, "cat")
	})
	_, s, err := (&look{}).once(t.Context(), x.tty, nil, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []modes{{canonical: true, echo: true}}; !slices.Equal(s.inner, want) {
		t.Fatalf("got %+v, want %+v", s.inner, want)
	}
	other := s
	other.inner = []modes{{}}
	if s.equal(other) {
		t.Error("other modes of the inner terminal are not seen")
	}
}

// A relay does not listen as long as the program begins whose terminal it serves.
func TestComing(t *testing.T) {
	t.Parallel()
	needs(t, "python3")
	gate := filepath.Join(t.TempDir(), "gate")
	x := open(t, "python3", "-c", `
import os, select, sys
master, slave = os.openpty()
name = os.ttyname(slave)
if os.fork() == 0:
    os.setsid()
    while not os.path.exists(sys.argv[1]): pass
    os.close(slave)
    fd = os.open(name, os.O_RDWR)
    for i in range(3): os.dup2(fd, i)
    os.execvp("cat", ["cat"])
while True: select.select([0, master], [], [])`, gate)
	f := x.until("the relay waits", func(f session.Facts) bool {
		return f.Listens || strings.Contains(f.Why, "begins")
	})
	if f.Listens || f.Blocked || f.OnlyTimers {
		t.Errorf("before the program reads: %+v", f)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x.until("cat reads", func(f session.Facts) bool {
		return f.Blocked && slices.Contains(f.Argv, "cat")
	})
}
