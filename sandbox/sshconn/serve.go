package sshconn

import (
	"context"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Handler is what one side of a connection does about what the other side sends.
type Handler struct {
	// Request answers a global request. It is called for one at a time, in order (RFC 4254, section
	// 4), beside Channel, and may wait. Nil refuses all requests, in any number.
	Request func(*ssh.Request)
	// Channel takes a channel that the other side opens. It must not wait: while it does, nothing
	// of the connection is read. Nil refuses all channels.
	Channel func(*NewChannel)
}

// NewChannel is a channel that the other side wants to open.
type NewChannel struct {
	ssh.NewChannel
	// NoMore: the other side had said before that it opens no more sessions (no-more-sessions in
	// OpenSSH's PROTOCOL file).
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
// of the connection are being refused: who opens more does not read the answers.
func (n *NewChannel) Refuse(reason ssh.RejectionReason, why string) {
	c := n.conn
	c.answers.refusing <- struct{}{}
	c.started.Go(func() {
		defer func() { <-c.answers.refusing }()
		_ = n.Reject(reason, why) // what ends the connection ends the channel
	})
}

// Serve passes what the other side sends to h until the connection has ended. A request comes
// before each channel that the other side opened after it, and no channel that it opened before
// no-more-sessions counts as opened after that. What h began may still be under way when it
// returns; Settle waits for that.
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

// Settle waits for the request that is being answered and for refusals, after the connection has ended.
func (c *Conn) Settle() { c.started.Wait() }

// take passes on what comes by the two channels until both are closed; neither function may wait.
//
// The library reads packets in one goroutine and goes on when it has put what it read into one of
// the two, each of which keeps some. So what was sent before that which is received here is here,
// too, or was received before; of what is here in both at once the order is not known. Requests
// therefore go first. The other side can notice that only by no-more-sessions, which OpenSSH sends
// right behind the channel that it means to have: that one counts from the first channel on that
// was not here when it was received.
func take(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, onRequest func(*ssh.Request), onChannel func(nc ssh.NewChannel, noMore bool)) {
	noMore, before := false, 0 // how many of the channels to come may have been opened before no-more-sessions
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
			for range len(requests) { // nobody else receives them
				request(<-requests, 1+len(channels))
			}
			late := noMore && before == 0
			before = max(before-1, 0)
			onChannel(nc, late)
		}
	}
}

// answers are the global requests that wait for their answers.
type answers struct {
	refusing chan struct{} // semaphore of refusals

	mu      sync.Mutex
	waiting []asked // guarded by mu; the first is being answered
	backlog Backlog // guarded by mu; of waiting
}

// asked is a global request that is answered in its turn.
type asked struct {
	*ssh.Request
	answered chan struct{} // closed when it has been, or never will be
}

// ask has answer called for q in its turn. Most connections ask for nothing: the goroutine is there
// while there is something to answer.
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

// first returns the request that is to be answered, if there is one.
func (a *answers) first() (*ssh.Request, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.firstLocked()
}

// next removes the first request, which is answered, and returns the one after it.
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

// last returns what is closed when all requests that wait now are answered; nil if none waits.
func (a *answers) last() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		return nil
	}
	return a.waiting[len(a.waiting)-1].answered
}

// AwaitAnswer waits until the global request that is being answered on this side has been. The error is the
// cause of ctx.
func (c *Conn) AwaitAnswer(ctx context.Context) error {
	c.answers.mu.Lock()
	var answered <-chan struct{}
	if len(c.answers.waiting) > 0 {
		answered = c.answers.waiting[0].answered
	}
	c.answers.mu.Unlock()
	return await(ctx, answered)
}

// await waits until c is closed; nil is nothing to wait for.
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
