package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// inputChunk is the maximal input of one frame, so that a paste does not delay a request after it.
const inputChunk = 32 << 10

// Handler receives output and events of a session. The reading goroutine calls its functions one at
// a time, in order. While one blocks, nothing else is received. A nil function ignores its data.
type Handler struct {
	Output func(offset uint64, p []byte) // p is valid during the call
	Event  func(Event)
}

// Client is the requesting side of a session stream: an agent at the gateway, or the gateway at a
// guest. Its methods are safe for concurrent use.
type Client struct {
	conn     *Conn
	handler  Handler
	attached Attached
	done     chan struct{} // closed when the reader has ended

	// serializes Input, so that sequence numbers match the order of bytes; locked before mu
	imu  sync.Mutex
	sent uint64 // guarded by imu

	mu       sync.Mutex
	nextID   uint32                // guarded by mu
	waiting  map[uint32]chan Reply // guarded by mu; nil once the reader has ended
	accepted uint64                // guarded by mu; input bytes that were accepted or rejected
	// guarded by mu; error of input since the last call of Input began
	refused  *Error
	progress chan struct{} // guarded by mu; closed and replaced when accepted grows
	err      error         // guarded by mu; why the reader ended
}

// Open begins a session stream on rw: it exchanges Hello and attaches as a says. If a has neither
// Session nor Resume, there is no attachment, and the stream supports only list and close. ctx
// bounds only Open; if it ends, rw is closed. A rejected attach is an *Error. The Client owns rw
// and closes it.
func Open(ctx context.Context, rw io.ReadWriteCloser, a Attach, h Handler) (*Client, error) {
	c := &Client{conn: NewConn(rw), handler: h, done: make(chan struct{}),
		waiting: make(map[uint32]chan Reply), progress: make(chan struct{})}
	attached, err := c.conn.AttachWithin(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("session stream: %w", err)
	}
	c.attached, c.sent, c.accepted = attached, attached.Accepted, attached.Accepted
	// The reader ends when rw does; Close waits for it.
	go c.read()
	return c, nil
}

// Attached returns the reply to the attach.
func (c *Client) Attached() Attached { return c.attached }

// Done returns a channel that is closed when the stream has ended. Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns nil while the stream is open, io.EOF if the other side closed it, or the error that
// broke it.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close detaches; the session continues. It waits until the Handler is no longer called, so a
// Handler must not call it.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Leave closes the stream without waiting for the other side, which may be frozen. The Handler may
// still receive its last events.
func (c *Client) Leave() { c.conn.Close() }

func (c *Client) read() {
	err := c.pump()
	c.mu.Lock()
	c.err = err
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	for _, reply := range waiting {
		close(reply)
	}
	c.conn.Close()
	close(c.done)
}

func (c *Client) pump() error {
	for {
		f, err := c.conn.Read()
		if err != nil {
			return err
		}
		switch f.Type {
		case FrameOutput:
			if c.handler.Output != nil {
				c.handler.Output(f.Offset, f.Data)
			}
		case FrameEvent:
			var e Event
			if err := json.Unmarshal(f.Data, &e); err != nil {
				return fmt.Errorf("event: %w", err)
			}
			if c.handler.Event != nil {
				c.handler.Event(e)
			}
		case FrameReply:
			var r Reply
			if err := json.Unmarshal(f.Data, &r); err != nil {
				return fmt.Errorf("reply: %w", err)
			}
			c.mu.Lock()
			reply := c.waiting[f.ID]
			delete(c.waiting, f.ID)
			c.mu.Unlock()
			if reply != nil { // a cancelled request has no waiter
				reply <- r
			}
		case FrameAccepted:
			var refused *Error
			if len(f.Data) > 0 {
				refused = new(Error)
				if err := json.Unmarshal(f.Data, refused); err != nil {
					return fmt.Errorf("accepted: %w", err)
				}
			}
			c.mu.Lock()
			c.accepted = f.Offset
			if refused != nil {
				if c.refused != nil {
					refused.Refused += c.refused.Refused
				}
				c.refused = refused
			}
			close(c.progress)
			c.progress = make(chan struct{})
			c.mu.Unlock()
		default:
			return fmt.Errorf("frame type %d: not expected by a client", f.Type)
		}
	}
}

