// Package sshd is the SSH server of the gateway: it finds out who somebody is, reads from the user name which sandbox they
// mean and from what they ask for what they want with it, and then either relays their channel to the sandbox's own SSH
// server or puts them into a session that the hub knows. Reach for it from the daemon's main function.
//
// It keeps no sandbox and no session, and knows neither backends nor the HTTP APIs.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a Server works with. Hub, HostKeys, Keys and Commands are required.
type Options struct {
	Hub      *gateway.Hub
	HostKeys []ssh.Signer // at most one of a type
	Keys     *Keys        // who may log in
	Commands Commands     // the control host's command table
	// Watches reports whether a command line only asks to watch a session: the server draws it. nil means none does.
	Watches func(args []string) (wire.Target, bool)
	// MCP serves the Model Context Protocol to a principal, for whom calls that name no sandbox mean the target, until the client leaves
	// or ctx ends. nil means that it is not served.
	MCP       func(ctx context.Context, p gateway.Principal, t wire.Target, rw io.ReadWriteCloser) error
	PrefixKey string // of people in a session, such as ctrl-a; empty is ctrl-]
	Limits    Limits
	Log       *slog.Logger // nil discards
}

// Commands runs one command of the control host for a principal and returns its exit status. ctx ends when the client is gone or
// interrupted it.
type Commands func(ctx context.Context, p gateway.Principal, c CommandIO) int

// CommandIO is what a command of the control host reads and writes.
type CommandIO struct {
	Args   []string // the command line, taken apart as a shell would, without expansion
	Stdin  io.Reader
	Stdout io.Writer // with Pty, \n goes out as \r\n
	Stderr io.Writer // with Pty, the same as Stdout

	Pty        *wire.PtyReq             // nil without a terminal
	Resized    <-chan wire.WindowChange // the newest size that was not received yet
	Interrupts <-chan struct{}          // INT of a client without a terminal; with one, ^C ends ctx

	// Draw makes the client's terminal show what a session of that size printed: raw bytes go in, safe ones come out.
	// It needs Pty, and is called at most once.
	Draw func(cols, rows int) *player.Canvas
}

// Server is the SSH server. Its methods may be called at once.
type Server struct {
	options Options
	limits  Limits
	log     *slog.Logger
	gate    *gate
	prefix  byte // prefix key of people, as view.Keys has it
}

// New returns a Server that serves nothing yet.
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

// farewell is how long people's terminals may take to be given back when the server closes.
const farewell = time.Second

// Serve lets clients in that come by l until ctx ends, and returns when the last of them has gone; their terminals are
// given back first. It closes l. The error is nil when ctx ended it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &tracker{Server: s, conns: make(map[*conn]struct{}), restored: make(chan struct{}), quiet: make(chan struct{})}
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

// config is what one connection may log in with. Identity is what the attempt that succeeded left in its Permissions: no
// callback here keeps anything of an attempt.
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
				s.log.Debug("login refused", "client", m.RemoteAddr().String(), "method", plain(method), "err", plain(err.Error()))
			}
		},
	}
	for _, k := range s.options.HostKeys {
		c.AddHostKey(k)
	}
	algorithms(c)
	return c
}

// public is what a client may see of an error.
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

// tracker is who is inside by one listener.
type tracker struct {
	*Server

	mu      sync.Mutex
	conns   map[*conn]struct{} // guarded by mu; also those that are not logged in
	guests  int                // guarded by mu; goroutines that serve a client or a channel
	people  int                // guarded by mu; terminals that have to be given back
	closing bool               // guarded by mu

	restored chan struct{} // closed when closing and no terminal is left to be given back
	quiet    chan struct{} // closed when closing and nobody is inside
}

// longestPause is the longest between two attempts to accept a connection, where the machine has no descriptor left, say.
const longestPause = time.Second

// receive serves who comes by l, each in a goroutine that close waits for, until l is closed or broken.
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
			h.log.Warn("no connection can be accepted", "again", pause, "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
}

// admit takes over a new connection and counts it in. nil: there was no room for it.
func (h *tracker) admit(c net.Conn) *conn {
	own := h.limits.Own > 0 && peerIsOurs(c)
	slot, err := h.gate.enter(c.RemoteAddr(), own, func() { c.Close() })
	if err != nil {
		h.log.Debug("connection refused", "client", c.RemoteAddr().String(), "err", err)
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

// serve lets one connection log in and serves it until it has ended.
func (h *tracker) serve(ctx context.Context, n *conn) {
	defer n.Close()
	sc, err := sshconn.Server(n, h.config(n))
	if err != nil {
		// Anybody can cause it, so it is no more than a debug line, and quoted.
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

// holders are the connections, for what they keep in memory.
func (h *tracker) holders() []sshconn.Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]sshconn.Holder, 0, len(h.conns))
	for n := range h.conns {
		list = append(list, sshconn.Holder{Principal: n.principal, Kept: n.meter.Kept(), End: func() { n.Close() }})
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

// enter counts a goroutine in that serves a client, unless the server is closing.
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

// beginTTY counts a terminal that has to be given back; endTTY takes it back.
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

// closeOnce closes c unless it is closed; its callers hold a lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// close sends everybody away and returns when they have gone. Their terminals have grace to be given back.
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

// CheckPrefixKey returns an error unless name is that of a prefix key for session commands, such as ctrl-].
func CheckPrefixKey(name string) error {
	_, err := view.ParsePrefix(name)
	return err
}
