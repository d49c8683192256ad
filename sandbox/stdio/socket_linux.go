package stdio

import (
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// MaxBatch is how many descriptors a batch has at most.
	MaxBatch = 3

	// maxUnsent is how many batches may wait for a write. Each uses a byte of it; an SSH packet has
	// at least 28.
	maxUnsent = 16

	// maxUntaken is how many received batches may wait for Take. More are closed.
	maxUntaken = 64

	// maxRights is how many descriptors the kernel passes in one message (SCM_MAX_FD, unix(7)).
	maxRights = 253
)

// Socket is a connection on a unix socket that carries descriptors. They are sent in batches, which
// both sides count from 0, so that a message on the connection can name its batch. A batch that was
// passed before the message was written arrives no later than the message.
//
// Its methods may be called concurrently, as those of any net.Conn; Read by one goroutine at a
// time.
type Socket struct {
	*net.UnixConn
	control []byte // used by Read
	wary    bool

	mu     sync.Mutex
	sent   sync.Cond        // of mu; out has become shorter, or the connection is closed
	closed bool             // guarded by mu
	unable bool             // guarded by mu; the kernel cannot pass descriptors here
	passed uint64           // guarded by mu; number of batches given to Pass
	out    [][]int          // guarded by mu; batches for the next write
	came   uint64           // guarded by mu; number of received batches
	in     map[uint64][]int // guarded by mu; received batches that were not taken yet
}

// NewSocket returns a Socket on c, which it owns.
func NewSocket(c *net.UnixConn) *Socket { return newSocket(c, MaxBatch) }

// NewWarySocket is NewSocket for a hostile peer: the Socket keeps the first batch and closes all
// others immediately, and no close can block it.
func NewWarySocket(c *net.UnixConn) *Socket {
	s := newSocket(c, maxRights) // else the kernel closes those without room, which may block
	s.wary = true
	return s
}

func newSocket(c *net.UnixConn, room int) *Socket {
	s := &Socket{UnixConn: c, control: make([]byte, unix.CmsgSpace(4*room)),
		in: make(map[uint64][]int)}
	s.sent.L = &s.mu
	return s
}

// Pass sends files with the next write, and returns the number of their batch. It owns them from
// then on, and blocks while many batches wait. It returns net.ErrClosed on a closed connection, and
// errors.ErrUnsupported after a batch could not be sent, as from inside gVisor. That batch is lost,
// and its number is invalid.
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

// Able reports whether Pass may succeed: false on a closed connection, and after a batch could not
// be sent.
func (s *Socket) Able() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && !s.unable
}

// Write writes p, and the waiting batches with it: each with one byte, the last with the rest.
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
			err = nil // the next write reports an error of the connection itself
		}
	}
	if err == nil && (n < len(p) || len(p) == 0) {
		var m int
		m, err = s.UnixConn.Write(p[n:])
		n += m
	}
	return n, err
}

// drop closes all waiting batches, and makes Pass fail from now on. It reports whether Pass worked
// before.
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

// next returns the first waiting batch, nil if there is none or no room for it, and whether it is
// the last for this write.
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
		err = io.EOF // without the net.OpError that Read puts around errors
	}
	return max(n, 0), err // -1 with an error
}

// keep counts the batch that came as control. It drops an incomplete batch: the kernel has closed
// the rest.
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
			// Closing a socket can block to send its data first (SO_LINGER, socket(7)). Other files
			// have no such option.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
	}
	s.mu.Lock()
	batch := s.came
	s.came++
	keep := err == nil && whole && !s.closed && len(files) <= MaxBatch && len(s.in) < maxUntaken &&
		(!s.wary || batch == 0)
	if keep {
		s.in[batch] = files
	}
	s.mu.Unlock()
	if !keep {
		CloseAll(files...)
	}
}

// Take returns the descriptors of an announced batch, which the caller then owns. None means that
// they have not arrived: the peer has sent none, or this process was at its limit of open files.
func (s *Socket) Take(batch uint64) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := s.in[batch]
	delete(s.in, batch)
	return files
}

// Close closes the connection, and every descriptor that was neither sent nor taken.
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
