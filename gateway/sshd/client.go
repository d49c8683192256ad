package sshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// client is a connection that is logged in.
type client struct {
	server  *tracker
	conn    *sshconn.Conn
	net     *conn
	end     context.CancelCauseFunc // ends what is served
	login   *login                  // the login that succeeded
	grant   *grant                  // of that login
	meter   *sshconn.Meter
	log     *slog.Logger
	checked // result of the last access check

	target  wire.Target // from the user name of the login that succeeded
	control bool
	wrong   error // why the user name is not a valid target

	dialing chan struct{} // semaphore; its holder dials the sandbox

	upstreams sync.WaitGroup // goroutines that serve upstreams
	probes    sync.WaitGroup // goroutines that check for signs of life

	mu       sync.Mutex
	up       *upstream // guarded by mu
	gone     bool      // guarded by mu; the connection has ended
	revoked  error     // guarded by mu; why the client lost access, or nil
	sessions int       // guarded by mu; sessions that the client can regard as open
	channels int       // guarded by mu; channels that one side has not closed, including sessions

	parted chan struct{} // closed when the client has lost access and no session is open
}

// maxExtra limits the payload of a channel open, and of a request to listen. The longest valid one
// has the path of a socket.
const maxExtra = 8 << 10

// newClient returns the client of a connection, from its login and user name. end ends what is
// served on it.
func (h *tracker) newClient(conn *sshconn.Conn, n *conn, end context.CancelCauseFunc) *client {
	c := &client{server: h, conn: conn, net: n, end: end, meter: n.meter,
		login: loginOf(conn.Permissions), parted: make(chan struct{}),
		dialing: make(chan struct{}, 1)}
	c.log = h.log.With("client", conn.RemoteAddr().String())
	if c.login == nil { // unreachable: every connection has logged in
		c.wrong = wire.Errorf(wire.CodeDenied, "not logged in")
		return c
	}
	c.grant = c.login.grant
	c.log = c.log.With("principal", c.grant.Name)
	c.target, c.wrong = wire.ParseTarget(conn.User())
	c.control = c.wrong == nil && c.target.Sandbox == wire.ControlHost
	if c.control && c.target != (wire.Target{Sandbox: wire.ControlHost,
		Session: wire.DefaultSession}) {
		c.wrong = wire.Errorf(wire.CodeUsage, "the control host has no sessions; log in as %s",
			wire.ControlHost)
	}
	return c
}

// serve serves the connection until it ends, and then ends ctx.
func (c *client) serve(ctx context.Context) {
	c.probes.Go(func() { c.keepalive(ctx) })
	c.conn.Serve(sshconn.Handler{
		Request: func(q *ssh.Request) { c.answer(ctx, q) },
		Channel: func(nc *sshconn.NewChannel) { c.opened(ctx, nc) },
	})
	if c.conn.Flooded() {
		c.log.Warn("connection ended: too many requests wait for an answer")
	}
	if err := c.conn.Wait(); err != nil { // returns at once
		c.log.Debug("connection ended", "user", c.conn.User(), "err", plain(err.Error()))
	}
	c.end(errClientGone)
	c.conn.Close()
	c.mu.Lock()
	c.gone = true
	up := c.up
	c.mu.Unlock()
	if up != nil {
		up.conn.Close()
	}
	c.upstreams.Wait() // including lost ones
	c.conn.Settle()
	c.probes.Wait()
}

// patience is how much longer a client that sends data may take to answer than a silent one,
// because its answer comes after the data.
const patience = 5

// keepalive ends the connection of a client that has disappeared, which TCP alone would not notice
// for hours. It also ends one that sends data but no answers. Such a client could start a key
// exchange and hold its connection indefinitely with a byte now and then.
func (c *client) keepalive(ctx context.Context) {
	limits := c.server.limits
	tick := time.NewTicker(limits.Keepalive)
	defer tick.Stop()
	var last int64
	silent, unanswered := 0, 0
	var asking atomic.Bool
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := c.meter.Received()
		c.meter.Review()
		if silent++; now != last {
			last, silent = now, 0
		}
		if unanswered++; !asking.Load() {
			unanswered = 0
		}
		if silent > limits.KeepaliveMax || unanswered > patience*limits.KeepaliveMax {
			c.log.Info("client is gone", "silent", time.Duration(silent)*limits.Keepalive,
				"unanswered", time.Duration(unanswered)*limits.Keepalive)
			c.conn.Close()
			return
		}
		if silent == 0 && n%limits.KeepaliveMax != 0 || asking.Swap(true) {
			continue
		}
		// In its own goroutine, because the answer may never come.
		c.probes.Go(func() {
			_, _, _ = c.conn.SendRequest(wire.GlobalKeepalive, true, nil)
			asking.Store(false)
		})
	}
}

