package session

import "context"

// waiters counts the callers that need the prober. Its fields are guarded by session.mu.
type waiters struct {
	s       *session
	all     int
	calm    int           // monitoring callers, which need it less often
	watched bool          // the observer is running
	gone    chan struct{} // closed when all is 0
}

// addLocked counts a caller that needs the prober, until release is called.
func (w *waiters) addLocked() (release func()) {
	s := w.s
	w.all++
	if w.all == 1 {
		w.gone = make(chan struct{})
	}
	s.fireLocked() // a new caller ends a long pause
	if !w.watched && !s.closed {
		w.watched = true
		s.spawn(func() { (&observer{s: s, anew: true}).run() })
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.all--
		if w.all == 0 {
			close(w.gone)
		}
	}
}

// monitor runs the prober now and then until ctx ends, less often than for a waiting call.
func (w *waiters) monitor(ctx context.Context) {
	s := w.s
	s.mu.Lock()
	release := w.addLocked()
	w.calm++
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	w.calm--
	s.mu.Unlock()
	release()
}

// calmLocked reports whether all callers only monitor.
func (w *waiters) calmLocked() bool { return w.all == w.calm }
