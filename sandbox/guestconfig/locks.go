package guestconfig

import (
	"context"
	"sync"
)

// Locks serializes the changes of each thing that has an ID, such as an instance. The zero value is
// ready to use.
type Locks struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // guarded by mu; by ID; closed when the change has ended
}

// Lock waits until no other change of the thing is in progress, or until ctx ends.
func (l *Locks) Lock(ctx context.Context, id string) (unlock func(), err error) {
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
	if l.busy == nil {
		l.busy = make(map[string]chan struct{})
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

// Changing reports whether a change is in progress.
func (l *Locks) Changing(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy[id] != nil
}
