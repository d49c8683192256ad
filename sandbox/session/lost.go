package session

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// front is what is in a terminal's foreground at one moment.
type front struct {
	group   int
	members []int  // of another group than the shell's
	program []byte // arguments of the group's leader
	signals bool   // the terminal makes a signal of ^C
	runs    uint64 // of a shell that was seen to read, as Facts.Runs; 0 if it was not
}

// lookFront looks without tracing anybody, so it works where the prober does not.
func (c *console) lookFront() (f front) {
	if c.local == nil {
		return f
	}
	f.group, _ = c.local.Front() // 0, which is no group
	f.program = arguments(f.group)
	f.signals = signals(c.local.TTY().Master)
	return f
}

// lost reports whether the ^C that was sent when before was in front has reached nobody: programs that handle it must not
// get a second one. Shells lose it around a fork – the child has its own group, but still its shell's handler – and between
// two lines that they read. At the prompt they answer it, be it late, and a second one would take the next command with it: there it
// is lost when the shell reads, and has not run since it was asked the last time. A program that has switched the signal off gets a
// byte, which waits for it.
func (i *interrupt) lost(ctx context.Context, before *front, late bool) bool {
	s, c := i.s, i.c
	if c.local == nil || before.group == 0 {
		return false
	}
	shell := c.local.TTY().SessionPID
	now := c.lookFront()
	switch {
	case now.group == 0:
		return false
	case now.group == shell:
		s.mu.Lock()
		prompt := c.track.Marked() == wire.PhasePrompt || c.track.Marked() == wire.PhaseContinuation
		s.mu.Unlock()
		return prompt && i.rests(ctx, before, late)
	case !before.signals:
		return false
	case now.group != before.group:
		return true // a job that has begun since
	case !bytes.Equal(now.program, before.program):
		return true // it was about to become another program, which would not have lived this long
	}
	return slices.ContainsFunc(before.members, func(pid int) bool { return survives(pid, syscall.SIGINT) })
}

// rests reports whether the shell reads the terminal as it did when it was asked for before the last time. Where that cannot be
// seen, or the shell does not only read, it returns late, which says that it has had the time to answer.
func (i *interrupt) rests(ctx context.Context, before *front, late bool) bool {
	s, c := i.s, i.c
	facts, err := s.probe(ctx, c)
	was := before.runs
	before.runs = 0
	switch {
	case err != nil, facts.Listens && !facts.Blocked:
		return late
	case !facts.Blocked || !facts.ShellIsForeground:
		return false
	}
	before.runs = facts.Runs
	return was != 0 && facts.Runs == was
}

// arguments returns the arguments of a process, each ended by NUL; nothing if it is gone.
func arguments(pid int) []byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return b
}

// survives reports whether a living process would have died of sig and has not got it: it neither handles, ignores, blocks
// nor is about to take it.
func survives(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && fatal(b, sig)
}

// fatal reads /proc/PID/status (proc_pid_status(5)) of a process that lives.
func fatal(status []byte, sig syscall.Signal) bool {
	known := 0
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":\t"))
		switch string(name) {
		case "State":
			if len(value) == 0 || value[0] == 'Z' || value[0] == 'X' {
				return false
			}
		case "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt":
			set, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
			if err != nil || set>>(sig-1)&1 != 0 {
				return false
			}
			known++
		}
	}
	return known == 5
}
