package attention

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

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
	seen      time.Time // guarded by shared.mu; Began has returned what asked before
}

// asking is what the readers of one principal share.
type asking struct {
	stop func() // ends the watch, and waits for it

	mu      sync.Mutex
	readers map[*Asked]bool // guarded by mu
	all     []asker         // guarded by mu; by sandbox and session
}

// asker is a session that asks.
type asker struct {
	wire.Target
	since time.Time // when the daemon noticed that; zero if it asked before it was followed
}

// Follow returns a reader of the sessions that ask principal, which calls changed, from any
// goroutine, when they have changed. The caller closes the result.
func (b *Board) Follow(principal string, changed func()) *Asked {
	begun := time.Now()
	a := &Asked{board: b, principal: principal, changed: changed, seen: begun}
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
			s.follow(ctx, w, begun)
		}(a.shared)
	}
	return a
}

func byName(a, b asker) int {
	return cmp.Or(strings.Compare(a.Sandbox, b.Sandbox), strings.Compare(a.Session, b.Session))
}

// follow keeps the targets up to date until ctx or the board ends. What asked before begun is not
// new.
func (s *asking) follow(ctx context.Context, w *Watch, begun time.Time) {
	defer w.Close()
	asks := make(map[wire.Target]asker)
	begun = begun.Truncate(time.Millisecond) // as exact as Since
	for {
		news, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, n := range news {
			if n.Needs == Answer && !n.Gone && n.drives {
				if _, already := asks[n.Target()]; already {
					continue
				}
				by := asker{Target: n.Target()}
				// A guest that nobody watched reports a question when it is followed.
				if !n.Since.Before(begun) {
					by.since = time.Now()
				}
				asks[n.Target()] = by
			} else {
				delete(asks, n.Target())
			}
		}
		s.set(slices.SortedFunc(maps.Values(asks), byName))
	}
}

func (s *asking) set(all []asker) {
	s.mu.Lock()
	if slices.Equal(s.all, all) {
		s.mu.Unlock()
		return
	}
	s.all = all
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
	others := slices.DeleteFunc(slices.Clone(a.shared.all),
		func(o asker) bool { return o.Target == self })
	if len(others) == 0 {
		return 0, wire.Target{}
	}
	after := slices.IndexFunc(others,
		func(o asker) bool { return byName(o, asker{Target: self}) > 0 })
	return len(others), others[max(after, 0)].Target
}

// Began returns the sessions that ask and have begun to since Follow, or since the last call.
func (a *Asked) Began() (began []wire.Target) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	seen := a.seen
	for _, s := range a.shared.all {
		if s.since.After(a.seen) {
			began = append(began, s.Target)
		}
		if s.since.After(seen) {
			seen = s.since
		}
	}
	a.seen = seen
	return began
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
