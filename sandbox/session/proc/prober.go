//go:build linux

// Package proc tells from /proc which process blocks on a terminal. It needs the same PID namespace as the terminal's
// processes and the right to trace them: the same user, or CAP_SYS_PTRACE for programs that changed theirs.
//
// What it cannot see: readers by io_uring, alarms set before a read, and whatever is on the far side of a relay that
// leaves the machine.
package proc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// Prober is the session.Prober of Linux. The zero value is ready, and may be used by many goroutines.
type Prober struct{}

// settle is how long a reader has to stay unmoved before it is called blocked: one that was just given its input
// looks the same until it runs.
const settle = time.Millisecond

// settlePiece is how long it may take to notice that nobody wants the answer any more.
const settlePiece = 500 * time.Microsecond

// maxRelays bounds how many terminals inside terminals are followed.
const maxRelays = 4

// Probe looks at the foreground group of tty. It takes some 50 µs for one process that is busy, and a millisecond
// longer to say that one is blocked.
//
// With an error the Facts hold what can be known without tracing: the group, its leader, Want by the terminal's modes, and
// Runs.
func (Prober) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	runtime.LockOSThread() // credentials are the thread's
	l := &look{}
	f, err := l.probe(ctx, tty)
	if l.self.restore() {
		runtime.UnlockOSThread() // else the thread ends with the goroutine's lock, and the wrong credentials with it
	}
	return f, err
}

// look is one call of Probe.
type look struct {
	self credentials
	buf  [16384]byte // of the file being read
}

// layer is one terminal of a chain of relays.
type layer struct {
	dev     uint64 // of the slave
	modes   modes
	pending bool
	members []*process // the foreground group
}

func (l *look) probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	var f session.Facts
	m, fg, pending, err := masterModes(tty)
	if err != nil {
		return f, err
	}
	if fg <= 0 {
		f.Why = "no foreground group"
		return f, nil
	}
	f.Foreground, f.Pid = fg, fg
	f.ShellCwd = l.cwd(tty.SessionPID)
	members, err := l.group(tty.SessionPID, fg)
	if err != nil {
		return f, err
	}
	if len(members) == 0 {
		f.Why = fmt.Sprintf("no process in foreground group %d", fg)
		return f, nil
	}
	if sh, err := l.stat(tty.SessionPID); err == nil {
		f.ShellIsForeground = sh.pgrp == fg
	}
	now := layer{dev: tty.Device, modes: m, pending: pending, members: members}

	var first outcome
	for depth := 0; ; depth++ {
		first = l.judge(now)
		l.describe(&f, now, first)
		if first.denied != nil {
			f.Runs = l.ran(now.members)
			return f, first.denied
		}
		if first.reader == nil || depth == maxRelays {
			break
		}
		inner, relay, err := l.follow(first.reader.proc)
		if err != nil {
			f.Listens, f.Opaque, f.Why = true, true, err.Error()
			return f, nil //nolint:nilerr // that is the answer
		}
		if !relay {
			break
		}
		now = inner
	}
	if !f.Blocked {
		return f, nil
	}

	// The same once more, a little later.
	for until := time.Now().Add(settle); ctx.Err() == nil; {
		left := time.Until(until)
		if left <= 0 {
			break
		}
		Pause(min(left, settlePiece))
	}
	if ctx.Err() != nil {
		return f, context.Cause(ctx)
	}
	// Before the second look, so that input which is on its way is either seen here, or has moved its reader by then.
	after, still, pending, err := masterModes(tty)
	again := l.judge(now)
	if again.print != first.print {
		f.Blocked, f.Runs = false, again.runs
		f.Why = "moving: " + f.Why
		return f, nil
	}
	switch {
	case err != nil || still != fg || pending:
		f.Blocked, f.Pending = false, pending
		f.Why = "input arrived: " + f.Why
	case now.dev == tty.Device && after != m:
		// It was still setting the terminal up when that was read.
		f.Blocked = false
		f.Why = "moving: " + f.Why
	}
	return f, nil
}

// Pause sleeps for d, to some 50 µs (nanosleep(2)), and takes an operating system thread for as long. The runtime's timers can be
// a millisecond late in a process that does nothing else: it then sleeps in epoll_wait(2), which counts in milliseconds.
func Pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal cuts it short, which does no harm
}

