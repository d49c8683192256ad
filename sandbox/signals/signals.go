// Package signals resets signals that nohup(1), a shell's & or a supervisor made this process
// ignore, for the programs that it starts: an ignored signal stays ignored across execve(2). Use it
// before the start of a foreign program, such as a shell or a hook.
package signals

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// DefaultForChildren makes programs that this process starts begin with the default action for each
// signal that this process ignores. The process itself still ignores them. signal.Notify works as
// usual. undo, which may be called once, makes later children ignore SIGHUP and SIGINT again if
// this process did.
//
// It works by handlers: execve(2) resets a handled signal and keeps an ignored one. The Go runtime
// installs handlers at its start, but not for ignored SIGHUP and SIGINT, and never for the signals
// of job control. Signals 32 and 33 stay unchanged: a C library uses them internally and sets them
// when needed, and Go does not deliver them (signal(7)).
func DefaultForChildren() (undo func()) {
	all := ignored()
	if len(all) == 0 {
		return func() {} // signal.Notify without signals would handle all
	}
	dropped := make(chan os.Signal, 1) // full from the first signal on, and never read
	signal.Notify(dropped, all...)
	return func() { signal.Stop(dropped) }
}

// ignored returns the signals that this process ignores. Without proc(5) it returns the two that
// the Go runtime keeps ignored.
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
