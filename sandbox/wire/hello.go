package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Hello is the first frame in each direction. It negotiates the version. Unknown fields are
// ignored.
type Hello struct {
	Versions []int  `json:"versions"`           // versions that the sender supports
	Software string `json:"software,omitempty"` // for logs
}

// hello returns the Hello of this side.
func hello() Hello {
	h := Hello{Software: "sandboxd"}
	for v := MinVersion; v <= Version; v++ {
		h.Versions = append(h.Versions, v)
	}
	return h
}

// meets returns an error with code unavailable if the sides have no common version.
func (h Hello) meets() error {
	if slices.ContainsFunc(
		h.Versions,
		func(v int) bool { return v >= MinVersion && v <= Version },
	) {
		return nil
	}
	return Errorf(
		CodeUnavailable,
		"the other side supports session stream versions %v, not %d to %d",
		h.Versions,
		MinVersion,
		Version,
	)
}

// Welcome begins a session stream on the serving side: it reads the Hello of the other side and
// sends its own. If there is no common version, it still sends its Hello, so that the other side
// can report that, and returns an error with code unavailable.
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

// Attach begins a session stream on the requesting side: it exchanges Hello, sends a and returns
// the reply. If a has neither Session nor Resume, it is not sent and the zero Attached is returned;
// such a stream supports only list and close. A rejected attach returns both the reply and its
// *Error.
func (c *Conn) Attach(a Attach) (Attached, error) {
	var at Attached
	if err := c.WriteJSON(FrameHello, 0, hello()); err != nil {
		return at, err
	}
	attach := a.Session != "" || a.Resume != ""
	if attach {
		// Send a without waiting for the other Hello: attaching costs one round trip.
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

// AttachWithin is Attach until ctx ends; then it returns the cause of ctx. After an error the
// stream is closed. The other side may be frozen: Close of a channel does not end a Read before
// that side answers. The reading goroutine ends then, or with the connection.
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

// unexpected returns err for a side that waits for a reply: EOF becomes ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readJSON reads the next frame, which must have type t.
func (c *Conn) readJSON(t FrameType, v any) error {
	f, err := c.Read()
	if err != nil {
		return err
	}
	if f.Type != t {
		return fmt.Errorf("frame type %d instead of %d", f.Type, t)
	}
	if err := json.Unmarshal(f.Data, v); err != nil {
		return fmt.Errorf("frame type %d: %w", t, err)
	}
	return nil
}
