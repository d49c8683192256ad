package sshd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// reverseChannels is how many channels a sandbox may have open at a client at once.
const reverseChannels = 128

// maxListeners is on how many addresses a sandbox may listen for a client at once. Our guest allows
// fewer.
const maxListeners = 1024

// upstream is one client connection's own SSH connection to its sandbox. It is not shared, because a
// channel that a sandbox opens – an agent, X11, a forward – names no client: one user's agent would
// sign for another.
type upstream struct {
	conn   *connect.Conn
	client *client

	mu    sync.Mutex
	asked map[string]int // guarded by mu; what the client asked the sandbox to open, how often
	open  int            // guarded by mu; channels that the sandbox has open
}

// errClientGone ends what belongs to a client whose connection has ended.
var errClientGone = person.ErrGone

// upstream returns the client's connection to its sandbox. The first caller makes it, and the others
// wait for it. ctx bounds the wait. progress, if not nil, is called with what takes long.
func (c *client) upstream(ctx context.Context, progress func(string)) (*upstream, error) {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if u := c.current(); u != nil {
		return u, c.hub().Relay.Wake(ctx, c.grant.Principal, c.target.Sandbox)
	}
	conn, err := c.hub().Relay.Open(ctx, c.grant.Principal, c.target.Sandbox, progress)
	if err != nil {
		return nil, err
	}
	u := &upstream{conn: conn, client: c, asked: make(map[string]int)}
	if !c.adopt(u) {
		conn.Close()
		return nil, errClientGone
	}
	return u, nil
}

// open opens a channel at the client's sandbox. If the connection there has ended, it makes another.
func (c *client) open(ctx context.Context, kind string, extra []byte, progress func(string)) (
	*upstream, *sshconn.Channel, error) {
	for again := false; ; again = true {
		u, err := c.upstream(ctx, progress)
		if err != nil {
			return nil, nil, err
		}
		// Without ctx: a channel that is never answered counts as the client's while the connection lasts.
		channel, err := u.conn.Open(context.Background(), kind, extra)
		if err == nil || again || errors.As(err, new(*ssh.OpenChannelError)) {
			return u, channel, err
		}
		u.close()
		c.forget(u)
	}
}

// serve answers what the sandbox asks and opens, until the connection ends.
func (u *upstream) serve() {
	ctx, cancel := context.WithCancel(context.Background()) // for as long as the connection
	var parts sync.WaitGroup
	parts.Go(func() { _ = u.conn.KeepAlive(ctx) })
	u.conn.Serve(sshconn.Handler{
		// hostkeys-00 is refused: a client would write the sandbox's keys down as the gateway's. A
		// sandbox has nothing else to ask for, and a keepalive wants any answer.
		Request: func(q *ssh.Request) { _ = q.Reply(q.Type == wire.GlobalKeepalive, nil) },
		Channel: func(nc *sshconn.NewChannel) {
			if !u.enter() {
				nc.Refuse(ssh.ResourceShortage, "too many channels")
				return
			}
			parts.Go(func() {
				defer u.leave()
				u.reverse(ctx, nc)
			})
		},
	})
	if u.conn.Flooded() {
		u.client.log.Warn("connection to the sandbox ended: it sent too many requests", "user", u.client.conn.User())
	}
	cancel()
	u.conn.Close()
	parts.Wait()
	u.conn.Settle()
	// Its listeners are gone with it: a client that waits for connections would wait for ever.
	u.client.lost(u, u.listens() > 0)
}

// listens is on how many addresses the sandbox listens for the client.
func (u *upstream) listens() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for what := range u.asked {
		if isForward(what) {
			n++
		}
	}
	return n
}

// close ends the connection, and with it everything that goes over it.
func (u *upstream) close() { u.conn.Close() }

// enter counts a channel in that the sandbox opens, leave out.
func (u *upstream) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open >= reverseChannels {
		return false
	}
	u.open++
	return true
}

func (u *upstream) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open--
}

