package sshd

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// quickAck makes the kernel acknowledge received data at once. Linux soon resets the option, so it
// is set after each of a connection's first reads. Without it, OpenSSH's login waits 40 ms for an
// ACK, three times.
func quickAck(c syscall.RawConn) {
	// On an error, the acknowledgement comes later, as usual.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	})
}
