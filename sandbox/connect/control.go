package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// A guest answers a CLOSE with its own at once (RFC 4254, section 5.3). Until it does a blocked Read stays blocked, so
	// one that does not is cut off.
	closeTimeout = 5 * time.Second

	// Openings under way at once. A guest that answers none of them holds this many goroutines, not one for each try.
	maxOpening = 16
)

// Control is the daemon's one connection to a running guest: sessions, health, orders. Its methods may be called at once.
type Control struct {
	other Sessions // what carries it instead of conn; nil for a guest that is the SSH server
	conn  *Conn
	hello wire.ControlReply

	asking  chan struct{} // held while a global request waits: x/crypto answers them in order, and waits without ctx
	opening chan struct{} // slots for channels being opened

	closeTimeout time.Duration

	wg   sync.WaitGroup // everything started here; ends with the connection
	done chan struct{}

	mu    sync.Mutex
	cause error // guarded by mu; why we ended it, if we did
	err   error // guarded by mu; set before done is closed
}

// OpenControl logs in to peer and makes the connection its control connection. ctx bounds the opening. Errors to branch
// on: ErrIdentity, ErrLogin, ErrNoGuest, ErrVersion.
func OpenControl(ctx context.Context, peer sandbox.Peer) (*Control, error) {
	return openControl(ctx, peer, aliveInterval, closeTimeout)
}

func openControl(ctx context.Context, peer sandbox.Peer, alive, closing time.Duration) (*Control, error) {
	conn, err := SSH(ctx, peer)
	if err != nil {
		return nil, err
	}
	c := &Control{conn: conn, done: make(chan struct{}), closeTimeout: closing,
		asking: make(chan struct{}, 1), opening: make(chan struct{}, maxOpening)}
	c.wg.Go(func() { // hostkeys-00, forwards nobody asked for: refused, never ignored
		conn.Serve(sshconn.Handler{})
		conn.Settle()
	})
	if err := c.begin(ctx, conn.Wait); err != nil {
		return nil, err
	}
	c.start(func() {
		living, stop := context.WithCancel(context.Background())
		c.wg.Go(func() { <-c.done; stop() })
		c.fail(conn.keepAlive(living, alive, aliveCount))
	})
	return c, nil
}

// begin greets the other side; wait returns when the connection has ended. On an error nothing of the connection is left.
func (c *Control) begin(ctx context.Context, wait func() error) error {
	c.wg.Go(func() {
		err := wait()
		c.mu.Lock()
		if c.err = c.cause; c.err == nil {
			c.err = printableError{err}
		}
		c.mu.Unlock()
		close(c.done)
	})
	err := c.greet(ctx)
	if err != nil {
		c.fail(err)
		c.wg.Wait()
	}
	return err
}

// start runs f in a goroutine that Close waits for, unless the connection has ended.
func (c *Control) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.wg.Go(f) // not after the last one ended: the one that sets err is among them
	return true
}

// greet says hello and settles the version.
func (c *Control) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, fmt.Errorf("guest did not say hello within %v", handshakeTimeout))
	defer cancel()
	hello, err := c.Do(ctx, wire.Control{Do: "hello"})
	switch {
	case errors.Is(err, errRefused):
		return ErrNoGuest
	case err != nil:
		return err
	case hello.Version < wire.MinVersion || hello.Version > wire.Version:
		return fmt.Errorf("%w: %d, not %d to %d", ErrVersion, hello.Version, wire.MinVersion, wire.Version)
	}
	c.hello = hello
	return nil
}

// Hello is what the guest said about itself when the connection was made.
func (c *Control) Hello() wire.ControlReply { return c.hello }

// Done is closed when the connection has ended; Err then says why.
func (c *Control) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives, ErrClosed after Close, else what ended it.
func (c *Control) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and every stream on it, and waits until nothing of it runs any more.
func (c *Control) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// fail ends the connection; the first cause is the one that counts.
func (c *Control) fail(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	if c.other != nil {
		c.other.End()
		return
	}
	c.conn.Close()
}

// Hold says that the guest is frozen, or goes on, as Conn.Hold.
func (c *Control) Hold(frozen bool) {
	if c.conn != nil {
		c.conn.Hold(frozen)
	}
}

// Held reports whether the guest is said to be frozen.
func (c *Control) Held() bool { return c.conn != nil && c.conn.held.Load() }

// Alive waits until the guest gives a sign of life: nil means that its own code has answered. It asks what costs the guest
// next to nothing, and waits behind no order that is under way. An error is the end of ctx or of the connection, or what
// kept a machine from being asked.
func (c *Control) Alive(ctx context.Context) error {
	if c.other != nil {
		_, err := c.doOther(ctx, wire.Control{Do: "hello"})
		return err
	}
	// No guest knows such a channel: that it refuses it is its answer.
	channel, err := c.conn.Open(ctx, wire.ChannelAlive, nil)
	if err == nil {
		channel.Close()
		c.start(channel.Drain)
	}
	if errors.As(err, new(*ssh.OpenChannelError)) {
		return nil
	}
	return err
}

// lost is the error of a call that the end of the connection cut off.
func (c *Control) lost(what string) error {
	<-c.done
	return fmt.Errorf("%s: connection to the guest ended: %w", what, c.Err())
}

var errRefused = errors.New("guest refused")

