package track

import "github.com/sandboxd/sandboxd/sandbox/wire"

// Facts is what a Prober saw. The zero value means that the foreground group is running something.
type Facts struct {
	Foreground int // process group in the terminal's foreground, 0 if there is none
	// The process that these facts are about: the one that reads the terminal, else the group's
	// leader.
	Pid   int
	Argv  []string // arguments of Pid
	FgCwd string   // working directory of Pid, empty if not readable
	// ShellImage changes when the session's shell executes another program; 0 if not known.
	ShellImage uint64
	ShellCwd   string // working directory of the session's shell, empty if not readable

	// ShellIsForeground: the foreground group is the shell's own, so no job is in the foreground.
	ShellIsForeground bool
	// Blocked: a thread of the foreground group reads the terminal without a timeout, and no input
	// is queued for it. Every other thread of the group is at rest. Nothing happens without new
	// input.
	Blocked bool
	// Listens: a process of the group reads the terminal, but the group may also continue without
	// input.
	Listens bool
	// OnlyTimers: Listens is set, the read has no timeout, and all other threads wait in timed
	// futexes, as in every idle Go or Java program.
	OnlyTimers bool
	// Opaque: the reader forwards the keyboard to a place that a Prober cannot see (ssh, a
	// container, tmux).
	Opaque bool
	// Shell is set if the reader is an interactive shell that reads as at its prompt and can be
	// given marks. Otherwise, and without Blocked, it is nil.
	Shell *PromptShell
	// Pending: input is queued on the terminal, and no process has read it yet.
	Pending bool
	// Want is the kind of input that the terminal's modes ask for, if Blocked or Listens:
	// wire.WantLine, wire.WantPassword or wire.WantRaw. The caller tells pagers and full-screen
	// programs apart.
	Want wire.Want
	// Runs is how often the threads that the facts are about were given a processor (third field of
	// schedstat), 0 if not readable. Two Blocked facts with equal Pid and Runs are one wait. So a
	// look right after a write does not report the wait before the write. With an error, Runs is
	// how long the threads have run, which changes whenever they run.
	Runs uint64
	// Still reports whether none of the inspected threads has run since, so that another Probe
	// would find the same. It costs a small part of a Probe. It is nil if it could not tell. It may
	// miss a process that started during the Probe.
	Still func() bool
	// Why explains the facts in one line, naming processes and system calls.
	Why string
}

// PromptShell is a shell that reads as at its prompt.
type PromptShell struct {
	Name string // "bash", "zsh", "dash" or "ash" (busybox)
	PID  int    // its process ID as it sees it itself, in its PID namespace
	UID  int    // user as which it opens files
	User string // the name of that user, or its number
	// Image changes when it executes another program, as Facts.ShellImage.
	Image uint64
}
