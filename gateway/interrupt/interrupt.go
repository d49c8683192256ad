// Package interrupt ends calls that wait for a sandbox, and says why. An [Event] ends the contexts
// of the calls under way each time it occurs; the errors are the causes that calls and attachments
// end with. Reach for it in code that makes such calls or ends them. It knows no sandbox and no
// session.
package interrupt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Causes that end attachments.
var (
	ErrDisconnected = errors.New("disconnected") // the owner of the sandbox ended it
	ErrUnshared     = errors.New("no longer shared")
	ErrLeft         = errors.New("detached") // the client closed it
	ErrClosed       = errors.New("the daemon is shutting down")
)

// Event ends contexts each time it occurs. Its zero value is ready.
type Event struct {
	mu sync.Mutex
	// Ends when the event occurs next; nil before the first use.
	life context.Context         //nolint:containedctx // guarded by mu
	end  context.CancelCauseFunc // guarded by mu
}

// Next returns a context that ends when the event occurs next.
func (e *Event) Next() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life == nil {
		e.life, e.end = context.WithCancelCause(context.Background())
	}
	return e.life
}

// Within returns ctx, which also ends when the event occurs next, with its cause. The caller calls
// done.
func (e *Event) Within(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	next := e.Next()
	stop := context.AfterFunc(next, func() { cancel(context.Cause(next)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Interrupt makes the event occur: it ends the contexts for a cause, and does not block.
func (e *Event) Interrupt(cause error) {
	e.mu.Lock()
	end := e.end
	e.life, e.end = nil, nil
	e.mu.Unlock()
	if end != nil {
		end(cause)
	}
}

// FrozenError ends the calls under way in a sandbox that is paused or whose guest falls silent.
// Calls that were sent are lost, the others are rejected.
type FrozenError struct {
	Lost    *wire.Error // for a call that was sent
	Refused *wire.Error // for a call that was not
}

func (e *FrozenError) Error() string { return e.Refused.Message }

func (e *FrozenError) Unwrap() error { return e.Refused }

// SilentError means that a connected sandbox has not answered.
type SilentError struct {
	What string // the part that is silent, such as "the guest"
	Time time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s has not answered for %v: is it stopped (SIGSTOP), or the machine busy?",
		e.What, e.Time)
}

// FrozenOr returns the *FrozenError that ended ctx, if one did and err is not nil; otherwise err.
func FrozenOr(ctx context.Context, err error) error {
	if frozen, ok := errors.AsType[*FrozenError](context.Cause(ctx)); ok && err != nil {
		return frozen
	}
	return err
}
