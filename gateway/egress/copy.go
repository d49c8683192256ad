package egress

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	copySize  = 128 << 10 // holds any datagram too
	smallSize = 16 << 10  // where there are many connections
)

// Buffers are lent to whoever has bytes to move; an idle connection has none.
var (
	buffers      = sync.Pool{New: func() any { return ptr(make([]byte, copySize)) }}
	smallBuffers = sync.Pool{New: func() any { return ptr(make([]byte, smallSize)) }}
)

// lend returns a buffer, a small one if small says so; nil never does.
func lend(small *atomic.Bool) *[]byte {
	if small != nil && small.Load() {
		return smallBuffers.Get().(*[]byte)
	}
	return buffers.Get().(*[]byte)
}

func giveBack(b *[]byte) {
	if len(*b) == smallSize {
		smallBuffers.Put(b)
	} else {
		buffers.Put(b)
	}
}

// whenReady reads from conn and calls use with what came: nothing is an empty datagram, or the end of a
// stream that is a socket. The buffer that it is in was taken when
// there was something to read, and serves others after. Connections that are no sockets hold theirs as they wait.
func whenReady(conn net.Conn, small *atomic.Bool, use func([]byte) error) error {
	plain := func() error {
		buf := lend(small)
		defer giveBack(buf)
		n, err := conn.Read(*buf)
		if n == 0 && err != nil {
			return err
		}
		return use((*buf)[:n]) // an error comes again with the next read
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return plain()
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return plain()
	}
	var (
		buf    *[]byte
		n      int
		failed error
	)
	err = raw.Read(func(fd uintptr) bool {
		buf = lend(small)
		for {
			n, failed = unix.Read(int(fd), *buf)
			if failed != unix.EINTR {
				break
			}
		}
		if failed == unix.EAGAIN {
			giveBack(buf)
			buf = nil
			return false
		}
		return true
	})
	if buf != nil {
		defer giveBack(buf)
	}
	switch {
	case err != nil:
		return err
	case failed != nil:
		return os.NewSyscallError("read", failed)
	}
	return use((*buf)[:n])
}
