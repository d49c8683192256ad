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

// reverseChannels limits the channels that a sandbox has open to a client.
const reverseChannels = 128

// maxListeners limits the addresses that a sandbox listens on for a client. The guest has a lower
// limit.
const maxListeners = 1024

// upstream is a client connection's own SSH connection to its sandbox. It is not shared, because a
// channel that a sandbox opens (agent, X11, forward) names no client: one user's agent could sign
// for another.
type upstream struct {
	conn   *connect.Conn
	client *client

	mu    sync.Mutex
	asked map[string]int // guarded by mu; what the client asked the sandbox to open, with counts
	open  int            // guarded by mu; channels that the sandbox has open
}

// errClientGone is the cause of the end of a client whose connection has ended.
var errClientGone = person.ErrGone

// upstream returns the client's connection to its sandbox. The first caller opens it, others wait.
// ctx bounds the wait. progress, if not nil, reports slow steps.
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

// open opens a channel at the client's sandbox. If the connection there has ended, it opens
// another.
func (c *client) open(ctx context.Context, kind string, extra []byte, progress func(string)) (
	*upstream, *sshconn.Channel, error) {
	for again := false; ; again = true {
		u, err := c.upstream(ctx, progress)
		if err != nil {
			return nil, nil, err
		}
		// Without ctx: a channel without an answer counts for the client while the connection
		// lasts.
		channel, err := u.conn.Open(context.Background(), kind, extra)
		if err == nil || again || errors.As(err, new(*ssh.OpenChannelError)) {
			return u, channel, err
		}
		u.close()
		c.forget(u)
	}
}

// serve handles the sandbox's requests and channels, until the connection ends.
func (u *upstream) serve() {
	ctx, cancel := context.WithCancel(context.Background()) // ends with the connection
	var parts sync.WaitGroup
	parts.Go(func() { _ = u.conn.KeepAlive(ctx) })
	u.conn.Serve(sshconn.Handler{
		// hostkeys-00 is refused: a client would store the sandbox's keys as the gateway's. A
		// keepalive accepts any answer; a sandbox has no other requests.
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
		u.client.log.Warn("connection to the sandbox ended: it sent too many requests", "user",
			u.client.conn.User())
	}
	cancel()
	u.conn.Close()
	parts.Wait()
	u.conn.Settle()
	// Its listeners are gone: a client that waits for connections would wait indefinitely.
	u.client.lost(u, u.listens() > 0)
}

// listens returns the number of addresses that the sandbox listens on for the client.
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

// close ends the connection and everything on it.
func (u *upstream) close() { u.conn.Close() }

// enter counts a channel that the sandbox opens, until leave.
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

// reverse relays a channel that the sandbox opens, if this client asked for its type. ctx ends with
// the connection.
func (u *upstream) reverse(ctx context.Context, nc *sshconn.NewChannel) {
	what, err := reverseKind(nc.ChannelType(), nc.ExtraData())
	if err != nil {
		_ = nc.Reject(ssh.UnknownChannelType, err.Error())
		return
	}
	if isForward(what) {
		// A connection may arrive before the client has the answer to its request to listen. Until
		// then the port may be unknown, to the client and here.
		if err := await(ctx, u.client.conn.AwaitAnswer); err != nil {
			_ = nc.Reject(ssh.ConnectionFailed, "the request to listen was not answered")
			return
		}
	}
	if !u.expects(what) {
		_ = nc.Reject(ssh.Prohibited, "the client did not request this channel")
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

// reverseKind returns what a client must have requested before a sandbox may open a channel: its
// type, and for forwards where it listens. So a sandbox cannot open forwards that were not
// requested.
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
	return "", errors.New("sandboxes cannot open this channel type")
}

// listenKey identifies a forward. It ignores the address, because a server may return another name
// than the client's "" or localhost.
func listenKey(channelType, path string, port uint32) string {
	return fmt.Sprintf("%s %s %d", channelType, path, port)
}

// isForward reports whether a request, as named by reverseKind, is a listener.
func isForward(what string) bool {
	return strings.HasPrefix(what, wire.ChannelForwardedTCP) ||
		strings.HasPrefix(what, wire.ChannelForwardedUnix)
}

func (u *upstream) expects(what string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[what] > 0
}

// expect allows n more requests of what. A negative n takes them back.
func (u *upstream) expect(what string, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked[what] += n; u.asked[what] <= 0 {
		delete(u.asked, what)
	}
}

// forward passes a request to listen, or to stop, to the sandbox.
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
		return false, nil, fmt.Errorf("limit of %d listeners on one connection reached",
			maxListeners)
	}
	anyPort := q.Type == wire.GlobalTCPForward && port == 0
	if !cancel && !anyPort {
		u.expect(what, 1) // before the sandbox can accept a connection
	}
	// An answer is requested even if the client wants none, because it has the port.
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

// reject passes on a refusal with its reason.
func reject(nc *sshconn.NewChannel, err error) {
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) {
		_ = nc.Reject(refused.Reason, plain(refused.Message))
		return
	}
	_ = nc.Reject(ssh.ConnectionFailed, err.Error())
}

// dialTimeout limits how long a client's channel waits for its sandbox, which may have to be
// started.
const dialTimeout = 2 * time.Minute
