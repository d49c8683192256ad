package sshconn

import (
	"context"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Handler handles the requests and channels of the other side.
type Handler struct {
	// Request answers a global request. It is called for one request at a time, in order (RFC 4254,
	// section 4), concurrently with Channel, and may wait. nil rejects all requests.
	Request func(*ssh.Request)
	// Channel handles a channel that the other side opens. It must not wait, because nothing is
	// read from the connection meanwhile. nil rejects all channels.
	Channel func(*NewChannel)
}

// NewChannel is a channel that the other side wants to open.
type NewChannel struct {
	ssh.NewChannel
	// NoMore reports that the other side has sent no-more-sessions before (OpenSSH's PROTOCOL
	// file).
	NoMore bool

	conn    *Conn
	earlier <-chan struct{} // closed when all requests before it are answered; nil if none waits
}

// Accept opens the channel.
func (n *NewChannel) Accept() (*Channel, error) {
	channel, requests, err := n.NewChannel.Accept()
	if err != nil {
		return nil, err
	}
	return newChannel(n.conn, channel, requests), nil
}

// Await waits until all global requests that the other side sent before the channel are answered.
// The error is the cause of ctx.
func (n *NewChannel) Await(ctx context.Context) error { return await(ctx, n.earlier) }

// Refuse rejects the channel from within Handler.Channel. It waits only while maxRequests channels
// of the connection are being rejected: the other side then does not read the replies.
func (n *NewChannel) Refuse(reason ssh.RejectionReason, why string) {
	c := n.conn
	c.answers.refusing <- struct{}{}
	c.started.Go(func() {
		defer func() { <-c.answers.refusing }()
		_ = n.Reject(reason, why) // an error means that the connection has ended
	})
}

// Serve passes requests and channels of the other side to h until the connection has ended. A
// request is passed before channels that were opened after it. A channel that was opened before
// no-more-sessions never has NoMore. Functions of h may still run when Serve returns; Settle waits
// for them.
func (c *Conn) Serve(h Handler) {
	request := func(q *ssh.Request) { c.ask(q, h.Request) }
	if h.Request == nil {
		request = func(q *ssh.Request) { _ = q.Reply(false, nil) } // none waits
	}
	if h.Channel == nil {
		h.Channel = func(n *NewChannel) { n.Refuse(ssh.Prohibited, "nothing was asked for") }
	}
	c.answers.refusing = make(chan struct{}, maxRequests)
	take(c.chans, c.reqs, request, func(nc ssh.NewChannel, noMore bool) {
		h.Channel(&NewChannel{NewChannel: nc, NoMore: noMore, conn: c, earlier: c.answers.last()})
	})
}

// Settle waits for the running request and for rejections, after the connection has ended.
func (c *Conn) Settle() { c.started.Wait() }

// take passes on requests and channels until both Go channels are closed. Neither function may
// wait.
//
// The library reads packets in one goroutine, and puts each into one of two buffered Go channels.
// So everything that was sent before a received item was received before, or is in a buffer. The
// order of items in both buffers is unknown: requests go first. The other side can detect that only
// with no-more-sessions, which OpenSSH sends directly after its session channel. So
// no-more-sessions applies from the first channel that was not in the buffer when it was received.
func take(
	channels <-chan ssh.NewChannel,
	requests <-chan *ssh.Request,
	onRequest func(*ssh.Request),
	onChannel func(nc ssh.NewChannel, noMore bool),
) {
	// how many of the channels to come may have been opened before no-more-sessions
	noMore, before := false, 0
	request := func(q *ssh.Request, here int) {
		if q.Type == wire.GlobalNoMoreSessions && !noMore {
			noMore, before = true, here
		}
		onRequest(q)
	}
	for channels != nil || requests != nil {
		select {
		case q, ok := <-requests:
			if !ok {
				requests = nil
				continue
			}
			request(q, len(channels))
		case nc, ok := <-channels:
			if !ok {
				channels = nil
				continue
			}
			for range len(requests) { // there is no other receiver
				request(<-requests, 1+len(channels))
			}
			late := noMore && before == 0
			before = max(before-1, 0)
			onChannel(nc, late)
		}
	}
}

// answers are the waiting global requests.
type answers struct {
	refusing chan struct{} // semaphore of rejections

	mu      sync.Mutex
	waiting []asked // guarded by mu; the first is being answered
	backlog Backlog // guarded by mu; of waiting
}

// asked is a waiting global request.
type asked struct {
	*ssh.Request
	answered chan struct{} // closed when it has been answered, or will not be
}

// ask calls answer for q in its turn. Most connections send no requests: the goroutine runs only
// while requests wait.
func (c *Conn) ask(q *ssh.Request, answer func(*ssh.Request)) {
	a := &c.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.backlog.Add(q) {
		c.flood()
		return
	}
	if a.waiting = append(a.waiting, asked{q, make(chan struct{})}); len(a.waiting) == 1 {
		c.started.Go(func() { // ends with the last answer
			for q, ok := a.first(); ok; q, ok = a.next() {
				if !isClosed(c.over()) {
					answer(q)
				}
			}
		})
	}
}

// first returns the request to answer next, if there is one.
func (a *answers) first() (*ssh.Request, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.firstLocked()
}

// next removes the first request, which has been answered, and returns the next one.
func (a *answers) next() (*ssh.Request, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.backlog.Remove(a.waiting[0].Request)
	close(a.waiting[0].answered)
	a.waiting = a.waiting[1:]
	return a.firstLocked()
}

func (a *answers) firstLocked() (*ssh.Request, bool) {
	if len(a.waiting) == 0 {
		a.waiting = nil
		return nil, false
	}
	return a.waiting[0].Request, true
}

// last returns a channel that is closed when all waiting requests are answered; nil if none waits.
func (a *answers) last() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		return nil
	}
	return a.waiting[len(a.waiting)-1].answered
}

// AwaitAnswer waits until the global request that this side is answering has been answered. The
// error is the cause of ctx.
func (c *Conn) AwaitAnswer(ctx context.Context) error {
	c.answers.mu.Lock()
	var answered <-chan struct{}
	if len(c.answers.waiting) > 0 {
		answered = c.answers.waiting[0].answered
	}
	c.answers.mu.Unlock()
	return await(ctx, answered)
}

// await waits until c is closed. It does not wait if c is nil.
func await(ctx context.Context, c <-chan struct{}) error {
	if c == nil || isClosed(c) {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
