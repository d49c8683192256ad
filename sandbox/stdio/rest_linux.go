package stdio

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxTerminalRest is more than a terminal can buffer of its programs' output: two buffers of 64 KiB
// and a page.
const maxTerminalRest = 256 << 10

// Rest reads the bytes that an ended program left in a pipe or terminal, and then returns io.EOF.
// The end of the pipe does not show that while a background child holds it open. Rest does not wait
// for later output of other processes.
type Rest struct {
	// Closed reports, after io.EOF, that no process has the far side open.
	Closed bool

	file syscall.RawConn
	left int
}

// NewRest returns the rest of file, which is non-blocking.
func NewRest(file *os.File) (*Rest, error) {
	rc, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &Rest{file: rc, left: maxTerminalRest}
	err = rc.Control(func(fd uintptr) {
		// A pipe reports its number of bytes, so Rest does not follow a background flood. On
		// a terminal that number excludes bytes in transit, but a read first waits for those
		// (tty_buffer_flush_work).
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && !isTerminal(int(fd)) {
			r.left = n
		}
	})
	return r, err
}

// Read never blocks. At the end of the rest it returns io.EOF.
func (r *Rest) Read(p []byte) (n int, err error) {
	for {
		rerr := r.file.Read(func(fd uintptr) bool {
			if n = 0; r.left > 0 {
				n, err = unix.Read(int(fd), p[:min(r.left, len(p))])
			} else {
				n, err = 0, unix.EAGAIN
				r.Closed = Abandoned(int(fd))
			}
			return true // one attempt, with any result
		})
		switch {
		case rerr != nil:
			return 0, rerr
		case errors.Is(err, unix.EINTR):
		case err == nil && n == 0, errors.Is(err, unix.EIO): // EIO: a terminal
			r.Closed = true
			return 0, io.EOF
		case errors.Is(err, unix.EAGAIN):
			return 0, io.EOF
		case err != nil:
			return 0, err
		default:
			r.left -= n
			return n, nil
		}
	}
}

// Abandoned reports whether no process has the far side of fd open. fd is the read end of a pipe or
// the master of a terminal.
func Abandoned(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}
