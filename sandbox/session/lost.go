package session

import (
	"bytes"
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
}

// lookFront looks without tracing anybody, so it works where the prober does not.
func (c *console) lookFront() (f front) {
	if c.local == nil {
		return f
	}
	f.group, _ = c.local.Front() // 0, which is no group
	f.program = arguments(f.group)
	return f
}

// lost reports whether the ^C that was sent when before was in front has reached nobody: programs that handle it must not
// get a second one. Shells lose it around a fork – the child has its own group, but still its shell's handler – and between
// two lines that they read.
func (c *console) lost(before front) bool {
	if c.local == nil || before.group == 0 {
		return false
	}
	shell := c.local.TTY().SessionPID
	now := c.lookFront()
	switch {
	case now.group == 0:
		return false
	case now.group == shell:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		return c.phase == wire.PhasePrompt || c.phase == wire.PhaseContinuation // there it takes every ^C
	case now.group != before.group:
		return true // a job that has begun since
	case !bytes.Equal(now.program, before.program):
		return true // it was about to become another program, which would not have lived this long
	}
	return slices.ContainsFunc(before.members, func(pid int) bool { return survives(pid, syscall.SIGINT) })
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
