package sshd

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
)

// quickReads is the number of reads that are acknowledged at once: enough for the login and the
// first command.
const quickReads = 64

// conn is a client's connection with what the SSH library lacks: a strict version line, a deadline
// for the login, and a write timeout. Reads come from one goroutine at a time.
type conn struct {
	net.Conn
	raw  syscall.RawConn // nil unless TCP
	slot *slot           // among connections that are not logged in
	// After login, the longest time without a byte from the peer, or for one write.
	silence time.Duration

	meter *sshconn.Meter // of received data that was not read
	reads int            // of the reading goroutine
	// Of the reading goroutine; read with the version line and not yet delivered.
	early   []byte
	started bool // of the reading goroutine; the version line was read

	open      atomic.Bool // logged in
	principal string      // guarded by tracker.mu; set after the login
	client    *client     // guarded by tracker.mu; set after the login

	closing sync.Once
	closed  func(*conn) // called once, after Close
}

// newConn takes over c. The limit Grace bounds the time until loggedIn is called.
func newConn(c net.Conn, s *slot, l Limits, closed func(*conn)) *conn {
	g := &conn{Conn: c, slot: s, closed: closed, meter: sshconn.NewMeter(l.Unread),
		silence: l.Keepalive * time.Duration(l.KeepaliveMax+1)}
	if tcp, ok := c.(*net.TCPConn); ok {
		if g.raw, _ = tcp.SyscallConn(); g.raw != nil {
			person.LimitBacklog(g.raw)
		}
	}
	_ = c.SetDeadline(time.Now().Add(l.Grace))
	return g
}

// loggedIn removes the login deadline.
func (c *conn) loggedIn() {
	if c.open.Swap(true) {
		return
	}
	c.slot.authenticated()
	_ = c.Conn.SetDeadline(time.Time{})
}

func (c *conn) Read(p []byte) (int, error) {
	if !c.started {
		early, err := readVersionLine(firstReads{c})
		if err != nil {
			if errors.Is(err, errNotSSH2) {
				// The same text as OpenSSH, for people who used the wrong program.
				_, _ = c.Conn.Write([]byte("Invalid SSH identification string.\r\n"))
				c.Close()
			}
			return 0, err
		}
		c.started, c.early = true, early
	}
	if len(c.early) > 0 {
		n := copy(p, c.early)
		if c.early = c.early[n:]; len(c.early) == 0 {
			c.early = nil
		}
		c.meter.AddReceived(n)
		return n, nil
	}
	n, err := firstReads{c}.Read(p)
	c.meter.AddReceived(n)
	return n, err
}

// firstReads reads from the network and acknowledges the connection's first reads at once.
type firstReads struct{ c *conn }

func (r firstReads) Read(p []byte) (int, error) {
	n, err := r.c.Conn.Read(p)
	if r.c.raw != nil && r.c.reads < quickReads {
		r.c.reads++
		quickAck(r.c.raw)
	}
	return n, err
}

// Write fails when the peer has taken nothing for the time of the keepalives. Otherwise a peer that
// is gone would block the library's writes indefinitely. A failed write ends the connection,
// because a partial packet cannot be continued.
func (c *conn) Write(p []byte) (int, error) {
	if c.open.Load() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.silence))
	}
	n, err := c.Conn.Write(p)
	c.meter.AddSent(n)
	if err != nil {
		_ = c.Conn.Close() // the reader notices, and closes the rest
	}
	return n, err
}

func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		err = c.Conn.Close()
		c.slot.release()
		c.closed(c)
	})
	return err
}
