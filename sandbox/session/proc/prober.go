//go:build linux

// Package proc finds out from /proc which process blocks on a terminal. It must run in the PID
// namespace of the terminal's processes, and have the right to trace them. That takes the same
// user, or CAP_SYS_PTRACE for programs that changed their user.
//
// It cannot see reads by io_uring, alarms that were set before a read (alarm(2), setitimer(2)), or
// the far side of a relay to another machine.
package proc

import (
	"cmp"
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

// Prober is the session.Prober of Linux. The zero value is ready to use, also by several
// goroutines.
type Prober struct{}

// settle is the time between the two readings of a terminal inside the terminal. Its reader counts
// as blocked if it has not run in between. A kernel worker passes input from the outer to the inner
// terminal, and nothing can wait for that worker. Input for one terminal needs no such time, see
// queued.
const settle = time.Millisecond

// settlePiece is the longest time until Probe notices that ctx is done.
const settlePiece = 500 * time.Microsecond

// maxRelays limits the depth of terminals inside terminals.
const maxRelays = 4

// Probe inspects the foreground group of tty. It takes about 50 µs to find one busy process, twice
// that for a blocked one, and a millisecond more if there are terminals inside the terminal.
//
// With an error, the Facts hold what is known without tracing: the group, its leader, Want by the
// terminal's modes, and Runs.
func (Prober) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	runtime.LockOSThread() // credentials belong to the thread
	l := &look{}
	f, err := l.probe(ctx, tty)
	if l.self.restore() {
		// Otherwise the thread stays locked and ends with the goroutine, and so do its credentials.
		runtime.UnlockOSThread()
	}
	return f, err
}

// look is the state of one call of Probe.
type look struct {
	self   credentials
	leader int         // the shell in front that is known
	polls  bool        // modes.polls of the current terminal
	relays bool        // a process waits for the master of another terminal
	buf    [16384]byte // for reading files
}

// layer is one terminal in a chain of relays.
type layer struct {
	dev     uint64 // device of the slave
	modes   modes
	pending bool
	members []*process // the foreground group

	depth  int  // number of outer terminals
	works  bool // an outer relay has output to pass on, or is busy with something else
	timers bool // an outer relay has timers
}

func (l *look) probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	f, seen, err := l.once(ctx, tty, nil, time.Time{})
	if err != nil || !f.Blocked {
		if err == nil {
			f.Still = seen.still(tty, f.Pending)
		}
		return f, err
	}
	// Read again, including the group's members. A process that started while they were listed may
	// be missing from the list, and its parent may already wait for it.
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
		again.Blocked, again.Shell = false, nil
		again.Why = "moving: " + again.Why
	}
	return again, err
}

// once makes one reading, and inspects the readers at time at. It asks the terminal for queued
// input first. So input on its way is either seen here, or has already made its reader run. Facts
// that decide nothing are copied from before, unless that is nil.
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
	l.nap(&s, "/proc/"+strconv.Itoa(tty.SessionPID)) // the shell starts what is in the foreground
	members, err := l.group(tty.SessionPID, s.group)
	if err != nil {
		return f, s, err
	}
	if len(members) == 0 {
		f.Why = fmt.Sprintf("no process in foreground group %d", s.group)
		return f, s, nil
	}
	shell := cmp.Or(tty.Shell, tty.SessionPID)
	l.leader = shell
	if before != nil {
		f.ShellCwd = before.ShellCwd
	} else {
		f.ShellCwd = l.cwd(shell)
	}
	if sh, err := l.stat(shell); err == nil {
		f.ShellImage = sh.stack
		f.ShellIsForeground = sh.pgrp == s.group || tty.Shell != 0 && sh.pgrp == sh.tpgid
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
	known := f
	err = l.descend(ctx, &f, &s, layer{dev: tty.Device, modes: m, pending: pending,
		members: members}, before)
	if ctx.Err() != nil {
		return known, s, context.Cause(ctx)
	}
	return f, s, err
}

// Pause sleeps for d, with a precision of about 50 µs (nanosleep(2)). It blocks an operating system
// thread. The runtime's timers can be a millisecond late in an idle process, which sleeps in
// epoll_wait(2), and that counts milliseconds.
func Pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal may end it early, which is harmless
}

