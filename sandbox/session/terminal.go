package session

import (
	"context"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Terminal is a pseudo-terminal with a process, seen from the master side. A session reads it in
// one goroutine and writes it in another. The other methods are safe for concurrent use.
//
// If its processes are on this machine, it is also a [Local]. Otherwise interrupts and states lack
// the process layer.
type Terminal interface {
	// Read returns output. After the last byte it returns an error, which may be EIO: Linux returns
	// that for a master whose slave is not open. Close makes a blocked Read return.
	io.Reader
	// Write sends input. If the write deadline passes because the program does not read, it returns
	// an error and the number of accepted bytes.
	io.Writer
	SetWriteDeadline(t time.Time) error

	// Resize changes the size. The program receives SIGWINCH.
	Resize(cols, rows int) error

	// Wait waits for the end of the started process. Every call returns the same. Descendants may
	// still use the terminal.
	Wait() Exit

	// Close sends HUP to the session's processes, and kills remaining ones after a short time. It
	// returns when they have ended and the descriptors are closed. Closing twice is not an error.
	Close() error
}

// Exit is how a process ended: by a code, or by a signal.
type Exit struct {
	Code   int
	Signal string // name without SIG; if set, Code is not used
	Reason string // reason, such as "rescued", "oom_killed" or an error of the terminal
}

// Local is a Terminal whose processes are on this machine.
type Local interface {
	Terminal
	// TTY identifies the terminal to a [Prober].
	TTY() TTY
	// Front returns the terminal's foreground process group (tcgetpgrp on the master). It must be
	// fast, because it is called at every prompt.
	Front() (group int, err error)
	// InFront reports whether the group of a process is in the foreground of the terminal that the
	// process has, which may be one inside this. It must be fast, like Front.
	InFront(pid int) (bool, error)
	// Above returns the process IDs of the process that started pid, of the one that started that,
	// and so on; empty if pid has ended.
	Above(pid int) []int
	// Runs reports whether a process exists and is not stopped.
	Runs(pid int) bool
	// Flush drops unread input: TCIFLUSH on a slave descriptor, because on the master it would drop
	// output.
	Flush() error
	// Members returns the process IDs of a process group; empty if it has ended.
	Members(group int) ([]int, error)
	// Below returns the process IDs of all descendants of the given processes.
	Below(pids []int) ([]int, error)
	// Tree returns the process IDs of the shell and all its descendants, in any group or session.
	// It excludes the keeper process above the shell.
	Tree() ([]int, error)
	// Signal sends sig to one process of the session. A process that has ended is not an error.
	Signal(pid int, sig syscall.Signal) error
}

// Parent is a Local that reports children of a shell, which could have printed a mark instead of
// the shell.
type Parent interface {
	Local
	// Children returns a number that changes when children of the process shell end, and whether
	// it has live children.
	Children(shell int) (ended uint64, live bool, err error)
}

// Starter starts the terminal and the process of a session. ctx bounds the call, not the terminal.
// The caller closes start.Files after Starter has returned.
type Starter func(ctx context.Context, start Start) (Terminal, error)

// Start configures a start. Size and Term are as in [wire.Start], with its defaults applied. An
// empty Dir means the Starter's default.
type Start struct {
	Session string // name, for the environment and for logs
	wire.Start
	// Argv of the embedded wire.Start is the command; Argv[0] is a path or a name to look up. It is
	// empty if there is no [Shell] and the Starter chooses one.

	// Env of the embedded wire.Start overrides the Starter's environment, and later entries
	// override earlier ones. It has TERM.

	// Files are inherited at their descriptors. No others are, except 0, 1 and 2.
	Files []File
}

// File is a descriptor that a process inherits.
type File struct {
	FD   int
	File *os.File
}

// Shell is the current login shell of a sandbox.
type Shell struct {
	Path string // empty if there is none
	// the Starter's environment, for shells whose start-up files depend on it
	Env []string
	// directory of a process's own descriptors: /dev/fd or /proc/self/fd; empty if there is none
	FDDir string
	Login bool // start it as a login shell
}
