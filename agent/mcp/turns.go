package mcp

import (
	"context"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// turns orders the calls of one session. A call that the client cancels still interrupts what it
// started; later calls wait for that, so that the interrupt does not hit them.
type turns struct {
	mu    sync.Mutex
	calls map[wire.Target][]*turn // guarded by mu; running
}

// turn is one running call.
type turn struct {
	cancelled func() bool
	done      chan struct{}
}

// enter adds a call in t, which lasts until leave is called. It returns when each earlier call in
// t that was cancelled has ended, or ctx's cause if ctx ends first.
func (ts *turns) enter(ctx context.Context, t wire.Target) (leave func(), err error) {
	own := &turn{cancelled: func() bool { return ctx.Err() != nil }, done: make(chan struct{})}
	ts.mu.Lock()
	earlier := slices.Clone(ts.calls[t])
	if ts.calls == nil {
		ts.calls = make(map[wire.Target][]*turn)
	}
	ts.calls[t] = append(ts.calls[t], own)
	ts.mu.Unlock()
	leave = func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		close(own.done)
		ts.calls[t] = slices.DeleteFunc(ts.calls[t], func(o *turn) bool { return o == own })
		if len(ts.calls[t]) == 0 {
			delete(ts.calls, t)
		}
	}
	for _, o := range earlier {
		if !o.cancelled() {
			continue
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}
