package connect

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// SetUser makes user, as name or uid[:gid] inside, the one that programs of c run as from now on.
// Errors of the guest are *wire.Error: not_found for a user that does not exist, denied for one
// that it cannot become, and unavailable if it is older than this order. The error is ErrNoGuest if
// the server is not a guest.
func (c *Conn) SetUser(ctx context.Context, user string) error {
	for _, order := range []wire.Control{{Do: "hello"}, {Do: "user", User: user}} {
		if err := c.order(ctx, order); err != nil {
			return err
		}
	}
	return nil
}

// order sends one control request and returns the error of its answer.
func (c *Conn) order(ctx context.Context, order wire.Control) error {
	request, err := json.Marshal(order)
	if err != nil {
		return err
	}
	type answer struct {
		ok      bool
		payload []byte
		err     error
	}
	answered := make(chan answer, 1)
	go func() { // ends with the answer or the connection
		ok, payload, err := c.SendRequest(wire.ControlRequest, true, request)
		answered <- answer{ok, payload, err}
	}()
	select {
	case a := <-answered:
		switch {
		case a.err != nil:
			return fmt.Errorf("%s: %w", order.Do, ErrLost)
		case !a.ok:
			return ErrNoGuest
		}
		_, err := parseControlReply(order.Do, a.payload)
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
