package interrupt

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An event ends the contexts that there are, with its cause. Later ones wait for the next event.
func TestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e Event
		e.Interrupt(errors.New("nobody waits"))
		cause := errors.New("event")
		ctx, done := e.Within(t.Context())
		defer done()
		over, forget := e.Within(t.Context())
		forget()
		e.Interrupt(cause)
		later, end := e.Within(t.Context())
		defer end()
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), cause) ||
			!errors.Is(context.Cause(over), context.Canceled) || later.Err() != nil {
			t.Errorf("%v, %v, %v", context.Cause(ctx), context.Cause(over), later.Err())
		}
	})
}

func TestFrozenOr(t *testing.T) {
	frozen := &FrozenError{Refused: wire.Errorf(wire.CodeUnavailable, "paused")}
	other := errors.New("other")
	paused, cancel := context.WithCancelCause(t.Context())
	cancel(frozen)
	for _, tt := range []struct {
		name      string
		ctx       context.Context //nolint:containedctx // of a case
		err, want error
	}{
		{"paused, with an error", paused, other, frozen},
		{"paused, without an error", paused, nil, nil},
		{"not paused", t.Context(), other, other},
	} {
		if got := FrozenOr(tt.ctx, tt.err); !errors.Is(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
