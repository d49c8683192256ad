//go:build linux

package proc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// Searches for readers in other sessions use 1/scanPart of a processor. One that was interrupted
// may have missed a reader, so the next one begins sooner.
const (
	scanPart        = 1000
	interruptedPart = 10
)

// scans is what searches of the whole system found, and when the next one may start.
var scans = searches{readers: make(map[uint64]int)}

type searches struct {
	mu      sync.Mutex
	readers map[uint64]int // process that reads a terminal, by the terminal's device
	running bool
	next    time.Time
}

// reader returns the process that a search has found for the terminal dev; 0 if there is none.
func (s *searches) reader(dev uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readers[dev]
}

// begin reports whether a search for dev may start now. If so, the caller must call end. In any
// case it forgets gone, the reader of dev that the caller knew and that reads no more.
func (s *searches) begin(dev uint64, gone int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers[dev] == gone {
		delete(s.readers, dev)
	}
	if s.running || time.Now().Before(s.next) {
		return false
	}
	s.running = true
	return true
}

// end records the result of a search, which has used a processor for spent; nil: it found nothing,
// or was interrupted.
func (s *searches) end(dev uint64, t *thread, spent time.Duration, interrupted bool) {
	pause := spent * scanPart
	if interrupted {
		pause = spent * interruptedPart
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.next = false, time.Now().Add(pause)
	if t != nil {
		s.readers[dev] = t.proc.pid
	}
}

// elsewhere completes f for a group that is at rest and reads nothing. The group may wait for a
// process that reads the terminal in another session, such as the pinentry of a gpg-agent. What
// else that process waits for is not known, so the group counts as listening. On a busy machine a
// search takes seconds: the end of ctx interrupts it.
func (l *look) elsewhere(ctx context.Context, f *session.Facts, s *sight, now layer) {
	known := scans.reader(now.dev)
	t := l.readerIn(known, now)
	if t == nil {
		if !scans.begin(now.dev, known) {
			return
		}
		began := l.spent()
		t = l.search(ctx, now)
		scans.end(now.dev, t, l.spent()-began, ctx.Err() != nil)
		if t == nil {
			return
		}
	}
	s.print += fmt.Sprintf("%d %s %d\n", t.tid, t.line, t.runs)
	s.naps = append(s.naps, t.nap)
	f.Pid, f.Argv, f.FgCwd, f.Runs = t.proc.pid, l.argv(t.proc.pid), l.cwd(t.proc.pid),
		f.Runs+t.runs
	f.Listens = true
	f.Why = fmt.Sprintf("pid %d, in another session: %s", t.proc.pid, t.call)
}

// search returns a thread of any other session that reads the terminal of now, or nil. A process
// with another controlling terminal does not count.
func (l *look) search(ctx context.Context, now layer) *thread {
	pids, err := list("/proc")
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil
		}
		if pid == os.Getpid() {
			continue
		}
		if t := l.readerIn(pid, now); t != nil {
			return t
		}
	}
	return nil
}

// readerIn returns the thread of process pid that reads the terminal of now, or nil. The process
// must be in another session.
func (l *look) readerIn(pid int, now layer) *thread {
	if pid == 0 {
		return nil
	}
	p, err := l.stat(pid)
	// Kernel threads are in no session.
	if err != nil || p.state == 'Z' || p.state == 'X' || p.sid == 0 ||
		p.sid == now.members[0].sid || p.tty != 0 && p.tty != now.dev {
		return nil
	}
	threads, _ := l.threads(p, now.dev) // fails for a process that we may not inspect
	for i := range threads {
		if t := &threads[i]; (t.class == reader || t.class == listener) && sameNumbers(pid) {
			return t
		}
	}
	return nil
}

// sameNumbers reports whether the process is in our PID namespace. A process in a container has
// terminals of its own, which have the same device numbers as ours.
func sameNumbers(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return true // the kernel has no PID namespaces
	}
	its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return err == nil && its == ours
}

// spent returns how long this thread of ours has had a processor.
func (l *look) spent() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
