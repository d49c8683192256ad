package session

import (
	"context"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
)

// Prober reports what the processes of a terminal do, as the system shows it.
//
// Probe inspects the terminal once, in at most a few milliseconds. An error means that there is no
// process evidence (the kernel denies it, there is no /proc, the program belongs to another user);
// clients see its text as the reason. Probe is safe for concurrent use with different terminals.
type Prober interface {
	Probe(ctx context.Context, tty TTY) (Facts, error)
}

// TTY is the terminal to inspect.
type TTY struct {
	Master     *os.File // the master side; used only during the call
	Name       string   // the slave's path, as /dev/pts/3
	Device     uint64   // the slave's device number (st_rdev)
	SessionPID int      // leader of the terminal's session: its program, or its first shell
	Shell      int      // the shell in front that was started in it; 0 for SessionPID
}

// Facts is the result of a Prober.
type Facts = track.Facts

// PromptShell is a shell at its prompt.
type PromptShell = track.PromptShell