// lost returns the error of a call that the end of the stream interrupted.
func (c *Client) lost() error {
	err := c.Err()
	if err == nil || errors.Is(err, io.EOF) {
		return &Error{
			Code:    CodeLost,
			Message: "the session stream ended",
			Hint:    "attach again and repeat the call with the same op",
		}
	}
	return &Error{
		Code:    CodeLost,
		Message: "the session stream ended: " + err.Error(),
		Hint:    "attach again and repeat the call with the same op",
	}
}

// Request sends a request and waits for the reply. A Reply with an Error is returned together with
// that error. If ctx ends first, the request is cancelled and the cause of ctx is returned; the
// program in the terminal is not affected.
func (c *Client) Request(ctx context.Context, r Request) (Reply, error) {
	data, refused := r.frame()
	if refused != nil {
		return Reply{Error: refused}, refused
	}
	reply := make(chan Reply, 1)
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return Reply{}, c.lost()
	}
	c.nextID++
	id := c.nextID
	c.waiting[id] = reply
	c.mu.Unlock()

	if err := c.within(ctx, func() error {
		return c.conn.Write(
			Frame{Type: FrameRequest, ID: id, Data: data})
	}); err != nil {
		c.forget(id)
		return Reply{}, fmt.Errorf("request %s: %w", r.Verb, err)
	}
	select {
	case got, ok := <-reply:
		if !ok {
			return Reply{}, c.lost()
		}
		if got.Error != nil {
			return got, got.Error
		}
		return got, nil
	case <-ctx.Done():
		c.forget(id)
		// Best effort: a broken stream has nothing to cancel. The reply to the cancel is ignored.
		_ = c.within(
			ctx,
			func() error {
				return c.conn.WriteJSON(FrameRequest, 0,
					Request{Verb: VerbCancel, Cancel: id})
			},
		)
		return Reply{}, context.Cause(ctx)
	}
}

// writeGrace is how long the write of a frame may take after its ctx has ended.
const writeGrace = time.Second

// within calls write, which sends one frame. If the other side does not read it, the stream is
// closed writeGrace after the end of ctx, because half a frame cannot be withdrawn.
func (c *Client) within(ctx context.Context, write func() error) error {
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(writeGrace)
		defer timer.Stop()
		select {
		case <-written:
		case <-c.done:
		case <-timer.C:
			c.conn.Close()
		}
	})
	err := write()
	close(written)
	if !stop() && err != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *Client) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// Sent returns how many bytes of input the party has sent, on this stream and on those that it
// resumes.
func (c *Client) Sent() uint64 {
	c.imu.Lock()
	defer c.imu.Unlock()
	return c.sent
}

// Input sends bytes to the terminal and returns when they are accepted. An *Error means that the
// last Refused bytes were rejected, for example because another party holds the keyboard, and did
// not reach the program. After any other error, the number of accepted bytes is unknown;
// Attached.Accepted of a resumed stream has it.
func (c *Client) Input(ctx context.Context, p []byte) error {
	c.imu.Lock()
	defer c.imu.Unlock()
	c.mu.Lock()
	c.refused = nil
	c.mu.Unlock()
	for rest := p; len(rest) > 0; {
		n := min(len(rest), inputChunk)
		f := Frame{Type: FrameInput, Offset: c.sent, Data: rest[:n]}
		if err := c.within(ctx, func() error { return c.conn.Write(f) }); err != nil {
			return fmt.Errorf("input: %w", err)
		}
		c.sent += uint64(n)
		rest = rest[n:]
	}
	for {
		c.mu.Lock()
		accepted, refused, progress := c.accepted, c.refused, c.progress
		c.mu.Unlock()
		switch {
		case accepted < c.sent:
		case refused != nil:
			return refused
		default:
			return nil
		}
		select {
		case <-progress:
		case <-c.done:
			return c.lost()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
