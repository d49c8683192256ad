package session

import "time"

const (
	// keeperLag is how far the terminal may be ahead of the keeper.
	keeperLag = logSize / 2
	// keeperPatience is how long the terminal waits for a keeper that reads nothing.
	keeperPatience = 2 * time.Second
)

// keeper is the daemon's stream, which records the log. A program that prints faster than the
// keeper reads is slowed down, as by a slow terminal, so that no output is lost. The terminal waits
// for no other stream. It stops waiting for a keeper that reads nothing for keeperPatience, until
// the keeper has caught up. The zero value is no keeper.
type keeper struct {
	stream *stream
	sent   uint64        // log offset up to which it has read
	stuck  bool          // not waited for
	moved  chan struct{} // closed when any of these changes; nil if nothing waits
}

// keep makes st, which has read up to offset at, the keeper.
func (l *log) keep(st *stream, at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeper.stream, l.keeper.sent, l.keeper.stuck = st, at, false
	l.movedLocked()
}

// unkeep removes the keeper st, which has ended.
func (l *log) unkeep(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper.stream == st {
		l.keeper.stream = nil
		l.movedLocked()
	}
}

// kept records that st has read up to offset at.
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
			k.stuck = k.moved == moved // nothing was read since
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
