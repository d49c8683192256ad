// Package descriptors passes open files over a connection on a unix socket, beside its bytes (SCM_RIGHTS, unix(7)). By it the daemon
// holds the near ends of the pipes and terminals that programs of a sandbox run on, so that what they read and write need not
// go through the guest.
package descriptors

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

	// maxUnsent is how many batches may wait for a write. Each takes a byte of it, of which a packet of SSH has at least 28.
	maxUnsent = 16

	// maxUntaken is how many batches may have come that nobody has taken. More are closed as they come.
	maxUntaken = 64

	// maxRights is how many descriptors the kernel passes at once (SCM_MAX_FD, unix(7)).
	maxRights = 253
)

// Conn is a connection on a unix socket that carries descriptors. They go in batches, which both sides count from 0, so that a
// message on the connection can say which batch is its own: one that was passed before the message was written has come when that has.
//
// As of any net.Conn its methods may be called at once; Read by one goroutine at a time.
type Conn struct {
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

// New returns a Conn on c, which it owns. A wary one takes the other side for hostile: it keeps one batch, the first that comes, and closes all
// others at once, and what it closes cannot keep it waiting.
func New(c *net.UnixConn, wary bool) *Conn {
	room := MaxBatch
	if wary {
		room = maxRights // else the kernel closes what has no room, and waits for what is to be waited for
	}
	d := &Conn{UnixConn: c, wary: wary, control: make([]byte, unix.CmsgSpace(4*room)), in: make(map[uint64][]int)}
	d.sent.L = &d.mu
	return d
}

// Pass sends files with what is written next, and returns the number of their batch. It owns them from here on. While many wait so it
// waits, too. On a connection that is closed the error is net.ErrClosed, and errors.ErrUnsupported after a batch that could not be sent, as
// from inside gVisor. That one is lost, and its number is of none that comes.
func (c *Conn) Pass(files ...int) (batch uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) >= maxUnsent && !c.closed {
		c.sent.Wait()
	}
	if c.closed || c.unable {
		CloseAll(files...)
		if c.closed {
			return 0, net.ErrClosed
		}
		return 0, errors.ErrUnsupported
	}
	batch = c.passed
	c.passed++
	c.out = append(c.out, files)
	return batch, nil
}

// Able reports whether Pass may do: false on a connection that is closed, and after a batch that could not be sent.
func (c *Conn) Able() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && !c.unable
}

// Write writes p, and with it the batches that were passed: with one byte each, the last with all that is left.
func (c *Conn) Write(p []byte) (n int, err error) {
	for err == nil {
		files, last := c.next(len(p) - n)
		if files == nil {
			break
		}
		end := len(p)
		if !last {
			end = n + 1
		}
		var m int
		m, _, err = c.WriteMsgUnix(p[n:end], unix.UnixRights(files...), nil)
		n += max(m, 0) // of an error it is -1
		CloseAll(files...)
		if err != nil && m <= 0 && c.drop() {
			err = nil // what is wrong with the connection itself is told by the next write
		}
	}
	if err == nil && (n < len(p) || len(p) == 0) {
		var m int
		m, err = c.UnixConn.Write(p[n:])
		n += m
	}
	return n, err
}

// drop closes all batches that wait, and there will be no others. False means that this was so already.
func (c *Conn) drop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unable {
		return false
	}
	c.unable = true
	for _, files := range c.out {
		CloseAll(files...)
	}
	c.out = nil
	c.sent.Broadcast()
	return true
}

// next returns the first batch that waits, nil if there is none or nothing to send it with, and whether others have to wait for the next write, or
// there are none.
func (c *Conn) next(room int) (files []int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if room == 0 || len(c.out) == 0 {
		return nil, true
	}
	files = c.out[0]
	if c.out = c.out[1:]; len(c.out) == 0 {
		c.out = nil
	}
	c.sent.Signal()
	return files, c.out == nil || room == 1
}

// Read reads bytes into p and keeps the descriptors that come with them. They are closed on exec.
func (c *Conn) Read(p []byte) (int, error) {
	n, controls, flags, _, err := c.ReadMsgUnix(p, c.control)
	if controls > 0 || flags&unix.MSG_CTRUNC != 0 {
		c.keep(c.control[:controls], flags&unix.MSG_CTRUNC == 0)
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // not in a net.OpError, which Read puts around errors alone
	}
	return max(n, 0), err // of an error it is -1
}

// keep counts the batch that came as control; not whole, it is none: the kernel has closed the rest.
func (c *Conn) keep(control []byte, whole bool) {
	var files []int
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		var fds []int
		if fds, err = unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, fds...)
		}
	}
	if c.wary {
		for _, fd := range files {
			// Closing a socket would send what it holds first, for as long as that says (SO_LINGER, socket(7)). Other files have no such option.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
	}
	c.mu.Lock()
	batch := c.came
	c.came++
	keep := err == nil && whole && !c.closed && len(files) <= MaxBatch && len(c.in) < maxUntaken && (!c.wary || batch == 0)
	if keep {
		c.in[batch] = files
	}
	c.mu.Unlock()
	if !keep {
		CloseAll(files...)
	}
}

// Take returns the descriptors of a batch that was announced, which the caller owns from here on. None means that they have not come: the other
// side has sent none, or this process was at its limit of open files.
func (c *Conn) Take(batch uint64) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := c.in[batch]
	delete(c.in, batch)
	return files
}

// Close closes the connection and every descriptor that has not been sent or taken.
func (c *Conn) Close() error {
	err := c.UnixConn.Close()
	c.mu.Lock()
	c.closed = true
	c.sent.Broadcast()
	out, in := c.out, c.in
	c.out, c.in = nil, nil
	c.mu.Unlock()
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
