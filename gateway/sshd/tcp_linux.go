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
