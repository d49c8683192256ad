package sshd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// client is one connection that is logged in.
type client struct {
	server *house
	conn   *ssh.ServerConn
	net    *conn
	grant  *grant
	meter  *meter
	log    *slog.Logger

	target wire.Target // by the user name of the login that succeeded
	lobby  bool
	wrong  error // why the user name is no target

	requests chan *ssh.Request // global ones that wait for their answer
	dialing  chan struct{}     // held by the one that dials the sandbox

	closing atomic.Bool // noMore: no-more-sessions was said

	mu       sync.Mutex
	up       *upstream // guarded by mu
	gone     bool      // guarded by mu; the connection has ended
	sessions int       // guarded by mu
	channels int       // guarded by mu
}

// waitingRequests is how many global requests may wait for their answers, which go out in order. More is no client that
// wants them.
const waitingRequests = 128

// newClient says who is on the connection and what they want, from what the login settled.
func (h *house) newClient(conn *ssh.ServerConn, n *conn) *client {
	c := &client{server: h, conn: conn, net: n, grant: grantOf(conn.Permissions), meter: n.meter,
		requests: make(chan *ssh.Request, waitingRequests), dialing: make(chan struct{}, 1)}
	c.log = h.log.With("client", conn.RemoteAddr().String())
	if c.grant == nil { // no login grants nothing; none is let in without
		c.wrong = wire.Errorf(wire.CodeDenied, "not logged in")
		return c
	}
	c.log = c.log.With("principal", c.grant.Name)
	c.target, c.wrong = wire.ParseTarget(conn.User())
	c.lobby = c.wrong == nil && c.target.Sandbox == wire.Lobby
	if c.lobby && c.target != (wire.Target{Sandbox: wire.Lobby, Session: wire.DefaultSession}) {
		c.wrong = wire.Errorf(wire.CodeUsage, "the lobby has no sessions; log in as %s", wire.Lobby)
	}
	return c
}

// serve does what lasts as long as the connection: answers in order, keepalives, and the end.
func (c *client) serve(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { c.answer(ctx) })
	parts.Go(func() { c.keepalive(ctx) })
	<-ctx.Done()
	c.conn.Close()
	c.mu.Lock()
	c.gone = true
	up := c.up
	c.mu.Unlock()
	if up != nil {
		up.conn.Close()
		<-up.done
	}
	parts.Wait()
}

// keepalive notices that a client is gone, which TCP alone would not for hours.
func (c *client) keepalive(ctx context.Context) {
	limits := c.server.limits
	tick := time.NewTicker(limits.Keepalive)
	defer tick.Stop()
	var last int64
	silent := 0
	var asking atomic.Bool
	var probes sync.WaitGroup
	defer probes.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.meter.review(c.net.read.Load())
		if now := c.net.read.Load(); now != last {
			last, silent = now, 0
			continue
		}
		if silent++; silent > limits.KeepaliveMax {
			c.log.Info("client is gone", "silent", time.Duration(silent)*limits.Keepalive)
			c.conn.Close()
			return
		}
		if asking.Swap(true) {
			continue
		}
		// Apart, for its answer may never come.
		probes.Go(func() {
			_, _, _ = c.conn.SendRequest(wire.GlobalKeepalive, true, nil)
			asking.Store(false)
		})
	}
}

// global takes one global request. It must not wait: the library reads nothing while it does.
func (c *client) global(q *ssh.Request) {
	select {
	case c.requests <- q:
	default:
		c.log.Warn("too many requests wait for an answer")
		c.conn.Close()
	}
}

// answer answers global requests one after the other, as RFC 4254, section 4, wants it.
func (c *client) answer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-c.requests:
			ok, payload, err := c.answerOne(ctx, q)
			if err != nil {
				c.log.Info("request refused", "type", q.Type, "err", err)
			}
			_ = q.Reply(ok, payload)
		}
	}
}