// reverse relays a channel that the sandbox opens, if this client asked for its kind. ctx ends with
// the connection.
func (u *upstream) reverse(ctx context.Context, nc *sshconn.NewChannel) {
	what, err := reverseKind(nc.ChannelType(), nc.ExtraData())
	if err != nil {
		_ = nc.Reject(ssh.UnknownChannelType, err.Error())
		return
	}
	if isForward(what) {
		// A connection may come as soon as the sandbox has answered that it listens. Until the client
		// has that answer it may not know the port, and neither do we.
		if err := await(ctx, u.client.conn.AwaitAnswer); err != nil {
			_ = nc.Reject(ssh.ConnectionFailed, "the request to listen has no answer")
			return
		}
	}
	if !u.expects(what) {
		_ = nc.Reject(ssh.Prohibited, "nobody asked for it")
		return
	}
	channel, err := u.client.conn.Open(ctx, nc.ChannelType(), nc.ExtraData())
	if err != nil {
		reject(nc, err)
		return
	}
	accepted, err := nc.Accept()
	if err != nil {
		_ = channel.Close()
		go channel.Drain() // until the client closes, too
		return
	}
	r := relay{client: channel, sandbox: accepted, meter: u.client.meter, kill: u.close,
		careless: isCareless(u.client.conn.ClientVersion())}
	r.run()
}

// reverseKind names what a client must have asked for before a sandbox may open a channel: the type, and for forwards where
// it listens. A sandbox that forwards what it was not asked to reaches nothing.
func reverseKind(channelType string, extra []byte) (string, error) {
	switch channelType {
	case wire.ChannelAgent, wire.ChannelX11:
		return channelType, nil
	case wire.ChannelForwardedTCP:
		var to wire.DirectTCP
		if err := wire.Unmarshal(extra, &to); err != nil {
			return "", errors.New("malformed")
		}
		return listenKey(channelType, "", to.Port), nil
	case wire.ChannelForwardedUnix:
		var to wire.ForwardedUnix
		if err := wire.Unmarshal(extra, &to); err != nil {
			return "", errors.New("malformed")
		}
		return listenKey(channelType, to.Path, 0), nil
	}
	return "", errors.New("a sandbox opens no channel of this type")
}

// listenKey is how a forward is remembered. Not by its address: what a client calls "" or localhost a server may call
// by another name.
func listenKey(channelType, path string, port uint32) string {
	return fmt.Sprintf("%s %s %d", channelType, path, port)
}

// isForward reports whether what a client asked for, as reverseKind names it, is a listener.
func isForward(what string) bool {
	return strings.HasPrefix(what, wire.ChannelForwardedTCP) || strings.HasPrefix(what, wire.ChannelForwardedUnix)
}

func (u *upstream) expects(what string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[what] > 0
}

// expect says that the sandbox may open what n more times asked for; a negative n takes it back.
func (u *upstream) expect(what string, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked[what] += n; u.asked[what] <= 0 {
		delete(u.asked, what)
	}
}

// forward passes a request to listen, or to stop, on to the sandbox.
func (u *upstream) forward(q *ssh.Request) (bool, []byte, error) {
	var what string
	var port uint32
	cancel := q.Type == wire.GlobalCancelTCPForward || q.Type == wire.GlobalCancelUnixForward
	switch q.Type {
	case wire.GlobalTCPForward, wire.GlobalCancelTCPForward:
		var f wire.TCPForward
		if err := wire.Unmarshal(q.Payload, &f); err != nil {
			return false, nil, errors.New("malformed")
		}
		port = f.Port
		what = listenKey(wire.ChannelForwardedTCP, "", port)
	default:
		var f wire.UnixForward
		if err := wire.Unmarshal(q.Payload, &f); err != nil {
			return false, nil, errors.New("malformed")
		}
		what = listenKey(wire.ChannelForwardedUnix, f.Path, 0)
	}
	if !cancel && u.listens() >= maxListeners {
		return false, nil, fmt.Errorf("no more than %d listeners at once on one connection", maxListeners)
	}
	anyPort := q.Type == wire.GlobalTCPForward && port == 0
	if !cancel && !anyPort {
		u.expect(what, 1) // before the sandbox can be connected to
	}
	// The answer is wanted also where the client wants none: it says which port to expect.
	ok, payload, err := u.conn.SendRequest(q.Type, true, q.Payload)
	granted := err == nil && ok
	switch {
	case cancel && granted:
		u.expect(what, -1)
	case !cancel && !granted && !anyPort:
		u.expect(what, -1)
	case anyPort && granted:
		var r wire.TCPForwardReply
		if e := wire.Unmarshal(payload, &r); e == nil {
			u.expect(listenKey(wire.ChannelForwardedTCP, "", r.Port), 1)
		}
	}
	return granted, payload, err
}

// reject passes a refusal on as it was given: a reason that the client can show.
func reject(nc *sshconn.NewChannel, err error) {
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) {
		_ = nc.Reject(refused.Reason, plain(refused.Message))
		return
	}
	_ = nc.Reject(ssh.ConnectionFailed, err.Error())
}

// dialTimeout bounds how long a client's channel waits for its sandbox, which may have to be started.
const dialTimeout = 2 * time.Minute
