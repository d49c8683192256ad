package session

import (
	"context"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Terminal is a pseudo-terminal with a process on it, seen from the master side. A Session reads it from one goroutine
// and writes it from another; the other methods may be called at any time, also at once.
//
// One whose processes are on this machine is a [Local], too; what another cannot do is left out of interrupts and of a
// state's basis, and said there.
type Terminal interface {
	// Read returns output. After the last byte it returns an error; Linux says EIO on a master whose slave nobody has
	// open, which an implementation may pass on. Close makes a blocked Read return.
	io.Reader
	// Write sends input. It may accept a part, with an error, when the write deadline passes while the program does not
	// read its input.
	io.Writer
	SetWriteDeadline(t time.Time) error

	// Resize changes the size; the program is told (SIGWINCH).
	Resize(cols, rows int) error

	// Wait returns when the process that was started has ended, and how. Every call returns the same. Descendants may live
	// on and hold the terminal open.
	Wait() Exit

	// Close hangs up: the session's processes get HUP, and those that are left when a short grace has passed are killed.
	// It returns when they are gone and the descriptors are released. Closing twice is not an error.
	Close() error
}

// Exit is how a process ended: by a code, or by a signal.
type Exit struct {
	Code   int
	Signal string // without SIG; then Code does not count
	Reason string // what is known beside: "rescued", "oom_killed", an error of the terminal
}

// A Local is a Terminal whose processes can be found and signalled from here.
type Local interface {
	Terminal
	// TTY names the terminal to a [Prober].
	TTY() TTY
	// Front returns the terminal's foreground process group (tcgetpgrp on the master). One system call: it is asked at
	// every prompt.
	Front() (group int, err error)
	// Flush drops input that was written and that no program has read yet: TCIFLUSH on a slave descriptor opened for the
	// call, because on the master it drops output instead.
	Flush() error
	// Members returns the process IDs of a process group; empty when it is gone.
	Members(group int) ([]int, error)
	// Below returns the process IDs of everything that descends from the given processes, these not included.
	Below(pids []int) ([]int, error)
	// Tree returns the process IDs of everything that descends from the session, whatever group or session it put itself
	// into: the shell with its descendants, not the keeper above it.
	Tree() ([]int, error)
	// Signal sends sig to one process of the session. A process that is gone is not an error.
	Signal(pid int, sig syscall.Signal) error
}

// Parent is a Local that tells whether its shell has started programs: they may have printed what the shell prints.
type Parent interface {
	Local
	// Children returns a number that has changed when children of the shell have ended, and whether some live.
	Children() (ended uint64, live bool, err error)
}

// Starter makes the terminal and the process of a session. ctx bounds the call, not the terminal. It does not close
// start.Files; the caller does when Starter has returned.
type Starter func(ctx context.Context, start Start) (Terminal, error)

// Start is what a Starter has to start. Size, Term and Dir are as in [wire.Start] but filled in where that has defaults
// of its own; Dir may be empty: then the Starter's own default counts.
type Start struct {
	Session string // name, for the environment and for logs
	wire.Start
	// Argv of the embedded wire.Start is what to execute, Argv[0] a path or a name to be looked up. It is empty when the
	// Starter has no [Shell] and starts what it likes.

	// Env of the embedded wire.Start goes over the environment that the Starter gives to its sessions, later entries over
	// earlier ones. It holds TERM.

	// Files are to be inherited at the given descriptors, and no others beside 0, 1 and 2.
	Files []File
}

// File is a descriptor that a process inherits.
type File struct {
	FD   int
	File *os.File
}

// Shell is the login shell of a sandbox as it is now.
type Shell struct {
	Path  string   // empty when there is none
	Env   []string // what a session's process gets from the Starter, for shells whose start-up files hang on it
	FDDir string   // where a process finds its own descriptors: /dev/fd or /proc/self/fd; empty when there is neither
	Login bool     // start it as a login shell
}
