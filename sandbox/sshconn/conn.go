// Package sshconn adapts the connection layer of golang.org/x/crypto/ssh (RFC 4254): channels,
// requests and their ends. Use it for every connection whose other side is not trusted, on either
// side. It knows neither sandboxes nor commands.
//
// It deals with these traps of the library:
//
//   - The library stops reading a connection when 17 requests of one channel, or 17 channels or
//     global requests, wait to be received. Here they are received at once, up to a bound; who
//     sends more loses the connection (TestChannelBounds, TestAnswersAreBounded).
//   - Global requests and new channels come by two Go channels, and their order is lost. Serve
//     restores it (TestOrder, TestNoMore).
//   - A channel or request that is sent while the connection ends may wait for its answer
//     indefinitely (TestOpenWhileConnectionEnds).
//   - Opening a channel takes no context (TestOpenEndsWithContext).
//   - A refusal is written by the caller, who must not wait for the network while it receives
//     (TestRefusals).
//   - Each channel may keep 2 MiB that nobody reads. Meter bounds one connection and Relieve the
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

// ErrEnded is the error of what was sent on a connection that has ended.
var ErrEnded = errors.New("the connection has ended")

// Conn is an SSH connection after its login, on either side. Its holder calls Serve or Client, once:
// the connection freezes when nobody receives what the other side sends. Its methods may be called
// at once.
type Conn struct {
	ssh.Conn
	// Permissions are those of the login, on a server's side.
	Permissions *ssh.Permissions

	// What the other side opens and asks for, as the library hands it over.
	chans <-chan ssh.NewChannel
	reqs  <-chan *ssh.Request

	ended   <-chan struct{} // closed when the connection has ended
	flooded atomic.Bool

	started sync.WaitGroup // what Serve has begun
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

// Server lets the client on c log in as ssh.NewServerConn does.
func Server(c net.Conn, config *ssh.ServerConfig) (*Conn, error) {
	end := newEnding(c)
	conn, chans, reqs, err := ssh.NewServerConn(end, config)
	if err != nil {
		return nil, err
	}
	end.carries(conn)
	return &Conn{Conn: conn, Permissions: conn.Permissions, chans: chans, reqs: reqs, ended: end.over}, nil
}

// Client serves the connection, which opens channels from here on and refuses those of the other
// side but for forwards that it asks for.
func (c *Conn) Client() *ssh.Client { return ssh.NewClient(c.Conn, c.chans, c.reqs) }

// Flooded reports whether the connection was ended because the other side sent too much at once.
func (c *Conn) Flooded() bool { return c.flooded.Load() }

// flood ends a connection whose other side sends more than may wait.
func (c *Conn) flood() {
	c.flooded.Store(true)
	c.Close()
}

// over is closed when the connection has ended.
func (c *Conn) over() <-chan struct{} { return c.ended }

// Open opens a channel. A refusal is an *ssh.OpenChannelError; other errors are ErrEnded and the
// cause of ctx. A channel that opens after the end of ctx is closed.
func Open(ctx context.Context, conn ssh.Conn, kind string, extra []byte) (*Channel, error) {
	type opened struct {
		channel  ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	var over <-chan struct{} // nil of a connection of another kind
	if c, ok := conn.(interface{ over() <-chan struct{} }); ok {
		over = c.over()
	}
	answer := make(chan opened, 1)
	go func() { // ends with the answer; a connection that has ended may never give it
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
		return nil, ErrEnded // a channel that still opens has ended, too
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
