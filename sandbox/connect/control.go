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
	// A guest answers a CLOSE with its own immediately (RFC 4254, section 5.3). Until then, a Read
	// stays blocked. A guest that does not answer in time loses the connection.
	closeTimeout = 5 * time.Second

	// Limit of channels that are being opened. A guest that answers none of them blocks this many
	// goroutines, not one for each attempt.
	maxOpening = 16
)

// Control is the daemon's control connection to a running guest, for sessions, health and commands.
// Its methods are safe for concurrent use.
type Control struct {
	other Sessions // replaces conn on a host; nil for a guest that is the SSH server
	conn  *Conn
	hello wire.ControlReply

	// semaphore of global requests: x/crypto waits for their replies in order, without ctx
	asking  chan struct{}
	opening chan struct{} // slots for channels being opened

	closeTimeout time.Duration

	wg   sync.WaitGroup // goroutines of the connection, which end with it
	done chan struct{}

	mu    sync.Mutex
	cause error // guarded by mu; why this side ended the connection; nil if it did not
	err   error // guarded by mu; set before done is closed
}

// OpenControl logs in to peer and opens a control connection. ctx bounds the call, not the
// connection. Errors to branch on: ErrIdentity, ErrLogin, ErrNoGuest, ErrVersion.
func OpenControl(ctx context.Context, peer sandbox.Peer) (*Control, error) {
	return openControl(ctx, peer, aliveInterval, closeTimeout)
}

func openControl(
	ctx context.Context,
	peer sandbox.Peer,
	alive, closing time.Duration,
) (*Control, error) {
	conn, err := SSH(ctx, peer)
	if err != nil {
		return nil, err
	}
	c := &Control{conn: conn, done: make(chan struct{}), closeTimeout: closing,
		asking: make(chan struct{}, 1), opening: make(chan struct{}, maxOpening)}
	c.wg.Go(func() { // reject unexpected requests and channels, such as hostkeys-00 and forwards
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

// begin exchanges hello with the other side. wait must return when the connection has ended. After
// an error, begin has closed the connection.
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
	c.wg.Go(f) // c.err is nil, so that the goroutine that sets it still runs and wg is not zero
	return true
}

// greet exchanges hello and checks the version.
func (c *Control) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		handshakeTimeout,
		fmt.Errorf("guest did not reply to hello within %v", handshakeTimeout),
	)
	defer cancel()
	hello, err := c.Do(ctx, wire.Control{Do: "hello"})
	switch {
	case errors.Is(err, errRefused):
		return ErrNoGuest
	case err != nil:
		return err
	case hello.Version < wire.MinVersion || hello.Version > wire.Version:
		return fmt.Errorf(
			"%w: %d, not %d to %d",
			ErrVersion,
			hello.Version,
			wire.MinVersion,
			wire.Version,
		)
	}
	c.hello = hello
	return nil
}

// Hello returns the guest's reply to hello.
func (c *Control) Hello() wire.ControlReply { return c.hello }

// Done returns a channel that is closed when the connection has ended. Err then says why.
func (c *Control) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is open, ErrClosed after Close, or the error that ended it.
func (c *Control) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection and its streams, and waits for its goroutines.
func (c *Control) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// fail ends the connection. The first cause is kept.
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

// Hold sets whether the guest is frozen, as Conn.Hold does.
func (c *Control) Hold(frozen bool) {
	if c.conn != nil {
		c.conn.Hold(frozen)
	}
}

// Held reports whether Hold has set the guest to frozen.
func (c *Control) Held() bool { return c.conn != nil && c.conn.held.Load() }

// Alive waits until the guest responds; nil means that its code has answered. The request is cheap
// and does not wait for running commands. An error is the end of ctx or of the connection, or a
// failed request to a host.
func (c *Control) Alive(ctx context.Context) error {
	if c.other != nil {
		_, err := c.doOther(ctx, wire.Control{Do: "hello"})
		return err
	}
	// No guest has this channel type: rejecting it is the response.
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

// lost returns the error of a call that the end of the connection interrupted.
func (c *Control) lost(what string) error {
	<-c.done
	return fmt.Errorf("%s: connection to the guest ended: %w", what, c.Err())
}

var errRefused = errors.New("guest rejected the request")

// Do sends a command to the guest and returns the reply. ctx bounds the wait; the guest may still
// run the command after it. A reply with an error is returned together with that error, a
// *wire.Error with the text of the guest.
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
	if !c.start(func() { // ends with the reply or the connection
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

// parseControlReply parses the reply of a guest. It makes the texts printable, because people see
// them.
func parseControlReply(order string, payload []byte) (wire.ControlReply, error) {
	var reply wire.ControlReply
	if err := json.Unmarshal(payload, &reply); err != nil {
		return wire.ControlReply{}, fmt.Errorf(
			"%s: reply of the guest: %w",
			order,
			printableError{err},
		)
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

// OpenStream opens a session stream to the guest, for wire.NewConn. ctx bounds the call, not the
// stream. The caller closes the stream.
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
	// Ends with the guest's reply or the connection.
	go func() {
		stream, err := c.open()
		<-c.opening
		select {
		case result <- opened{stream, err}:
		case <-ctx.Done(): // the caller has returned
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
		return nil, printableError{err} // the reason of a rejection is text of the guest
	}
	s := &Stream{control: c, channel: channel, ended: channel.Closed}
	drained := c.start(channel.Drain)
	// Unread stderr stalls a channel at 2 MiB.
	if !drained || !c.start(func() { _, _ = io.Copy(io.Discard, channel.Stderr()) }) {
		return nil, net.ErrClosed // the connection and its channels have ended
	}
	ok, err := channel.SendRequest(
		wire.RequestSubsystem,
		true,
		wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem}),
	)
	if err == nil && !ok {
		err = errRefused
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Stream is one session stream to a guest: an io.ReadWriteCloser with CloseWrite.
type Stream struct {
	control *Control
	channel ssh.Channel
	closing sync.Once
	ended   <-chan struct{} // closed when the guest has closed the channel
}

// Read reads data from the guest. io.EOF means that the guest has closed its side.
func (s *Stream) Read(p []byte) (int, error) { return s.channel.Read(p) }

// Write sends p. It blocks while the guest does not read.
func (s *Stream) Write(p []byte) (int, error) { return s.channel.Write(p) }

// CloseWrite closes the write side. Read still works.
func (s *Stream) CloseWrite() error { return s.channel.CloseWrite() }

// Close closes the stream without waiting. A blocked Read or Write returns when the guest has
// answered. If the guest does not answer within 5 s, the connection is closed.
func (s *Stream) Close() error {
	s.closing.Do(func() {
		s.channel.Close() // an error means that the channel or the connection has ended
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
			s.control.fail(errors.New("guest did not close a stream in time"))
		})
	})
	return nil
}
