package person

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// maxBacklog is how many bytes for a client wait in the kernel until more is written to it.
const maxBacklog = 128 << 10

// LimitBacklog makes writing to a client wait once maxBacklog bytes have not been sent, however much the kernel would hold beside those on
// their way. Linux lets megabytes wait for a client that is slow or stopped: what a person at its end sees is old by as much.
func LimitBacklog(c syscall.RawConn) {
	// An error means that more may wait.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxBacklog)
	})
}
