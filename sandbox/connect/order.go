package connect

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// SetUser makes user, as name or uid[:gid] inside, the one that programs of c run as from now on.
// Errors of the guest are *wire.Error: not_found for a user that does not exist, denied for one
// that it cannot become, and unavailable if it is older than this order. The error is ErrNoGuest if
// the server is not a guest.
func (c *Conn) SetUser(ctx context.Context, user string) error {
	return c.order(ctx, wire.Control{Do: "user", User: user})
}

// SetAuthorities replaces the certificate authorities that programs trust besides those of the
// guest's configuration, in PEM. Errors are those of SetUser: denied for a guest that was
// configured without any.
func (c *Conn) SetAuthorities(ctx context.Context, authorities []byte) error {
	return c.order(ctx, wire.Control{Do: "trust", Authorities: string(authorities)})
}

// OrderStop logs in to peer and orders its guest to end all programs, which have grace to end
// themselves, and then to end itself. It returns when the guest has taken the order.
func OrderStop(ctx context.Context, peer sandbox.Peer, grace time.Duration) error {
	control, err := OpenControl(ctx, peer)
	if err != nil {
		return err
	}
	defer control.Close()
	_, err = control.Do(ctx, wire.Control{Do: "stop", GraceMS: grace.Milliseconds()})
	return err
}

// order sends a control request, after hello, and returns the error of its answer.
func (c *Conn) order(ctx context.Context, order wire.Control) error {
	if err := c.ask(ctx, wire.Control{Do: "hello"}); err != nil {
		return err
	}
	return c.ask(ctx, order)
}

// ask sends one control request and returns the error of its answer.
func (c *Conn) ask(ctx context.Context, order wire.Control) error {
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
