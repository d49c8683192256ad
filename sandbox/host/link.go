package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxConnections bounds the daemon's own connections to one machine.
const maxConnections = 16

// link is the daemon's own connection to one machine. It consists of several connections if the
// machine allows few channels on each (MaxSessions in sshd_config(5)). It ends with the first of
// them.
type link struct {
	b    *Backend
	inst sandbox.Instance

	first   *connect.Conn
	dialing chan struct{}   // semaphore: one caller adds a connection
	life    context.Context //nolint:containedctx // ends with the first connection; for work on the link
	over    context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex
	more  []*connect.Conn // guarded by mu
	ended error           // guarded by mu; why, once it has ended
	// Guarded by mu; connections that rejected a channel and have not lost one since.
	full  map[*connect.Conn]bool
	freed int // guarded by mu; number of channels that have ended

	streams map[io.Closer]bool // guarded by mu; to sessions in this process, opened over the link
}

func (b *Backend) newLink(inst sandbox.Instance, conn *connect.Conn) *link {
	l := &link{b: b, inst: inst, first: conn, dialing: make(chan struct{}, 1),
		full:    make(map[*connect.Conn]bool),
		streams: make(map[io.Closer]bool)}
	l.life, l.over = context.WithCancel(context.Background())
	l.serve(conn)
	return l
}

// serve keeps a connection alive and rejects requests of the machine.
func (l *link) serve(conn *connect.Conn) {
	l.wg.Go(func() {
		conn.Serve(sshconn.Handler{})
		conn.Settle()
	})
	ctx, cancel := context.WithCancel(context.Background())
	l.wg.Go(func() {
		if err := conn.KeepAlive(ctx); err != nil {
			conn.Close()
		}
	})
	l.wg.Go(func() {
		err := conn.Wait()
		cancel()
		l.gone(conn, err)
	})
}

// gone records that a connection has ended. With the first one the streams end, before their
// sessions do: so a waiting caller learns that the connection is lost, and not the consequences.
func (l *link) gone(conn *connect.Conn, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if conn == l.first {
		if l.ended == nil {
			l.ended = why
		}
		for s := range l.streams {
			s.Close()
		}
	}
	l.more = slices.DeleteFunc(slices.Clone(l.more),
		func(c *connect.Conn) bool { return c == conn })
	delete(l.full, conn)
}

// check records the end of a connection on which a channel has failed; x/crypto reports the end to
// the channels first. ctx bounds it.
func (l *link) check(ctx context.Context, conn *connect.Conn) {
	asked := make(chan error, 1)
	go func() { // ends with the machine's answer or the connection
		_, _, err := conn.SendRequest(wire.GlobalKeepalive, true, nil)
		asked <- err
	}()
	select {
	case err := <-asked:
		if err != nil {
			l.gone(conn, err)
		}
	case <-ctx.Done():
	}
}

// Wait returns when the first connection has ended, and closes the others.
func (l *link) Wait() error {
	err := l.first.Wait()
	l.End()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	return err
}

// End closes all connections.
func (l *link) End() {
	l.mu.Lock()
	if l.ended == nil {
		l.ended = connect.ErrClosed
	}
	conns := append([]*connect.Conn{l.first}, l.more...)
	l.mu.Unlock()
	l.over()
	for _, c := range conns {
		c.Close()
	}
}

// lost returns why the link has ended, nil while it works.
func (l *link) lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// channel opens a channel with open, on a connection with room for it.
func (l *link) channel(ctx context.Context, open func(*connect.Conn) (*channel, error)) (*channel,
	error) {
	tried := make(map[*connect.Conn]bool)
	for {
		l.mu.Lock()
		var next *connect.Conn
		for _, c := range append([]*connect.Conn{l.first}, l.more...) {
			if !tried[c] && !l.full[c] {
				next = c
				break
			}
		}
		l.mu.Unlock()
		if next == nil {
			var err error
			if next, err = l.add(ctx, tried); err != nil {
				return nil, err
			}
		}
		l.mu.Lock()
		freed := l.freed
		l.mu.Unlock()
		c, err := open(next)
		var refused *ssh.OpenChannelError
		switch {
		case err == nil:
			go func() { // ends with the channel
				<-c.ended
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.full, next)
				l.freed++
			}()
			return c, nil
		case !errors.As(err, &refused):
			l.check(ctx, next)
			return nil, err
		}
		tried[next] = true
		l.mu.Lock()
		// Else it may have room again, and no later end of a channel would show that.
		if l.freed == freed {
			l.full[next] = true
		}
		l.mu.Unlock()
	}
}

