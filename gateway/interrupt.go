package gateway

import (
	"context"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// interrupter ends contexts each time an event occurs. Its zero value is ready.
type interrupter struct {
	mu   sync.Mutex
	life context.Context         //nolint:containedctx // guarded by mu; ends at the next event; nil before the first use
	end  context.CancelCauseFunc // guarded by mu
}

// next returns a context that ends at the next event.
func (i *interrupter) next() context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.life == nil {
		i.life, i.end = context.WithCancelCause(context.Background())
	}
	return i.life
}

// within returns ctx, which also ends at the next event, with its cause. The caller calls done.
func (i *interrupter) within(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	next := i.next()
	stop := context.AfterFunc(next, func() { cancel(context.Cause(next)) })
	return ctx, func() { stop(); cancel(nil) }
}

// interrupt is the event: it ends the contexts for a cause. It does not wait for anybody.
func (i *interrupter) interrupt(cause error) {
	i.mu.Lock()
	end := i.end
	i.life, i.end = nil, nil
	i.mu.Unlock()
	if end != nil {
		end(cause)
	}
}

// pausedError ends the calls that are under way in a sandbox when it is paused: those that were sent are lost, the others are refused.
type pausedError struct {
	lost    *wire.Error
	refused *wire.Error
}

func (e *pausedError) Error() string { return e.refused.Message }

func (e *pausedError) Unwrap() error { return e.refused }

// pausedError says what a pause of b does to the calls that are under way.
func (b *box) pausedError() *pausedError {
	name := b.title()
	e := &pausedError{lost: wire.LostError(wire.LostPaused, "sandbox "+name+" was paused"),
		refused: wire.Errorf(wire.CodeUnavailable, "sandbox %s was paused before the call was made", name)}
	e.lost.Hint = "what runs in it goes on when it is resumed: sandboxd resume " + name
	e.refused.Hint = "make the call again to resume the sandbox"
	return e
}

// stoppedError refuses the calls that were not sent yet when b was stopped. Only a later call starts it again.
func (b *box) stoppedError() error {
	e := wire.Errorf(wire.CodeUnavailable, "sandbox %s was stopped before the call was made", b.title())
	e.Hint = "make the call again to start the sandbox"
	return e
}
