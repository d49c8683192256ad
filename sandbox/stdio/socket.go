package stdio

import (
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// MaxBatch is how many descriptors go together.
	MaxBatch = 3

	// maxUnsent is how many batches may wait for a write. Each takes a byte of it, of which a packet
	// of SSH has at least 28.
	maxUnsent = 16

	// maxUntaken is how many received batches may wait for Take. More are closed.
	maxUntaken = 64

	// maxRights is how many descriptors the kernel passes at once (SCM_MAX_FD, unix(7)).
	maxRights = 253
)

// Socket is a connection on a unix socket that carries descriptors. They go in batches, which both
// sides count from 0, so that a message on the connection can name its own: a batch that was passed
// before the message was written has come when the message has.
//
// Its methods may be called at once, as those of any net.Conn; Read by one goroutine at a time.
type Socket struct {
	*net.UnixConn
	control []byte // of Read
	wary    bool

	mu     sync.Mutex
	sent   sync.Cond        // of mu; out has become shorter, or the connection is closed
	closed bool             // guarded by mu
	unable bool             // guarded by mu; the kernel here passes none
	passed uint64           // guarded by mu; batches that Pass was given
	out    [][]int          // guarded by mu; those of them that go with the next write
	came   uint64           // guarded by mu; batches that came
	in     map[uint64][]int // guarded by mu; those of them that nobody has taken
}

// NewSocket returns a Socket on c, which it owns.
func NewSocket(c *net.UnixConn) *Socket { return newSocket(c, MaxBatch) }

// NewWarySocket is NewSocket for a hostile other side: the Socket keeps the first batch that comes
// and closes all others at once, and closing cannot keep it waiting.
func NewWarySocket(c *net.UnixConn) *Socket {
	s := newSocket(c, maxRights) // else the kernel closes what has no room, and may wait for that
	s.wary = true
	return s
}

func newSocket(c *net.UnixConn, room int) *Socket {
	s := &Socket{UnixConn: c, control: make([]byte, unix.CmsgSpace(4*room)), in: make(map[uint64][]int)}
	s.sent.L = &s.mu
	return s
}

// Pass sends files with what is written next, and returns the number of their batch. It owns them
// from here on, and waits while many wait. The error is net.ErrClosed on a closed connection, and
// errors.ErrUnsupported after a batch could not be sent, as from inside gVisor. That batch is lost,
// and its number names none.
func (s *Socket) Pass(files ...int) (batch uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.out) >= maxUnsent && !s.closed {
		s.sent.Wait()
	}
	if s.closed || s.unable {
		CloseAll(files...)
		if s.closed {
			return 0, net.ErrClosed
		}
		return 0, errors.ErrUnsupported
	}
	batch = s.passed
	s.passed++
	s.out = append(s.out, files)
	return batch, nil
}

// Able reports whether Pass may succeed: not on a closed connection, nor after a batch could not be sent.
func (s *Socket) Able() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && !s.unable
}

// Write writes p, and with it the batches that were passed: with one byte each, the last with all
// that is left.
func (s *Socket) Write(p []byte) (n int, err error) {
	for err == nil {
		files, last := s.next(len(p) - n)
		if files == nil {
			break
		}
		end := len(p)
		if !last {
			end = n + 1
		}
		var m int
		m, _, err = s.WriteMsgUnix(p[n:end], unix.UnixRights(files...), nil)
		n += max(m, 0) // -1 with an error
		CloseAll(files...)
		if err != nil && m <= 0 && s.drop() {
			err = nil // the next write reports what is wrong with the connection itself
		}
	}
	if err == nil && (n < len(p) || len(p) == 0) {
		var m int
		m, err = s.UnixConn.Write(p[n:])
		n += m
	}
	return n, err
}

// drop closes all batches that wait, and has Pass fail from now on. It reports whether it did not before.
func (s *Socket) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unable {
		return false
	}
	s.unable = true
	for _, files := range s.out {
		CloseAll(files...)
	}
	s.out = nil
	s.sent.Broadcast()
	return true
}

// next returns the first batch that waits, nil if there is none or no room to send it with, and
// whether no other goes with this write.
func (s *Socket) next(room int) (files []int, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if room == 0 || len(s.out) == 0 {
		return nil, true
	}
	files = s.out[0]
	if s.out = s.out[1:]; len(s.out) == 0 {
		s.out = nil
	}
	s.sent.Signal()
	return files, s.out == nil || room == 1
}

// Read reads bytes into p and keeps the descriptors that come with them. They are closed on exec.
func (s *Socket) Read(p []byte) (int, error) {
	n, controls, flags, _, err := s.ReadMsgUnix(p, s.control)
	if controls > 0 || flags&unix.MSG_CTRUNC != 0 {
		s.keep(s.control[:controls], flags&unix.MSG_CTRUNC == 0)
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // not in a net.OpError, which Read puts around errors alone
	}
	return max(n, 0), err // -1 with an error
}

// keep counts the batch that came as control. A batch that is not whole is dropped: the kernel has
// closed the rest.
func (s *Socket) keep(control []byte, whole bool) {
	var files []int
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		var fds []int
		if fds, err = unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, fds...)
		}
	}
	if s.wary {
		for _, fd := range files {
			// Closing a socket would send what it holds first, for as long as that says (SO_LINGER,
			// socket(7)). Other files have no such option.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
	}
	s.mu.Lock()
	batch := s.came
	s.came++
	keep := err == nil && whole && !s.closed && len(files) <= MaxBatch && len(s.in) < maxUntaken && (!s.wary || batch == 0)
	if keep {
		s.in[batch] = files
	}
	s.mu.Unlock()
	if !keep {
		CloseAll(files...)
	}
}

// Take returns the descriptors of a batch that was announced, which the caller owns from here on.
// None means that they have not come: the other side has sent none, or this process was at its
// limit of open files.
func (s *Socket) Take(batch uint64) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := s.in[batch]
	delete(s.in, batch)
	return files
}

// Close closes the connection and every descriptor that has not been sent or taken.
func (s *Socket) Close() error {
	err := s.UnixConn.Close()
	s.mu.Lock()
	s.closed = true
	s.sent.Broadcast()
	out, in := s.out, s.in
	s.out, s.in = nil, nil
	s.mu.Unlock()
	for _, files := range out {
		CloseAll(files...)
	}
	for _, files := range in {
		CloseAll(files...)
	}
	return err
}

// CloseAll closes descriptors.
func CloseAll(files ...int) {
	for _, fd := range files {
		unix.Close(fd)
	}
}