// descend fills f with the facts about the group of now, and of the groups on inner terminals that
// it forwards the keyboard to.
func (l *look) descend(ctx context.Context, f *session.Facts, s *sight, now layer,
	before *session.Facts) error {
	if now.depth > 0 {
		s.inner = append(s.inner, now.modes)
	}
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
		l.elsewhere(ctx, f, s, now)
	}
	if o.reader == nil || len(o.masters) == 0 || now.depth == maxRelays {
		return nil
	}
	// A thread that waits for the terminal and for a master forwards the keyboard. If another
	// thread of the group waits for the master, the reader may ask a question of its own. In both
	// cases the group asks if no process continues by itself.
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
	outer, all := *f, len(inner) > 0 || !coming
	for i, in := range inner {
		in.depth, in.timers = now.depth+1, o.timers
		in.works = in.works || now.works || o.works || o.own || coming
		g := outer
		if err := l.descend(ctx, &g, s, in, before); err != nil {
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
	switch {
	case !relay:
		*f = outer
	case len(inner) == 0 && !f.Opaque: // so one is coming: the relay alone is not at rest
		f.Blocked, f.Listens, f.OnlyTimers = false, false, false
		f.Why = "a program on another terminal begins"
	}
	if f.Blocked {
		f.Blocked, f.Listens = false, true
		f.Why = "beside other terminals: " + f.Why
	}
	return nil
}

// describe fills f with the facts about the group of now.
func (l *look) describe(f *session.Facts, now layer, o outcome, before *session.Facts) {
	f.Want, f.Pending = now.modes.want(), now.pending
	f.Blocked, f.Listens, f.OnlyTimers, f.Opaque = false, false, false, false
	f.Shell, f.Why, f.Runs = nil, o.why, o.runs
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
		if before != nil && before.Pid == p.pid {
			f.Shell = before.Shell
		} else {
			f.Shell = l.shellAtPrompt(p, o.reader.line, now.modes)
		}
	}
}

// program returns the name of the program in argv.
func program(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return filepath.Base(argv[0])
}

// passesOn reports whether a program forwards the keyboard to a process that is on another terminal
// and not its descendant.
func passesOn(program string) bool {
	switch program {
	case "ssh", "slogin", "mosh-client", "telnet", "tmux", "screen", "docker", "podman", "nerdctl",
		"crictl", "kubectl", "oc", "lxc", "incus",
		"machinectl", "virsh", "picocom", "minicom", "socat", "abduco", "dtach":
		return true
	}
	return false
}

// handsOver reports whether a program's server reads the terminal instead of the program, and is
// not its descendant. The server is given the descriptor (tmux) or opens the terminal (screen).
func handsOver(program string) bool { return program == "tmux" || program == "screen" }

// ender is timeout(1). Its timer does not let the group continue: it ends the program that asks, as
// a person without an answer would.
const ender = "timeout"

// outcome is the result of one reading of a foreground group.
type outcome struct {
	reader *thread // a thread that reads the terminal, or nil; one without a timeout is preferred
	busy   bool    // a thread may continue without input
	works  bool    // one that does not read the terminal, or not yet
	own    bool    // one that reads the terminal
	// A thread waits in a timed futex, or a process has a timer, and no thread is busy.
	timers bool
	denied error // a process could not be inspected
	runs   uint64
	print  string // equal in two readings if no thread ran in between
	naps   []nap  // of every inspected thread
	why    string

	masters []*thread // threads that wait for masters of other terminals
}

// asks reports whether a program that forwards the keyboard asks a question of its own, as ssh does
// before it is connected. It then makes a plain read in line mode, and no other thread is busy;
// those of a language's runtime may wait in timed futexes. To forward, it would wait for its
// connection as well.
func (o outcome) asks(m modes) bool {
	return m.canonical && !o.busy && o.reader.class == reader &&
		strings.HasPrefix(o.reader.call, "read ")
}

// judge inspects every thread of the group of now.
func (l *look) judge(now layer) outcome {
	var o outcome
	var print []byte
	var company *thread
	l.polls = now.modes.polls
	var waiters []*process // those that wait for a child
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
		// A program started with setsid may still read the terminal that it inherited.
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

// awaited inspects the descendants, outside the group, of processes that wait for a child and
// continue when it ends. It returns the thread that keeps them from being at rest, or nil.
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
