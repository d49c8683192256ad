//go:build linux

// Package proc tells from /proc which process blocks on a terminal. It needs the same PID namespace
// as the terminal's processes and the right to trace them: the same user, or CAP_SYS_PTRACE for
// programs that changed theirs.
//
// What it cannot see: readers by io_uring, alarms set before a read (alarm(2), setitimer(2)), and
// whatever is on the far side of a relay that leaves the machine.
package proc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// Prober is the session.Prober of Linux. The zero value is ready, and may be used by many
// goroutines.
type Prober struct{}

// settle is how long a reader behind other terminals has to stay unmoved before it is called
// blocked: what one terminal gives to the next is on its way for as long as a worker of the kernel
// takes to come to it, and nobody can wait for that one. What is on its way to a terminal itself is
// waited for where that is looked at, see queued.
const settle = time.Millisecond

// settlePiece is how long it may take to notice that nobody wants the answer any more.
const settlePiece = 500 * time.Microsecond

// maxRelays bounds how many terminals inside terminals are followed.
const maxRelays = 4

// Probe looks at the foreground group of tty. It takes some 50 µs for one process that is busy,
// twice that to say that one is blocked, and a millisecond longer where there are terminals inside
// the terminal.
//
// With an error the Facts hold what can be known without tracing: the group, its leader, Want by
// the terminal's modes, and Runs.
func (Prober) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	runtime.LockOSThread() // credentials are the thread's
	l := &look{}
	f, err := l.probe(ctx, tty)
	if l.self.restore() {
		// Else the thread ends with the goroutine's lock, and the wrong credentials with it.
		runtime.UnlockOSThread()
	}
	return f, err
}

// look is one call of Probe.
type look struct {
	self   credentials
	polls  bool        // of the terminal being judged
	relays bool        // a process waits for the master of another terminal
	buf    [16384]byte // of the file being read
}

// layer is one terminal of a chain of relays.
type layer struct {
	dev     uint64 // of the slave
	modes   modes
	pending bool
	members []*process // the foreground group

	depth  int  // of relays above
	works  bool // one of them has work of its own
	timers bool // or timers
}

func (l *look) probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	f, seen, err := l.once(ctx, tty, nil, time.Time{})
	if err != nil || !f.Blocked {
		if err == nil {
			f.Still = seen.still(tty, f.Pending)
		}
		return f, err
	}
	// The same once more, the group's members too: a process that was started while they were
	// listed may be in no list, and its parent may wait for it by now.
	at := time.Now()
	if l.relays {
		at = at.Add(settle)
	}
	again, now, err := l.once(ctx, tty, &f, at)
	switch {
	case err != nil || !again.Blocked:
	case now.equal(seen):
		again.Still = now.still(tty, false)
	default:
		again.Blocked = false
		again.Why = "moving: " + again.Why
	}
	return again, err
}

// once is one reading, which looks at the readers at the given time. The terminal is asked before
// them, so that input which is on its way is either seen here, or has moved its reader by then.
// What decides nothing is taken from before, if that is not nil.
func (l *look) once(ctx context.Context, tty session.TTY, before *session.Facts,
	at time.Time) (f session.Facts, s sight, err error) {
	if _, s.group, _, err = masterModes(tty, false); err != nil {
		return f, s, err
	}
	if s.group <= 0 {
		f.Why = "no foreground group"
		return f, s, nil
	}
	f.Foreground, f.Pid = s.group, s.group
	l.nap(&s, "/proc/"+strconv.Itoa(tty.SessionPID)) // which begins what is in front
	members, err := l.group(tty.SessionPID, s.group)
	if err != nil {
		return f, s, err
	}
	if len(members) == 0 {
		f.Why = fmt.Sprintf("no process in foreground group %d", s.group)
		return f, s, nil
	}
	if before != nil {
		f.ShellCwd = before.ShellCwd
	} else {
		f.ShellCwd = l.cwd(tty.SessionPID)
	}
	if sh, err := l.stat(tty.SessionPID); err == nil {
		f.ShellIsForeground = sh.pgrp == s.group
	}
	for left := time.Until(at); left > 0 && ctx.Err() == nil; left = time.Until(at) {
		Pause(min(left, settlePiece))
	}
	if ctx.Err() != nil {
		return f, s, context.Cause(ctx)
	}
	m, fg, pending, err := masterModes(tty, true)
	if err != nil {
		return f, s, err
	}
	if fg != s.group {
		f.Why = "another group has come to the foreground"
		return f, s, nil
	}
	s.modes = m
	err = l.descend(&f, &s, layer{dev: tty.Device, modes: m, pending: pending, members: members},
		before)
	return f, s, err
}

