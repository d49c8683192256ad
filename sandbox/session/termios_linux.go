package session

import (
	"errors"
	"io"
	"os"
	"sync/atomic"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"golang.org/x/sys/unix"
)

const continueSignal = unix.SIGCONT

// canonical reports whether the terminal of master is in canonical mode.
func canonical(master *os.File) bool {
	return inputModes(master).Lines
}

// signals reports whether ^C sends a signal in the terminal of master. Otherwise it is a normal
// byte.
func signals(master *os.File) (is bool) {
	withFD(master, func(fd int) {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		is = err == nil && t.Lflag&unix.ISIG != 0 && t.Cc[unix.VINTR] == 3
	})
	return is
}

// inputModes returns the input modes of the terminal of master.
func inputModes(master *os.File) (m track.Modes) {
	withFD(master, func(fd int) {
		if t, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			m = track.Modes{Lines: t.Lflag&unix.ICANON != 0, Echo: t.Lflag&unix.ECHO != 0}
		}
	})
	return m
}

// unread reports whether a master has unread output. Output may still be in a buffer of the kernel,
// which a worker empties; polling waits for that worker.
func unread(master *os.File) (is bool) {
	withFD(master, func(fd int) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(p, 0)
		is = err == nil && p[0].Revents&unix.POLLIN != 0
	})
	return is
}

// masterReader returns a Read function for a master. The function sets taking before the system
// call, and leaves it set if the call returned bytes. The goroutine may then wait for a processor,
// and its bytes are neither unread nor in the log. ok is false if the descriptor blocks.
func masterReader(master *os.File, taking *atomic.Bool) (read func([]byte) (int, error), ok bool) {
	conn, err := master.SyscallConn()
	if err != nil {
		return nil, false
	}
	withFD(master, func(fd int) {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		ok = err == nil && flags&unix.O_NONBLOCK != 0
	})
	return func(p []byte) (n int, err error) {
		cerr := conn.Read(func(fd uintptr) bool {
			taking.Store(true)
			for n, err = unix.Read(int(fd), p); errors.Is(err, unix.EINTR); n,
				err = unix.Read(int(fd), p) {
			}
			if errors.Is(err, unix.EAGAIN) {
				taking.Store(false)
				return false
			}
			return true
		})
		switch {
		case cerr != nil:
			return 0, cerr
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n <= 0:
			return 0, io.EOF
		}
		return n, nil
	}, ok
}

// withFD calls f with the descriptor. It does not use Fd, which would make the master blocking.
func withFD(master *os.File, f func(fd int)) {
	conn, err := master.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { f(int(fd)) })
}
