package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Interrupter ends contexts each time an event occurs. Its zero value is ready.
type Interrupter struct {
	mu   sync.Mutex
	life context.Context         //nolint:containedctx // guarded by mu; ends at the next event; nil before the first use
	end  context.CancelCauseFunc // guarded by mu
}

// Next returns a context that ends at the next event.
func (i *Interrupter) Next() context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.life == nil {
		i.life, i.end = context.WithCancelCause(context.Background())
	}
	return i.life
}

// Within returns ctx, which also ends at the next event, with its cause. The caller calls done.
func (i *Interrupter) Within(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	next := i.Next()
	stop := context.AfterFunc(next, func() { cancel(context.Cause(next)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Interrupt is the event: it ends the contexts for a cause. It does not wait for anybody.
func (i *Interrupter) Interrupt(cause error) {
	i.mu.Lock()
	end := i.end
	i.life, i.end = nil, nil
	i.mu.Unlock()
	if end != nil {
		end(cause)
	}
}

// FrozenError ends the calls that are under way in a sandbox when it is paused or its guest falls
// silent: those that were sent are lost, the others are refused.
type FrozenError struct {
	Lost    *wire.Error // of a call that was sent
	Refused *wire.Error // of one that was not
}

func (e *FrozenError) Error() string { return e.Refused.Message }

func (e *FrozenError) Unwrap() error { return e.Refused }

// SilentError says that a sandbox which is connected has not answered.
type SilentError struct {
	What string
	Time time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s has not answered for %v: is it stopped (SIGSTOP), or the machine busy?", e.What, e.Time)
}

// FrozenOr is the *FrozenError that ended ctx, if one did; else err.
func FrozenOr(ctx context.Context, err error) error {
	if frozen, ok := errors.AsType[*FrozenError](context.Cause(ctx)); ok && err != nil {
		return frozen
	}
	return err
}
