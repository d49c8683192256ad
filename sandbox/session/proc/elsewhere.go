//go:build linux

package proc

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// scanPart is the part of a processor that the search for readers in other sessions may take: one
// in so many.
const scanPart = 1000

// scans is what searches of the whole system have found, and when the next one may be made.
var scans = struct {
	sync.Mutex
	readers map[uint64]int // process that reads a terminal, by its device
	next    time.Time
}{readers: make(map[uint64]int)}

// elsewhere completes f for a group that is at rest and reads nothing: it may wait for a process
// that reads the terminal in another session, as the pinentry of a gpg-agent does. What else that
// process waits for is not known, so the group counts as listening.
func (l *look) elsewhere(f *session.Facts, s *sight, now layer) {
	scans.Lock()
	defer scans.Unlock()
	t := l.readerIn(scans.readers[now.dev], now)
	if t == nil {
		delete(scans.readers, now.dev)
		if time.Now().Before(scans.next) {
			return
		}
		began := l.spent()
		t = l.search(now)
		scans.next = time.Now().Add((l.spent() - began) * scanPart)
		if t == nil {
			return
		}
		scans.readers[now.dev] = t.proc.pid
	}
	s.print += fmt.Sprintf("%d %s %d\n", t.tid, t.line, t.runs)
	s.naps = append(s.naps, t.nap)
	f.Pid, f.Argv, f.FgCwd, f.Runs = t.proc.pid, l.argv(t.proc.pid), l.cwd(t.proc.pid),
		f.Runs+t.runs
	f.Listens = true
	f.Why = fmt.Sprintf("pid %d, in another session: %s", t.proc.pid, t.call)
}

// search returns a reader of the terminal of now among all processes of other sessions, nil if
// there is none. Those on another terminal have that to read.
func (l *look) search(now layer) *thread {
	pids, err := list("/proc")
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		if t := l.readerIn(pid, now); t != nil {
			return t
		}
	}
	return nil
}

// readerIn returns the thread of a process of another session that reads the terminal of now, nil
// if there is none.
func (l *look) readerIn(pid int, now layer) *thread {
	if pid == 0 {
		return nil
	}
	p, err := l.stat(pid)
	// The kernel's own are in no session.
	if err != nil || p.state == 'Z' || p.state == 'X' || p.sid == 0 ||
		p.sid == now.members[0].sid || p.tty != 0 && p.tty != now.dev {
		return nil
	}
	threads, _ := l.threads(p, now.dev) // of one that may not be looked into nothing is known
	for i := range threads {
		if t := &threads[i]; (t.class == reader || t.class == listener) && sameNumbers(pid) {
			return t
		}
	}
	return nil
}

// sameNumbers reports whether the process is in our PID namespace. One in a container has terminals
// of its own, whose numbers are those of ours.
func sameNumbers(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return true // there are none here
	}
	its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return err == nil && its == ours
}

// spent is how long this thread of ours has had a processor.
func (l *look) spent() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