// Do gives the guest an order and returns its answer. ctx bounds the wait; the order may still be carried out when it has
// ended. An answer that carries an error is returned together with that error, a *wire.Error whose text is the guest's.
func (c *Control) Do(ctx context.Context, order wire.Control) (wire.ControlReply, error) {
	if c.other != nil {
		return c.doOther(ctx, order)
	}
	payload, err := json.Marshal(order)
	if err != nil {
		return wire.ControlReply{}, err
	}
	select {
	case c.asking <- struct{}{}:
	case <-c.done:
		return wire.ControlReply{}, c.lost(order.Do)
	case <-ctx.Done():
		return wire.ControlReply{}, fmt.Errorf("%s: %w", order.Do, context.Cause(ctx))
	}
	type answer struct {
		ok      bool
		payload []byte
		err     error
	}
	answered := make(chan answer, 1)
	if !c.start(func() { // ends with the answer or the connection
		ok, payload, err := c.conn.SendRequest(wire.ControlRequest, true, payload)
		<-c.asking
		answered <- answer{ok, payload, err}
	}) {
		<-c.asking
		return wire.ControlReply{}, c.lost(order.Do)
	}
	select {
	case a := <-answered:
		if a.err != nil {
			return wire.ControlReply{}, c.lost(order.Do)
		}
		if !a.ok {
			return wire.ControlReply{}, fmt.Errorf("%s: %w", order.Do, errRefused)
		}
		return parseControlReply(order.Do, a.payload)
	case <-ctx.Done():
		return wire.ControlReply{}, fmt.Errorf("%s: %w", order.Do, context.Cause(ctx))
	}
}

// parseControlReply reads what a guest answered. Its texts are made printable here: they end up in front of people.
func parseControlReply(order string, payload []byte) (wire.ControlReply, error) {
	var reply wire.ControlReply
	if err := json.Unmarshal(payload, &reply); err != nil {
		return wire.ControlReply{}, fmt.Errorf("%s: answer of the guest: %w", order, printableError{err})
	}
	reply.Software = printable(reply.Software, 100)
	reply.Health = printable(reply.Health, 300)
	if reply.Error != nil {
		reply.Error = &wire.Error{Code: wire.Code(printable(string(reply.Error.Code), 40)),
			Message: printable(reply.Error.Message, 300), Hint: printable(reply.Error.Hint, 300)}
		return reply, reply.Error
	}
	return reply, nil
}

// OpenStream opens a session stream to the guest: bytes for wire.NewConn. ctx bounds the opening. The caller closes it.
func (c *Control) OpenStream(ctx context.Context) (io.ReadWriteCloser, error) {
	const what = "open session stream"
	if c.other != nil {
		return c.openOther(ctx, what)
	}
	select {
	case c.opening <- struct{}{}:
	case <-c.done:
		return nil, c.lost(what)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	type opened struct {
		stream *Stream
		err    error
	}
	result := make(chan opened)
	// Ends with the guest's answer or the connection.
	go func() {
		stream, err := c.open()
		<-c.opening
		select {
		case result <- opened{stream, err}:
		case <-ctx.Done(): // nobody waits any more
			if stream != nil {
				stream.Close()
			}
		case <-c.done:
		}
	}()
	select {
	case <-c.done:
		return nil, c.lost(what)
	case r := <-result:
		if r.err != nil {
			if c.Err() != nil {
				return nil, c.lost(what)
			}
			return nil, fmt.Errorf("%s: %w", what, r.err)
		}
		return r.stream, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

func (c *Control) open() (*Stream, error) {
	channel, err := c.conn.Open(context.Background(), wire.ChannelSession, nil)
	if err != nil {
		return nil, printableError{err} // the reason of a refusal is the guest's text
	}
	s := &Stream{control: c, channel: channel, ended: channel.Closed}
	drained := c.start(channel.Drain)
	// Unread stderr stalls a channel at 2 MiB.
	if !drained || !c.start(func() { _, _ = io.Copy(io.Discard, channel.Stderr()) }) {
		return nil, net.ErrClosed // the connection ended; its channels have, too
	}
	ok, err := channel.SendRequest(wire.RequestSubsystem, true, wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem}))
	if err == nil && !ok {
		err = errRefused
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Stream is one session stream to a guest: an io.ReadWriteCloser whose write side can be closed alone.
type Stream struct {
	control *Control
	channel ssh.Channel
	closing sync.Once
	ended   <-chan struct{} // closed when the guest closed, too
}

// Read reads what the guest sent; io.EOF means that it closed its side.
func (s *Stream) Read(p []byte) (int, error) { return s.channel.Read(p) }

// Write sends p. It blocks while the guest does not read.
func (s *Stream) Write(p []byte) (int, error) { return s.channel.Write(p) }

// CloseWrite tells the guest that nothing more comes; reading goes on.
func (s *Stream) CloseWrite() error { return s.channel.CloseWrite() }

// Close closes the stream and returns at once. A Read or Write under way returns when the guest has answered; a guest that
// does not answer within 5 s loses the connection.
func (s *Stream) Close() error {
	s.closing.Do(func() {
		s.channel.Close() // an error means that the channel or the connection is gone
		s.control.start(func() {
			late := time.NewTimer(s.control.closeTimeout)
			defer late.Stop()
			for {
				select {
				case <-s.ended:
					return
				case <-s.control.done:
					return
				case <-late.C:
				}
				if !s.control.conn.held.Load() {
					break
				}
				late.Reset(s.control.closeTimeout)
			}
			s.control.fail(errors.New("guest does not close a stream"))
		})
	})
	return nil
}