// add returns another connection: one that a concurrent caller has just made, or a new one.
func (l *link) add(ctx context.Context, tried map[*connect.Conn]bool) (*connect.Conn, error) {
	select {
	case l.dialing <- struct{}{}:
		defer func() { <-l.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	for _, c := range l.more {
		if !tried[c] && !l.full[c] {
			l.mu.Unlock()
			return c, nil
		}
	}
	n, ended := len(l.more)+1, l.ended
	l.mu.Unlock()
	switch {
	case ended != nil:
		return nil, ended
	case n >= maxConnections:
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf(
			"%s accepts no more channels on %d connections", l.inst.Host.URI, n),
			Hint: "raise MaxSessions in its sshd_config, or use fewer concurrent sessions"}
	}
	inst := l.inst
	conn, err := l.b.login(ctx, &inst)
	if err != nil {
		return nil, fmt.Errorf("another connection: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		conn.Close()
		return nil, l.ended
	}
	l.more = append(l.more, conn)
	l.serve(conn)
	return conn, nil
}

// guestLink connects to sessions that a guest on the machine serves.
type guestLink struct {
	*link
	place place

	closed atomic.Bool // the SSH server does not forward to sockets, or not reliably
}

// closesSockets reports whether a server is known to close a channel to a socket occasionally right
// after its opening: Dropbear.
func closesSockets(conn *connect.Conn) bool {
	return strings.Contains(string(conn.ServerVersion()), "dropbear")
}

// Tier returns the best tier.
func (g *guestLink) Tier() (string, string) {
	return TierGuest, "the guest runs on the host, in " + g.place.dir +
		": sessions outlive the connection"
}

// Open opens a session stream.
func (g *guestLink) Open(ctx context.Context) (io.ReadWriteCloser, error) {
	order, err := json.Marshal(wire.Control{Do: wire.HostSessions})
	if err != nil {
		return nil, err
	}
	c, err := g.open(ctx, order)
	if err != nil {
		return nil, err
	}
	return streamOf{c}, nil
}

// open opens a channel to the session server and sends the order that states its purpose. It uses
// the server's socket if the SSH server forwards to it, which needs no process and no start-up
// files. Otherwise it runs a program that connects to the server, and starts one that has ended.
func (g *guestLink) open(ctx context.Context, order []byte) (*channel, error) {
	if !g.closed.Load() {
		c, err := openSocket(ctx, g.first, g.place.dir+"/sock")
		if err == nil {
			if err = c.send(ctx, append(order, '\n')); err == nil {
				return c, nil
			}
			c.Close()
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			return nil, err
		}
		// Not forwarded at all, or no listener is left: the program that starts a server reports
		// which.
		g.closed.Store(refused.Reason != ssh.ConnectionFailed)
	}
	for tries := 1; ; tries++ {
		c, err := g.channel(ctx, func(conn *connect.Conn) (*channel, error) {
			return stream(ctx, conn, g.place.command(), order)
		})
		closed := errors.Is(err, io.EOF) || errors.Is(err, sshconn.ErrEnded)
		if !closed || ctx.Err() != nil || g.lost() != nil || tries == 3 {
			return c, err
		}
		// Closed before the order was sent: a server may confuse the channel with an earlier one of
		// the same number.
	}
}

// Order carries out an order of the daemon.
func (g *guestLink) Order(ctx context.Context, order []byte) ([]byte, error) {
	c, err := g.open(ctx, order)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var answer []byte
	err = c.within(ctx, func() (err error) {
		answer, err = io.ReadAll(io.LimitReader(c.Channel, 1<<20))
		return err
	})
	c.hangUp()
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// streamOf is the standard input and output of a channel's program.
type streamOf struct{ c *channel }

func (s streamOf) Read(p []byte) (int, error)  { return s.c.Channel.Read(p) }
func (s streamOf) Write(p []byte) (int, error) { return s.c.Channel.Write(p) }
func (s streamOf) CloseWrite() error           { return s.c.CloseWrite() }
func (s streamOf) Close() error                { return s.c.Close() }