func (c *client) answerOne(ctx context.Context, q *ssh.Request) (bool, []byte, error) {
	switch q.Type {
	case wire.GlobalKeepalive:
		return true, nil, nil
	case wire.GlobalNoMoreSessions:
		c.closing.Store(true)
		return true, nil, nil
	case wire.GlobalTCPForward, wire.GlobalUnixForward, wire.GlobalCancelTCPForward, wire.GlobalCancelUnixForward:
	default:
		// hostkeys-prove-00 among them: the host keys are ours, and only one.
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
	return u.forward(q)
}

// mayListen says why the client may not have the sandbox listen for it.
func (c *client) mayListen(q *ssh.Request) error {
	if err := c.relays(); err != nil {
		return err
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

// mayUnix says why the client may not forward a unix socket. A key that is bound to some ports is not for sockets.
func (c *client) mayUnix(only []string) error {
	if len(only) > 0 {
		return fmt.Errorf("your key may only forward %s", strings.Join(only, ", "))
	}
	return c.grant.mayForward(nil, "", 0, "")
}

// relays says why nothing of this client goes to a sandbox; nil where it does.
func (c *client) relays() error {
	switch {
	case c.wrong != nil:
		return c.wrong
	case c.lobby:
		return wire.Errorf(wire.CodeUsage, "the lobby forwards nothing; log in as a sandbox")
	}
	return nil
}

// channel serves one channel that the client opens, until it is closed.
func (c *client) channel(ctx context.Context, nc ssh.NewChannel) {
	session := nc.ChannelType() == wire.ChannelSession
	if err := c.enter(session); err != nil {
		_ = nc.Reject(ssh.ResourceShortage, err.Error())
		return
	}
	defer c.leave(session)
	switch t := nc.ChannelType(); {
	case session && c.closing.Load():
		_ = nc.Reject(ssh.Prohibited, "you said that there would be no more sessions")
	case session:
		c.session(ctx, nc)
	case t == wire.ChannelAgent, t == wire.ChannelX11, t == wire.ChannelForwardedTCP, t == wire.ChannelForwardedUnix, ours(t):
		// A server opens these, a client never does.
		_ = nc.Reject(ssh.Prohibited, "not from a client")
	default:
		c.direct(ctx, nc)
	}
}

// direct relays a channel that is no session. It waits in the open: it has nowhere to say what takes long.
func (c *client) direct(ctx context.Context, nc ssh.NewChannel) {
	if err := c.mayDirect(nc); err != nil {
		_ = nc.Reject(ssh.Prohibited, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	u, err := c.upstream(ctx, nil)
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, c.public(err).Message)
		return
	}
	upstream, upstreamRequests, err := u.conn.OpenChannel(nc.ChannelType(), nc.ExtraData())
	if err != nil {
		reject(nc, err)
		return
	}
	channel, requests, err := nc.Accept()
	if err != nil {
		_ = upstream.Close()
		ssh.DiscardRequests(upstreamRequests)
		return
	}
	r := relay{client: side{channel, requests}, sandbox: side{upstream, upstreamRequests}, meter: c.meter, kill: u.close}
	r.run()
}

func (c *client) mayDirect(nc ssh.NewChannel) error {
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
	// Whatever it is, it is not watching.
	return c.grant.mayForward(nil, "", 0, "")
}

// enter counts a channel in, leave out.
func (c *client) enter(session bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	limits := c.server.limits
	if c.gone {
		return errClientGone
	}
	if c.channels >= limits.Channels {
		return fmt.Errorf("no more than %d channels at once on one connection", limits.Channels)
	}
	if session && c.sessions >= limits.Sessions {
		return fmt.Errorf("no more than %d sessions at once on one connection", limits.Sessions)
	}
	c.channels++
	if session {
		c.sessions++
	}
	return nil
}

func (c *client) leave(session bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels--
	if session {
		c.sessions--
	}
}

// current returns the connection to the sandbox if there is one.
func (c *client) current() *upstream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// adopt makes u the client's connection and starts to serve it, unless the client is gone. It ends with u.conn.
func (c *client) adopt(u *upstream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.up = u
	go u.serve() // ends with u.conn; the client's own serve closes that and waits
	return true
}

// lost forgets a connection that has ended; the next channel dials again. A client that listened there is sent away: it
// would wait for ever, and connecting again is what it knows to do.
func (c *client) lost(u *upstream, listened bool) {
	c.mu.Lock()
	if c.up == u {
		c.up = nil
	}
	gone := c.gone
	c.mu.Unlock()
	if listened && !gone {
		c.log.Info("sandbox is gone, and with it what the client listened on", "sandbox", c.target.Sandbox)
		c.conn.Close()
	}
}

func (c *client) hub() *gateway.Hub { return c.server.options.Hub }

// public is what the client may see of an error.
func (c *client) public(err error) *wire.Error { return c.server.public(err) }

// plain is a text of a sandbox as it may be passed on to people: short, and printable.
func plain(s string) string {
	if len(s) > 256 {
		s = s[:256] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\ufffd' {
			return '?'
		}
		return r
	}, s)
}
