package session

import (
	"context"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
)

// Prober says what the processes on a terminal are doing, from the system's own facts.
//
// Probe looks once, taking a few milliseconds at most. An error means that this layer cannot tell (the kernel denies it, there is no
// /proc, the program belongs to another user); its text is the reason to show. Probe may be called at once for
// different terminals.
type Prober interface {
	Probe(ctx context.Context, tty TTY) (Facts, error)
}

// TTY is the terminal to look at.
type TTY struct {
	Master     *os.File // the master side; borrowed for the call
	Name       string   // the slave's path, as /dev/pts/3
	Device     uint64   // the slave's device number (st_rdev)
	SessionPID int      // the shell: leader of the terminal's session
}

// Facts is what a Prober saw.
type Facts = track.Facts
