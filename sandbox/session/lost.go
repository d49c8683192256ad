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

// front is the foreground of a terminal at one time.
type front struct {
	group   int
	members []int  // unless it is the shell's group
	program []byte // arguments of the group's leader
	signals bool   // the terminal makes a signal of ^C
	runs    uint64 // Facts.Runs of a shell that was reading; else 0
}

// lookFront returns the foreground. It works without tracing, even if the prober does not.
func (c *console) lookFront() (f front) {
	if c.local == nil {
		return f
	}
	f.group, _ = c.local.Front() // 0 is no group
	f.program = arguments(f.group)
	f.signals = signals(c.local.TTY().Master)
	return f
}

// lost reports whether the last ^C to the foreground had no effect. Programs that handle ^C must
// not receive a second one. Shells lose it around a fork, while the child has its own group but
// still its shell's handler. They also lose it between two lines that they read. At the prompt they
// handle it, possibly late, and a second one would drop the next command. There it is lost if the
// shell reads and has not run since the last check. If ^C sends no signal, the program receives a
// byte, which is not lost.
func (i *interrupt) lost(ctx context.Context, before *front, late bool) bool {
	s, c := i.s, i.c
	if c.local == nil || before.group == 0 {
		return false
	}
	shell := c.stack.leader()
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
		return true // a new job
	case len(now.program) > 0 && !bytes.Equal(now.program, before.program):
		// ^C came before an exec: a program that received the signal would have ended. One that has
		// ended and that its shell has not waited for has no arguments.
		return true
	}
	return slices.ContainsFunc(
		before.members,
		func(pid int) bool { return survives(pid, syscall.SIGINT) },
	)
}

// rests reports whether the shell still reads the terminal and has not run since before. If that is
// unknown, it returns late, which means that the shell has had time to respond, unless there was a
// prompt since.
func (i *interrupt) rests(ctx context.Context, before *front, late bool) bool {
	s, c := i.s, i.c
	facts, err := s.probe(ctx, c)
	was := before.runs
	before.runs = 0
	switch {
	case err != nil, facts.Listens && !facts.Blocked:
		return late && !i.prompted()
	case !facts.Blocked || !facts.ShellIsForeground:
		return false
	}
	before.runs = facts.Runs
	return was != 0 && facts.Runs == was
}

// prompted reports whether the shell has shown a prompt since the last ^C.
func (i *interrupt) prompted() bool {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return i.c.track.Counts().Prompted > i.shown
}

// arguments returns the NUL-terminated arguments of a process; nothing if it has ended.
func arguments(pid int) []byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return b
}

// survives reports whether a process did not receive sig: it is alive, and neither handles, ignores
// nor blocks sig, nor is it pending.
func survives(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && fatal(b, sig)
}

// fatal parses /proc/PID/status (proc_pid_status(5)) of a live process.
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
