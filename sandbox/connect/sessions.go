package connect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sessions carry a control connection where the SSH server is not a guest: a machine with a server of its own, whose
// sessions are beside it or here. Its methods may be called at once.
type Sessions interface {
	// Open opens one session stream. ctx bounds the opening.
	Open(ctx context.Context) (io.ReadWriteCloser, error)
	// Order carries out an order, given and answered as JSON. ctx bounds the wait.
	Order(ctx context.Context, order []byte) (answer []byte, err error)
	// Wait returns when the sessions cannot be reached any more, with why, and nothing of this is left.
	Wait() error
	// End makes Wait return, and every stream end.
	End()
	// Tier says how well the state of terminals is known, in one word, and why.
	Tier() (tier, why string)
}

// A SessionDialer is a backend whose sessions are not served by the SSH server that Dial reaches.
type SessionDialer interface {
	// DialSessions reaches the sessions of inst. ctx bounds the dial, which bounds itself, too. The caller closes the
	// control. Errors are as those of Dial and OpenControl.
	DialSessions(ctx context.Context, inst sandbox.Instance) (*Control, error)
}

// NewControl makes a control connection of s, which it owns from here on. Errors to branch on: ErrVersion.
func NewControl(ctx context.Context, s Sessions) (*Control, error) {
	c := &Control{other: s, done: make(chan struct{})}
	if err := c.begin(ctx, s.Wait); err != nil {
		return nil, err
	}
	return c, nil
}

// Tier says how well the state of this instance's terminals is known, and why; empty where the guest is the SSH server.
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
