package agentrun

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// turns decides which waiting call runs next: one of the principal with the fewest running calls.
// So heavy users do not block others. Calls of one principal run in order of arrival.
type turns struct {
	most    int // concurrent calls
	waiting int // limit of waiting calls of one principal

	mu      sync.Mutex
	running map[string]int // guarded by mu; by principal
	all     int            // guarded by mu; number of running calls
	queue   []*turn        // guarded by mu; in order of arrival
}

// turn is a waiting call.
type turn struct {
	who string
	may chan struct{} // closed when it may run
}

func newTurns(most, waiting int) *turns {
	return &turns{most: most, waiting: waiting, running: make(map[string]int)}
}

// take waits for a turn. The turn lasts until done is called.
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
		return nil, &wire.Error{Code: wire.CodeLimitQuota,
			Message: fmt.Sprintf("too many waiting calls: %d of %s", own, who),
			Hint:    "try again later, or raise agentrun.parallel"}
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
	done() // it got a turn meanwhile
	return nil, context.Cause(ctx)
}

// nextLocked starts waiting calls while there are free turns. The caller holds mu.
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
