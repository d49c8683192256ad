package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// link is one SSH connection to the gateway. It asks for signs of life, so that calls on a dead one come back.
type link struct {
	*ssh.Client
	gone chan struct{} // closed when the connection has ended and nothing of it is left
}

func newLink(conn *connect.Conn) *link {
	l := &link{Client: conn.Client(), gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	alive := make(chan struct{})
	go func() { // ends with the connection, or ends it
		defer close(alive)
		_ = conn.KeepAlive(ctx) // why is what the calls on it say
		l.Client.Close()
	}()
	go func() { // ends with the connection; close waits for it
		_ = l.Client.Wait()
		cancel()
		<-alive
		close(l.gone)
	}()
	return l
}

func (l *link) close() {
	l.Client.Close() // it has no other error than that it was closed before
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

// within returns ctx, which also ends when the thing with that life does.
func within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if life.Err() != nil {
		cancel(context.Cause(life))
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ssh returns the live connection, or makes one.
func (c *Client) ssh(ctx context.Context) (*link, error) {
	if c.dial == nil {
		return nil, &Error{Code: CodeUnavailable, Message: "this client has no SSH connection of its own"}
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

// drop forgets a connection that proved dead.
func (c *Client) drop(l *link) {
	c.mu.Lock()
	if c.link == l {
		c.link = nil
	}
	c.mu.Unlock()
	l.close()
}

// opened opens a channel with do, on the client's connection, which is made anew once if it turns out to be dead: with no
// channel nothing has been asked for yet.
func opened[T io.Closer](ctx context.Context, c *Client, do func(*ssh.Client) (T, error)) (T, error) {
	var none T
	for fresh := false; ; fresh = true {
		l, err := c.ssh(ctx)
		if err != nil {
			return none, err
		}
		type answer struct {
			channel T
			err     error
			dead    bool
		}
		// x/crypto's calls end only with the connection, so they run beside a ctx that may end before.
		answered := make(chan answer, 1)
		go func() {
			channel, err := do(l.Client)
			a := answer{channel: channel, err: err}
			if err != nil { // a refusal leaves the connection as it is, with the channels of others
				_, _, err := l.SendRequest(wire.GlobalKeepalive, true, nil)
				a.dead = err != nil
			}
			answered <- a
		}()
		abandon := func() {
			if a := <-answered; a.err == nil {
				a.channel.Close()
			}
		}
		select {
		case a := <-answered:
			if a.err == nil {
				return a.channel, nil
			}
			if !a.dead || fresh || ctx.Err() != nil {
				return none, a.err
			}
		case <-l.gone:
			// A channel that is opened just as the connection ends may not be told of that: x/crypto's mux has closed all that it
			// knows by then, and the caller waits for ever.
			go abandon()
			if fresh {
				return none, io.ErrUnexpectedEOF
			}
		case <-ctx.Done():
			go abandon() // ends when the server answers or the connection closes
			return none, context.Cause(ctx)
		}
		c.drop(l)
	}
}

// errSubsystem says that the server knows no such subsystem.
var errSubsystem = errors.New("the server refuses the subsystem")

// subsystem opens a session channel with a subsystem on it.
func (c *Client) subsystem(ctx context.Context, name string) (ssh.Channel, error) {
	ch, err := opened(ctx, c, func(conn *ssh.Client) (ssh.Channel, error) {
		ch, reqs, err := conn.OpenChannel(wire.ChannelSession, nil)
		if err != nil {
			return nil, err
		}
		go ssh.DiscardRequests(reqs) // ends with the channel
		go func() {                  // the same; unread stderr stalls a channel
			_, _ = io.Copy(io.Discard, ch.Stderr())
		}()
		ok, err := ch.SendRequest(wire.RequestSubsystem, true, wire.Marshal(wire.Subsystem{Name: name}))
		if err == nil && !ok {
			err = errSubsystem
		}
		if err != nil {
			ch.Close()
			return nil, err
		}
		return ch, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", name, c.name, err)
	}
	return ch, nil
}

// openStream opens a session stream over SSH.
func (c *Client) openStream(ctx context.Context) (io.ReadWriteCloser, error) {
	return c.subsystem(ctx, wire.SessionSubsystem)
}
