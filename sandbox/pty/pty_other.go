//go:build !linux

package pty

import (
	"os"
	"os/exec"

	"github.com/creack/pty"
)

// Winsize is the size of a terminal in characters, and in pixels, X by Y.
type Winsize = pty.Winsize

// Open returns a new terminal. The master blocks: it has no deadlines, and Close does not end a
// read. On Windows the error is [pty.ErrUnsupported], also that of the others.
func Open() (master, slave *os.File, err error) { return pty.Open() }

// Setsize changes the size of a terminal, of which f is a side.
func Setsize(f *os.File, size *Winsize) error { return pty.Setsize(f, size) }

// StartWithSize starts cmd in a session of its own, on a new terminal of the given size.
func StartWithSize(cmd *exec.Cmd, size *Winsize) (master *os.File, err error) {
	return pty.StartWithSize(cmd, size)
}
