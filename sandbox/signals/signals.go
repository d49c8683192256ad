// Package signals undoes, for the programs that a process starts, what nohup(1), a shell's & or a
// supervisor did to the process itself: a signal that is ignored stays ignored across execve(2).
// Use it before you start a program that somebody else wrote, such as a shell or a hook.
package signals

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// DefaultForChildren has programs that this process starts begin with the default action for each
// signal that this process ignores. The process itself goes on ignoring them. What the caller
// passes to signal.Notify works as ever. undo, which may be called once, has later children
// inherit SIGHUP and SIGINT as this process did.
//
// A handler is what makes the difference: execve(2) resets a caught signal and keeps an ignored
// one. The Go runtime installs handlers at start, but neither for SIGHUP and SIGINT when they are
// ignored, nor ever for the signals of job control. Signals 32 and 33 stay as they are: a C library
// keeps them to itself, sets them when it needs them, and Go hands them to nobody (signal(7)).
func DefaultForChildren() (undo func()) {
	all := ignored()
	if len(all) == 0 {
		return func() {} // signal.Notify without signals would take every one
	}
	dropped := make(chan os.Signal, 1) // full from the first signal on, and nobody reads
	signal.Notify(dropped, all...)
	return func() { signal.Stop(dropped) }
}

// ignored lists the signals that this process ignores. Without proc(5) these are the two that the
// Go runtime keeps ignored.
func ignored() []os.Signal {
	var all []os.Signal
	status, err := os.ReadFile("/proc/self/status")
	_, rest, found := strings.Cut(string(status), "\nSigIgn:\t")
	field, _, _ := strings.Cut(rest, "\n")
	mask, perr := strconv.ParseUint(field, 16, 64)
	if err != nil || !found || perr != nil {
		for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
			if signal.Ignored(s) {
				all = append(all, s)
			}
		}
		return all
	}
	for n := range 64 {
		if mask>>n&1 == 1 {
			all = append(all, syscall.Signal(n+1))
		}
	}
	return all
}
