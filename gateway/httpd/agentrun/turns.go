package agentrun

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// turns says whose call runs next: where callers wait, one of the principal's of whom the fewest run, so that nobody who makes many calls keeps
// out somebody who makes few. Of one principal's the first comes first.
type turns struct {
	most    int // that run at once
	waiting int // of one principal's that wait, at most

	mu      sync.Mutex
	running map[string]int // guarded by mu; by principal
	all     int            // guarded by mu; that run
	queue   []*turn        // guarded by mu; in the order in which they came
}

// turn is one call that waits.
type turn struct {
	who string
	may chan struct{} // closed when it runs
}

func newTurns(most, waiting int) *turns {
	return &turns{most: most, waiting: waiting, running: make(map[string]int)}
}

// take waits for a turn of who's, which lasts until done is called.
func (t *turns) take(ctx context.Context, who string) (done func(), err error) {
	t.mu.Lock()
	own := 0
	for _, other := range t.queue {
		if other.who == who {
			own++
		}
	}
	if own >= t.waiting {
		t.mu.Unlock()
		return nil, &wire.Error{Code: wire.CodeLimitQuota, Message: fmt.Sprintf("%d calls of %s wait for their turn already", own, who), Hint: "try again later, or raise agentrun.parallel"}
	}
	me := &turn{who: who, may: make(chan struct{})}
	t.queue = append(t.queue, me)
	t.nextLocked()
	t.mu.Unlock()
	done = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all--
		if t.running[who]--; t.running[who] == 0 {
			delete(t.running, who)
		}
		t.nextLocked()
	}
	select {
	case <-me.may:
		return done, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, other := range t.queue {
		if other == me {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			t.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
	t.mu.Unlock()
	done() // it was given a turn just now
	return nil, context.Cause(ctx)
}

// nextLocked gives free turns to those who wait. It is called with mu held.
func (t *turns) nextLocked() {
	for t.all < t.most && len(t.queue) > 0 {
		next := 0
		for i, other := range t.queue {
			if t.running[other.who] < t.running[t.queue[next].who] {
				next = i
			}
		}
		one := t.queue[next]
		t.queue = append(t.queue[:next], t.queue[next+1:]...)
		t.running[one.who]++
		t.all++
		close(one.may)
	}
}
