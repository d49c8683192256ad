package lifecycle

import (
	"context"
	"sync"
)

// turns lets callers with the same key work one after the other. The zero value is ready to use.
type turns struct {
	mu    sync.Mutex
	taken map[string]*turn // guarded by mu; those that have callers
}

// turn is the turn of one key.
type turn struct {
	slot    chan struct{}
	callers int // guarded by turns.mu; that have the slot, or wait for it
}

// take waits for the turn of key. The caller calls done when its work is over.
func (t *turns) take(ctx context.Context, key string) (done func(), err error) {
	t.mu.Lock()
	of := t.taken[key]
	if of == nil {
		of = &turn{slot: make(chan struct{}, 1)}
		if t.taken == nil {
			t.taken = make(map[string]*turn)
		}
		t.taken[key] = of
	}
	of.callers++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if of.callers--; of.callers == 0 {
			delete(t.taken, key)
		}
	}
	select {
	case of.slot <- struct{}{}:
		return func() { <-of.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
