package session

import "time"

const (
	// keeperLag is how far the terminal runs ahead of the stream that keeps the log.
	keeperLag = logSize / 2
	// keeperPatience is how long it waits for one that takes nothing.
	keeperPatience = 2 * time.Second
)

// keeper is the stream of whoever keeps the log beyond what the session does: the daemon, which records it. A program that prints
// faster than is recorded is slowed down, as by a slow terminal; without that its output would be gone before anybody had it.
// Nobody else is waited for, and a keeper that takes nothing for keeperPatience only until then: it is waited for again once
// it has caught up. The zero value is nobody.
type keeper struct {
	stream *stream
	sent   uint64        // offset up to which it has the log
	stuck  bool          // not waited for
	moved  chan struct{} // closed when any of that changes; nil while nobody waits
}

// keep makes st, which has the log up to offset at, its keeper.
func (l *log) keep(st *stream, at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeper.stream, l.keeper.sent, l.keeper.stuck = st, at, false
	l.movedLocked()
}

// unkeep says that st has ended.
func (l *log) unkeep(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper.stream == st {
		l.keeper.stream = nil
		l.movedLocked()
	}
}

// kept says that st has the log up to offset at.
func (l *log) kept(st *stream, at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.keeper
	if k.stream != st {
		return
	}
	k.sent = at
	if l.shownLocked()-min(at, l.shownLocked()) <= keeperLag {
		k.stuck = false
	}
	l.movedLocked()
}

func (l *log) movedLocked() {
	if l.keeper.moved != nil {
		close(l.keeper.moved)
		l.keeper.moved = nil
	}
}

// await waits while the keeper is too far behind, or until done is closed.
func (l *log) await(done <-chan struct{}) {
	for {
		l.mu.Lock()
		k := &l.keeper
		end := l.shownLocked()
		if k.stream == nil || k.stuck || end-min(k.sent, end) <= keeperLag {
			l.mu.Unlock()
			return
		}
		if k.moved == nil {
			k.moved = make(chan struct{})
		}
		moved := k.moved
		l.mu.Unlock()
		patience := time.NewTimer(keeperPatience)
		select {
		case <-moved:
		case <-done:
		case <-patience.C:
			l.mu.Lock()
			k.stuck = k.moved == moved // nothing was taken since
			l.mu.Unlock()
		}
		patience.Stop()
		select {
		case <-done:
			return
		default:
		}
	}
}
