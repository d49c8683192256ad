package docker

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
)

// instances serializes changes of each instance.
type instances struct {
	engine *engine

	mu   sync.Mutex
	busy map[string]chan struct{} // guarded by mu; by instance ID; closed when the change has ended
}

func newInstances(e *engine) *instances {
	return &instances{engine: e, busy: make(map[string]chan struct{})}
}

// lock waits until no other change of the instance is in progress.
func (l *instances) lock(ctx context.Context, id string) (unlock func(), err error) {
	l.mu.Lock()
	for l.busy[id] != nil {
		free := l.busy[id]
		l.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
	}
	free := make(chan struct{})
	l.busy[id] = free
	l.mu.Unlock()
	return func() {
		l.mu.Lock()
		delete(l.busy, id)
		l.mu.Unlock()
		close(free)
	}, nil
}

// changing reports whether a change of an instance is in progress.
func (l *instances) changing(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy[id] != nil
}

// change locks the instance and passes the current state of its container to do.
func (l *instances) change(ctx context.Context, what string, inst sandbox.Instance,
	do func(ref string, running, paused bool) error) error {
	unlock, err := l.lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	defer unlock()
	c, err := l.engine.container(ctx, refOf(inst))
	if err == nil {
		err = do(c.ID, c.State.Running, c.State.Paused)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	return nil
}
