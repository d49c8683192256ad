// Package sshd is the SSH server of the gateway. It authenticates a client by its key, takes the
// sandbox from the user name, and routes each channel by what the client requests. It relays a
// channel to the sandbox's own SSH server, or joins it to a session of the hub. The daemon's main
// function uses it.
//
// It stores no sandboxes and no sessions, and knows neither backends nor the HTTP server.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure a Server. Hub, HostKeys, Keys and Commands are required.
type Options struct {
	Hub      *gateway.Hub
	HostKeys []ssh.Signer // at most one of each type
	Keys     *Keys        // decides who may log in
	Commands Commands     // the control host's command table
	// Watches reports whether a command line only watches a session, which the server then draws.
	// nil: none does.
	Watches func(args []string) (wire.Target, bool)
	// MCP serves the Model Context Protocol to a principal, until the client disconnects or ctx
	// ends. Calls that name no sandbox apply to t. nil: MCP is disabled.
	MCP func(ctx context.Context, p gateway.Principal, t wire.Target,
		rw io.ReadWriteCloser) error
	PrefixKey string // prefix key of people in a session, such as ctrl-a; empty: ctrl-]
	Alert     string // how people in a session hear that one asks, as person.Alert
	Limits    Limits
	Log       *slog.Logger // nil discards
}

// Commands runs a command of the control host for a principal and returns its exit status. ctx ends
// when the client disconnects or interrupts it.
type Commands func(ctx context.Context, p gateway.Principal, c CommandIO) int

// CommandIO is the input and output of a command of the control host.
type CommandIO struct {
	Args []string // the command line, split as a shell would, without expansion
	// Address of this server to which a client on another machine connected, as this machine sees
	// it: behind a translation of addresses or a jump host, the client used another one. Invalid
	// for a client on this machine.
	Reached netip.AddrPort
	Stdin   io.Reader
	Stdout  io.Writer // with Pty, \n is written as \r\n
	Stderr  io.Writer // with Pty, the same as Stdout

	Pty     *wire.PtyReq             // nil without a terminal
	Resized <-chan wire.WindowChange // the latest size that was not received yet
	// Signal INT of a client without a terminal; with one, ^C ends ctx.
	Interrupts <-chan struct{}

	// Draw draws the output of a session of that size on the client's terminal. It accepts raw
	// output and draws only safe sequences. It needs Pty, and is called at most once.
	Draw func(cols, rows int) *player.Canvas
}

// Server is the SSH server. Its methods are safe for concurrent use.
type Server struct {
	options Options
	limits  Limits
	log     *slog.Logger
	gate    *gate
	prefix  byte // prefix key of people, as view.Keys has it
}

// New returns a Server. It serves nothing until Serve is called.
func New(o Options) (*Server, error) {
	switch {
	case len(o.HostKeys) == 0:
		return nil, errors.New("ssh server: no host key")
	case o.Keys == nil:
		return nil, errors.New("ssh server: no keys")
	}
	s := &Server{options: o, limits: o.Limits.withDefaults(), log: o.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.PrefixKey != "" {
		var err error
		if s.prefix, err = view.ParsePrefix(o.PrefixKey); err != nil {
			return nil, fmt.Errorf("ssh server: %w", err)
		}
	}
	s.options.HostKeys = make([]ssh.Signer, len(o.HostKeys))
	for i, k := range o.HostKeys {
		s.options.HostKeys[i] = withoutSHA1(k)
	}
	s.gate = newGate(s.limits)
	return s, nil
}

// farewell is the time for people's terminals to be restored when the server closes.
const farewell = time.Second

// Serve accepts clients on l until ctx ends. It returns when the last of them has gone, after their
// terminals are restored. It closes l. If ctx ended, the error is nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &tracker{Server: s, conns: make(map[*conn]struct{}), restored: make(chan struct{}),
		quiet: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	watching, over := context.WithCancel(ctx)
	var watches sync.WaitGroup
	watches.Go(func() { sshconn.Relieve(watching, h.limits.Memory, h.log, h.holders) })
	watches.Go(func() { h.checkAccess(watching) })
	err := h.receive(ctx, l)
	_ = l.Close()
	h.close(farewell)
	over()
	watches.Wait()
	if ctx.Err() != nil {
		return nil // err says that the listener is closed
	}
	return err
}

// config returns the configuration of one connection. The client is identified by the Permissions
// of the successful attempt: no callback here stores anything of an attempt.
func (s *Server) config(n *conn) *ssh.ServerConfig {
	c := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-sandboxd",
		MaxAuthTries:  s.limits.Tries,
		PublicKeyCallback: func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			return s.options.Keys.login(m, key, time.Now())
		},
		AuthLogCallback: func(m ssh.ConnMetadata, method string, err error) {
			switch {
			case err == nil:
				n.loggedIn()
			case !errors.Is(err, ssh.ErrNoAuth):
				n.slot.failed()
				s.log.Debug("login denied", "client", m.RemoteAddr().String(), "method",
					plain(method), "err", plain(err.Error()))
			}
		},
	}
	for _, k := range s.options.HostKeys {
		c.AddHostKey(k)
	}
	algorithms(c)
	return c
}

