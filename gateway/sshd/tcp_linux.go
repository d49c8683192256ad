package sshd

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// quickAck makes the kernel acknowledge at once what was just read. Linux forgets the option soon, so it is set again
// after each of a connection's first reads: without it OpenSSH waits 40 ms for an ACK between two small packets of its
// login, three times over.
func quickAck(c syscall.RawConn) {
	// An error means that the acknowledgement comes later, as usual.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	})
}

// maxBacklog is how many bytes for a client wait in the kernel until more is written to it.
const maxBacklog = 128 << 10

// limitBacklog makes writing to a client wait once maxBacklog bytes have not been sent, however much the kernel would hold beside those on
// their way. Linux lets megabytes wait for a client that is slow or stopped: what a person at its end sees is old by as much.
func limitBacklog(c syscall.RawConn) {
	// An error means that more may wait.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxBacklog)
	})
}
