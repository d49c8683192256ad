//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	ptys "github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxPtys bounds the terminals that the guest opens: all sandboxes of a machine share its 4,096.
const maxPtys = 256

// ptysError reports that no terminal is available, and whose limit that is.
func ptysError(whose string) *wire.Error {
	return &wire.Error{Code: wire.CodeLimitPtys, Message: "no terminal is available: " + whose,
		Hint: "close sessions, or end the programs that hold terminals; rescue ends all of them"}
}

// pty is the master side of a pseudo-terminal.
type pty struct {
	*os.File
	name   string // of the slave
	device uint64 // of the slave, st_rdev
	count  *atomic.Int32
	closed atomic.Bool
}

// openPty returns a new terminal and its slave, which the caller closes after the start of the
// process on it. The slave belongs to the account, as with login(1). If none is available the error
// has code limit_ptys.
func openPty(count *atomic.Int32, a Account) (*pty, *os.File, error) {
	if count.Add(1) > maxPtys {
		count.Add(-1)
		return nil, nil, ptysError("sessions and channels of the sandbox use all of its " +
			strconv.Itoa(maxPtys))
	}
	master, slave, err := ptys.Open()
	if err != nil {
		count.Add(-1)
		// devpts_new_index in the kernel: the max option of the mount, or kernel.pty.max
		if errors.Is(err, unix.ENOSPC) {
			return nil, nil,
				ptysError("programs in the sandbox or elsewhere on the machine use all of them")
		}
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	p := &pty{File: master, name: slave.Name(), count: count}
	if p.device, err = giveTerminal(int(slave.Fd()), a); err == nil {
		err = p.update(func(t *unix.Termios) { t.Iflag |= unix.IUTF8 })
	}
	if err != nil {
		slave.Close()
		p.Close()
		return nil, nil, fmt.Errorf("set up a terminal: %w", err)
	}
	return p, slave, nil
}

// giveTerminal makes the account the owner of a slave, as login(1) does, and returns its device
// number.
func giveTerminal(slave int, a Account) (device uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(slave, &st); err != nil {
		return 0, err
	}
	const ttyGroup = 5
	if err := unix.Fchown(slave, int(a.UID), ttyGroup); err != nil && int(a.UID) != os.Geteuid() {
		return 0, err
	}
	return st.Rdev, unix.Fchmod(slave, 0o620)
}

// Close releases the master: the terminal hangs up. Closing twice is not an error.
func (p *pty) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	p.count.Add(-1)
	return p.File.Close()
}

// ioctl runs f on the master's descriptor while it is open.
func (p *pty) ioctl(f func(fd int) error) error {
	rc, err := p.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}

// resize sets the size in characters and pixels; the foreground group gets WINCH.
func (p *pty) resize(cols, rows int, width, height uint32) error {
	return p.ioctl(func(fd int) error { return resizeTerminal(fd, cols, rows, width, height) })
}

// update changes the terminal's modes.
func (p *pty) update(f func(*unix.Termios)) error {
	return p.ioctl(func(fd int) error { return updateTerminal(fd, f) })
}

// resizeTerminal sets the size of a terminal, by either of its sides.
func resizeTerminal(fd, cols, rows int, width, height uint32) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(cols), Row: uint16(rows),
			Xpixel: uint16(min(width, 0xffff)), Ypixel: uint16(min(height, 0xffff))})
}

// updateTerminal changes the modes of a terminal, by either of its sides: on a master the calls
// apply to the slave (tty_mode_ioctl in the kernel).
func updateTerminal(fd int, f func(*unix.Termios)) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	f(t)
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
