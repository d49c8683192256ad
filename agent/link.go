package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// link is one SSH connection to a gateway or host. It sends keepalives, so that calls on a dead
// connection fail.
type link struct {
	*connect.Conn
	gone chan struct{} // closed when the connection has ended and its goroutines too
}

func newLink(conn *connect.Conn) *link {
	l := &link{Conn: conn, gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	alive := make(chan struct{})
	go func() { // ends with the connection, or ends it
		defer close(alive)
		_ = conn.KeepAlive(ctx) // calls on conn return the error
		conn.Close()
	}()
	go func() { // ends with the connection; close waits for it
		conn.Serve(sshconn.Handler{})
		conn.Settle()
		cancel()
		<-alive
		close(l.gone)
	}()
	return l
}

func (l *link) close() {
	l.Close() // the only possible error is that it is closed already
	<-l.gone
}

// dead reports whether the connection is known to have ended.
func (l *link) dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// within returns a context that ends with ctx or with life, whichever is first.
func within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if life.Err() != nil {
		cancel(context.Cause(life))
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ssh returns the live connection, or opens one.
func (c *Client) ssh(ctx context.Context) (*link, error) {
	if c.dial == nil {
		return nil, &Error{
			Code:    CodeUnavailable,
			Message: "client: it has no SSH connection",
		}
	}
	ctx, done := within(ctx, c.life)
	defer done()
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil && !l.dead() {
		return l, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l, err := c.dial(ctx)
	c.mu.Lock()
	closed := context.Cause(c.life)
	if closed == nil && err == nil {
		c.link = l
	}
	c.mu.Unlock()
	switch {
	case closed != nil && err == nil:
		l.close()
		return nil, closed
	case closed != nil:
		return nil, closed
	case err != nil:
		return nil, err
	}
	return l, nil
}

// drop removes a connection that is dead.
func (c *Client) drop(l *link) {
	c.mu.Lock()
	if c.link == l {
		c.link = nil
	}
	c.mu.Unlock()
	l.close()
}

// channel opens a channel on the client's connection. If the connection is dead, channel reconnects
// once: without a channel, no request has been sent. If the server rejects the channel, the error
// is an *ssh.OpenChannelError.
func (c *Client) channel(ctx context.Context, kind string, extra []byte) (*sshconn.Channel, error) {
	for fresh := false; ; fresh = true {
		l, err := c.ssh(ctx)
		if err != nil {
			return nil, err
		}
		ch, err := l.Open(ctx, kind, extra)
		if fresh || !errors.Is(err, sshconn.ErrEnded) {
			return ch, err
		}
		c.drop(l)
	}
}

// errSubsystem reports that the server does not have the subsystem.
var errSubsystem = errors.New("the server rejects the subsystem")

// subsystem opens a session channel with a subsystem on it.
func (c *Client) subsystem(ctx context.Context, name string) (ssh.Channel, error) {
	ch, err := c.channel(ctx, wire.ChannelSession, nil)
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", name, c.name, err)
	}
	go ch.Drain() // ends with the channel
	go func() {   // likewise; unread stderr blocks a channel
		_, _ = io.Copy(io.Discard, ch.Stderr())
	}()
	ok, err := ch.Request(ctx, wire.RequestSubsystem, wire.Marshal(wire.Subsystem{Name: name}))
	if err == nil && !ok {
		err = errSubsystem
	}
	if err != nil {
		go ch.Close() // on a dead connection, Close blocks until the keepalive fails
		return nil, fmt.Errorf("%s in %s: %w", name, c.name, err)
	}
	return ch, nil
}

// openStream opens a session stream over SSH.
func (c *Client) openStream(ctx context.Context) (io.ReadWriteCloser, error) {
	return c.subsystem(ctx, wire.SessionSubsystem)
}