// answer answers a global request. ctx ends with the connection.
func (c *client) answer(ctx context.Context, q *ssh.Request) {
	ok, payload, err := c.answerOne(ctx, q)
	if err != nil {
		c.log.Info("request denied", "type", q.Type, "err", err)
	}
	_ = q.Reply(ok, payload) // the client may be gone
}

func (c *client) answerOne(ctx context.Context, q *ssh.Request) (bool, []byte, error) {
	switch q.Type {
	case wire.GlobalKeepalive, wire.GlobalNoMoreSessions: // Serve has handled the second
		return true, nil, nil
	case wire.GlobalTCPForward, wire.GlobalUnixForward, wire.GlobalCancelTCPForward,
		wire.GlobalCancelUnixForward:
	default:
		// Including hostkeys-prove-00: the gateway has only its own host keys.
		return false, nil, nil
	}
	if err := c.mayListen(q); err != nil {
		return false, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	u, err := c.upstream(ctx, nil)
	if err != nil {
		return false, nil, err
	}
	// A sandbox that never answers would block all later requests of the client.
	timer := time.AfterFunc(dialTimeout, u.close)
	defer timer.Stop()
	return u.forward(q)
}

// mayListen returns why the client may not listen in the sandbox, or nil.
func (c *client) mayListen(q *ssh.Request) error {
	if err := c.relays(); err != nil {
		return err
	}
	if len(q.Payload) > maxExtra {
		return errors.New("address to listen on is too long")
	}
	if q.Type == wire.GlobalUnixForward || q.Type == wire.GlobalCancelUnixForward {
		return c.mayUnix(c.grant.PermitListen)
	}
	var f wire.TCPForward
	if err := wire.Unmarshal(q.Payload, &f); err != nil {
		return err
	}
	return c.grant.mayListen(f.Host, f.Port)
}

// mayUnix returns why the client may not forward a unix socket, or nil. A key with permitopen or
// permitlisten cannot use sockets.
func (c *client) mayUnix(only []string) error {
	if len(only) > 0 {
		return fmt.Errorf("your key can only forward %s", strings.Join(only, ", "))
	}
	return c.grant.mayForward(nil, "", 0, "")
}

// relays returns why nothing of this client is relayed to a sandbox, or nil.
func (c *client) relays() error {
	switch {
	case c.wrong != nil:
		return c.wrong
	case c.control:
		return wire.Errorf(wire.CodeUsage,
			"the control host does not forward; use the name of a sandbox as the user")
	}
	return nil
}

// opened serves a channel that the client opens, in a goroutine that the tracker waits for.
func (c *client) opened(ctx context.Context, nc *sshconn.NewChannel) {
	session := nc.ChannelType() == wire.ChannelSession
	switch {
	case session && nc.NoMore:
		nc.Refuse(ssh.Prohibited, "the client sent no-more-sessions")
		return
	case len(nc.ExtraData()) > maxExtra:
		nc.Refuse(ssh.Prohibited, "channel open data is too long")
		return
	case !c.server.enter():
		nc.Refuse(ssh.ResourceShortage, "the server is shutting down")
		return
	}
	if err := c.enter(session); err != nil {
		c.server.exit()
		nc.Refuse(ssh.ResourceShortage, err.Error())
		return
	}
	go func() { // the tracker waits for it
		defer c.server.exit()
		defer c.leave()
		c.channel(ctx, nc)
	}()
}

// await waits until earlier requests of the client are answered, so that a command finds the
// listener that its client asked for first.
func await(ctx context.Context, earlier func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout,
		wire.Errorf(wire.CodeUnavailable,
			"an earlier request on this connection has no answer after %v", dialTimeout))
	defer cancel()
	return earlier(ctx)
}

