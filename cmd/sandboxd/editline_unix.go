//go:build unix

package main

import (
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// editLine lets this program edit lines of the terminal instead of the kernel. ^C stays a signal.
// ^Z is off: it would leave the terminal in this mode. Output processing stays on, for prompts with
// several lines.
func editLine(fd int) (restore func(), err error) {
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	restore = func() { _ = term.Restore(fd, before) } // fails only if it is gone
	modes, err := unix.IoctlGetTermios(fd, getTermios)
	if err == nil {
		modes.Lflag |= unix.ISIG
		modes.Oflag |= unix.OPOST
		modes.Cc[unix.VSUSP] = 0
		err = unix.IoctlSetTermios(fd, setTermios, modes)
	}
	if err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}
