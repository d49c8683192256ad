package connect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sessions replaces the SSH connection of a Control on a host, whose SSH server is not a guest. Its
// methods are safe for concurrent use.
type Sessions interface {
	// Open opens one session stream. ctx bounds the call, not the stream.
	Open(ctx context.Context) (io.ReadWriteCloser, error)
	// Order runs a command, which is JSON as its reply is. ctx bounds the wait.
	Order(ctx context.Context, order []byte) (answer []byte, err error)
	// Wait waits until the sessions are unreachable and all goroutines have ended, and returns why.
	Wait() error
	// End ends all streams and makes Wait return.
	End()
	// Tier returns the tier of the host, and why it has no better one.
	Tier() (tier, why string)
}

// SessionDialer is a backend whose sessions are not served by the SSH server of Dial.
type SessionDialer interface {
	// DialSessions connects to the sessions of inst. It has its own timeout, and ctx bounds it,
	// too. The caller closes the Control. Errors are those of Dial and OpenControl.
	DialSessions(ctx context.Context, inst sandbox.Instance) (*Control, error)
}

// NewControl returns a Control on s, and owns s. Errors to branch on: ErrVersion.
func NewControl(ctx context.Context, s Sessions) (*Control, error) {
	c := &Control{other: s, done: make(chan struct{})}
	if err := c.begin(ctx, s.Wait); err != nil {
		return nil, err
	}
	return c, nil
}

// Tier returns the tier of a host, and why it has no better one. Both are empty if the guest is the
// SSH server.
func (c *Control) Tier() (tier, why string) {
	if c.other == nil {
		return "", ""
	}
	return c.other.Tier()
}

func (c *Control) doOther(ctx context.Context, order wire.Control) (wire.ControlReply, error) {
	payload, err := json.Marshal(order)
	if err != nil {
		return wire.ControlReply{}, err
	}
	answer, err := c.other.Order(ctx, payload)
	switch {
	case ctx.Err() != nil:
		return wire.ControlReply{}, fmt.Errorf("%s: %w", order.Do, context.Cause(ctx))
	case err != nil && c.Err() != nil:
		return wire.ControlReply{}, c.lost(order.Do)
	case err != nil:
		return wire.ControlReply{}, fmt.Errorf("%s: %w", order.Do, printableError{err})
	}
	return parseControlReply(order.Do, answer)
}

func (c *Control) openOther(ctx context.Context, what string) (io.ReadWriteCloser, error) {
	s, err := c.other.Open(ctx)
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case c.Err() != nil:
		return nil, c.lost(what)
	}
	return nil, fmt.Errorf("%s: %w", what, printableError{err})
}