// channel serves one channel until it is closed. It acts in the sandbox only after the client's
// earlier requests are answered.
func (c *client) channel(ctx context.Context, nc *sshconn.NewChannel) {
	switch t := nc.ChannelType(); {
	case t == wire.ChannelSession:
		c.session(ctx, nc)
	case t == wire.ChannelAgent, t == wire.ChannelX11, t == wire.ChannelForwardedTCP,
		t == wire.ChannelForwardedUnix, ours(t):
		// A server opens these, never a client.
		_ = nc.Reject(ssh.Prohibited, "clients cannot open this channel type")
	default:
		c.direct(ctx, nc)
	}
}

// direct relays a channel other than a session. It cannot report progress.
func (c *client) direct(ctx context.Context, nc *sshconn.NewChannel) {
	if err := c.mayDirect(nc); err != nil {
		_ = nc.Reject(ssh.Prohibited, err.Error())
		return
	}
	if err := await(ctx, nc.Await); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, c.public(err).Message)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	u, there, err := c.open(ctx, nc.ChannelType(), nc.ExtraData(), nil)
	switch {
	case u == nil:
		_ = nc.Reject(ssh.ConnectionFailed, c.public(err).Message)
		return
	case err != nil:
		reject(nc, err)
		return
	}
	channel, err := nc.Accept()
	if err != nil {
		_ = there.Close()
		there.Drain()
		return
	}
	r := relay{client: channel, sandbox: there, meter: c.meter, kill: u.close,
		careless: isCareless(c.conn.ClientVersion())}
	r.run()
}

func (c *client) mayDirect(nc *sshconn.NewChannel) error {
	if err := c.relays(); err != nil {
		return err
	}
	switch nc.ChannelType() {
	case wire.ChannelDirectTCP:
		var to wire.DirectTCP
		if err := wire.Unmarshal(nc.ExtraData(), &to); err != nil {
			return fmt.Errorf("malformed: %w", err)
		}
		return c.grant.mayOpen(to.Host, to.Port)
	case wire.ChannelDirectUnix:
		return c.mayUnix(c.grant.Options.PermitOpen)
	}
	// Any other type needs more than read-only access.
	return c.grant.mayForward(nil, "", 0, "")
}

// enter counts a channel, until leave. endSession ends the count of a session earlier.
func (c *client) enter(session bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	limits := c.server.limits
	if c.gone {
		return errClientGone
	}
	if c.revoked != nil {
		return c.revoked
	}
	if c.channels >= limits.Channels {
		return fmt.Errorf("limit of %d channels on one connection reached", limits.Channels)
	}
	if session && c.sessions >= limits.Sessions {
		return fmt.Errorf("limit of %d sessions on one connection reached", limits.Sessions)
	}
	c.channels++
	if session {
		c.sessions++
	}
	return nil
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels--
}

func (c *client) endSession() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions--
	c.partLocked()
}

// current returns the connection to the sandbox, or nil.
func (c *client) current() *upstream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// adopt makes u the client's connection and serves it. It returns false if the client is gone.
func (c *client) adopt(u *upstream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.up = u
	c.upstreams.Go(u.serve) // ends with u.conn, which the client's serve closes and waits for
	return true
}

// lost drops a connection that has ended, so that the next channel dials again. A client that
// listened there is disconnected: otherwise it would wait indefinitely, and it knows how to
// reconnect.
func (c *client) lost(u *upstream, listened bool) {
	if gone := c.forget(u); listened && !gone {
		c.log.Info(
			"connection to the sandbox lost; disconnecting the client, whose listeners are gone",
			"sandbox", c.target.Sandbox)
		c.conn.Close()
	}
}

// forget makes the next channel dial again, and reports whether the client is gone.
func (c *client) forget(u *upstream) (gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == u {
		c.up = nil
	}
	return c.gone
}

func (c *client) hub() *gateway.Hub { return c.server.options.Hub }

// public returns what the client may see of an error.
func (c *client) public(err error) *wire.Error { return c.server.public(err) }

// plain shortens a text from a sandbox and makes it printable.
func plain(s string) string { return text.Line(s, 256) }
