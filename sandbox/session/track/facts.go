package track

import "github.com/sandboxd/sandboxd/sandbox/wire"

// Facts is what a Prober saw. The zero value says that the terminal's foreground group is running
// something.
type Facts struct {
	Foreground int // process group in the terminal's foreground, 0 if there is none
	// The process that the facts are about: the one that reads the terminal, else the group's
	// leader.
	Pid      int
	Argv     []string // its arguments
	FgCwd    string   // its working directory, empty if not readable
	ShellCwd string   // working directory of the session's shell, empty if not readable

	// ShellIsForeground: the foreground group is the shell's own, so no job is in front of it.
	ShellIsForeground bool
	// Blocked: a thread of the foreground group reads the terminal without a timeout, nothing is
	// queued for it to read, and every other thread of the group is at rest too. Without new input
	// nothing will happen.
	Blocked bool
	// Listens: a process of the group reads the terminal, but the group may also go on without
	// input.
	Listens bool
	// OnlyTimers: Listens, the read has no timeout, and the only company of the reader is in timed
	// futexes, as that of every idle Go and Java program is.
	OnlyTimers bool
	// Opaque: the reader passes the keyboard on to somewhere this layer does not see (ssh, a
	// container, tmux).
	Opaque bool
	// Pending: input is queued on the terminal that nobody has read yet.
	Pending bool
	// Want is the kind of input the terminal's modes ask for, when Blocked or Listens:
	// wire.WantLine, wire.WantPassword or wire.WantRaw. Pagers and full-screen programs are for the
	// screen to tell.
	Want wire.Want
	// Runs counts how often the threads that the facts are about were given a processor (third
	// field of schedstat), 0 if not readable: two Blocked with the same Pid and Runs are one wait,
	// so that a look right after a write is not answered with the wait before it. With an error it
	// is how long they have run: it has changed if they did.
	Runs uint64
	// Still reports, at a small part of the price of a Probe, whether no thread that it looked at
	// has run since, so that another Probe would see the same. It is nil where that is not known,
	// or would not follow. A process that was begun during the Probe may be missed.
	Still func() bool
	// Why explains the answer in one line, naming processes and system calls.
	Why string
}
