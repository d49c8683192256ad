package session

import "context"

// heed makes the prober look, now and then, until ctx ends. Whoever only wants to hear of a state
// is no reason to look as often as for a call that waits.
func (s *session) heed(ctx context.Context) {
	s.mu.Lock()
	release := s.waitLocked()
	s.heeders++
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.heeders--
	s.mu.Unlock()
	release()
}

// calmLocked reports whether nobody waits but those who heed.
func (s *session) calmLocked() bool { return s.waiters == s.heeders }
