package sshconn

import (
	"context"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Channel is an open channel. Its requests may be left waiting without harm to the connection, but
// have to be received to their end.
type Channel struct {
	ssh.Channel
	// Requests are those of the other side, in order, closed after the last one. A window-change
	// that another follows is left out. More than may wait end the connection.
	Requests <-chan *ssh.Request
	// Closed is closed when the other side has closed the channel, before Requests is.
	Closed <-chan struct{}
}

func newChannel(conn ssh.Conn, channel ssh.Channel, requests <-chan *ssh.Request) *Channel {
	flood := func() { conn.Close() }
	if c, ok := conn.(interface{ flood() }); ok {
		flood = c.flood
	}
	out, closed := make(chan *ssh.Request), make(chan struct{})
	go hold(out, requests, closed, flood) // ends with the channel, when out has been received
	return &Channel{Channel: channel, Requests: out, Closed: closed}
}

// Request makes a request and waits for the answer: ok is false when the other side refuses it. Errors
// are ErrEnded, when the channel ends before, and the cause of ctx; then the answer is lost.
func (c *Channel) Request(ctx context.Context, name string, payload []byte) (bool, error) {
	type answer struct {
		ok  bool
		err error
	}
	answered := make(chan answer, 1)
	go func() { // ends with the channel
		ok, err := c.SendRequest(name, true, payload)
		answered <- answer{ok, err}
	}()
	select {
	case a := <-answered:
		switch {
		case a.err == nil:
			return a.ok, nil
		case ctx.Err() == nil:
			return false, ErrEnded
		}
	case <-ctx.Done():
	}
	return false, context.Cause(ctx)
}

// Drain refuses the requests of a channel until the other side has closed it. Until then the
// library keeps what the other side sent there.
func (c *Channel) Drain() { ssh.DiscardRequests(c.Requests) }

// hold passes requests on to out, which need not be received from.
func hold(out chan<- *ssh.Request, in <-chan *ssh.Request, closed chan<- struct{}, flood func()) {
	defer close(out)
	var waiting []*ssh.Request
	var backlog Backlog
	for in != nil || len(waiting) > 0 {
		var to chan<- *ssh.Request
		var first *ssh.Request
		var size int // of first, which belongs to its receiver once it is sent
		if len(waiting) > 0 {
			to, first, size = out, waiting[0], sizeOf(waiting[0])
		}
		select {
		case q, ok := <-in:
			if !ok {
				in = nil
				close(closed)
				continue
			}
			if last := len(waiting) - 1; last >= 0 && q.Type == wire.RequestWindowChange && waiting[last].Type == q.Type {
				_ = waiting[last].Reply(true, nil)
				backlog.Remove(waiting[last])
				waiting = waiting[:last]
			}
			if !backlog.Add(q) {
				flood()
				_ = q.Reply(false, nil)
				continue
			}
			waiting = append(waiting, q)
		case to <- first:
			backlog.remove(size)
			waiting = waiting[1:]
		}
	}
}

const (
	// maxRequests is how many requests of a channel, or global ones, may wait. No client wants more.
	maxRequests = 128
	// maxRequestBytes is how much they may say together. One may be a command of a quarter of a
	// MiB, the most that a packet holds; all others have some hundred bytes.
	maxRequestBytes = 512 << 10
)

// Backlog counts requests that wait. The zero value counts none.
type Backlog struct{ n, bytes int }

// Add counts q, unless more wait than may.
func (b *Backlog) Add(q *ssh.Request) bool {
	if b.n >= maxRequests || b.n > 0 && b.bytes+sizeOf(q) > maxRequestBytes {
		return false
	}
	b.n++
	b.bytes += sizeOf(q)
	return true
}

// Remove takes back what Add has counted. q is as it was then.
func (b *Backlog) Remove(q *ssh.Request) { b.remove(sizeOf(q)) }

func (b *Backlog) remove(size int) {
	b.n--
	b.bytes -= size
}

// sizeOf is how much a request says. Its type may be as long as its payload.
func sizeOf(q *ssh.Request) int { return len(q.Type) + len(q.Payload) }
