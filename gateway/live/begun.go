package live

import (
	"context"
	"io"
	"math"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// announced are the newest commands of a session and where their output begins, for readers that
// follow one from its first byte. The zero value is ready.
type announced struct {
	recent [32]struct {
		op string
		at uint64
	}
	next int
}

func (a *announced) add(e wire.Event) {
	slot := &a.recent[a.next%len(a.recent)]
	slot.op, slot.at = e.Op, e.Offset
	a.next++
}

func (a *announced) find(op string) (uint64, bool) {
	for _, c := range a.recent {
		if c.op == op && op != "" {
			return c.at, true
		}
	}
	return 0, false
}

// LastBegun returns where the output of the newest command begins in the log, as far as its shell
// reported it. ok is false when the daemon has heard of no command.
func (s *Session) LastBegun() (at uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.announced
	if a.next == 0 {
		return 0, false
	}
	return a.recent[(a.next-1)%len(a.recent)].at, true
}

// Began waits until a run with that op has begun and returns where its output begins in the log. It
// returns ctx's cause when that does not come, and io.EOF when the session has ended for good.
func (s *Session) Began(ctx context.Context, op string) (uint64, error) {
	for {
		s.mu.Lock()
		at, found := s.announced.find(op)
		ended, closed, wait := s.ended, s.closed, s.changedLocked()
		s.mu.Unlock()
		switch {
		case found:
			return at, nil
		case ended:
			return 0, io.EOF
		case closed != nil:
			return 0, closed
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// edges are the newest places at which a run's output begins or ends. A reader of the replica that
// gets events by another way must get the event of an edge before it reads beyond. The zero value
// is ready.
type edges struct {
	recent [64]edge
	next   int
}

type edge struct{ at, seq uint64 }

func (s *edges) add(e wire.Event) {
	s.recent[s.next%len(s.recent)] = edge{e.Offset, e.Seq}
	s.next++
}

// Edge returns how far a reader that has the events up to seq may read from offset at.
func (s *Session) Edge(at, seq uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := uint64(math.MaxUint64)
	for _, e := range s.edges.recent {
		if e.seq > seq && e.at >= at {
			limit = min(limit, e.at)
		}
	}
	return limit
}
