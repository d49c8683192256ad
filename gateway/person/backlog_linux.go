package person

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// maxBacklog is how many bytes for a client may wait in the kernel before writes block.
const maxBacklog = 128 << 10

// LimitBacklog makes writes to a client block once maxBacklog bytes are unsent, not counting those
// in transit. By default Linux buffers megabytes for a slow or stopped client, so its user would
// see an old screen.
func LimitBacklog(c syscall.RawConn) {
	// An error means that more bytes may wait.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxBacklog)
	})
}
