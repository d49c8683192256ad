// Package pty opens pseudo-terminals (pty(7)), and starts programs on them.
//
// On Linux no library does that: the master's descriptor is non-blocking from the start, so that a
// reader is a goroutine and not a thread, and the slave is opened by that descriptor. The released
// versions of github.com/creack/pty up to 1.1.24 keep the address of a variable as a number while
// the kernel writes to it. If the garbage collector moves the stack meanwhile, the number of the
// terminal is lost, and the slave is /dev/pts/0, whosever that is.
package pty

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Winsize is the size of a terminal in characters, and in pixels, X by Y. Zero means not known
// (ioctl_tty(2), TIOCSWINSZ).
type Winsize struct{ Rows, Cols, X, Y uint16 }

// Open returns a new terminal: its master, whose reads and writes do not hold a thread, can have
// deadlines and are ended by Close, and its slave. The caller closes both; neither becomes its
// controlling terminal. The error wraps [unix.ENOSPC] if the system has no more terminals.
func Open() (master, slave *os.File, err error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Open("/dev/ptmx", flags|unix.O_NONBLOCK, 0)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		// A sandbox may have removed its /dev/ptmx; the devpts file system has another.
		fd, err = unix.Open("/dev/pts/ptmx", flags|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, nil, os.NewSyscallError("open", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		unix.Close(fd)
		return nil, nil, os.NewSyscallError("ioctl", err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	slaveFD, err := OpenSlave(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, nil, os.NewSyscallError("open slave", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), os.NewFile(uintptr(slaveFD), name), nil
}

// OpenSlave opens the slave of the master with the descriptor master, and not by its name: programs
// in a sandbox may put a mount or a link in its place. Only kernels without TIOCGPTPEER, such as
// gVisor, use the name. The caller closes the descriptor that is returned; its reads block.
func OpenSlave(master int, name string) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	switch errno {
	case 0:
		return int(fd), nil
	case unix.EINVAL, unix.ENOTTY: // gVisor
		return unix.Open(name, flags, 0)
	}
	return 0, errno
}

// Setsize changes the size of a terminal, of which f is a side.
func Setsize(f *os.File, size *Winsize) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
			&unix.Winsize{Row: size.Rows, Col: size.Cols, Xpixel: size.X, Ypixel: size.Y})
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("ioctl", failed)
}

// StartWithSize starts cmd in a session of its own, on a new terminal of the given size; nil leaves
// the size unknown. The terminal is its input, output and error, except for those that are set: its
// input must be a terminal. The caller closes the master, whose reads end with EIO when no process
// has the terminal open.
func StartWithSize(cmd *exec.Cmd, size *Winsize) (master *os.File, err error) {
	master, slave, err := Open()
	if err != nil {
		return nil, err
	}
	defer slave.Close() // the program has it
	if size != nil {
		err = Setsize(master, size)
	}
	if err == nil {
		if cmd.Stdin == nil {
			cmd.Stdin = slave
		}
		if cmd.Stdout == nil {
			cmd.Stdout = slave
		}
		if cmd.Stderr == nil {
			cmd.Stderr = slave
		}
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = new(syscall.SysProcAttr)
		}
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
		err = cmd.Start()
	}
	if err != nil {
		master.Close()
		return nil, err
	}
	return master, nil
}
