package sshconn

import (
	"context"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Channel is an open channel. Its requests may wait without blocking the connection, but must be
// received to their end.
type Channel struct {
	ssh.Channel
	// Requests has the requests of the other side, in order, and is closed after the last one. A
	// window-change that is followed by another is dropped. Too many waiting requests end the
	// connection.
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

// Request makes a request and waits for the reply. It returns false if the other side rejects the
// request. Errors are ErrEnded, if the channel ends first, and the cause of ctx; the reply is then
// lost.
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

// Drain rejects the requests of a channel until the other side has closed it. Until then, the
// library keeps the memory of the channel.
func (c *Channel) Drain() { ssh.DiscardRequests(c.Requests) }

// hold passes requests to out and stores those that are not received yet.
func hold(out chan<- *ssh.Request, in <-chan *ssh.Request, closed chan<- struct{}, flood func()) {
	defer close(out)
	var waiting []*ssh.Request
	var backlog Backlog
	for in != nil || len(waiting) > 0 {
		var to chan<- *ssh.Request
		var first *ssh.Request
		var size int // of first, which its receiver owns once it is sent
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
			if last := len(waiting) - 1; last >= 0 && q.Type == wire.RequestWindowChange &&
				waiting[last].Type == q.Type {
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
	// maxRequests limits the waiting requests of a channel, or global ones. No client needs more.
	maxRequests = 128
	// maxRequestBytes limits their total bytes. One may be a command of a quarter of a MiB, the
	// maximum of a packet; all others have some hundred bytes.
	maxRequestBytes = 512 << 10
)

// Backlog counts waiting requests. The zero value is empty.
type Backlog struct{ n, bytes int }

// Add counts q, and reports false if the limits are reached.
func (b *Backlog) Add(q *ssh.Request) bool {
	if b.n >= maxRequests || b.n > 0 && b.bytes+sizeOf(q) > maxRequestBytes {
		return false
	}
	b.n++
	b.bytes += sizeOf(q)
	return true
}

// Remove uncounts q, which must be unchanged since Add.
func (b *Backlog) Remove(q *ssh.Request) { b.remove(sizeOf(q)) }

func (b *Backlog) remove(size int) {
	b.n--
	b.bytes -= size
}

// sizeOf returns the bytes of a request. Its type may be as long as its payload.
func sizeOf(q *ssh.Request) int { return len(q.Type) + len(q.Payload) }
