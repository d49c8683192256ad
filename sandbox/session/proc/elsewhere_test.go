//go:build linux

package proc

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestElsewhere finds a process that reads the terminal from another session, while the process in
// the foreground waits for it.
func TestElsewhere(t *testing.T) {
	x := open(t, "python3", "-c", `
import os, tty, termios
r, w = os.pipe()
if os.fork() == 0:
    if os.fork(): os._exit(0)
    name = os.ttyname(0)
    os.setsid()
    fd = os.open(name, os.O_RDWR | os.O_NOCTTY)
    for i in range(3): os.dup2(os.open("/dev/null", os.O_RDWR), i)
    modes = termios.tcgetattr(fd)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, modes)
    os.read(fd, 10)
    os.write(w, b"x")
    os._exit(0)
os.wait()
os.read(r, 1)
print("answered", flush=True)
os.read(0, 1)`)
	f := x.until("listening", func(f session.Facts) bool {
		searchAgain()
		// This fails until the foreground process is at rest, and until the modes were read after
		// the other process set them.
		return f.Listens && strings.Contains(f.Why, "another session") &&
			f.Want == wire.WantPassword
	})
	if f.Blocked || f.Opaque || f.OnlyTimers || f.Pid == x.tty.SessionPID {
		t.Errorf("got %+v, want a password for another session", f)
	}
	if f, err := (Prober{}).Probe(t.Context(), x.tty); err != nil || !f.Listens {
		t.Errorf("got %+v, %v, want that it is remembered", f, err)
	}
	// A search takes long on a busy machine: it ends when its result is not wanted any more.
	runtime.LockOSThread() // not unlocked: the thread's credentials end with it
	l := &look{}
	members, err := l.group(x.tty.SessionPID, f.Foreground)
	if err != nil || len(members) == 0 {
		t.Fatalf("members %v, error %v", members, err)
	}
	now := layer{dev: x.tty.Device, modes: modes{}, members: members}
	if got := l.search(t.Context(), now); got == nil || got.proc.pid != f.Pid {
		t.Errorf("a search found %+v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := l.search(ended, now); got != nil {
		t.Errorf("a search that was interrupted found %+v", got)
	}
	x.typ("a\n")
	x.until("blocked", func(f session.Facts) bool { return f.Blocked && f.Pid == x.tty.SessionPID })
}

// searchAgain lets the next probe search the whole system. Otherwise, the time to the next search
// depends on how long the last took: minutes on a busy machine with the race detector.
func searchAgain() {
	scans.mu.Lock()
	defer scans.mu.Unlock()
	scans.next = time.Time{}
}

// While one look searches the whole system, another one does not, and does not wait for it.
func TestSearches(t *testing.T) {
	s := searches{readers: make(map[uint64]int)}
	if !s.begin(1, 0) || s.begin(2, 0) || s.reader(1) != 0 {
		t.Error("two searches at once")
	}
	s.end(1, &thread{proc: &process{pid: 7}}, time.Hour, false)
	if s.begin(1, 0) || s.reader(1) != 7 {
		t.Error("another look began too soon, or forgot what it did not know")
	}
	if s.begin(1, 7) || s.reader(1) != 0 {
		t.Error("a reader that reads no more is known")
	}
	s.next = time.Time{}
	if !s.begin(2, 0) {
		t.Error("no second search")
	}
	s.end(2, nil, time.Hour, true)
	if in := time.Until(s.next); in < time.Hour || in > 11*time.Hour {
		t.Errorf("the next search after one that was interrupted begins in %v", in)
	}
}