// describe fills f with what is known of the group of now.
func (l *look) describe(f *session.Facts, now layer, o outcome) {
	f.Want, f.Pending = now.modes.want(), now.pending
	f.Blocked, f.Listens, f.OnlyTimers, f.Opaque = false, false, false, false
	f.Why, f.Runs = o.why, o.runs
	p := now.members[0]
	for _, m := range now.members {
		if m.pid == m.pgrp {
			p = m
		}
	}
	if o.reader != nil {
		p = o.reader.proc
	}
	f.Pid, f.Argv, f.FgCwd = p.pid, l.argv(p.pid), l.cwd(p.pid)
	if o.reader == nil {
		if handsOver[program(f.Argv)] {
			f.Opaque, f.Listens = true, true
			f.Why = "hands the terminal over to its server: " + f.Why
		}
		return
	}
	switch {
	case opaque[program(f.Argv)] && !o.asks(now.modes):
		f.Opaque, f.Listens = true, true
		f.Why = "passes the keyboard on: " + f.Why
	case o.reader.class == listener || o.busy:
		f.Listens = true
	case o.timers:
		f.Listens, f.OnlyTimers = true, true
	case now.pending:
		f.Why = "input is queued: " + f.Why
	default:
		f.Blocked = true
	}
}

// program is the name of the program in argv.
func program(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return filepath.Base(argv[0])
}

// opaque lists programs that read the keyboard for somebody on another terminal that is not below them.
var opaque = map[string]bool{
	"ssh": true, "slogin": true, "mosh-client": true, "telnet": true, "tmux": true, "screen": true, "docker": true,
	"podman": true, "nerdctl": true, "crictl": true, "kubectl": true, "oc": true, "lxc": true, "incus": true,
	"machinectl": true, "virsh": true, "picocom": true, "minicom": true, "socat": true, "abduco": true, "dtach": true,
}

// handsOver lists programs whose server, which is not below them, reads the terminal in their place: it is given the
// descriptor (tmux) or opens the terminal itself (screen).
var handsOver = map[string]bool{"tmux": true, "screen": true}

// outcome is what one reading of a foreground group says.
type outcome struct {
	reader *thread // who reads the terminal, if anybody does; an untimed reader is preferred
	busy   bool    // somebody else may go on without input
	timers bool    // somebody else waits in a timed futex, and nobody is busy
	denied error   // somebody could not be looked at
	runs   uint64
	print  string // equal in two readings if nobody has moved
	why    string
}

// asks reports whether a program that passes the keyboard on has a question of its own, as ssh has before it is connected: it
// reads a whole line, and nothing else. What it passes on it waits for beside its connection.
func (o outcome) asks(m modes) bool {
	return m.canonical && !o.busy && !o.timers && o.reader.class == reader && strings.HasPrefix(o.reader.call, "read ")
}

// judge reads what every thread of the group does.
func (l *look) judge(now layer) outcome {
	var o outcome
	var print []byte
	var company *thread
	read := func(p *process, group bool) {
		threads, err := l.threads(p, now.dev)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH):
			print = fmt.Appendf(print, "%d gone\n", p.pid)
			return
		default:
			if group && o.denied == nil {
				o.denied = err
			}
			return
		}
		for i := range threads {
			t := &threads[i]
			if group || t.class == reader || t.class == listener {
				print = fmt.Appendf(print, "%d %s %d\n", t.tid, t.line, t.runs)
				o.runs += t.runs
			}
			switch t.class {
			case reader, listener:
				if o.reader == nil || o.reader.class == listener && t.class == reader {
					o.reader = t
				}
				if t.class == listener {
					o.busy = true
				}
			case timer:
				o.timers = o.timers || group
				if company == nil && group {
					company = t
				}
			case busy:
				if group && !o.busy {
					o.busy, company = true, t
				}
			}
		}
	}
	for _, p := range now.members {
		read(p, true)
	}
	if o.reader == nil && !o.busy && o.denied == nil {
		// A program that was started with setsid may still read the terminal it has inherited.
		for _, p := range l.strays(now.members) {
			read(p, false)
		}
	}
	o.print = string(print)
	switch {
	case o.reader != nil && company != nil && company.proc == o.reader.proc:
		o.why = fmt.Sprintf("pid %d: %s, thread %d: %s", o.reader.proc.pid, o.reader.call, company.tid, company.call)
	case o.reader != nil && company != nil:
		o.why = fmt.Sprintf("pid %d: %s, pid %d: %s", o.reader.proc.pid, o.reader.call, company.proc.pid, company.call)
	case o.reader != nil:
		o.why = fmt.Sprintf("pid %d: %s", o.reader.proc.pid, o.reader.call)
	case company != nil:
		o.why = fmt.Sprintf("pid %d: %s", company.proc.pid, company.call)
	default:
		o.why = "nobody reads the terminal"
	}
	return o
}