// public returns what a client may see of an error.
func (s *Server) public(err error) *wire.Error {
	var shown *wire.Error
	if errors.As(err, &shown) {
		return shown
	}
	if shown = s.options.Hub.Public(err); shown != nil {
		return shown
	}
	return wire.Errorf(wire.CodeInternal, "internal error")
}

// tracker tracks the clients of one listener.
type tracker struct {
	*Server

	mu      sync.Mutex
	conns   map[*conn]struct{} // guarded by mu; also those that are not logged in
	guests  int                // guarded by mu; goroutines that serve a client or a channel
	people  int                // guarded by mu; terminals that must be restored
	closing bool               // guarded by mu

	restored chan struct{} // closed when closing and all terminals are restored
	quiet    chan struct{} // closed when closing and no client is left
}

// longestPause is the longest pause between attempts to accept a connection, such as when no
// descriptors are left.
const longestPause = time.Second

// receive accepts clients on l, each in a goroutine that close waits for, until l is closed or
// fails.
func (h *tracker) receive(ctx context.Context, l net.Listener) error {
	var pause time.Duration
	for {
		c, err := l.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 0
			if n := h.admit(c); n != nil {
				go func() {
					defer h.exit()
					h.serve(ctx, n)
				}()
			}
		case ctx.Err() == nil && errors.As(err, &temporary) && temporary.Temporary():
			pause = min(max(2*pause, 5*time.Millisecond), longestPause)
			h.log.Warn("accept failed", "retry_in", pause, "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
}

// admit takes over a new connection and counts it. It returns nil if there is no room.
func (h *tracker) admit(c net.Conn) *conn {
	own := h.limits.Own > 0 && peerIsOurs(c)
	slot, err := h.gate.enter(c.RemoteAddr(), own, func() { c.Close() })
	if err != nil {
		h.log.Debug("connection denied", "client", c.RemoteAddr().String(), "err", err)
		c.Close()
		return nil
	}
	n := newConn(c, slot, h.limits, h.left)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns[n] = struct{}{}
	h.guests++
	return n
}

// serve logs a connection in and serves it until it ends.
func (h *tracker) serve(ctx context.Context, n *conn) {
	defer n.Close()
	sc, err := sshconn.Server(n, h.config(n))
	if err != nil {
		// Anyone can cause this, so it is logged at debug level, and quoted.
		h.log.Debug("not logged in", "client", n.RemoteAddr().String(), "err", plain(err.Error()))
		return
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	c := h.newClient(sc, n, end)
	if c.grant != nil {
		h.mu.Lock()
		n.principal, n.client = c.grant.Name, c
		h.mu.Unlock()
	}
	c.log.Info("logged in", "user", plain(sc.User()), "software", plain(string(sc.ClientVersion())))
	c.serve(ctx)
}

// holders returns the connections with their memory use.
func (h *tracker) holders() []sshconn.Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]sshconn.Holder, 0, len(h.conns))
	for n := range h.conns {
		list = append(list, sshconn.Holder{Principal: n.principal, Kept: n.meter.Kept(),
			End: func() { n.Close() }})
	}
	return list
}

// left is called when a connection has been closed.
func (h *tracker) left(n *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, n)
	h.settleLocked()
}

// enter counts a goroutine that serves a client, unless the server is closing.
func (h *tracker) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return false
	}
	h.guests++
	return true
}

func (h *tracker) exit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guests--
	h.settleLocked()
}

// beginTTY counts a terminal that must be restored, until endTTY.
func (h *tracker) beginTTY() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.people++
}

func (h *tracker) endTTY() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.people--
	h.settleLocked()
}

func (h *tracker) settleLocked() {
	if !h.closing {
		return
	}
	if h.people == 0 {
		closeOnce(h.restored)
	}
	if h.guests == 0 && len(h.conns) == 0 {
		closeOnce(h.quiet)
	}
}

// closeOnce closes c unless it is closed. Its callers hold a lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// close disconnects all clients and returns when they have gone. First it waits at most grace for
// their terminals to be restored.
func (h *tracker) close(grace time.Duration) {
	h.mu.Lock()
	h.closing = true
	h.settleLocked()
	h.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-h.restored:
	case <-timer.C:
	}
	h.mu.Lock()
	conns := make([]*conn, 0, len(h.conns))
	for n := range h.conns {
		conns = append(conns, n)
	}
	h.mu.Unlock()
	for _, n := range conns {
		n.Close()
	}
	<-h.quiet
}

// CheckPrefixKey returns an error unless name is a valid prefix key, such as ctrl-].
func CheckPrefixKey(name string) error {
	_, err := view.ParsePrefix(name)
	return err
}
