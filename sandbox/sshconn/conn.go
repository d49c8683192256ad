// Package sshconn adapts the connection layer of golang.org/x/crypto/ssh (RFC 4254): channels,
// requests and their ends. Use it for every connection whose other side is not trusted, on either
// side. It depends on neither sandboxes nor commands.
//
// It handles these problems of the library:
//
//   - The library stops reading a connection when 17 requests of one channel, or 17 channels or
//     global requests, wait to be received. This package receives them immediately, up to a limit;
//     beyond it, the connection is closed (TestChannelBounds, TestAnswersAreBounded).
//   - Global requests and new channels arrive on two Go channels, so that their order is lost.
//     Serve restores it (TestOrder, TestNoMore).
//   - A channel or request that is sent while the connection ends may wait for its answer
//     indefinitely (TestOpenWhileConnectionEnds).
//   - Opening a channel takes no context (TestOpenEndsWithContext).
//   - The caller writes a rejection, and must not wait for the network while it receives
//     (TestRefusals).
//   - Each channel may hold 2 MiB of unread data. Meter bounds one connection and Relieve the
//     process (TestMeter, TestShed).
package sshconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"
)

// ErrEnded is the error of a call on a connection that has ended.
var ErrEnded = errors.New("the connection has ended")

// Conn is an SSH connection after its login, on either side. The caller must call Serve or Client,
// once: otherwise the connection freezes. Its methods are safe for concurrent use.
type Conn struct {
	ssh.Conn
	// Permissions are those of the login. It is set on the server's side.
	Permissions *ssh.Permissions

	// Channels and requests of the other side, from the library.
	chans <-chan ssh.NewChannel
	reqs  <-chan *ssh.Request

	ended   <-chan struct{} // closed when the connection has ended
	flooded atomic.Bool

	started sync.WaitGroup // goroutines of Serve
	answers answers
}

// Client logs in to the server on c as ssh.NewClientConn does.
func Client(c net.Conn, config *ssh.ClientConfig) (*Conn, error) {
	end := newEnding(c)
	conn, chans, reqs, err := ssh.NewClientConn(end, "", config)
	if err != nil {
		return nil, err
	}
	end.carries(conn)
	return &Conn{Conn: conn, chans: chans, reqs: reqs, ended: end.over}, nil
}

// Server serves the login of the client on c as ssh.NewServerConn does.
func Server(c net.Conn, config *ssh.ServerConfig) (*Conn, error) {
	end := newEnding(c)
	conn, chans, reqs, err := ssh.NewServerConn(end, config)
	if err != nil {
		return nil, err
	}
	end.carries(conn)
	return &Conn{
		Conn:        conn,
		Permissions: conn.Permissions,
		chans:       chans,
		reqs:        reqs,
		ended:       end.over,
	}, nil
}

// Client returns the connection as an ssh.Client. It rejects channels of the other side, except for
// requested forwards.
func (c *Conn) Client() *ssh.Client { return ssh.NewClient(c.Conn, c.chans, c.reqs) }

// Flooded reports whether the connection was closed because too many requests of the other side
// waited.
func (c *Conn) Flooded() bool { return c.flooded.Load() }

// flood closes a connection whose other side exceeds a limit of waiting requests.
func (c *Conn) flood() {
	c.flooded.Store(true)
	c.Close()
}

// over is closed when the connection has ended.
func (c *Conn) over() <-chan struct{} { return c.ended }

// Open opens a channel. If the other side rejects it, the error is an *ssh.OpenChannelError. Other
// errors are ErrEnded and the cause of ctx. A channel that opens after the end of ctx is closed.
func Open(ctx context.Context, conn ssh.Conn, kind string, extra []byte) (*Channel, error) {
	type opened struct {
		channel  ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	var over <-chan struct{} // nil for other kinds of connections
	if c, ok := conn.(interface{ over() <-chan struct{} }); ok {
		over = c.over()
	}
	answer := make(chan opened, 1)
	go func() { // ends with the reply, which may never arrive on a connection that has ended
		channel, requests, err := conn.OpenChannel(kind, extra)
		answer <- opened{channel, requests, err}
	}()
	select {
	case o := <-answer:
		switch {
		case isClosed(over):
			return nil, ErrEnded
		case errors.As(o.err, new(*ssh.OpenChannelError)):
			return nil, o.err
		case o.err != nil:
			return nil, ErrEnded
		}
		return newChannel(conn, o.channel, o.requests), nil
	case <-over:
		return nil, ErrEnded // a channel that opens now has ended, too
	case <-ctx.Done():
	}
	go func() { // ends with the channel
		select {
		case o := <-answer:
			if o.err == nil {
				_ = o.channel.Close()
				ssh.DiscardRequests(o.requests)
			}
		case <-over:
		}
	}()
	return nil, context.Cause(ctx)
}

// Open opens a channel as the function Open does.
func (c *Conn) Open(ctx context.Context, kind string, extra []byte) (*Channel, error) {
	return Open(ctx, c, kind, extra)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
