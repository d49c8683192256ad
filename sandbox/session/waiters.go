package session

import "context"

// waiters are the callers for whom the prober looks. Its fields are guarded by session.mu.
type waiters struct {
	s       *session
	all     int
	calm    int           // those who are in no hurry
	watched bool          // the goroutine that looks is running
	gone    chan struct{} // closed when all becomes 0
}

// addLocked counts a caller for whom the prober looks, until release is called.
func (w *waiters) addLocked() (release func()) {
	s := w.s
	w.all++
	if w.all == 1 {
		w.gone = make(chan struct{})
	}
	s.fireLocked() // whoever comes anew is not kept waiting by a long rest
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

// monitor keeps the prober observing until ctx ends, less often than for a call that waits.
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

// calmLocked reports whether all waiters only monitor the state.
func (w *waiters) calmLocked() bool { return w.all == w.calm }
