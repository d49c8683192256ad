package lifecycle

import (
	"context"
	"sync"
)

// tasks are the goroutines that outlive the call which started them. Run ends and awaits them.
type tasks struct {
	wg sync.WaitGroup

	mu sync.Mutex
	// The context of Run; nil outside it. Tasks live as long as Run.
	ctx context.Context //nolint:containedctx // guarded by mu
}

func (t *tasks) open(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx = ctx
}

// start runs f with the context of Run and reports whether it did. It does not before Run has begun
// or after it has ended.
func (t *tasks) start(f func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil || t.ctx.Err() != nil {
		return false
	}
	ctx := t.ctx
	t.wg.Go(func() { f(ctx) })
	return true
}

// bound returns a context that ends with ctx or with Run, whichever is first; the latter with
// ErrClosed.
func (t *tasks) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	t.mu.Lock()
	life := t.ctx
	t.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	if life == nil {
		cancel(ErrClosed)
		return ctx, func() {}
	}
	stop := context.AfterFunc(life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// close waits for everything that was started. The context of Run has ended.
func (t *tasks) close() {
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.wg.Wait()
}
