package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

// relay connects to the guest of a running container.
func (e *engine) relay(ctx context.Context, ref string) (net.Conn, error) {
	if err := e.silence.check(ref); err != nil {
		return nil, err
	}
	var conn client.HijackedResponse
	err := e.call(ctx, e.limits.quick, "connect to the guest", func(ctx context.Context) error {
		made, err := e.api.ExecCreate(ctx, ref, client.ExecCreateOptions{User: "0:0",
			WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true,
			Cmd: []string{remoteGuest, "relay", guestAddress}})
		if err != nil {
			return err
		}
		r, err := e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
		conn = r.HijackedResponse
		return err
	})
	if err != nil { // an engine that cannot be reached has started nothing
		return nil, err
	}
	return &relayed{Conn: conn.Conn, frames: conn.Reader, ref: ref, silence: &e.silence}, nil
}

// relayed is a connection by a program in a container: its standard input and output. Closing it
// ends the program. An expired deadline closes it, because not every connection to an engine has
// deadlines.
type relayed struct {
	net.Conn

	frames *bufio.Reader
	left   int   // bytes of the current frame
	begun  bool  // the guest has spoken
	failed error // of the frames, for good

	ref     string
	silence *silence

	mu    sync.Mutex
	heard bool        // guarded by mu; the engine has sent something, or has ended the connection
	over  bool        // guarded by mu; Close was called
	timer *time.Timer // guarded by mu
}

// Read returns what the program wrote. The error of its end is what it wrote to its standard error,
// or what the engine says of a program that it could not start. The engine sends frames of either
// (Docker Engine API, "Attach to a container").
func (c *relayed) Read(p []byte) (int, error) {
	for c.left == 0 && c.failed == nil {
		c.next()
	}
	if c.failed != nil {
		return 0, c.failed
	}
	n, err := c.frames.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// next reads the header of the next frame.
func (c *relayed) next() {
	var header [8]byte
	_, c.failed = io.ReadFull(c.frames, header[:])
	c.mu.Lock()
	if !c.heard && !c.over {
		c.heard = true
		c.silence.forget(c.ref)
	}
	c.mu.Unlock()
	if c.failed != nil {
		return
	}
	size := int(binary.BigEndian.Uint32(header[4:]))
	if stdcopy.StdType(header[0]) == stdcopy.Stdout {
		// A server of SSH says so first (RFC 4253, section 4.2); this one says nothing else.
		begin, err := c.frames.Peek(min(size, 4))
		if c.begun || string(begin) == "SSH-"[:len(begin)] {
			c.left, c.begun, c.failed = size, true, err
			return
		}
	}
	text, err := io.ReadAll(io.LimitReader(c.frames, int64(min(size, maxWords))))
	if c.failed = err; err == nil {
		c.failed = fmt.Errorf("relay: %s", strings.TrimSpace(printable(string(text))))
	}
}

// SetDeadline closes the connection at t, unless it is called again. The zero time means never.
func (c *relayed) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() { c.Close() })
	}
	return nil
}

// Close ends the connection.
func (c *relayed) Close() error {
	c.mu.Lock()
	if !c.heard && !c.over {
		c.silence.add(c.ref)
	}
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// silence counts the relays of containers that were given up before the engine had sent anything.
// Root in a sandbox can make the engine wait indefinitely, and keep a thread for it, when it starts
// a program: it reads the /etc/passwd of the container, which may be a FIFO. So it is not asked to
// start any number of them.
type silence struct {
	mu sync.Mutex
	of map[string]*silent // guarded by mu; by container
}

type silent struct {
	relays int
	last   time.Time // when one was allowed
}

const (
	maxSilent   = 8
	silentPause = time.Minute // then one more is tried
)

// check returns an error if no further relay may be started now.
func (s *silence) check(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[ref]
	switch {
	case c == nil:
		return nil
	case c.relays < maxSilent || time.Since(c.last) > silentPause:
		c.last = time.Now()
		return nil
	}
	return fmt.Errorf("the engine did not start the last %d connections to the sandbox: stop it and "+
		"start it again", c.relays)
}

func (s *silence) add(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]*silent)
	}
	if s.of[ref] == nil {
		s.of[ref] = &silent{last: time.Now()}
	}
	s.of[ref].relays++
}

// forget is called when a relay answers, and when the container starts or is removed.
func (s *silence) forget(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, ref)
}
