//go:build linux

package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// modes are the modes of a terminal that decide what kind of input it gives.
type modes struct {
	canonical, echo bool
	keeps           bool // ^C leaves unread input (NOFLSH), or is a key like others (ISIG off)
	polls           bool // a read returns without input (VMIN is 0, termios(3)), after VTIME
}

func (m modes) want() wire.Want {
	switch {
	case !m.canonical:
		return wire.WantRaw
	case !m.echo:
		return wire.WantPassword
	}
	return wire.WantLine
}

// masterModes returns the modes of the terminal and its foreground group. If ask is set, it also
// returns whether input is queued that no process has read.
func masterModes(tty session.TTY, ask bool) (m modes, fg int, pending bool, err error) {
	c, err := tty.Master.SyscallConn()
	if err != nil {
		return m, 0, false, fmt.Errorf("look at %s: %w", tty.Name, err)
	}
	var fault error
	err = c.Control(func(fd uintptr) {
		if m, fault = termios(int(fd)); fault != nil {
			return
		}
		if fg, fault = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP); fault != nil || !ask {
			return
		}
		// Only the slave can report queued input: the master reports output. TIOCGPTPEER opens the
		// right slave whatever is mounted on /dev/pts.
		slave, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCGPTPEER,
			unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC)
		if errno != 0 {
			s, err := unix.Open(tty.Name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC,
				0)
			if err != nil {
				fault = os.NewSyscallError("open "+tty.Name, err)
				return
			}
			slave = uintptr(s)
		}
		pending = queued(int(slave))
		unix.Close(int(slave))
	})
	if err == nil {
		err = fault
	}
	if err != nil {
		return m, 0, false, fmt.Errorf("look at %s: %w", tty.Name, err)
	}
	return m, fg, pending, nil
}

// slaveModes is masterModes for a terminal of which only the name is known.
func slaveModes(name string) (m modes, pending bool, err error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return m, false, fmt.Errorf("look at %s: %w", name, err)
	}
	defer unix.Close(fd)
	if m, err = termios(fd); err != nil {
		return m, false, fmt.Errorf("look at %s: %w", name, err)
	}
	return m, queued(fd), nil
}

func termios(fd int) (modes, error) {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return modes{}, os.NewSyscallError("tcgets", err)
	}
	canonical := t.Lflag&unix.ICANON != 0
	return modes{canonical: canonical, echo: t.Lflag&unix.ECHO != 0,
		keeps: t.Lflag&unix.NOFLSH != 0 || t.Lflag&unix.ISIG == 0 || t.Cc[unix.VINTR] != 3,
		polls: !canonical && t.Cc[unix.VMIN] == 0}, nil
}

// queued reports whether a read on the slave would return data. In canonical mode an unfinished
// line does not count.
//
// Input that was written to the master may still be in a buffer, until a kernel worker passes it
// on. On a busy machine that takes milliseconds, while the reader looks blocked. Polling waits for
// that worker.
func queued(slave int) bool {
	// Only the side effect of polling matters.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(slave), Events: unix.POLLIN}}, 0)
	n, err := unix.IoctlGetInt(slave, unix.TIOCINQ)
	return err == nil && n > 0
}

// unread reports whether a process has not read all output of a master of its own, a descriptor fd.
// It is false if the kernel does not say. As for queued, polling waits for output that is still in
// a buffer.
func unread(pid, fd int) bool {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(process)
	master, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return false
	}
	defer unix.Close(master)
	p := []unix.PollFd{{Fd: int32(master), Events: unix.POLLIN}}
	_, err = unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLIN != 0
}
