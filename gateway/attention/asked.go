package attention

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Asked follows which sessions ask for an answer that a principal may give. All readers of one
// principal share one watch, so that a thousand people who look at a session cost one. Its methods
// may be called concurrently.
type Asked struct {
	board     *Board
	principal string
	changed   func()
	shared    *asking
}

// asking is what the readers of one principal share.
type asking struct {
	stop func() // ends the watch, and waits for it

	mu      sync.Mutex
	readers map[*Asked]bool // guarded by mu
	targets []wire.Target   // guarded by mu; by sandbox and session
}

// Follow returns a reader of the sessions that ask principal, which calls changed, from any
// goroutine, when they have changed. The caller closes the result.
func (b *Board) Follow(principal string, changed func()) *Asked {
	a := &Asked{board: b, principal: principal, changed: changed}
	b.fmu.Lock()
	defer b.fmu.Unlock()
	if s := b.follows[principal]; s != nil {
		a.shared = s
		s.mu.Lock()
		s.readers[a] = true
		s.mu.Unlock()
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		w := b.Watch(principal)
		done := make(chan struct{})
		a.shared = &asking{readers: map[*Asked]bool{a: true}, stop: func() { cancel(); <-done }}
		b.follows[principal] = a.shared
		go func(s *asking) {
			defer close(done)
			s.follow(ctx, w)
		}(a.shared)
	}
	return a
}

func byName(a, b wire.Target) int {
	return cmp.Or(strings.Compare(a.Sandbox, b.Sandbox), strings.Compare(a.Session, b.Session))
}

// follow keeps the targets up to date until ctx or the board ends.
func (s *asking) follow(ctx context.Context, w *Watch) {
	defer w.Close()
	asks := make(map[wire.Target]bool)
	for {
		news, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, n := range news {
			if n.Needs == Answer && !n.Gone && n.drives {
				asks[n.Target()] = true
			} else {
				delete(asks, n.Target())
			}
		}
		s.set(slices.SortedFunc(maps.Keys(asks), byName))
	}
}

func (s *asking) set(targets []wire.Target) {
	s.mu.Lock()
	if slices.Equal(s.targets, targets) {
		s.mu.Unlock()
		return
	}
	s.targets = targets
	readers := slices.Collect(maps.Keys(s.readers))
	s.mu.Unlock()
	for _, a := range readers {
		a.changed()
	}
}

// Others returns how many sessions beside self ask, and the one to look at after self: by name, and
// from the first again after the last.
func (a *Asked) Others(self wire.Target) (n int, next wire.Target) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(a.shared.targets),
		func(t wire.Target) bool { return t == self })
	if len(others) == 0 {
		return 0, wire.Target{}
	}
	after := slices.IndexFunc(others, func(t wire.Target) bool { return byName(t, self) > 0 })
	return len(others), others[max(after, 0)]
}

// Close ends the reader, and may wait for a call of changed. A call that has begun may end after
// Close. The caller holds no lock that changed or the Source takes.
func (a *Asked) Close() {
	b := a.board
	b.fmu.Lock()
	defer b.fmu.Unlock()
	a.shared.mu.Lock()
	delete(a.shared.readers, a)
	last := len(a.shared.readers) == 0
	a.shared.mu.Unlock()
	if last {
		delete(b.follows, a.principal)
		a.shared.stop()
	}
}
