//go:build linux

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// handshakeTimeout bounds the time from the first byte to the end of login.
	handshakeTimeout = 30 * time.Second

	// maxChannels bounds the open channels of one connection, of both directions together.
	maxChannels = 1024
)

// client is one authenticated connection: a client of the gateway, or the daemon itself. Its
// forwards end with it and no other client sees them.
type client struct {
	g    *Guest
	conn *sshconn.Conn
	ctx  context.Context //nolint:containedctx // ends with the connection; for work without a channel
	wg   sync.WaitGroup  // goroutines of this connection

	// control is set by the first hello: this is the daemon's own connection, which may use
	// sessions and orders. Connections of its clients never say hello.
	control atomic.Bool

	// account is the user of this connection's programs, by an order; nil means the session user.
	account atomic.Pointer[Account]

	// Carries descriptors besides the bytes of the connection; nil if it cannot.
	socket *stdio.Socket

	slots chan struct{} // one per open channel

	mu      sync.Mutex
	forward map[string]*forward // guarded by mu; listeners by request
	closed  bool                // guarded by mu; no new listeners
}

// ServeConn serves SSH on conn until the peer leaves, ctx ends or the guest closes, and closes
// conn. It may be called concurrently for any number of connections. The error is nil if the peer
// left in order.
func (g *Guest) ServeConn(ctx context.Context, conn net.Conn) error {
	return g.serveConn(ctx, conn, func() {})
}

// serveConn is ServeConn. It calls loggedIn before the client learns that it has logged in.
func (g *Guest) serveConn(ctx context.Context, conn net.Conn, loggedIn func()) error {
	defer conn.Close()
	if !g.enter(conn) {
		return errClosed
	}
	defer g.leave(conn)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var socket *stdio.Socket
	if c, ok := conn.(*net.UnixConn); ok {
		socket = stdio.NewSocket(c)
		defer socket.Close()
		conn = socket
	}
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	config := *g.ssh
	config.AuthLogCallback = func(_ ssh.ConnMetadata, _ string, err error) {
		if err == nil {
			loggedIn()
		}
	}
	sconn, err := sshconn.Server(conn, &config)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &client{g: g, conn: sconn, ctx: ctx, socket: socket,
		slots: make(chan struct{}, maxChannels), forward: make(map[string]*forward)}
	sconn.Serve(sshconn.Handler{Request: c.serveRequest, Channel: c.serveChannel})
	cancel()
	c.closeForwards()
	sconn.Settle()
	c.wg.Wait()
	if err := sconn.Wait(); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		return err
	}
	return nil
}

// enter adds conn to those that Close ends; it returns false after Close.
func (g *Guest) enter(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return false
	}
	g.conns[conn] = true
	return true
}

func (g *Guest) leave(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, conn)
}

// rest returns memory to the system some time after the last end of a channel.
func (g *Guest) rest() {
	if g.quiet != nil {
		g.quiet.Reset(restAfter)
	}
}

// serveChannel decides on one channel without blocking: a dial here would delay all other channels.
func (c *client) serveChannel(ch *sshconn.NewChannel) {
	var serve func(*sshconn.NewChannel)
	switch ch.ChannelType() {
	case wire.ChannelSession:
		serve = c.serveSession
	case wire.ChannelDirectTCP:
		serve = c.serveDirectTCP
	case wire.ChannelDirectUnix:
		serve = c.serveDirectUnix
	default:
		ch.Refuse(ssh.UnknownChannelType, "unknown channel type")
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		ch.Refuse(ssh.ResourceShortage, fmt.Sprintf("more than %d channels on one connection",
			maxChannels))
		return
	}
	c.wg.Go(func() {
		defer func() {
			<-c.slots
			c.g.rest()
		}()
		serve(ch)
	})
}

// reply answers a request if it wants an answer; other code notices a broken connection.
func reply(r *ssh.Request, ok bool, payload []byte) {
	if r.WantReply {
		_ = r.Reply(ok, payload)
	}
}

// serveRequest answers one global request.
func (c *client) serveRequest(r *ssh.Request) {
	switch r.Type {
	case wire.GlobalTCPForward:
		c.tcpForward(r)
	case wire.GlobalUnixForward:
		c.unixForward(r)
	case wire.GlobalCancelTCPForward:
		c.cancelTCP(r)
	case wire.GlobalCancelUnixForward:
		c.cancelUnix(r)
	case wire.ControlRequest:
		c.serveControl(r)
	case wire.DescriptorsRequest:
		c.socket.Offered(r)
	case wire.GlobalKeepalive:
		reply(r, true, nil)
	default:
		reply(r, false, nil)
	}
}

func (c *client) serveControl(r *ssh.Request) {
	var ctl wire.Control
	if err := json.Unmarshal(r.Payload, &ctl); err != nil {
		reply(r, false, nil)
		return
	}
	if ctl.Do == "hello" {
		c.control.Store(true)
	}
	answer := func(a wire.ControlReply) {
		b, err := json.Marshal(a)
		if err != nil {
			c.g.log.Error("control reply", "do", ctl.Do, "err", err)
			reply(r, false, nil)
			return
		}
		reply(r, true, b)
	}
	switch {
	case !c.control.Load():
		answer(wire.ControlReply{Error: wire.Errorf(wire.CodeDenied, "say hello first")})
	case ctl.Do == "user":
		answer(wire.ControlReply{Version: wire.Version, Software: Software,
			Error: c.setUser(ctl.User)})
	default:
		c.g.Control(c.ctx, ctl, answer)
	}
}

// setUser makes later programs of this connection run as spec, a user as for lookupAccount.
func (c *client) setUser(spec string) *wire.Error {
	if spec == "" {
		return wire.Errorf(wire.CodeUsage, "user: none is named")
	}
	a, err := lookupAccount(c.g.etc, spec)
	if err != nil {
		return &wire.Error{Code: wire.CodeNotFound, Message: err.Error(),
			Hint: "name a user of the sandbox's /etc/passwd, or a uid"}
	}
	own := c.g.user()
	if !c.g.switches && (a.UID != own.UID || a.GID != own.GID) {
		return wire.Errorf(wire.CodeDenied,
			"user %q: the guest is not root, and runs programs as %s only", spec, own.Name)
	}
	c.account.Store(&a)
	return nil
}

// user returns the user of this connection's programs.
func (c *client) user() Account {
	if a := c.account.Load(); a != nil {
		return *a
	}
	return c.g.user()
}
