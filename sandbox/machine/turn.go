package machine

import (
	"context"
	"sync"
)

// turnsEach is how many missing images are got for an owner at a time. Another owner's take no turn
// of theirs: a registry may send an image as slowly as it likes.
const turnsEach = 2

// Turns bounds how many missing images a backend builds and pulls at a time.
type Turns struct {
	mu sync.Mutex
	of map[string]*turns // guarded by mu; by owner
}

type turns struct {
	taken   chan struct{} // a semaphore
	callers int           // guarded by Turns.mu
}

// NewTurns returns Turns that nobody has taken.
func NewTurns() *Turns { return &Turns{of: make(map[string]*turns)} }

// Take waits for a turn of owner, and reports that it waits. The caller calls done in the end.
// Another call may have got the same image meanwhile.
func (t *Turns) Take(ctx context.Context, owner string,
	progress func(line string)) (done func(), err error) {
	t.mu.Lock()
	own := t.of[owner]
	if own == nil {
		own = &turns{taken: make(chan struct{}, turnsEach)}
		t.of[owner] = own
	}
	own.callers++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.callers--; own.callers == 0 {
			delete(t.of, owner)
		}
	}
	done = func() {
		<-own.taken
		leave()
	}
	select {
	case own.taken <- struct{}{}:
		return done, nil
	default:
	}
	progress("waiting for your other images")
	select {
	case own.taken <- struct{}{}:
		return done, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