// Pause sleeps for d, to some 50 µs (nanosleep(2)), and takes an operating system thread for as
// long. The runtime's timers can be a millisecond late in a process that does nothing else: it then
// sleeps in epoll_wait(2), which counts in milliseconds.
func Pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal cuts it short, which does no harm
}

// descend fills f with what the group of now does, and with what those do to whose terminals it
// passes the keyboard on.
func (l *look) descend(f *session.Facts, s *sight, now layer, before *session.Facts) error {
	o := l.judge(now)
	o.busy, o.timers = o.busy || now.works, o.timers || now.timers
	l.describe(f, now, o, before)
	if o.denied != nil {
		f.Runs = l.ran(now.members)
		return o.denied
	}
	l.relays = l.relays || len(o.masters) > 0
	s.print += o.print
	s.naps = append(s.naps, o.naps...)
	if o.reader == nil && !o.busy && !o.timers && !f.Opaque && now.depth == 0 {
		l.elsewhere(f, s, now)
	}
	if o.reader == nil || len(o.masters) == 0 || now.depth == maxRelays {
		return nil
	}
	// One that waits for the master itself passes the keyboard on. Where another one of the group
	// does, that may be so, or the reader has a question of its own: it asks if nobody goes on in
	// either case.
	relay := len(o.reader.masters) > 0
	var inner []layer
	coming := false
	for _, t := range o.masters {
		if relay && t != o.reader {
			continue
		}
		more, begun, err := l.follow(t.proc, t.masters)
		if err != nil && relay {
			f.Blocked, f.Listens, f.OnlyTimers, f.Opaque, f.Why = false, true, false, true,
				err.Error()
			return nil
		}
		inner, coming = append(inner, more...), coming || begun
	}
	outer, all := *f, true
	for i, in := range inner {
		in.depth, in.works, in.timers = now.depth+1, now.works || o.works || o.own || coming,
			o.timers
		g := outer
		if err := l.descend(&g, s, in, before); err != nil {
			return err
		}
		all = all && g.Blocked
		if i == 0 || g.Blocked && !f.Blocked {
			*f = g
		}
	}
	if all {
		return nil
	}
	if !relay {
		*f = outer
	}
	if f.Blocked {
		f.Blocked, f.Listens = false, true
		f.Why = "beside other terminals: " + f.Why
	}
	return nil
}

