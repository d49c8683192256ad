package egress

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	copySize  = 128 << 10 // also holds any datagram
	smallSize = 16 << 10  // if there are many connections
)

// Buffers are in use only while bytes are copied. An idle connection has none.
var (
	buffers      = sync.Pool{New: func() any { return ptr(make([]byte, copySize)) }}
	smallBuffers = sync.Pool{New: func() any { return ptr(make([]byte, smallSize)) }}
)

// lend returns a buffer, a small one if small is set. A nil small means large.
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

// whenReady reads from conn and calls use with the bytes. No bytes mean an empty datagram, or the
// end of a stream if conn is a socket. The buffer is taken only when there is something to read,
// and is reused afterwards. A connection that is not a socket holds a buffer while it waits.
func whenReady(conn net.Conn, small *atomic.Bool, use func([]byte) error) error {
	plain := func() error {
		buf := lend(small)
		defer giveBack(buf)
		n, err := conn.Read(*buf)
		if n == 0 && err != nil {
			return err
		}
		return use((*buf)[:n]) // an error is returned again by the next read
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
		if n, failed = readNow(fd, *buf); errors.Is(failed, errNotReady) {
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

// errNotReady means that there is nothing to read yet.
var errNotReady = errors.New("not ready")
