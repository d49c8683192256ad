package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Hello is the first frame each way. There is nothing to negotiate but the version: a field that one side does not know is
// ignored by it.
type Hello struct {
	Versions []int  `json:"versions"`           // that the sender speaks
	Software string `json:"software,omitempty"` // for logs
}

// hello is ours.
func hello() Hello {
	h := Hello{Software: "sandboxd"}
	for v := MinVersion; v <= Version; v++ {
		h.Versions = append(h.Versions, v)
	}
	return h
}

// meets returns an error with code unavailable when the other side speaks no version that we do.
func (h Hello) meets() error {
	if slices.ContainsFunc(h.Versions, func(v int) bool { return v >= MinVersion && v <= Version }) {
		return nil
	}
	return Errorf(CodeUnavailable, "the other side speaks session stream versions %v, not %d to %d", h.Versions, MinVersion, Version)
}

// Welcome begins a session stream on the side that serves it: it reads the other side's hello and answers it. The answer is
// sent also when no version is common to both, so that the other side can say why; then the error has code unavailable.
func (c *Conn) Welcome() error {
	var theirs Hello
	if err := c.readJSON(FrameHello, &theirs); err != nil {
		return err
	}
	if err := c.WriteJSON(FrameHello, 0, hello()); err != nil {
		return err
	}
	return theirs.meets()
}

// Attach begins a session stream on the side that asks: hello both ways, then a and its answer. An a that names neither a
// session nor a party to resume is not sent: such a stream can only ask for list and close, and the zero Attached is
// returned. An answer that is a refusal is returned together with it, as *Error.
func (c *Conn) Attach(a Attach) (Attached, error) {
	var at Attached
	if err := c.WriteJSON(FrameHello, 0, hello()); err != nil {
		return at, err
	}
	attach := a.Session != "" || a.Resume != ""
	if attach {
		// Sent with hello, not after its answer: attaching costs one round trip.
		if err := c.WriteJSON(FrameAttach, 0, a); err != nil {
			return at, err
		}
	}
	var theirs Hello
	if err := c.readJSON(FrameHello, &theirs); err != nil {
		return at, unexpected(err)
	}
	if err := theirs.meets(); err != nil || !attach {
		return at, err
	}
	if err := c.readJSON(FrameAttached, &at); err != nil {
		return at, unexpected(err)
	}
	if at.Error != nil {
		return at, at.Error
	}
	return at, nil
}

// AttachWithin is Attach, which it gives up with ctx's cause when ctx ends. After an error the stream is
// closed. The other side may be frozen, and Close of a channel does not end a Read before that side has
// answered: the goroutine that reads ends then, or with the connection.
func (c *Conn) AttachWithin(ctx context.Context, a Attach) (Attached, error) {
	type answer struct {
		at  Attached
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		at, err := c.Attach(a)
		answered <- answer{at, err}
	}()
	select {
	case got := <-answered:
		if got.err != nil {
			c.Close()
		}
		return got.at, got.err
	case <-ctx.Done():
		c.Close()
		return Attached{}, context.Cause(ctx)
	}
}

// unexpected is err for who has asked and was to get an answer.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readJSON reads the frame that must come now.
func (c *Conn) readJSON(t FrameType, v any) error {
	f, err := c.Read()
	if err != nil {
		return err
	}
	if f.Type != t {
		return fmt.Errorf("frame type %d where %d was due", f.Type, t)
	}
	if err := json.Unmarshal(f.Data, v); err != nil {
		return fmt.Errorf("frame type %d: %w", t, err)
	}
	return nil
}