// describe fills f with what is known of the group of now.
func (l *look) describe(f *session.Facts, now layer, o outcome, before *session.Facts) {
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
	f.Pid = p.pid
	if before != nil && before.Pid == p.pid {
		f.Argv, f.FgCwd = before.Argv, before.FgCwd
	} else {
		f.Argv, f.FgCwd = l.argv(p.pid), l.cwd(p.pid)
	}
	if o.reader == nil {
		if handsOver(program(f.Argv)) {
			f.Opaque, f.Listens = true, true
			f.Why = "hands the terminal over to its server: " + f.Why
		}
		return
	}
	switch {
	case passesOn(program(f.Argv)) && !o.asks(now.modes):
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

// passesOn reports whether a program reads the keyboard for a process on another terminal that is
// not below it.
func passesOn(program string) bool {
	switch program {
	case "ssh", "slogin", "mosh-client", "telnet", "tmux", "screen", "docker", "podman", "nerdctl",
		"crictl", "kubectl", "oc", "lxc", "incus",
		"machinectl", "virsh", "picocom", "minicom", "socat", "abduco", "dtach":
		return true
	}
	return false
}

// handsOver reports whether a program's server, which is not below it, reads the terminal in its
// place: it is given the descriptor (tmux) or opens the terminal itself (screen).
func handsOver(program string) bool { return program == "tmux" || program == "screen" }

// ender is timeout(1). Its timer does not go on with anything: it ends the program that asks, as a
// person would who has no answer.
const ender = "timeout"

// outcome is what one reading of a foreground group says.
type outcome struct {
	reader *thread // who reads the terminal, if anybody does; an untimed reader is preferred
	busy   bool    // another thread may go on without input
	works  bool    // a thread does that does not read the terminal, or is about to
	own    bool    // a thread does that reads it
	// Another thread waits in a timed futex, or a process has a timer, and none is busy.
	timers bool
	denied error // a process could not be looked at
	runs   uint64
	print  string // equal in two readings if nobody has moved
	naps   []nap  // of everybody who was looked at
	why    string

	masters []*thread // who waits for masters of other terminals
}

// asks reports whether a program that passes the keyboard on has a question of its own, as ssh has
// before it is connected: it reads a whole line, and nothing else but that of a language's runtime.
// What it passes on it waits for beside its connection.
func (o outcome) asks(m modes) bool {
	return m.canonical && !o.busy && o.reader.class == reader &&
		strings.HasPrefix(o.reader.call, "read ")
}

// judge reads what every thread of the group does.
func (l *look) judge(now layer) outcome {
	var o outcome
	var print []byte
	var company *thread
	l.polls = now.modes.polls
	var waiters []*process // for a child
	read := func(p *process, group bool) {
		threads, err := l.threads(p, now.dev)
		waits := false
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
			o.naps = append(o.naps, t.nap)
			if len(t.masters) > 0 {
				o.masters = append(o.masters, t)
			}
			waits = waits || t.child
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
					o.busy, o.own = true, o.own || t.own
				}
			case timer:
				o.timers = o.timers || group
				if company == nil && group {
					company = t
				}
			case busy:
				o.works = o.works || group
				if group && !o.busy {
					o.busy, company = true, t
				}
			}
		}
		if waits {
			waiters = append(waiters, p)
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
	if o.reader != nil && !o.busy {
		if t := l.awaited(&o, now, waiters, &print); t != nil {
			company = t
		}
	}
	if o.reader != nil && !o.busy {
		for _, p := range append(now.members[:len(now.members):len(now.members)], o.reader.proc) {
			if !o.timers && l.alarmed(p) && program(l.argv(p.pid)) != ender {
				o.timers, company = true, &thread{proc: p, tid: p.pid, call: "has a timer"}
			}
		}
	}
	o.print = string(print)
	switch {
	case o.reader != nil && company != nil && company.proc == o.reader.proc:
		o.why = fmt.Sprintf("pid %d: %s, thread %d: %s", o.reader.proc.pid, o.reader.call,
			company.tid, company.call)
	case o.reader != nil && company != nil:
		o.why = fmt.Sprintf("pid %d: %s, pid %d: %s", o.reader.proc.pid, o.reader.call,
			company.proc.pid, company.call)
	case o.reader != nil:
		o.why = fmt.Sprintf("pid %d: %s", o.reader.proc.pid, o.reader.call)
	case company != nil:
		o.why = fmt.Sprintf("pid %d: %s", company.proc.pid, company.call)
	default:
		o.why = "nobody reads the terminal"
	}
	return o
}

// awaited looks at the descendants, beyond the group, of processes that wait for a child and go on
// when it ends. It returns the thread that keeps them from being at rest, if any.
func (l *look) awaited(o *outcome, now layer, waiters []*process, print *[]byte) (company *thread) {
	seen := map[int]bool{}
	for _, p := range now.members {
		seen[p.pid] = true
	}
	visit := func(p *process) bool {
		if seen[p.pid] || p.state == 'Z' || p.state == 'X' {
			return true
		}
		seen[p.pid] = true
		threads, err := l.threads(p, now.dev)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
			o.works, o.busy = true, true
		}
		for i := range threads {
			t := &threads[i]
			o.naps = append(o.naps, t.nap)
			*print = fmt.Appendf(*print, "%d %s %d\n", t.tid, t.line, t.runs)
			switch {
			case (t.class == busy || t.class == listener) && !o.busy:
				o.works, o.busy, company = true, true, t
			case t.class == timer && !o.busy:
				o.timers, company = true, t
			}
		}
		return true
	}
	for _, p := range waiters {
		l.walk(p.pid, visit)
	}
	return company
}
