package sshd

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// arrivals takes what a client asks of its connection: its global requests and the channels that it opens. Neither function
// may wait: while one does, nothing of the client is read.
type arrivals struct {
	request func(*ssh.Request)
	channel func(nc ssh.NewChannel, noMore bool) // noMore: the client has said that it opens no more sessions
}

// take hands over what comes by the two until both are closed. A request comes before each channel that the client opened after
// it, and no channel that the client opened before no-more-sessions counts as opened after it.
//
// The library reads packets in one goroutine and goes on when it has put what it read into one of the two, each of which
// keeps some. So whatever was sent before what is received here is here, too, or was received before; but of what is here in both
// at once none can tell which was first. Requests therefore go first, which a client can only notice by
// no-more-sessions: OpenSSH says it right behind the channel that it means to have. That one counts from the
// first channel on that was not here when it was received.
func (a arrivals) take(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	noMore, before := false, 0 // how many of the channels to come may have been opened before no-more-sessions
	request := func(q *ssh.Request, here int) {
		if q.Type == wire.GlobalNoMoreSessions && !noMore {
			noMore, before = true, here
		}
		a.request(q)
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
			a.channel(nc, late)
		}
	}
}

// await waits until earlier is closed: until what was asked for before has been answered, so that a command finds the
// listener that its client asked for first. At nil there is nothing to wait for.
func await(ctx context.Context, earlier <-chan struct{}) error {
	if earlier == nil {
		return nil
	}
	timer := time.NewTimer(dialTimeout)
	defer timer.Stop()
	select {
	case <-earlier:
		return nil
	case <-timer.C:
		return wire.Errorf(wire.CodeUnavailable, "what this connection asked for before has no answer after %v", dialTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refusals refuses channels beside the loop that takes them, which must not wait for the network. It does wait when as many as it
// has room for are being refused: whoever opens more does not read the answers.
type refusals chan struct{}

func newRefusals() refusals { return make(refusals, waitingRequests) }

// refuse must be called in a goroutine of the connection's: its refusals end with the connection.
func (r refusals) refuse(start func(func()), nc ssh.NewChannel, reason ssh.RejectionReason, why string) {
	r <- struct{}{}
	start(func() {
		defer func() { <-r }()
		_ = nc.Reject(reason, why)
	})
}
